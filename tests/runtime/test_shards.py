"""What each rank keeps of a parameter that FSDP2 cuts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from runtime_bundle import finish

from stratadvisor.runtime.config import ConfigError
from stratadvisor.runtime.fsdp import check_averages

HELD = {
    4: {1: [1, 0, 0, 0], 2: [1, 1, 0, 0], 3: [1, 1, 1, 0], 5: [2, 2, 1, 0], 8: [2, 2, 2, 2]},
    2: {1: [1, 0], 2: [1, 1], 3: [2, 1], 5: [3, 2], 8: [4, 4]},
}
"""Rows of each rank, by shards and rows: ceil(rows / shards) until none are left."""


@pytest.mark.process
def test_shards_together_are_the_whole_where_rows_do_not_divide_evenly() -> None:
    program = Path(__file__).resolve().parents[1] / "runtime_shards.py"
    found = finish([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", str(program)])
    for shards, by_rows in HELD.items():
        for rows, held in by_rows.items():
            assert f"{shards} shards of {rows}: {held}" in found


def collectives(monkeypatch: pytest.MonkeyPatch, scattered: float, reduced: float | None) -> None:
    """Two ranks that give 1 and 2, with a gloo that answers so; None: it refuses."""

    def scatter(out: torch.Tensor, _given: torch.Tensor, op: object) -> None:
        assert op == dist.ReduceOp.AVG
        out.fill_(scattered)

    def reduce(given: torch.Tensor, op: object) -> None:
        assert op == dist.ReduceOp.AVG
        if reduced is None:
            raise RuntimeError("Cannot use ReduceOp.AVG with Gloo")
        given.fill_(reduced)

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "reduce_scatter_tensor", scatter)
    monkeypatch.setattr(dist, "all_reduce", reduce)


@pytest.mark.parametrize(("scattered", "reduced"), [(3.0, 1.5), (3.0, None), (1.5, None), (1.5, 3.0)])
def test_a_gloo_that_sums_where_it_should_average_is_refused(monkeypatch, scattered, reduced) -> None:
    collectives(monkeypatch, scattered, reduced)
    with pytest.raises(ConfigError, match="does not average gradients"):
        check_averages(torch.device("cpu"))
    check_averages(torch.device("cuda"))  # NCCL averages


def test_a_gloo_that_averages_is_not(monkeypatch) -> None:
    collectives(monkeypatch, 1.5, 1.5)
    check_averages(torch.device("cpu"))
