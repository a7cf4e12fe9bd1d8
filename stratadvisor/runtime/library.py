"""The runtime inside a training script of your own: model, data and loss stay yours, the rest is the plan's.

    with training(model, dataset, loss=cross_entropy) as steps:
        for step in steps:
            ...

takes the place of the loop over a DataLoader, ``backward``, the optimizer, DDP or FSDP, and checkpoints.
"""

from __future__ import annotations

import os
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import distributed
from .checkpoint import run_directory
from .config import LostError, TrainingError, load
from .data import IGNORED
from .distributed import Context
from .loop import Done, Options, opened
from .program import EXIT_ERROR, EXIT_LOST, note_end

CONFIG_VARIABLE = "STRATADVISOR_CONFIG"
Loss = Callable[[Any, torch.Tensor], torch.Tensor]


@contextmanager
def training(
    model: nn.Module,
    dataset: Any,
    *,
    loss: Loss | None = None,
    mean: bool = True,
    config: Path | str | None = None,
    steps: int | None = None,
    resume: bool = False,
    run: Path | str | None = None,
) -> Iterator[Iterator[Done]]:
    """Give an iterator that trains ``model`` by the plan, one optimizer step at a time.

    Args:
        model: called with a batch of inputs; without ``loss`` with (inputs, labels), returning the summed loss.
        dataset: has a length, and items (inputs, labels); every item is seen once an epoch, shared out by the plan.
        loss: of (outputs, labels). Labels of -100 do not count.
        mean: whether ``loss`` is the mean over the labels that count, as torch's losses are, or their sum.
        config: train_config.json; else the variable STRATADVISOR_CONFIG, else the file in the working directory.
        steps: last step; else the variable STRATADVISOR_STEPS, else the plan's.
        resume: go on from the newest checkpoint; also when a launcher starts the program again, or with the variable
            STRATADVISOR_RESUME.
        run: directory of metrics and checkpoints; else STRATADVISOR_RUN_DIR, else run/ beside the configuration.

    A problem ends the program with one sentence and the exit code 2, the loss of another process with 3.

    """
    try:
        path = Path(config or os.environ.get(CONFIG_VARIABLE) or "train_config.json")
        plan = load(path)
        asked = os.environ.get("STRATADVISOR_STEPS", "")
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" or bool(os.environ.get("STRATADVISOR_RESUME"))
        options = Options(
            steps=int(asked) if asked.isdigit() else steps,
            data=None,
            resume=resume or again,
            run_directory=run_directory(Path(run) if run else None, path.resolve().parent),
        )
        with distributed.session(plan) as context:
            _same_start(model, context)
            with _with_loss(model, loss, mean=mean), opened(plan, context, options, model, dataset) as (made, steps_):
                yield steps_
                if context.rank == context.node_ranks[0]:
                    note_end(options.run_directory, str(made.reason))
    except TrainingError as problem:
        print(f"rank {os.environ.get('RANK', '0')}: error: {problem}", file=sys.stderr, flush=True)
        raise SystemExit(EXIT_LOST if isinstance(problem, LostError) else EXIT_ERROR) from problem
    except RuntimeError as problem:
        reason = distributed.peer_loss(problem)
        if reason is None:
            raise
        print(f"rank {os.environ.get('RANK', '0')}: error: another process is gone ({reason})", file=sys.stderr)
        raise SystemExit(EXIT_LOST) from problem


def _same_start(model: nn.Module, context: Context) -> None:
    """Give every rank the values of rank 0: a script need not seed."""
    if context.control is None:
        return
    for tensor in [*model.parameters(), *model.buffers()]:
        if not tensor.is_meta:
            host = tensor.detach().cpu().contiguous()
            dist.broadcast(host, src=0, group=context.control)
            with torch.no_grad():
                tensor.copy_(host)


@contextmanager
def _with_loss(model: nn.Module, loss: Loss | None, *, mean: bool) -> Iterator[None]:
    """Let the model return its summed loss for (inputs, labels) meanwhile; names of parameters stay as they are."""
    if loss is None:
        yield
        return
    original = model.forward

    def forward(_: nn.Module, inputs: Any, labels: torch.Tensor) -> torch.Tensor:
        value = loss(original(inputs), labels)
        return value * (labels != IGNORED).sum() if mean else value

    model.forward = types.MethodType(forward, model)
    try:
        yield
    finally:
        del model.forward


def run_script(script: Path, bundle: Path) -> None:
    """Run a training script as the main program, with the bundle's configuration and its runtime to import."""
    os.environ.setdefault(CONFIG_VARIABLE, str(bundle / "train_config.json"))
    os.environ.setdefault("STRATADVISOR_RUN_DIR", str(bundle / "run"))
    if not script.is_file():
        print(f"error: the training script {script} is not there", file=sys.stderr)
        raise SystemExit(EXIT_ERROR)
    sys.path[:0] = [str(script.parent), str(bundle)]
    sys.argv[0] = str(script)
    runpy.run_path(str(script), run_name="__main__")
