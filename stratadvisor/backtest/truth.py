"""What a run measured, as seconds of one optimizer step."""

from __future__ import annotations

from stratadvisor.backtest.rows import Row


def measured_step_seconds(row: Row, sequences: float, world_size: int) -> float | None:
    """Return the measured step time for ``sequences`` of the row's length over ``world_size`` devices; None if unknown.

    A stated step time goes first, then tokens per second and device, then FLOP/s where the source's formula is known.
    """
    length = row.number("seq_len")
    step = row.number("step_time_s")
    stated = row.number("global_batch_sequences")
    if step is not None and (stated is None or abs(stated / sequences - 1) < 1e-6):
        return step
    tokens = row.number("tokens_per_s_per_gpu")
    if tokens is not None and length is not None:
        return sequences * length / (tokens * world_size)
    rate = row.number("tflops_per_gpu")
    if rate is None or length is None or not row.text("tflops_kind").startswith("hardware incl. recompute"):
        return None
    return sequences * _recomputing_flops(row, length) / (rate * 1e12 * world_size)


def _recomputing_flops(row: Row, length: float) -> float:
    """Return 96 s l h^2 (1 + s / 6h + V / 16lh) of one sequence (arXiv:2104.04473, equation 3)."""
    layers, hidden = row.number("n_layers") or 0.0, row.number("hidden") or 0.0
    vocab = row.number("vocab") or 0.0
    return 96 * length * layers * hidden**2 * (1 + length / (6 * hidden) + vocab / (16 * layers * hidden))
