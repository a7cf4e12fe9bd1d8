from __future__ import annotations

from dataclasses import replace

import pytest
from fact_builders import candidate, facts_of
from hypothesis import given
from hypothesis import strategies as st
from planning_clusters import cluster, gpu, nodes

from stratadvisor.costs.rates import device_rates
from stratadvisor.derive.compression_facts import break_even_bytes_per_second

A100 = nodes(gpu("A100-80GB"))


@given(st.integers(2, 1000), st.floats(1e8, 1e13), st.floats(0.1, 0.97))
def test_at_the_break_even_rate_both_cost_the_same(ranks: int, codec: float, saved: float) -> None:
    link, size = break_even_bytes_per_second(codec, ranks, saved), 1e9
    ring = 2 * (ranks - 1) / ranks * size / link
    assert ring * saved == pytest.approx(size / codec)


def test_a_slow_link_is_worth_rounding_for_and_a_fast_one_is_not() -> None:
    memory = device_rates(A100.device, "fp32").memory_bytes_per_second
    limit = 2 * 1 / 2 * 0.5 * memory / 3  # two nodes
    for rate in (1.25e9, 1e12):
        at = cluster(A100, replace(A100, name="other"), between=rate)
        at = replace(at, origins={**at.origins, "inter_node_bytes_per_second": "measured"})
        at = replace(at, classes=tuple(replace(c, num_nodes=1) for c in at.classes))
        facts = facts_of(at, candidate("ddp", *at.classes))
        assert facts["compression.codec_bytes_per_second"].value == pytest.approx(memory / 3)
        assert facts["compression.break_even_bytes_per_second"].value == pytest.approx(limit)
        assert facts["compression.break_even_ratio"].value == pytest.approx(rate / limit)
    assert 1.25e9 < limit < 1e12


def test_one_device_has_no_break_even() -> None:
    one = replace(A100, num_nodes=1, devices_per_node=1)
    facts = facts_of(cluster(one), candidate("single", one))
    assert facts["compression.break_even_ratio"].value is None
