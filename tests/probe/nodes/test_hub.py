"""The first node's hub and real connections to it."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from stratadvisor.errors import ProbeError
from stratadvisor.probe.nodes import lines
from stratadvisor.probe.nodes.hub import Hub
from stratadvisor.probe.nodes.member import SocketWire
from stratadvisor.probe.nodes.messages import MAX_LINE_BYTES, Event, line_of

GENEROUS = 120.0
Caller = Callable[..., socket.socket]


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub(socket.create_server(("127.0.0.1", 0)), "key", 3)
    yield made
    made.close()


@pytest.fixture
def call(hub: Hub) -> Iterator[Caller]:
    """Connect and say hello."""
    opened: list[socket.socket] = []

    def dial(rank: int | None, key: str = "key") -> socket.socket:
        channel = socket.create_connection(hub._listener.getsockname())
        opened.append(channel)
        channel.sendall(json.dumps({"rank": rank, "hostname": f"n{rank}", "key": key}).encode() + b"\n")
        return channel

    yield dial
    for channel in opened:
        channel.close()


def next_event(hub: Hub) -> Event:
    event = hub.receive(time.monotonic() + GENEROUS)
    assert event is not None
    return event


def closed_by(hub: Hub, channel: socket.socket) -> bool:
    """Let the hub work until it has closed this connection."""
    channel.settimeout(0.05)
    end = time.monotonic() + GENEROUS
    while time.monotonic() < end:
        assert hub.receive(time.monotonic() + 0.05) is None
        try:
            return channel.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_a_node_comes_speaks_and_ends(hub: Hub, call: Caller) -> None:
    channel = call(1)
    assert (next_event(hub).kind, list(hub.ranks())) == ("hello", [1])
    channel.sendall(line_of("document", {"text": "a"}) + line_of("alive", {}) + line_of("document", {"text": "b"}))
    assert [next_event(hub).value for _ in range(2)] == ["a", "b"]
    channel.close()
    event = next_event(hub)
    assert (event.kind, event.rank) == ("lost", 1)
    assert "its process has ended" in event.value
    assert hub.silence(1) == event.value


def test_nodes_without_a_number_get_the_free_ones(hub: Hub, call: Caller) -> None:
    call(0)
    assert next_event(hub).rank == 0
    call(None)
    call(None)
    assert [next_event(hub).rank for _ in range(2)] == [1, 2]
    assert closed_by(hub, call(None))


@pytest.mark.parametrize(
    "greeting",
    [
        b'{"rank": 1, "hostname": "n", "key": "wrong"}\n',
        b'{"rank": 3, "hostname": "n", "key": "key"}\n',
        b'{"rank": -1, "hostname": "n", "key": "key"}\n',
        b"GET / HTTP/1.1\r\n",
        b"x" * 5000,
        b'{"rank": 1, "hostname": "n", "key": "key", "more": 1}\n',
    ],
)
def test_strangers_are_turned_away(hub: Hub, greeting: bytes) -> None:
    with socket.create_connection(hub._listener.getsockname()) as channel:
        channel.sendall(greeting)
        assert closed_by(hub, channel)
    assert list(hub.ranks()) == []


def test_a_number_is_taken_once(hub: Hub, call: Caller) -> None:
    call(1)
    assert next_event(hub).rank == 1
    assert closed_by(hub, call(1))
    assert list(hub.ranks()) == [1]


@pytest.mark.parametrize(
    "line", [b"[]\n", b"{}\n", b"\xff\n", b'{"kind": "report", "round": -1}\n', b"[" * 100000 + b"\n"]
)
def test_what_is_no_message_is_an_event(hub: Hub, call: Caller, line: bytes) -> None:
    channel = call(1)
    next_event(hub)
    channel.sendall(line)
    event = next_event(hub)
    assert (event.kind, event.rank) == ("nonsense", 1)


def test_a_message_without_end_ends_the_connection(hub: Hub, call: Caller) -> None:
    channel = call(1)
    next_event(hub)
    channel.settimeout(GENEROUS)
    piece = b"x" * (1 << 20)
    channel.setblocking(False)
    sent, event = 0, None
    end = time.monotonic() + GENEROUS
    while event is None and time.monotonic() < end:
        with contextlib.suppress(BlockingIOError):
            sent += channel.send(piece)
        event = hub.receive(time.monotonic() + 0.01)
    assert event is not None
    assert event.kind == "lost"
    assert f"more than {MAX_LINE_BYTES} bytes" in event.value
    assert sent >= MAX_LINE_BYTES


def test_silence_is_noticed_and_the_host_is_said_to_live(
    hub: Hub, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "SILENCE_SECONDS", 3.0)
    call(2)  # it says hello and never again a word, while this machine's kernel acknowledges for it
    assert next_event(hub).kind == "hello"
    event = next_event(hub)
    assert (event.kind, event.rank) == ("lost", 2)
    assert "no sign of life" in event.value
    assert "its process is stopped" in event.value


def test_tasks_arrive_as_lines_and_the_end_of_the_hub_is_told(hub: Hub, call: Caller) -> None:
    channel = call(1)
    next_event(hub)
    hub.send(1, "listen", {"round": 4})
    wire = SocketWire(channel, "here")
    line = wire.receive(GENEROUS)
    assert line is not None
    assert json.loads(line) == {"kind": "listen", "round": 4}
    assert wire.receive(0.01) is None
    hub.close()
    with pytest.raises(ProbeError, match="the first node, at here, is gone"):
        _until_it_ends(wire)


def _until_it_ends(wire: SocketWire) -> None:
    while wire.receive(GENEROUS) is not None:
        pass
