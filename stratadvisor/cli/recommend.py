"""``stratadvisor recommend``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stratadvisor.lint.start import Start
    from stratadvisor.pipeline import Recommendation
    from stratadvisor.schema.comparison import Comparison
    from stratadvisor.schema.plan import Plan

HELP = (
    "Decide how to train a model on a cluster, explain it on one screen, write files that start."
    " With nothing given: this machine, and the largest usual model that trains on it within a week."
)
EXAMPLE = "Example: stratadvisor recommend --model-size 7B --gpus 2x8xA100-80GB --inter-node 200Gb/s"
DEFAULT_BUNDLE = Path("stratadvisor-bundle")


def recommend(
    model_size: Annotated[str | None, typer.Option("--model-size", help="Parameters: 7B, 350M.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Catalog name, config.json (Hugging Face) or pkg.module:factory.")
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster", "-c", help="Profile (JSON) or cluster file (TOML); default: cluster.json here, or probe now."
        ),
    ] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", help="Hardware you do not have: [NODESx]COUNTxTYPE,...")] = None,
    inter_node: Annotated[
        str | None, typer.Option("--inter-node", help="Rate between nodes, per node: 200Gb/s, 25GB/s, NDR.")
    ] = None,
    intra_node: Annotated[
        str | None, typer.Option("--intra-node", help="Rate inside a node, per device, one direction: 300GB/s.")
    ] = None,
    method: Annotated[str, typer.Option("--method", help="full, lora or qlora.")] = "full",
    lora_rank: Annotated[int, typer.Option("--lora-rank", min=1, max=4096, help="Of lora and qlora.")] = 16,
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
    price: Annotated[
        list[float] | None,
        typer.Option(
            "--price",
            "--price-per-device-hour",
            min=0.0,
            help="Of a device for an hour; with --vs once for each cluster.",
        ),
    ] = None,
    grid_intensity: Annotated[
        str | None, typer.Option("--grid-intensity", help="CO2 of the electricity: 400gCO2/kWh.")
    ] = None,
    frozen_size: Annotated[
        str | None, typer.Option("--frozen-size", help="Parameters of frozen models beside it (DPO's reference): 7B.")
    ] = None,
    data_stays: Annotated[
        bool, typer.Option("--data-stays", help="Each node's data may not leave it: federated averaging.")
    ] = False,
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
    vs: Annotated[
        list[str] | None,
        typer.Option("--vs", help="Compare with this cluster: a file or [NODESx]COUNTxTYPE[@RATE]; may be repeated."),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option("--script", help="Your own training script: launch and configuration for it (docs/runtime.md)."),
    ] = None,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="The program changes shares, batch and exchange with what it measures.")
    ] = False,
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
    from stratadvisor import pipeline, store, usual_model
    from stratadvisor.cli.at_hand import cluster_at_hand
    from stratadvisor.cli.console import echo_json, note, progress_line
    from stratadvisor.cli.versus import read_others, versus

    overlays = pipeline.overlay_folders(tuple(overlay or ()))
    shape = None
    if model_size is not None or model is not None:
        shape = pipeline.resolve_model(model_size=model_size, model=model)
    profile = pipeline.load_cluster(cluster=cluster, gpus=gpus, inter_node=inter_node, intra_node=intra_node)

    others = read_others(vs or [])
    start = None
    if from_file is not None:
        from stratadvisor.cli.start import begin

        if profile is None:
            profile, cluster = cluster_at_hand()
        start = begin(from_file, profile)
        if global_batch_size is None and global_batch_tokens is None:
            global_batch_size = start.global_batch_size
        precision = start.precision or precision if precision == "auto" else precision
        optimizer = start.optimizer or optimizer if optimizer == "adamw" else optimizer
    make_workload = partial(
        pipeline.make_workload,
        method=method,
        lora_rank=lora_rank,
        sequence_length=seq_len,
        global_batch_size=global_batch_size,
        global_batch_tokens=global_batch_tokens,
        total_tokens=total_tokens,
        optimizer=optimizer,
        precision=precision,
        objective=objective,
        price_per_device_hour=price[0] if price else None,
        max_staleness_steps=max_staleness,
        data_stays=data_stays,
        frozen_parameters=frozen_size,
        grid_intensity=grid_intensity,
    )
    # the options are checked before a minute of measuring, not after
    workload = make_workload(shape or pipeline.resolve_model(model_size=usual_model.SIZES[0], model=None))
    if profile is None:
        profile, cluster = cluster_at_hand()
    if shape is None:
        shape, said = usual_model.largest_usual_model(profile, make_workload, progress_line())
        note(said)
        workload = make_workload(shape)
    result = pipeline.recommend(profile, workload, overlays=overlays, strategy=strategy, adaptive=adaptive)
    result = result if script is None else _for_script(result, script, output)
    targets = pipeline.choose_targets(result.plan, target, overlays=overlays)
    verdicts: tuple[tuple[str, str], ...] = ()
    if not no_write:
        with _answer_kept(result.plan, json_output=json_output):
            verdicts = pipeline.write_bundle(
                result, output, force=force, overlays=overlays, source=cluster, targets=targets
            )
    for sentence in targets.refused:
        note(sentence)
    compared = None
    if others:
        name = gpus if gpus is not None else str(cluster) if cluster is not None else "this machine"
        compared = versus(name, result, others, tuple(price or ()), overlays)
        if not no_write:
            store.write_document(output / pipeline.COMPARISON_NAME, compared)
    if json_output:
        echo_json(store.dump(result.plan if compared is None else compared))
        return
    from stratadvisor.report.plan import show_plan

    show_plan(result.plan, bundle=None if no_write else output, verdicts=verdicts)
    _show_further(result, start, compared, explain)


@contextmanager
def _answer_kept(plan: Plan, *, json_output: bool) -> Iterator[None]:
    """Print a plan whose files cannot be written: the answer is not lost with them."""
    from stratadvisor import store
    from stratadvisor.cli.console import echo_json
    from stratadvisor.errors import StratadvisorError
    from stratadvisor.report.plan import show_plan

    try:
        yield
    except StratadvisorError:
        if json_output:
            echo_json(store.dump(plan))
        else:
            show_plan(plan, bundle=None, verdicts=())
        raise


def _for_script(result: Recommendation, script: Path, output: Path) -> Recommendation:
    """Return the recommendation for a training script of the user's own."""
    from stratadvisor.cli.console import note
    from stratadvisor.emit.own_script import with_script

    plan, said = with_script(result.plan, script, output)
    if said:
        note(said)
    return dataclasses.replace(result, plan=plan)


def _show_further(result: Recommendation, start: Start | None, compared: Comparison | None, explain: bool) -> None:
    if compared is not None:
        from stratadvisor.report.comparison import show_comparison

        show_comparison(compared)
    if start is not None:
        from stratadvisor.cli.start import show_changes

        show_changes(start, result)
    if explain:
        from stratadvisor.report.trace import show_trace

        show_trace(result.plan)
