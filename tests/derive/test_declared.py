"""Clusters that nobody measured."""

from __future__ import annotations

import pytest

from stratadvisor.derive import declared
from stratadvisor.derive.cluster import planning_cluster
from stratadvisor.errors import ProfileError, UsageError


def test_one_line_gives_nodes_counts_types_and_rates():
    profile = declared.parse_gpus("2x8xA100-80GB,1x4xV100-32GB", inter_node="100Gb/s", intra_node="250GB/s")
    assert [(n.count, len(n.devices)) for n in profile.nodes] == [(2, 8), (1, 4)]
    assert profile.nodes[0].network_bytes_per_second.value == 100e9 / 8
    assert profile.nodes[0].network_bytes_per_second.origin == "declared"
    assert profile.nodes[1].intra_node_bytes_per_second.value == 250e9


def test_a_single_group_needs_no_node_count():
    assert declared.parse_gpus("4xRTX4090").nodes[0].count == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A100", "COUNTxTYPE"),
        ("0x8xA100-80GB", "0 nodes"),
        ("8xA100-80GB,", "COUNTxTYPE"),
        ("8xFooCard", "FooCard"),
        ("99999xA100-80GB", "devices in a node"),
        ("9999999x8xA100-80GB", "9999999 nodes"),
    ],
)
def test_a_wrong_line_is_refused_by_name(text, words):
    with pytest.raises(UsageError) as caught:
        declared.parse_gpus(text)
    assert words in caught.value.message


def test_a_rate_without_a_unit_is_refused():
    with pytest.raises(UsageError, match="no unit"):
        declared.parse_gpus("2x8xA100-80GB", inter_node="200")


def test_a_misspelt_type_gets_its_neighbours():
    with pytest.raises(UsageError) as caught:
        declared.parse_gpus("8xA100-80G8")
    assert "A100" in caught.value.hint


FILE = """
name = "lab"
inter_node = "100Gb/s"

[[node]]
count = 2
gpus = "8xA100-80GB"
cpu_cores = 64
host_memory = "1TiB"

[[node]]
hostnames = ["old1", "old2"]
count = 2
gpus = "4xMystery"
network = "1GB/s"
device = { memory = "16GiB", bf16 = "50TFLOP/s", memory_bandwidth = "600GB/s" }
"""


def test_a_cluster_file_is_read_with_declared_origins(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(FILE)
    profile = declared.read_cluster_file(path)
    cluster = planning_cluster(profile)
    assert [(c.num_nodes, c.devices_per_node) for c in cluster.classes] == [(2, 8), (2, 4)]
    big, mystery = cluster.classes
    assert big.cpu_cores == 64
    assert big.host_memory_bytes == 2**40
    assert mystery.device.memory_total_bytes == 16 * 2**30
    assert mystery.device.measured_flops_per_second == {"bf16": 50e12}
    assert mystery.hostnames == ("old1", "old2")
    # the slowest node that takes part sets the rate between nodes
    assert cluster.inter_node_bytes_per_second == 1e9


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "node"),
        ("x = [", "not TOML"),
        ('[[node]]\ngpus = "8xA100-80GB"\ncolour = 1\n', "colour"),
        ('[[node]]\ngpus = "8xA100-80GB"\ncount = 0\n', "count"),
        ('[[node]]\ngpus = "8xA100-80GB"\nhost_memory = "64"\n', "host_memory"),
        ('[[node]]\ngpus = "8xMystery"\n', "Mystery"),
        ('[[node]]\ngpus = "8xA100-80GB"\nhostnames = ["a;rm -rf"]\n', "not a host name"),
        ('[[node]]\ngpus = "8xA100-80GB"\ncount = 3\nhostnames = ["a"]\n', "1 hostnames"),
    ],
)
def test_a_wrong_cluster_file_is_refused_with_its_place(tmp_path, content, words):
    path = tmp_path / "c.toml"
    path.write_text(content)
    with pytest.raises(ProfileError) as caught:
        declared.read_cluster_file(path)
    assert words in caught.value.message
    assert str(path) in caught.value.message
