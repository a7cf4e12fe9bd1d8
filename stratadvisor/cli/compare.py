"""``stratadvisor compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = "Plan one model on several clusters: time, energy, money; and what a little more hardware would buy."
EXAMPLE = "Example: stratadvisor compare --model-size 7B 8xA100-80GB 2x8xA100-80GB@200Gb/s --what-if --price 2"


def compare(
    clusters: Annotated[
        list[str], typer.Argument(help="Profiles, cluster files, or [NODESx]COUNTxTYPE,...[@rate between nodes].")
    ],
    model_size: Annotated[str | None, typer.Option("--model-size", help="Parameters: 7B, 350M.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Catalog name, config.json (Hugging Face) or pkg.module:factory.")
    ] = None,
    method: Annotated[str, typer.Option("--method", help="full, lora or qlora.")] = "full",
    seq_len: Annotated[
        int | None, typer.Option("--seq-len", min=1, max=16_777_216, help="Tokens per sequence.")
    ] = None,
    global_batch_size: Annotated[
        int | None, typer.Option("--global-batch-size", min=1, max=100_000_000, help="Sequences per optimizer step.")
    ] = None,
    total_tokens: Annotated[str | None, typer.Option("--total-tokens", help="Length of the run: 140B.")] = None,
    objective: Annotated[str, typer.Option("--objective", help="time, cost or energy.")] = "time",
    price: Annotated[
        list[float] | None, typer.Option("--price", min=0.0, help="Per device and hour; once, or once per cluster.")
    ] = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Add one more node, a network twice as fast, twice the memory.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the comparison (JSON), which report draws.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the comparison on standard output.")] = False,
) -> None:
    """Plan one model on several clusters."""
    from stratadvisor import comparison, pipeline, store
    from stratadvisor.cli.console import echo_json, note, progress_line
    from stratadvisor.errors import UsageError
    from stratadvisor.schema.comparison import Comparison

    if output is not None and not output.parent.is_dir():
        raise UsageError(f"{output.parent} is not a directory", hint="create it first, or name another --output")
    shape = pipeline.resolve_model(model_size=model_size, model=model)
    prices = tuple(price or ())
    workload = pipeline.make_workload(
        shape,
        method=method,
        sequence_length=seq_len,
        global_batch_size=global_batch_size,
        total_tokens=total_tokens,
        objective=objective,
        price_per_device_hour=prices[0] if prices else None,
    )
    named = [comparison.read_cluster(text) for text in clusters]
    progress = progress_line()
    entries = comparison.compare(tuple(named), workload, prices, progress=progress)
    if what_if:
        more = comparison.variations(*named[0])
        entries += comparison.compare(more, workload, prices[:1], what_if=True, progress=progress)
    found = Comparison(clusters=entries)
    if output is not None:
        store.write_document(output, found)
    if json_output:
        echo_json(store.dump(found))
        return
    from stratadvisor.report.comparison import show_comparison

    show_comparison(found)
    if output is not None:
        note(f"written to {output}; draw it with: stratadvisor report {output}")
