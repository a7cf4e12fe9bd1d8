"""Try one mutant: a forked process imports the package with the changed module and runs the tests until one fails."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import os
import pkgutil
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

LOWER_LAYERS = ("units", "errors", "plugins", "schema", "conditions", "resources", "catalog", "store")
"""Never import what is mutated (import-linter's contract), so they are imported once, before the fork."""
OTHERS = ("numpy", "torch", "pydantic", "jinja2", "yaml", "typer", "rich", "_pytest.assertion.rewrite")
MEMORY_BYTES = 6 * 1024**3
FIRST_SECONDS = 0.5
"""Tests of that much processor time are collected and run first; most mutants die there."""
STARTUP_SECONDS = 20.0
SLOWER = 4.0
WALL_FACTOR = 20.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it."""

    status: str
    """killed, survived or timeout."""
    by: str
    """The test that failed; "import" where the package or the tests could not be imported."""
    seconds: float
    """Processor time."""


def quick_hypothesis() -> None:
    """The same examples every time, and none made smaller: the first failure is enough."""
    settings.register_profile(
        "mutation",
        database=None,
        derandomize=True,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutation")


def warm_up(root: Path) -> None:
    """Import what no mutant changes."""
    sys.path.insert(0, str(root))
    for name in OTHERS:
        importlib.import_module(name)
    for name in LOWER_LAYERS:
        module = importlib.import_module(f"stratadvisor.{name}")
        assert module.__file__ is not None
        assert Path(module.__file__).is_relative_to(root), f"{module.__file__} is not under {root}"
        for info in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{module.__name__}."):
            importlib.import_module(info.name)
    loaded = [n for n in sys.modules if n.startswith(("stratadvisor.costs", "stratadvisor.planner"))]
    assert not loaded, f"the lower layers import {loaded}"


def trial(root: Path, module: str, tree: ast.Module, tests: list[str], baseline_seconds: float) -> Trial:
    """Run ``tests`` with ``tree`` in place of the module."""
    limit = STARTUP_SECONDS + SLOWER * baseline_seconds
    folder = tempfile.mkdtemp(prefix="mutant-")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _child(root, module, tree, tests, writing, limit, folder)
        finally:
            os._exit(3)
    os.close(writing)
    said = _listen(reading, child, WALL_FACTOR * limit)
    os.close(reading)
    _, status, usage = os.wait4(child, 0)
    shutil.rmtree(folder, ignore_errors=True)
    seconds = usage.ru_utime + usage.ru_stime
    if said.startswith("killed "):
        return Trial("killed", said.removeprefix("killed "), seconds)
    if said == "survived":
        return Trial("survived", "", seconds)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return Trial("timeout", "", seconds)
    return Trial("killed", f"exit {os.waitstatus_to_exitcode(status)}", seconds)


def _listen(reading: int, child: int, wall_seconds: float) -> str:
    said = b""
    end = time.monotonic() + wall_seconds
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            return ""
        part = os.read(reading, 65536)
        if not part:
            return said.decode()
        said += part


def _child(
    root: Path, module: str, tree: ast.Module, tests: list[str], writing: int, limit: float, folder: str
) -> None:
    os.chdir(root)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None
    name = module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    sys.meta_path.insert(0, _Finder(name, str(root / module), compile(tree, str(root / module), "exec")))
    judge = _Judge(tests, writing)
    first = list(dict.fromkeys(name.partition("::")[0] for name in tests[:40]))[:3]
    files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
    for turn, part in enumerate(([f for f in files if f in first], [f for f in files if f not in first])):
        if part:
            base = f"--basetemp={folder}/{turn}"
            options = ["-q", "-o", "addopts=", "--import-mode=importlib", "--assert=plain", "--tb=no", base]
            code = pytest.main(
                [*part, *options, "-p", "no:cacheprovider", "--hypothesis-profile=mutation"], plugins=[judge]
            )
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                judge.kill(f"exit {int(code)}")
    os.write(writing, b"survived")
    os._exit(0)


class _Judge:
    """A pytest plugin: the chosen tests, the quickest first; the first failure ends the process."""

    def __init__(self, tests: Sequence[str], writing: int) -> None:
        self._rank = {name: i for i, name in enumerate(tests)}
        self._writing = writing

    def kill(self, by: str) -> None:
        os.write(self._writing, f"killed {by}".encode())
        os._exit(1)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.kill("import")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self._rank), key=lambda i: self._rank[i.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.kill(report.nodeid)


class _Finder:
    """Finds one module, with code of its own."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        self._name, self._path, self._code = name, path, code

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        folder = [str(Path(self._path).parent)] if self._path.endswith("__init__.py") else None
        loader: Any = self  # as importlib calls it
        return importlib.util.spec_from_file_location(
            name, self._path, loader=loader, submodule_search_locations=folder
        )

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, vars(module))
