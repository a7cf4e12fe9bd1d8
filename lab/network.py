"""Namespaces, links, the bridge between them, and their shaping."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from lab.errors import LabError
from lab.shell import call
from lab.spec import SWITCH, Host, Spec

DEVICE = "eth0"
"""The network device inside every host."""
BRIDGE = "br0"
SUBNET = "10.77.0"
_QUEUE_SECONDS = 0.2
"""Longest wait in the queue of a shaped link, as the buffer of a switch gives it."""


def address(index: int) -> str:
    """Return the address of the host at a place in the list."""
    return f"{SUBNET}.{index + 1}"


def burst_bytes(bytes_per_second: float) -> int:
    """Return the bucket of a shaper: 2 ms of the rate, so that not even small messages pass above it."""
    return max(16_000, round(bytes_per_second * 0.002))


def _shape(namespace: str, device: str, bytes_per_second: float | None) -> None:
    """Set or take away the rate at which a device sends."""
    if bytes_per_second is None:
        if " tbf " in call("tc", "-n", namespace, "qdisc", "show", "dev", device):
            call("tc", "-n", namespace, "qdisc", "delete", "dev", device, "root")
        return
    call(
        *("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf"),
        *("rate", f"{round(bytes_per_second * 8)}bit", "burst", str(burst_bytes(bytes_per_second))),
        *("latency", f"{_QUEUE_SECONDS * 1000:.0f}ms"),
    )


class Network:
    """The namespaces of one cluster, called ``NAME.HOST``, and the bridge in ``NAME.sw``."""

    def __init__(self, name: str, spec: Spec) -> None:
        self.name, self.spec = name, spec
        self.relay: subprocess.Popen[str] | None = None
        self.relay_words: list[str] = []
        """What stands before the command of the relay, such as entering a control group."""
        self._delayed = [i for i, host in enumerate(spec.hosts) if host.latency_seconds or host.loss]

    def namespace(self, host: str) -> str:
        """Return the namespace of a host."""
        return f"{self.name}.{host}"

    @property
    def switch(self) -> str:
        """The namespace of the bridge."""
        return f"{self.name}.{SWITCH}"

    def build(self) -> None:
        """Lay everything out.

        Raises:
            LabError: a command failed; what was laid out so far stays, for the caller to remove.

        """
        self._namespace(self.switch)
        call("ip", "-n", self.switch, "link", "add", BRIDGE, "type", "bridge")
        call("ip", "-n", self.switch, "link", "set", BRIDGE, "up")
        for index, host in enumerate(self.spec.hosts):
            self._host(index, host)
        if self._delayed:
            self._start_relay()

    def _namespace(self, name: str) -> None:
        call("ip", "netns", "add", name)
        # no neighbour discovery in the measurements, and one address per device
        quiet = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6"
        call("ip", "netns", "exec", name, "sh", "-c", f"test ! -d /proc/sys/net/ipv6 || {quiet}")
        call("ip", "-n", name, "link", "set", "lo", "up")

    def _host(self, index: int, host: Host) -> None:
        inside, port = self.namespace(host.name), f"p{index}"
        self._namespace(inside)
        call(
            *("ip", "-n", self.switch, "link", "add", port, "type", "veth"),
            *("peer", "name", DEVICE, "netns", inside),
        )
        call("ip", "-n", self.switch, "link", "set", port, "up")
        if index not in self._delayed:
            call("ip", "-n", self.switch, "link", "set", port, "master", BRIDGE)
        call("ip", "-n", inside, "address", "add", f"{address(index)}/24", "dev", DEVICE)
        call("ip", "-n", inside, "link", "set", DEVICE, "up")
        self.shape(host.name, host.send_bytes_per_second, host.receive_bytes_per_second)

    def shape(self, host: str, send_bytes_per_second: float | None, receive_bytes_per_second: float | None) -> None:
        """Set the rates of a host's link; None is unshaped."""
        index = [h.name for h in self.spec.hosts].index(host)
        if any(host in pair.hosts for pair in self.spec.pairs):
            self._shape_pairs(host, send_bytes_per_second)
        else:
            _shape(self.namespace(host), DEVICE, send_bytes_per_second)
        _shape(self.switch, f"p{index}", receive_bytes_per_second)

    def _shape_pairs(self, host: str, send_bytes_per_second: float | None) -> None:
        """Shape what a host sends by its receiver: one class for the whole link, in it one for each slow pair."""
        tc = ("tc", "-n", self.namespace(host))
        whole = send_bytes_per_second or 12.5e9

        def one_class(parent: str, name: str, bytes_per_second: float) -> None:
            rate = f"{round(bytes_per_second * 8)}bit"
            burst = str(burst_bytes(bytes_per_second))
            call(
                *(*tc, "class", "add", "dev", DEVICE, "parent", parent, "classid", name, "htb"),
                *("rate", rate, "ceil", rate, "burst", burst, "cburst", burst, "quantum", "60000"),
            )

        if " htb " in call(*tc, "qdisc", "show", "dev", DEVICE):
            call(*tc, "qdisc", "delete", "dev", DEVICE, "root")
        call(*tc, "qdisc", "add", "dev", DEVICE, "root", "handle", "1:", "htb", "default", "2")
        one_class("1:", "1:1", whole)
        one_class("1:1", "1:2", whole)
        names = [h.name for h in self.spec.hosts]
        slow = [pair for pair in self.spec.pairs if host in pair.hosts]
        for number, pair in enumerate(slow, start=16):
            other = next(name for name in pair.hosts if name != host)
            one_class("1:1", f"1:{number:x}", min(whole, pair.bytes_per_second))
            call(
                *(*tc, "filter", "add", "dev", DEVICE, "parent", "1:", "protocol", "ip", "prio", str(number)),
                *("u32", "match", "ip", "dst", f"{address(names.index(other))}/32", "flowid", f"1:{number:x}"),
            )

    def _start_relay(self) -> None:
        """Put two TAP devices between the port of each delayed host and the bridge."""
        hosts = self.spec.hosts
        links = [(f"a{i}", f"b{i}", hosts[i].latency_seconds, hosts[i].loss) for i in self._delayed]
        self.relay = subprocess.Popen(
            [
                *(*self.relay_words, "ip", "netns", "exec", self.switch, sys.executable, "-I", "-S"),
                *(str(Path(__file__).with_name("relay.py")), json.dumps(links)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.relay.stdout is not None
        assert self.relay.stderr is not None
        if self.relay.stdout.readline().strip() != "ready":
            said = self.relay.stderr.read().strip().splitlines()
            raise LabError(f"the relay for latency did not start: {said[-1] if said else 'it ended'}")
        for index in self._delayed:
            near, link = f"n{index}", ("ip", "-n", self.switch, "link")
            call(*link, "add", near, "type", "bridge")
            for device, master in ((f"p{index}", near), (f"a{index}", near), (f"b{index}", BRIDGE)):
                call(*link, "set", device, "master", master)
                call(*link, "set", device, "up")
            call(*link, "set", near, "up")

    def delay(self, host: str, latency_seconds: float, loss: float) -> None:
        """Change the latency and loss of a host that was laid out with some.

        Raises:
            LabError: it was laid out without, or the relay is gone.

        """
        names = [self.spec.hosts[i].name for i in self._delayed]
        if host not in names or self.relay is None or self.relay.stdin is None:
            raise LabError(f"{host} was laid out without latency: give it a little to change it later")
        try:
            self.relay.stdin.write(f"{names.index(host)} {latency_seconds} {loss}\n")
            self.relay.stdin.flush()
        except OSError as problem:
            raise LabError(f"the relay for latency is gone: {problem}") from None

    def link(self, host: str, *, up: bool) -> None:
        """Pull the cable of a host, or put it back."""
        index = [h.name for h in self.spec.hosts].index(host)
        call("ip", "-n", self.switch, "link", "set", f"p{index}", "up" if up else "down")

    def close(self) -> None:
        """Let go of the relay's pipes; the process itself goes with its namespace."""
        if self.relay is not None:
            for pipe in (self.relay.stdin, self.relay.stdout, self.relay.stderr):
                if pipe is not None:
                    pipe.close()
            self.relay.wait()
