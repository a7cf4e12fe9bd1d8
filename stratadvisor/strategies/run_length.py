"""How many tokens a run has and how large its global batch is, where the user gave neither."""

from __future__ import annotations

from stratadvisor.schema.workload import Workload
from stratadvisor.units import format_count

TOKENS_PER_PARAMETER = 20
"""Compute-optimal length of full training (Hoffmann et al., arXiv:2203.15556)."""
ADAPTER_TOKENS = 3 * 10_000_000
"""Three epochs of ten million tokens, about ten thousand instruction examples of 1000 tokens: our choice for LoRA."""
MODULE_STEPS = 100_000
"""Optimizer steps of a module that has no tokens: our choice."""
BATCH_TOKENS = 524_288
"""Tokens per optimizer step from one billion parameters on, as GPT-3 125M to 760M (arXiv:2005.14165, table 2.1)."""
ADAPTER_BATCH = 16
"""Sequences per optimizer step of an adapter run: our choice."""
CRITICAL_BATCHES = 4
MODULE_BATCH = 256
"""Items per optimizer step of other modules (arXiv:1512.03385, section 3.4)."""


def run_tokens(workload: Workload) -> float:
    """Return the tokens of the whole run."""
    if workload.total_tokens is not None:
        return workload.total_tokens
    if not workload.model.is_transformer:
        return float(MODULE_STEPS * base_batch(workload) * workload.sequence_length)
    if workload.method == "full":
        return float(TOKENS_PER_PARAMETER * workload.model.num_parameters)
    return float(ADAPTER_TOKENS)


def base_batch(workload: Workload) -> int:
    """Return the wished sequences per optimizer step, before it is rounded to what the devices can share.

    Full training: 0.5M tokens times the parameters in billions, at most 0.5M (so that a compute-optimal run always has
    about 38 000 steps or more), as a power of two of sequences.
    """
    if workload.global_batch_size is not None:
        return workload.global_batch_size
    if not workload.model.is_transformer:
        return MODULE_BATCH
    if workload.method != "full":
        return ADAPTER_BATCH
    tokens = BATCH_TOKENS * min(1.0, workload.model.num_active_parameters / 1e9)
    sequences = max(1, round(tokens / workload.sequence_length))
    power = 1 << (sequences.bit_length() - 1)
    return power if sequences * sequences < power * power * 2 else power * 2


def extra_tokens_fraction(workload: Workload, batch: int) -> float:
    """Return the further tokens that a batch larger than the wished one needs, where devices force it on us.

    Tokens to a loss grow as 1 + B / B_critical (arXiv:1812.06162); B_critical is taken as CRITICAL_BATCHES wished
    batches, 2M tokens for models of a billion parameters or more (arXiv:2001.08361, figure 10). A batch that the user
    chose costs nothing: all candidates share it.
    """
    wished = base_batch(workload)
    if workload.global_batch_size is not None or batch <= 2 * wished:
        return 0.0
    critical = CRITICAL_BATCHES * wished
    return (1 + batch / critical) / (1 + wished / critical) - 1


def assumptions(workload: Workload, chosen_batch: int) -> tuple[str, ...]:
    """Return in words what was chosen for the user; nothing where the user chose."""
    said: list[str] = []
    if workload.global_batch_size is None:
        tokens = format_count(chosen_batch * workload.sequence_length)
        if not workload.model.is_transformer:
            why = f"{MODULE_BATCH} items, rounded to what the devices share equally"
        elif workload.method != "full":
            why = f"{ADAPTER_BATCH} sequences for an adapter run, at least one for each device"
        else:
            why = "0.5M tokens for each billion parameters up to one billion, at least one sequence for each device"
        said.append(f"global batch {chosen_batch} sequences ({tokens} tokens): {why}; set it with --global-batch-size")
    if workload.total_tokens is None:
        tokens = format_count(run_tokens(workload))
        if not workload.model.is_transformer:
            why = f"{MODULE_STEPS} optimizer steps"
        elif workload.method == "full":
            why = f"{TOKENS_PER_PARAMETER} per parameter (arXiv:2203.15556)"
        else:
            why = "three epochs of ten million"
        said.append(f"run of {tokens} tokens: {why}")
    return tuple(said)
