"""``stratadvisor recommend``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stratadvisor.schema.profile import ClusterProfile

HELP = "Decide how to train a model on a cluster, explain it on one screen, write files that start."
EXAMPLE = "Example: stratadvisor recommend --model-size 7B --gpus 2x8xA100-80GB --inter-node 200Gb/s"
DEFAULT_BUNDLE = Path("stratadvisor-bundle")


def recommend(
    model_size: Annotated[str | None, typer.Option("--model-size", help="Parameters: 7B, 350M.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Catalog name, config.json (Hugging Face) or pkg.module:factory.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", "-c", help="Profile (JSON) or cluster file (TOML); default: probe now.")
    ] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", help="Hardware you do not have: [NODESx]COUNTxTYPE,...")] = None,
    inter_node: Annotated[
        str | None, typer.Option("--inter-node", help="Rate between nodes, per node: 200Gb/s, 25GB/s, NDR.")
    ] = None,
    intra_node: Annotated[
        str | None, typer.Option("--intra-node", help="Rate inside a node, per device, one direction: 300GB/s.")
    ] = None,
    method: Annotated[str, typer.Option("--method", help="full, lora or qlora.")] = "full",
    lora_rank: Annotated[int, typer.Option("--lora-rank", min=1, max=4096)] = 16,
    seq_len: Annotated[
        int | None, typer.Option("--seq-len", min=1, max=16_777_216, help="Tokens per sequence.")
    ] = None,
    global_batch_size: Annotated[
        int | None, typer.Option("--global-batch-size", min=1, max=100_000_000, help="Sequences per optimizer step.")
    ] = None,
    global_batch_tokens: Annotated[
        str | None, typer.Option("--global-batch-tokens", help="The same in tokens: 4M, 524288.")
    ] = None,
    total_tokens: Annotated[str | None, typer.Option("--total-tokens", help="Length of the run: 140B, 20M.")] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", help="adamw, adamw8bit, adafactor, sgd, muon.")] = "adamw",
    precision: Annotated[
        str, typer.Option("--precision", help="auto, fp32, bf16, fp16, bf16_pure (no fp32 copy).")
    ] = "auto",
    objective: Annotated[str, typer.Option("--objective", help="time, cost or energy.")] = "time",
    price_per_device_hour: Annotated[float | None, typer.Option("--price-per-device-hour", min=0.0)] = None,
    grid_intensity: Annotated[
        str | None, typer.Option("--grid-intensity", help="CO2 of the electricity: 400gCO2/kWh.")
    ] = None,
    max_staleness: Annotated[
        int, typer.Option("--max-staleness", min=0, max=10_000, help="Largest accepted gradient delay; 0: exact only.")
    ] = 64,
    from_file: Annotated[
        Path | None,
        typer.Option("--from", help="Start from a DeepSpeed, Accelerate, Lightning or Trainer file; show the changes."),
    ] = None,
    strategy: Annotated[
        str | None, typer.Option("--strategy", help="Plan this strategy instead of the flowchart's choice.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="Further files for other tools, in targets/: all, or a list such as accelerate,lightning,slurm.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the bundle.")] = DEFAULT_BUNDLE,
    no_write: Annotated[bool, typer.Option("--no-write", help="Answer only; write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files of the bundle that were edited.")] = False,
    overlay: Annotated[
        list[Path] | None, typer.Option("--overlay", help="Folder with your rules/ and templates/; may be repeated.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show every clause of the path taken.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the plan on standard output.")] = False,
) -> None:
    """Decide how to train a model on a cluster."""
    from stratadvisor import pipeline
    from stratadvisor.cli.console import echo_json, note, progress_line

    overlays = pipeline.overlay_folders(tuple(overlay or ()))
    shape = pipeline.resolve_model(model_size=model_size, model=model)
    profile = pipeline.load_cluster(cluster=cluster, gpus=gpus, inter_node=inter_node, intra_node=intra_node)

    def measured() -> ClusterProfile:
        note("no --cluster or --gpus: measuring this machine first")
        return pipeline.probe_node(progress=progress_line())

    start = None
    if from_file is not None:
        from stratadvisor.cli.start import begin

        profile = profile or measured()
        start = begin(from_file, profile)
        if global_batch_size is None and global_batch_tokens is None:
            global_batch_size = start.global_batch_size
        precision = start.precision or precision if precision == "auto" else precision
        optimizer = start.optimizer or optimizer if optimizer == "adamw" else optimizer
    workload = pipeline.make_workload(
        shape,
        method=method,
        lora_rank=lora_rank,
        sequence_length=seq_len,
        global_batch_size=global_batch_size,
        global_batch_tokens=global_batch_tokens,
        total_tokens=total_tokens,
        optimizer=optimizer,
        precision=precision,
        objective=objective,
        price_per_device_hour=price_per_device_hour,
        max_staleness_steps=max_staleness,
        grid_intensity=grid_intensity,
    )
    if profile is None:
        profile = measured()
    result = pipeline.recommend(profile, workload, overlays=overlays, strategy=strategy)
    targets = pipeline.choose_targets(result.plan, target, overlays=overlays)
    verdicts: tuple[tuple[str, str], ...] = ()
    if not no_write:
        verdicts = pipeline.write_bundle(
            result, output, force=force, overlays=overlays, source=cluster, targets=targets
        )
    for sentence in targets.refused:
        note(sentence)
    if json_output:
        from stratadvisor.store import dump

        echo_json(dump(result.plan))
        return
    from stratadvisor.report.plan import show_plan
    from stratadvisor.report.trace import show_trace

    show_plan(result.plan, bundle=None if no_write else output, verdicts=verdicts)
    if start is not None:
        from stratadvisor.cli.start import show_changes

        show_changes(start, result)
    if explain:
        show_trace(result.plan)
