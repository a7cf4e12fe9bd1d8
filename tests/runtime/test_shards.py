"""What each rank keeps of a parameter that FSDP2 cuts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from runtime_bundle import finish

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
