"""``stratadvisor check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = "Check a DeepSpeed, Accelerate, Lightning or Hugging Face Trainer configuration: keys, contradictions, memory."
EXAMPLE = "Example: stratadvisor check ds_config.json --gpus 2x8xA100-80GB --model-size 7B"


def check(
    file: Annotated[Path, typer.Argument(help="The configuration: JSON, or YAML.")],
    kind: Annotated[
        str | None, typer.Option("--kind", help="deepspeed, accelerate, lightning, transformers; default: by its keys.")
    ] = None,
    loader: Annotated[
        str,
        typer.Option(
            "--loader", help='Who reads a DeepSpeed file ("auto"): none, transformers, accelerate, lightning.'
        ),
    ] = "unknown",
    world_size: Annotated[
        int | None, typer.Option("--world-size", min=1, max=10_000_000, help="Ranks; default: the cluster's devices.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", "-c", help="Profile (JSON) or cluster file (TOML).")
    ] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", help="Hardware in one line: [NODESx]COUNTxTYPE,...")] = None,
    model_size: Annotated[str | None, typer.Option("--model-size", help="Parameters, for the memory: 7B.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Catalog name, config.json or pkg.module:factory.")
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option("--seq-len", min=1, max=16_777_216, help="Tokens per sequence.")
    ] = None,
    checkpointing: Annotated[
        bool | None,
        typer.Option("--activation-checkpointing/--no-activation-checkpointing", help="Where the file cannot say it."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the findings on standard output as JSON.")] = False,
) -> None:
    """Check a configuration of another framework."""
    from stratadvisor import pipeline
    from stratadvisor.cli.console import echo_json
    from stratadvisor.errors import CheckFailedError, UsageError
    from stratadvisor.lint.run import check_file

    profile = pipeline.load_cluster(cluster=cluster, gpus=gpus, inter_node=None, intra_node=None)
    shape = None
    if model is not None or model_size is not None:
        if profile is None:
            raise UsageError("a model alone says nothing about memory", hint="--gpus or --cluster says what it runs on")
        shape = pipeline.resolve_model(model_size=model_size, model=model)
    view = None
    if profile is not None:
        from stratadvisor.derive.cluster import planning_cluster

        view = planning_cluster(profile)
    checked = check_file(
        file,
        kind=kind,
        loader=loader,
        world_size=world_size,
        cluster=view,
        shape=shape,
        sequence_length=seq_len or (2048 if shape is None else pipeline.default_sequence_length(shape)),
        checkpointing=checkpointing,
    )
    if json_output:
        import dataclasses
        import json

        echo_json(json.dumps({"file": str(file), **dataclasses.asdict(checked)}, indent=2))
    else:
        from stratadvisor.report.check import show_checked

        show_checked(checked, file)
    errors, warnings = checked.count("error"), checked.count("warning")
    if errors or (strict and warnings):
        what = f"{errors} errors" if errors != 1 else "1 error"
        if strict and warnings:
            what += f" and {warnings} warning{'s' if warnings != 1 else ''}"
        raise CheckFailedError(f"{file} has {what}")
