from __future__ import annotations

import pytest
from time_cases import LLAMA_7B, cluster, gpu, nodes

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.collectives import (
    Group,
    all_reduce_seconds,
    broadcast_seconds,
    intra_node_bandwidth,
    ring_latency_seconds,
    send_seconds,
)
from stratadvisor.costs.flops import Product, forward_linear_flops_per_token, layer_products
from stratadvisor.costs.overlap import exposed_seconds

MIXTURE = LLAMA_7B.model_copy(
    update={
        "num_key_value_heads": 8,
        "num_experts": 16,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "num_dense_layers": 4,
        "ffn_hidden_size": 1024,
        "dense_ffn_hidden_size": 8192,
    }
)


def sizes(products: tuple[Product, ...]) -> list[tuple[int, int, int, float, bool, bool]]:
    return [(p.out_width, p.in_width, p.count, p.tokens_share, p.column_parallel, p.mlp) for p in products]


def test_products_of_a_mixture_by_kind_of_layer() -> None:
    (sparse, many), (dense, few) = layer_products(MIXTURE)
    assert (many, few) == (28, 4)
    attention = [(4096 + 2 * 1024, 4096, 1, 1.0, True, False), (4096, 4096, 1, 1.0, False, False)]
    assert sizes(dense) == [*attention, (8192, 4096, 2, 1.0, True, True), (4096, 8192, 1, 1.0, False, True)]
    assert sizes(sparse) == [
        *attention,
        (16, 4096, 1, 1.0, True, False),  # the router
        (1024, 4096, 32, 2 / 16, True, True),  # gate and up of 16 experts, each for an eighth of the tokens
        (4096, 1024, 16, 2 / 16, False, True),
        (1024, 4096, 2, 1.0, True, True),
        (4096, 1024, 1, 1.0, False, True),
    ]
    plain = MIXTURE.model_copy(update={"num_shared_experts": 0, "num_dense_layers": 0, "gated_mlp": False})
    ((products, layers),) = layer_products(plain)
    assert layers == 32
    assert sizes(products)[3:] == [(1024, 4096, 16, 2 / 16, True, True), (4096, 1024, 16, 2 / 16, False, True)]


def test_flops_of_a_mixture_are_those_of_the_matrices_a_token_passes() -> None:
    attention = 4096 * (4096 + 2 * 1024) + 4096 * 4096
    sparse = attention + 16 * 4096 + 3 * (2 + 1) * 1024 * 4096
    dense = attention + 3 * 8192 * 4096
    assert forward_linear_flops_per_token(MIXTURE) == 2 * (28 * sparse + 4 * dense + 32000 * 4096)


A100 = gpu("A100-80GB")
NODES = nodes(A100, 4, 8, intra_node_latency_seconds=1e-5)
AT = cluster(NODES, inter_node_latency_seconds=3e-5)


def test_one_message_takes_its_latency_and_its_bytes() -> None:
    assert send_seconds(1e9, AT, across_nodes=False) == pytest.approx(1e-5 + 1e9 / 200e9)
    assert send_seconds(1e9, AT, across_nodes=True) == pytest.approx(3e-5 + 1e9 / 100e9)
    assert send_seconds(1e9, AT, across_nodes=True, sharing=4) == pytest.approx(3e-5 + 4e9 / 100e9)
    for group, crosses in ((Group(num_nodes=1, ranks_per_node=8), False), (Group(num_nodes=2, ranks_per_node=1), True)):
        assert broadcast_seconds(1e9, group, AT) == send_seconds(1e9, AT, across_nodes=crosses)
    assert broadcast_seconds(0, Group(num_nodes=2, ranks_per_node=1), AT) == 0


def test_gathers_across_nodes_pass_every_rank_in_turn() -> None:
    group = Group(num_nodes=4, ranks_per_node=8)
    hops = 4 * 7 * fitted.RING_HOP_INTRA_SECONDS + 3 * fitted.RING_HOP_INTER_SECONDS
    assert ring_latency_seconds(group, AT) == pytest.approx(hops)
    assert ring_latency_seconds(Group(num_nodes=1, ranks_per_node=8), AT) == 0
    assert ring_latency_seconds(Group(num_nodes=2, ranks_per_node=1), AT) == pytest.approx(
        fitted.RING_HOP_INTER_SECONDS
    )
    swept = cluster(NODES, inter_node_sweep=((1.0, 1e-5), (1e6, 1e-3)))
    assert ring_latency_seconds(group, swept) == 0
    assert ring_latency_seconds(group, cluster(NODES, backend="gloo")) == 0


def test_a_sweep_of_one_rank_or_of_a_message_twice_measured() -> None:
    twice = ((1e3, 1e-4), (1e6, 1e-3), (1e6, 3e-3), (1e7, 1e-2))
    at = cluster(nodes(A100, 1, 2), intra_node_sweep=twice, intra_node_sweep_ranks=2, backend="gloo")
    group = Group(num_nodes=1, ranks_per_node=2)
    assert all_reduce_seconds(10.0, group, at) == pytest.approx(1e-4)  # below the first
    assert 1e-3 <= all_reduce_seconds(1e6, group, at) <= 3e-3
    alone = cluster(nodes(A100, 1, 2), intra_node_sweep=twice, intra_node_sweep_ranks=1, backend="gloo")
    assert all_reduce_seconds(1e6, group, alone) == pytest.approx(1e6 / 200e9)  # says nothing about two


def test_the_slowest_node_sets_the_rate_and_single_devices_have_none() -> None:
    slow = nodes(A100, 1, 8, intra_node_bytes_per_second=50e9)
    single = nodes(A100, 8, 1, intra_node_bytes_per_second=1e9)
    assert intra_node_bandwidth(cluster(NODES, slow, single)) == (50e9, "")
    assert intra_node_bandwidth(cluster(single)) == (fitted.ASSUMED_INTRA_PCIE, "")
    pair = nodes(A100, 1, 2, intra_node_bytes_per_second=50e9)
    assert intra_node_bandwidth(cluster(pair)) == (50e9, "")
    for origin, share in (("measured", 1.0), ("estimated", 1.0), ("reported", fitted.DECLARED_INTRA_SHARE)):
        known = nodes(A100, 1, 8, origins={"intra_node_bytes_per_second": origin})
        assert intra_node_bandwidth(cluster(known))[0] == pytest.approx(200e9 * share)


def test_communication_shows_when_it_is_late_or_longer_than_what_it_hides_behind() -> None:
    assert exposed_seconds(2.0, 5.0, 0.25) == pytest.approx(2.0 * 0.25)
    assert exposed_seconds(2.0, 5.0, 0.25, 0.5) == pytest.approx(1.0 + 1.0 * 0.25)
    assert exposed_seconds(5.0, 2.0, 0.25) == pytest.approx(3.0 + 2.0 * 0.25)
    assert exposed_seconds(5.0, 2.0, 0.25, 0.8) == pytest.approx(4.0 + 1.0 * 0.25)
