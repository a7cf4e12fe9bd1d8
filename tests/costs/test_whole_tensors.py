"""ZeRO-1 by whole tensors: sums everywhere, and a broadcast from every owner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from time_cases import LLAMA_7B, cluster, gpu, nodes, work

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.collectives import all_gather_seconds, all_reduce_seconds
from stratadvisor.costs.data_parallel import traffic
from stratadvisor.costs.work import place
from stratadvisor.schema.layout import Layout

TENSORS = 3 + 32 * 7
"""LLaMA-7B: query with key and value, output, gate, up, down and two norms; embedding, head and the last norm."""


@pytest.mark.parametrize("num_nodes", [2, 16, 64])
def test_every_owner_broadcasts_and_no_rank_owns_less_than_a_tensor(num_nodes: int) -> None:
    node = nodes(gpu("A100-80GB"), num_nodes, 8)
    at = cluster(node)
    layout = Layout(engine="deepspeed", sharding="optimizer", data_parallel_shard_degree=8 * num_nodes)
    placement = place(layout, work(node))
    moved = traffic(LLAMA_7B, replace(layout, whole_tensor_shards=True), at, placement)
    hops = num_nodes * 7 * fitted.RING_HOP_INTRA_SECONDS + (num_nodes - 1) * fitted.RING_HOP_INTER_SECONDS
    weights = 2.0 * LLAMA_7B.num_parameters
    expected = all_gather_seconds(weights, placement.shard, at) + min(8 * num_nodes, TENSORS) * hops
    assert moved.after == pytest.approx(expected)
    assert moved.last_backward == pytest.approx(all_reduce_seconds(weights, placement.data, at))
    slices = traffic(LLAMA_7B, layout, at, placement)
    assert slices.last_backward < moved.last_backward
    assert slices.after == pytest.approx(all_gather_seconds(weights, placement.shard, at) + 14 * hops)  # of 1e9 bytes


def test_biases_are_tensors_too() -> None:
    node = nodes(gpu("A100-80GB"), 64, 8)
    layout = Layout(engine="deepspeed", sharding="optimizer", data_parallel_shard_degree=512, whole_tensor_shards=True)
    at, placement = cluster(node), place(layout, work(node))
    hops = 64 * 7 * fitted.RING_HOP_INTRA_SECONDS + 63 * fitted.RING_HOP_INTER_SECONDS
    biased = LLAMA_7B.model_copy(update={"attention_bias": True})
    more = traffic(biased, layout, at, placement).after - traffic(LLAMA_7B, layout, at, placement).after
    assert more == pytest.approx(2 * 32 * hops)
