"""Measured runs from a CSV file: one run a line, the columns of ``COLUMNS``; an empty cell is not stated."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path

from stratadvisor.errors import UsageError
from stratadvisor.store import read_text

REQUIRED = ("gpu_model", "n_gpus", "strategy", "seq_len", "n_layers", "hidden", "n_heads")
COLUMNS = (
    *REQUIRED,
    "id",
    "source",
    "src_key",
    "model_name",
    "n_params",
    "n_kv_heads",
    "ffn_hidden",
    "vocab",
    "gpus_per_node",
    "intra_link",
    "inter_link",
    "precision",
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "vpp",
    "micro_batch",
    "global_batch_sequences",
    "grad_accum",
    "activation_ckpt",
    "offload",
    "method",
    "framework",
    "engine",
    "attention",
    "norms",
    "kernels",
    "reduce",
    "shards",
    "dropout",
    "compiled",
    "sequence_parallel",
    "lora_rank",
    "frozen_inputs",
    "loss",
    "optimizer",
    "peak_mem_gib",
    "mem_kind",
    "outcome",
    "tokens_per_s_per_gpu",
    "step_time_s",
    "tflops_per_gpu",
    "tflops_kind",
    "quality",
    "note",
)
"""Read columns; docs/backtest.md says what each holds."""
MAX_ROWS = 200_000
LARGEST = 1e18
"""No column holds more; larger numbers overflow in products."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run as its source states it."""

    line: int
    cells: dict[str, str] = field(default_factory=dict)

    def text(self, column: str) -> str:
        """Return a cell without surrounding blanks; empty when not stated."""
        return self.cells.get(column, "").strip()

    def number(self, column: str) -> float | None:
        """Return a positive number, or None when the cell is empty or says something else."""
        try:
            value = float(self.text(column))
        except ValueError:
            return None
        return value if 0 < value <= LARGEST else None

    def count(self, column: str) -> int | None:
        """Return a positive whole number, or None."""
        value = self.number(column)
        return int(value) if value is not None and value == int(value) else None

    @property
    def name(self) -> str:
        """Return how to refer to the run."""
        return self.text("id") or f"line {self.line}"

    @property
    def source(self) -> str:
        """Return the group a run belongs to."""
        return self.text("src_key") or self.text("source") or "unnamed"


def read_rows(path: Path) -> tuple[Row, ...]:
    """Return the runs of a CSV file.

    Raises:
        UsageError: the file cannot be read, is not CSV with a header, or lacks columns that every prediction needs.

    """
    # a NUL ends the reading of Python 3.10's csv and is a character for later ones: the same answer under all of them
    text = read_text(path, UsageError).replace("\0", "\N{REPLACEMENT CHARACTER}")
    reader = csv.reader(io.StringIO(text))
    rows: list[Row] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in REQUIRED if name not in header]
        if missing:
            raise UsageError(
                f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
                hint=f"the first line names the columns; known ones: {', '.join(COLUMNS)}",
            )
        for cells in reader:
            if len(rows) >= MAX_ROWS:
                raise UsageError(f"{path} has more than {MAX_ROWS} runs")
            if any(cell.strip() for cell in cells):
                rows.append(Row(reader.line_num, dict(zip(header, cells, strict=False))))
    except csv.Error as problem:
        raise UsageError(f"{path}, line {reader.line_num}: not CSV: {problem}") from None
    if not rows:
        raise UsageError(f"{path} has no runs")
    return tuple(rows)
