"""The lab on this machine: what was declared is what one measures, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import lab
from lab import measure
from lab.shell import namespaces, pids
from lab.sweep import groups, state_files

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _lab_is_here():
    reason = lab.unavailable()
    if reason is not None:
        pytest.skip(reason)


def remains(name):
    """Return every trace of a cluster."""
    found = [space for space in namespaces() if space.startswith(f"{name}.")]
    found += [str(path) for path in groups() if path.name.startswith(f"{name}.")]
    return found + [str(path) for path in state_files() if path.stem == name]


def hosts(**settings):
    return lab.Spec(hosts=tuple(lab.spec.host(name, given) for name, given in settings.items()))


def test_rates_latency_and_a_slow_pair_are_as_declared():
    base = hosts(a={"rate": "100Mb/s"}, b={}, c={"latency": "10ms"}, d={"send": "20Mb/s", "receive": "200Mb/s"})
    spec = lab.Spec(hosts=base.hosts, pairs=(lab.Pair(hosts=("b", "c"), bytes_per_second=50e6 / 8),))
    with lab.cluster(spec) as cluster:
        for source, sink, declared in (
            ("a", "b", 100e6),
            ("b", "a", 100e6),
            ("d", "b", 20e6),
            ("b", "d", 200e6),
            ("b", "c", 50e6),
        ):
            num_bytes = declared / 8 * 0.4
            rates = [measure.bytes_per_second(cluster, source, sink, num_bytes) * 8 for _ in range(3)]
            assert statistics.median(rates) == pytest.approx(declared, rel=0.08), (source, sink, rates)
        # one way 10 ms on the link of c, nothing on that of a: 20 ms there and back
        times = [measure.round_trip_seconds(cluster, "a", "c") for _ in range(3)]
        assert statistics.median(times) == pytest.approx(0.020, rel=0.20), times
        speed = cluster.run("a", ["cat", "/sys/class/net/eth0/speed"]).stdout.strip()
        assert speed == "10000"  # the device claims 10 Gb/s whatever the shaping: only measuring tells


def test_shares_of_the_processor_are_as_declared_and_change_while_a_host_computes():
    with lab.cluster(hosts(fast={"cpu": 0.4}, slow={"cpu": 0.1})) as cluster:
        ratios = []
        for _ in range(3):
            fast, slow = measure.processor_shares(cluster, ["fast", "slow"], 0.15)
            ratios.append(fast / slow)
        assert statistics.median(ratios) == pytest.approx(0.4 / 0.1, rel=0.15), ratios
        cluster.set_cpu("slow", 0.4)
        ratios = []
        for _ in range(3):
            fast, slow = measure.processor_shares(cluster, ["fast", "slow"], 0.15)
            ratios.append(fast / slow)
        assert statistics.median(ratios) == pytest.approx(1.0, rel=0.15), ratios


def test_rate_and_latency_change_while_the_cluster_stands():
    with lab.cluster(hosts(a={"rate": "100Mb/s", "latency": "1ms"}, b={})) as cluster:
        cluster.set_rate("a", 20e6 / 8, 20e6 / 8)
        cluster.set_latency("a", 0.020)
        rates = [measure.bytes_per_second(cluster, "a", "b", 1e6) * 8 for _ in range(3)]
        assert statistics.median(rates) == pytest.approx(20e6, rel=0.08), rates
        times = [measure.round_trip_seconds(cluster, "a", "b", count=10) for _ in range(3)]
        assert statistics.median(times) == pytest.approx(0.040, rel=0.20), times
        with pytest.raises(lab.LabError, match="without latency"):
            cluster.set_latency("b", 0.001)


def test_every_host_has_its_own_name_addresses_and_processors():
    with lab.cluster(hosts(one={"ranks": 2, "cores": [0]}, two={})) as cluster:
        assert cluster.run("one", ["hostname"]).stdout.strip() == "one"
        assert cluster.addresses["two"] in cluster.run("two", ["ip", "-brief", "address", "show", "eth0"]).stdout
        count = "import os; print(len(os.sched_getaffinity(0)), os.environ['WHO'])"
        assert cluster.run("one", [sys.executable, "-c", count], {"WHO": "me"}).stdout.split() == ["1", "me"]
        assert [(r.host.name, r.rank, r.local_rank) for r in cluster.ranks()] == [
            ("one", 0, 0),
            ("one", 1, 1),
            ("two", 2, 0),
        ]
        assert cluster.rank_environment(cluster.ranks()[2])["MASTER_ADDR"] == cluster.addresses["one"]
        with pytest.raises(lab.LabError, match="ended with 3"):
            cluster.run("one", ["sh", "-c", "exit 3"])
        with pytest.raises(lab.LabError, match="no host 'three'"):
            cluster.run("three", ["true"])


def test_a_forked_process_enters_a_host():
    with lab.cluster(hosts(one={"cores": [0]}, two={})) as cluster:
        place = cluster.place("one")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            place.enter()
            space, devices = os.readlink("/proc/self/ns/net"), "+".join(sorted(os.listdir("/sys/class/net")))
            os.write(writing, f"{os.uname().nodename} {space} {len(os.sched_getaffinity(0))} {devices}".encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            name, space, cores, devices = pipe.read().split()
        assert os.waitpid(child, 0)[1] == 0
        assert (name, cores, devices) == ("one", "1", "eth0+lo")
        assert Path("/sys/class/net").exists()
        assert cluster.run("one", ["readlink", "/proc/self/ns/net"]).stdout.strip() == space
        assert os.uname().nodename != "one"


def test_killed_frozen_and_cut_hosts():
    with lab.cluster(hosts(one={}, two={})) as cluster:
        sleeper = cluster.popen("one", ["sleep", "1000"])
        other = cluster.popen("two", ["sh", "-c", "echo here; exec sleep 1000"], stdout=subprocess.PIPE, text=True)
        assert other.stdout.readline() == "here\n"
        cluster.freeze("two")
        states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in cluster.pids("two")]
        assert states
        assert set(states) == {"T"}
        cluster.thaw("two")
        cluster.kill("two")
        assert other.wait(timeout=60) == -signal.SIGKILL
        other.stdout.close()
        cluster.cut("one")
        assert "NO-CARRIER" in cluster.run("one", ["ip", "-brief", "link", "show", "eth0"]).stdout
        cluster.mend("one")
        assert measure.bytes_per_second(cluster, "one", "two", 1e5) > 0
    assert sleeper.wait(timeout=60) == -signal.SIGKILL  # it ran on when the block ended


def test_nothing_stays_behind_not_even_after_an_error():
    with pytest.raises(KeyError), lab.cluster(hosts(one={"latency": "1ms", "cpu": 0.5}, two={})) as cluster:  # noqa: PT012
        name = cluster.name
        child = cluster.popen("one", ["sh", "-c", "setsid sleep 1000 & echo x; wait"], stdout=subprocess.PIPE)
        assert child.stdout.read(1) == b"x"
        assert len(remains(name)) >= 4
        everything = [pid for space in namespaces() if space.startswith(f"{name}.") for pid in pids(space)]
        assert len(everything) >= 2
        raise KeyError
    assert remains(name) == []
    child.stdout.close()
    child.wait(timeout=60)


def test_a_cluster_that_cannot_be_finished_is_taken_away():
    """A rate that rounds to nothing makes the shaping of the second host fail."""
    one = lab.Host(name="one", cpu=0.5)
    whole = lab.Spec(hosts=(one, lab.Host(name="three", send_bytes_per_second=1e-9)))
    with pytest.raises(lab.LabError, match="tbf"), lab.cluster(whole):  # pragma: no branch
        pass
    mine = f"netlab-{os.getpid()}-"
    assert [space for space in namespaces() if space.startswith(mine)] == []
    assert [path for path in groups() if path.name.startswith(mine)] == []


CRASHING = """
import lab, subprocess, sys, time
spec = lab.Spec(hosts=(lab.spec.host("h1", {"latency": "1ms", "cpu": 0.5}), lab.spec.host("h2", {})))
with lab.cluster(spec) as c:
    child = c.popen("h1", ["sh", "-c", "echo started; exec sleep 1000"], stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    print(c.name, flush=True)
    time.sleep(1000)
"""


def test_what_a_killed_owner_leaves_is_swept():
    owner = subprocess.Popen([sys.executable, "-c", CRASHING], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    name = owner.stdout.readline().strip()
    assert name
    before = remains(name)
    sleepers = pids(f"{name}.h1")
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert len(before) >= 6  # three namespaces, two groups at least, the file
    assert sleepers
    lab.sweep()
    assert remains(name) == []
    assert name not in lab.leavings()
    assert not any(Path(f"/proc/{pid}").exists() and _running(pid) for pid in sleepers)


def _running(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")


def test_a_sweep_leaves_living_owners_alone():
    with lab.cluster(hosts(one={})) as cluster:
        before = remains(cluster.name)
        done = subprocess.run([sys.executable, "-m", "lab", "sweep"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert remains(cluster.name) == before


def test_without_root_there_is_a_reason():
    os.seteuid(65534)
    try:
        reason = lab.unavailable()
        with pytest.raises(lab.LabUnavailableError, match="needs root"), lab.cluster(hosts(one={})):
            pass
    finally:
        os.seteuid(0)
    assert "needs root" in reason


def command(*words):
    return subprocess.run([sys.executable, "-m", "lab", *words], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_the_command_line(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text('[[host]]\nrate = "10Mb/s"\n[[host]]\n')
    up = command("up", str(path))
    assert up.returncode == 0, up.stderr
    name = up.stdout.split()[0]
    try:
        assert "h2=10.77.0.2" in up.stdout
        assert f"{name} h1 h2" in command("list").stdout
        assert command("run", "--name", name, "h2", "--", "hostname").stdout.strip() == "h2"
        assert command("run", "--name", name, "h1", "--", "sh", "-c", "exit 7").returncode == 7
        missing = command("run", "--name", name, "h9", "--", "true")
        assert (missing.returncode, missing.stderr) == (1, "error: there is no host 'h9'; there are h1, h2\n")
    finally:
        down = command("down", name)
    assert down.returncode == 0, down.stderr
    assert remains(name) == []
    assert "no cluster" in command("down", name).stderr
    path.write_text("[[host]]\nspeed = 1\n")
    wrong = command("up", str(path))
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: host h1: there is no key 'speed'")
