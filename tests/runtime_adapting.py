"""Ranks for the tests of adaptive control: one is slow for every sequence, or the regime is changed by a script.

    python -m torch.distributed.run --standalone --nproc-per-node 2 runtime_adapting.py SLOWED SCRIPTED

SLOWED, SCRIPTED: directories with a train_config.json each.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from stratadvisor.runtime import adaptive, adaptive_engine, data, model
from stratadvisor.runtime.adaptive import Change, Limits, Regime, Window
from stratadvisor.runtime.program import main

SECONDS_PER_SEQUENCE = 0.05
SLOW_RANK = 1
SCRIPT = (
    (2, Regime(shares=(3, 5), interval_steps=4)),
    (4, Regime(shares=(6, 2), interval_steps=2)),
    (7, Regime(shares=(5, 3))),
    (9, Regime(shares=(8, 8), accumulation=2)),
)
"""Windows after which the regime changes, and what to."""


def slowed(config: Any) -> Any:
    """A model whose forward pass takes long for each sequence on one rank."""
    built = model.build(config)

    def wait(_: Any, arguments: tuple[Any, ...]) -> None:
        if int(os.environ["RANK"]) == SLOW_RANK:
            time.sleep(SECONDS_PER_SEQUENCE * len(arguments[0]))

    built.register_forward_pre_hook(wait)
    return built


class Scripted:
    """A controller that looks at nothing."""

    def __init__(self, regime: Regime, _: Limits) -> None:
        self.regime, self.windows = regime, 0

    def observe(self, _: Window) -> Change | None:
        self.windows += 1
        for windows, regime in SCRIPT:
            if windows == self.windows:
                self.regime = regime
                return Change(kind="script", regime=regime, reason=f"window {windows}")
        return None


if __name__ == "__main__":
    adaptive.LEAVE_SHARE = 1.0  # this job is about shares: on a busy machine exchanges may take long
    code = main(slowed, data.token_dataset, Path(sys.argv[1]), ["--steps", "40"])
    if code:
        sys.exit(code)
    # every step is reported alone, so that windows have a known number of steps
    adaptive_engine.AdaptiveEngine.report_seconds = 0.0
    adaptive_engine.Controller = Scripted  # type: ignore[misc, assignment]
    sys.exit(main(model.build, data.token_dataset, Path(sys.argv[2]), ["--steps", "60"]))
