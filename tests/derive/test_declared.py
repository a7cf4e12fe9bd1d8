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


def test_a_line_has_four_thousand_characters_at_most():
    part = "8xA100-80GB,"
    fits = (part * (4000 // len(part)))[:-1]
    assert len(declared.parse_gpus(fits).nodes) == 4000 // len(part)
    with pytest.raises(UsageError, match="longer than 4000 characters"):
        declared.parse_gpus(fits + "," + part * 2)


def test_a_type_longer_than_a_file_may_have_is_refused_by_its_field():
    with pytest.raises(UsageError, match="--gpus: gpus"):
        declared.parse_gpus("8x" + "A" * 300)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[[node]]\ngpus = "A100-80GB"\n', "'A100-80GB' is not COUNTxTYPE"),
        ('[[node]]\ngpus = "8xA100-80GB"\nhost_memory = "0GiB"\n', "host_memory: '0GiB' is not a positive quantity"),
        ('[[node]]\ngpus = "8xA100-80GB"\nnetwork = "0GB/s"\n', "network: '0GB/s' is not a positive quantity"),
        ('[[node]]\ngpus = "8xA100-80GB"\nnetwork = "1e-9B/s"\n', "not a possible rate"),
        ('[[node]]\ngpus = "8xA100-80GB"\nstorage_read = "5"\n', "storage_read: "),
        ('[[node]]\ngpus = "8xA100-80GB"\nintra_nod = "NVLink4"\n', "in node 1; did you mean 'intra_node'?"),
        ('[[node]]\ngpus = "8xA100-80GB"\ndevice = { memry = "5GB" }\n', "did you mean 'memory'?"),
        ('inter_nod = "NDR"\n[[node]]\ngpus = "8xA100-80GB"\n', "'inter_nod'; did you mean 'inter_node'?"),
    ],
)
def test_a_wrong_value_of_a_cluster_file_is_named(tmp_path, content, words):
    path = tmp_path / "c.toml"
    path.write_text(content)
    with pytest.raises(ProfileError) as caught:
        declared.read_cluster_file(path)
    assert words in caught.value.message


def test_links_may_be_named_and_storage_declared(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('inter_node = "NDR"\n[[node]]\ncount = 2\ngpus = "8xH100"\nstorage_read = "2GB/s"\n')
    profile = declared.read_cluster_file(path)
    rate = profile.nodes[0].network_bytes_per_second
    assert (rate.value, rate.origin) == (400e9 / 8, "catalog")  # InfiniBand NDR: 400 Gb/s
    (storage,) = profile.nodes[0].storage
    assert (storage.read_bytes_per_second.value, storage.read_bytes_per_second.origin) == (2e9, "declared")
