"""The script of docs/runtime.md, run as it stands, by every strategy."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_bundle import ROOT, losses
from runtime_jobs import BASE, IN_STEP, LONG, NODES, SHORT, WHOLE, codes, output, run_jobs, weights

import stratadvisor.runtime
from stratadvisor.runtime import MODULES_BY_ENGINE

pytestmark = pytest.mark.process
STEPS = 20
ENGINES: dict[str, dict[str, Any]] = {
    "single": {"groups": [WHOLE]},
    "ddp": {"groups": [LONG, SHORT]},
    "fsdp2": {"groups": [LONG, IN_STEP]},
    "hierarchical": {"settings": NODES | {"delay_steps": 1}, "sync_interval_steps": 3},
    "diloco": {"sync_interval_steps": 3},
    "async_sgd": {"settings": {"staleness_bound": 2}},
}


def script() -> str:
    """Return the program in the documentation."""
    (found,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "runtime.md").read_text(), flags=re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "my_training.py").write_text(script())
    jobs: list[dict[str, Any]] = []
    source = Path(stratadvisor.runtime.__file__).parent
    for engine, changes in ENGINES.items():
        config = BASE | {"engine": engine, "learning_rate": 0.5, "gradient_clip_norm": 1.0} | changes
        jobs.append({"name": engine, "ranks": 1 if engine == "single" else 2, "config": config})
        jobs[-1]["script"] = str(folder / "my_training.py")
        runtime = folder / f"runtime-{engine}" / "stratadvisor_runtime"
        runtime.mkdir(parents=True)
        for name in (*MODULES_BY_ENGINE[engine], "library.py"):
            shutil.copy(source / name, runtime / name)
        jobs[-1]["path"] = str(runtime.parent)
    run_jobs(folder, jobs)
    return folder


@pytest.mark.parametrize("engine", ENGINES)
def test_the_documented_script_trains_by_every_strategy(runs: Path, engine: str) -> None:
    assert set(codes(runs / engine)) == {0}, output(runs / engine)
    found = losses(runs / engine)
    assert len(found) == STEPS
    assert found[-1] < 0.75 * found[0]
    assert re.search(r"^10 0\.\d+$", output(runs / engine), flags=re.MULTILINE)  # what the script itself prints


def test_it_equals_one_process_and_keeps_the_names_of_the_model(runs: Path) -> None:
    assert losses(runs / "ddp") == pytest.approx(losses(runs / "single"), abs=1e-5)
    alone, together = (weights(runs / name, STEPS) for name in ("single", "ddp"))
    assert sorted(together) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert all(torch.allclose(alone[name], together[name], atol=1e-5) for name in alone)
