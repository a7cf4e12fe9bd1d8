"""Declared clusters: what is read, what is refused."""

from __future__ import annotations

import os

import pytest

import lab
from lab.naming import alive, birth, cluster_of, new_name, owner

TEXT = """
[defaults]
rate = "1Gb/s"
latency = "2.5ms"

[[host]]
name = "fast"
ranks = 2

[[host]]
name = "slow"
cpu = 0.5
rate = "100Mb/s"
receive = "50Mb/s"
loss = 0.01

[[pair]]
hosts = ["fast", "slow"]
rate = "10Mb/s"
"""


def write(tmp_path, text):
    path = tmp_path / "spec.toml"
    path.write_text(text)
    return path


def test_defaults_reach_every_host_and_its_own_keys_win(tmp_path):
    spec = lab.read_spec(write(tmp_path, TEXT))
    fast, slow = spec.hosts
    assert (fast.name, fast.ranks, fast.cpu) == ("fast", 2, None)
    assert fast.send_bytes_per_second == fast.receive_bytes_per_second == 1e9 / 8
    assert (slow.send_bytes_per_second, slow.receive_bytes_per_second) == (100e6 / 8, 50e6 / 8)
    assert (slow.latency_seconds, slow.loss, slow.cpu) == (0.0025, 0.01, 0.5)
    assert spec.pairs == (lab.Pair(hosts=("fast", "slow"), bytes_per_second=10e6 / 8),)
    assert spec.world_size == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1 to 250 hosts"),
        ("[[host]]\nrate = 5", "must be a text with a unit"),
        ('[[host]]\nrate = "5"', "no unit"),
        ("[[host]]\nspeed = 5", "no key 'speed'"),
        ("[[host]]\nname = 'sw'", "no name for a host"),
        ("[[host]]\nname = 'a b'", "no name for a host"),
        ("[[host]]\ncpu = 0", "cpu must be"),
        ("[[host]]\ncpu = true", "must be a number"),
        ("[[host]]\nranks = 0", "ranks must be"),
        ("[[host]]\nloss = 1", "loss must be"),
        ("[[host]]\ncores = 1", "list of processor numbers"),
        ("[[host]]\ncores = []", "at least one processor"),
        ("[[host]]\nname='a'\n[[host]]\nname='a'", "two hosts are called a"),
        ("[[host]]\n[[pair]]\nhosts=['h1','h9']\nrate='1Mb/s'", "does not name two hosts"),
        ("[[host]]\n[[pair]]\nhosts='h1'", "a [[pair]] has exactly"),
        ("[host]\nname='a'", "as lists of tables"),
        ("[[hosts]]", "no table 'hosts'"),
        ("[[host", "cannot be read"),
    ],
)
def test_what_cannot_be_laid_out_is_said_with_its_place(tmp_path, text, said):
    with pytest.raises(lab.SpecError) as caught:
        lab.read_spec(write(tmp_path, text))
    assert said in str(caught.value)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(lab.SpecError, match="cannot be read"):
        lab.read_spec(tmp_path / "none.toml")


def test_equal_hosts_in_one_line():
    spec = lab.uniform(3, rate="50Mb/s", cpu=0.25)
    assert [host.name for host in spec.hosts] == ["h1", "h2", "h3"]
    assert {(host.send_bytes_per_second, host.cpu) for host in spec.hosts} == {(50e6 / 8, 0.25)}


def test_a_name_tells_its_owner_from_a_later_process_of_the_same_number():
    mine = new_name()
    assert cluster_of(f"{mine}.h1") == cluster_of(f"{mine}.json") == cluster_of(mine) == mine
    assert owner(mine) == os.getpid()
    assert alive(mine)
    earlier = f"netlab-{os.getpid()}-{birth(os.getpid()) - 1}-1"
    assert not alive(earlier)
    assert cluster_of("somebody-elses") is None


def test_the_remains_of_a_process_own_nothing():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has taken its status
    try:
        assert birth(child) is None
    finally:
        os.waitpid(child, 0)
    assert birth(child) is None
