"""The command line of ``train.py``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import distributed
from .checkpoint import run_directory
from .config import LostError, TrainConfig, TrainingError, load
from .engine import joined
from .loop import END_NAME, Options, train

EXIT_ERROR = 2
EXIT_LOST = 3
"""Another process of the run ended or cannot be reached; nothing is wrong with this one."""


def parse(arguments: Sequence[str] | None, bundle: Path) -> tuple[Path, argparse.Namespace]:
    """Return (configuration file, options)."""
    parser = argparse.ArgumentParser(description="Train as planned in train_config.json.")
    parser.add_argument("--steps", type=int, default=None, metavar="N", help="end at optimizer step N")
    parser.add_argument(
        "--data",
        type=Path,
        default=None,
        metavar="FILE",
        help="text, .bin (uint16) or .npy tokens, or a folder of these two; else synthetic",
    )
    parser.add_argument(
        "--tune-loader", action="store_true", help="take as many loader workers as the first steps show to be needed"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint of the run directory")
    parser.add_argument("--run-dir", type=Path, default=None, metavar="DIR", help="metrics and checkpoints; else run/")
    parser.add_argument(
        "--join", type=Path, default=None, metavar="FILE", help="async_sgd: take a free place; the server's server.json"
    )
    parser.add_argument("--config", type=Path, default=bundle / "train_config.json", metavar="FILE")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    steps = os.environ.get("STRATADVISOR_STEPS", "")
    if steps:
        if not steps.isdigit():
            parser.error(f"STRATADVISOR_STEPS must be a whole number, not {steps!r}")
        chosen.steps = int(steps)
    if chosen.steps is not None and chosen.steps < 1:
        parser.error(f"--steps must be at least 1, not {chosen.steps}")
    if chosen.local_rank is not None:  # the deepspeed launcher gives it both ways
        os.environ.setdefault("LOCAL_RANK", str(chosen.local_rank))
    return chosen.config, chosen


def note_end(run_directory: Path, reason: str) -> None:
    """Write down that this node's ranks ended as they should."""
    partial = run_directory / f".{END_NAME}.{os.getpid()}"
    with suppress(OSError):  # the run itself is over and saved
        partial.write_text(json.dumps({"reason": reason}) + "\n", encoding="utf-8")
        partial.replace(run_directory / END_NAME)


def main(
    build_model: Callable[[TrainConfig], Any],
    build_data: Callable[[TrainConfig, Path | None], Any],
    bundle: Path,
    arguments: Sequence[str] | None = None,
) -> int:
    """Train and return the exit code.

    0 after a complete run or one that was asked to stop, 2 after a problem, 3 when another process was lost; the last
    two say why in one line. A program that a launcher starts again goes on from the newest checkpoint.
    """
    config_path, chosen = parse(arguments, bundle)
    try:
        config = load(config_path)
        options = Options(
            steps=chosen.steps,
            data=chosen.data,
            resume=chosen.resume or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0",
            run_directory=run_directory(chosen.run_dir, bundle),
            tune_loader=chosen.tune_loader,
        )
        if chosen.join is not None:
            context = joined(config, distributed.newcomer(config, chosen.join))
            train(config, context, options, build_model, build_data)
            return 0
        with distributed.session(config) as context:
            reason = train(config, context, options, build_model, build_data)
            if context.rank == context.node_ranks[0]:
                note_end(options.run_directory, reason)
    except TrainingError as problem:
        print(f"rank {os.environ.get('RANK', '0')}: error: {problem}", file=sys.stderr, flush=True)
        return EXIT_LOST if isinstance(problem, LostError) else EXIT_ERROR
    except RuntimeError as problem:
        lost = distributed.peer_loss(problem)
        if lost is None:
            raise
        print(
            f"rank {os.environ.get('RANK', '0')}: error: another process of this run ended or cannot be reached"
            f" ({lost}); the one that ended first says why, and --resume goes on from the newest checkpoint",
            file=sys.stderr,
            flush=True,
        )
        return EXIT_LOST
    return 0
