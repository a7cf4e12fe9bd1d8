"""CSV files of strangers in ``backtest``: rows that say nothing are left out, files that are none are one sentence."""

from __future__ import annotations

import random

import pytest
from hostile_inputs import NAMES, ask

from stratadvisor.backtest.rows import COLUMNS

GOOD = {
    "id": "r",
    "src_key": "x",
    "gpu_model": "A100-80GB",
    "n_gpus": "8",
    "gpus_per_node": "8",
    "strategy": "ddp",
    "seq_len": "2048",
    "n_layers": "24",
    "hidden": "2048",
    "n_heads": "16",
    "precision": "bf16",
    "micro_batch": "1",
    "global_batch_sequences": "64",
    "step_time_s": "1.0",
    "tokens_per_s_per_gpu": "5000",
    "peak_mem_gib": "40",
    "quality": "A",
}
VALUES = [*NAMES, "0", "-1", "1e300", "nan", "inf", "1e-300", "9" * 400, "1.5", "x,y", '"', "\x00"]


def quoted(cell: str) -> str:
    """RFC 4180: in quotes, with quotes doubled; Python 3.10's own writer refuses a NUL."""
    doubled = cell.replace('"', '""')
    return f'"{doubled}"'


def test_any_cell_may_hold_anything(capsys, tmp_path):
    order = random.Random(5)
    for _ in range(12):
        rows = [GOOD | {order.choice(COLUMNS): order.choice(VALUES) for _ in range(2)} for _ in range(4)]
        lines = [COLUMNS, *([row.get(name, "") for name in COLUMNS] for row in rows)]
        text = "".join(",".join(quoted(cell) for cell in line) + "\n" for line in lines)
        (tmp_path / "runs.csv").write_text(text, encoding="utf-8", newline="")
        code, out, _ = ask(["backtest", tmp_path / "runs.csv"], capsys)
        assert code == 0
        assert not set(out.split()) & {"nan", "inf"}


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"a,b\n1,2", b'"' * 100_000, b"\0" * 1000, b",".join([b"x"] * 100_000)]
)
def test_what_is_no_csv_of_runs_is_one_sentence(capsys, tmp_path, content):
    (tmp_path / "runs.csv").write_bytes(content)
    code, out, err = ask(["backtest", tmp_path / "runs.csv"], capsys)
    assert (code, out) == (2, "")
    assert "runs.csv" in err
