"""Every supported Python, newest and lowest dependencies: the tests that need no torch, and equal bytes.

``make matrix`` builds one wheel and, for each environment, a virtual environment under ``.venv/matrix``. Into each go
the wheel without its dependencies, those of its dependencies that deciding needs (torch is a CUDA build of gigabytes
for most Pythons), and the test tools. In each run:

- the installed commands, outside of the checkout: ``recommend``, ``explain`` and ``check``;
- the tests of ``TESTS``;
- the decisions of ``JOBS``, whose files and screens must be the same bytes under every Python, this one included.

A Python that is not installed is named and left out; one that was asked for (``--python``) must be there.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
LOWEST = ROOT / "constraints-lowest.txt"
DEVELOPMENT = ROOT / "constraints-dev.txt"
NOT_INSTALLED = {"torch"}
"""Runtime dependencies that nothing of the matrix imports."""
TOOLS = ("pytest", "pytest-timeout", "pytest-rerunfailures", "hypothesis", "packaging")
TESTS = (
    "tests/catalog",
    "tests/cases",
    "tests/costs",
    "tests/derive",
    "tests/emit/test_deepspeed_config.py",
    "tests/emit/test_figures.py",
    "tests/emit/test_ludwig.py",
    "tests/emit/test_manifest.py",
    "tests/emit/test_megatron.py",
    "tests/emit/test_render.py",
    "tests/emit/test_runtime_files.py",
    "tests/emit/test_targets_files.py",
    "tests/emit/test_train_config.py",
    "tests/hostile/test_corpus.py",
    "tests/hostile/test_runs_csv.py",
    "tests/hostile/test_threat_model.py",
    "tests/planner",
    "tests/rules_engine",
    "tests/strategies",
    "tests/test_conditions.py",
    "tests/test_old_documents.py",
    "tests/test_store.py",
    "tests/test_units.py",
)
"""What Python and the libraries can change: numbers, documents, templates, sentences."""
LEFT_OUT = (
    "tests/cases/test_precision.py",
    "tests/catalog/test_parameters_against_transformers.py",
    "tests/costs/test_memory_against_torch.py",
    *("tests/cases/test_batch.py", "tests/cases/test_hetero.py", "tests/cases/test_launch.py"),
    *("tests/cases/test_what_fits.py", "tests/planner/test_any_input.py", "tests/planner/test_choice.py"),
    *("tests/planner/test_flips.py", "tests/strategies/test_candidates.py"),
)
"""Files of the folders above that need torch or transformers (the first three), or search many plans for long."""
WITH_LOWEST = ("tests/report", "tests/report_html", "tests/cli/test_check.py", "tests/cli/test_schema.py")
"""Further tests with the lowest releases: screens, pages and commands lean on typer, rich and vl-convert most."""

MIXED = ("--gpus", "2x4xA100-80GB,1x2xV100-32GB", "--inter-node", "10Gb/s")
EQUAL = ("--gpus", "2x8xA100-80GB", "--inter-node", "200Gb/s")
JOBS = {
    "mixed nodes, every target": ("--model-size", "1B", *MIXED, "--target", "all"),
    "equal nodes, every target": ("--model-size", "7B", *EQUAL, "--target", "all"),
    "too large": ("--model-size", "400B", "--gpus", "1xRTX4090"),
    "one card, qlora": ("--model-size", "8B", "--gpus", "1xRTX4090", "--method", "qlora"),
    "a mixture of experts": ("--model", "mixtral-8x7b", "--gpus", "4x8xH100-80GB", "--inter-node", "400Gb/s"),
    "data stay": ("--model-size", "125M", *MIXED, "--data-stays"),
    **{
        f"{name}, equal nodes": ("--model-size", "1B", *EQUAL, "--strategy", name)
        for name in ("ddp", "fsdp2", "zero2", "zero_offload", "tp_fsdp2", "megatron_3d")
    },
    **{
        f"{name}, mixed nodes": ("--model-size", "350M", *MIXED, "--strategy", name)
        for name in ("uneven_ddp", "hierarchical", "diloco", "async_sgd")
    },
}
"""``recommend`` for every engine and target, and refusals."""
PROGRAM = """
import contextlib, hashlib, io, json, pathlib, sys
sys.path[:0] = sys.argv[1:]
import stratadvisor
from stratadvisor.cli import run
found = {}
for number, (job, arguments) in enumerate(json.load(sys.stdin).items()):
    folder = pathlib.Path(f"bundle-{number}")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["recommend", *arguments, "--output", str(folder), "--json"])
    made = {"exit code": code, "standard output": out.getvalue(), "standard error": err.getvalue()}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != ".cluster-source":
            made[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    found[job] = made
json.dump({"where": stratadvisor.__file__, "python": list(sys.version_info[:3]), "found": found}, sys.stdout)
"""


class MatrixError(Exception):
    """Something that ends the matrix, in one sentence."""


@dataclass(frozen=True)
class Environment:
    """One Python with one choice of dependencies."""

    version: str
    interpreter: str
    lowest: bool = False

    @property
    def name(self) -> str:
        return f"{self.version}-lowest" if self.lowest else self.version


@dataclass(frozen=True)
class Result:
    """What one environment did; ``failures`` are sentences, ``decisions`` what ``PROGRAM`` printed."""

    environment: Environment
    failures: list[str]
    tests: str
    decisions: dict[str, dict[str, object]]
    seconds: float


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def supported_versions() -> list[str]:
    """Return the Python versions of the classifiers, lowest first."""
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", str(c)) for c in project()["classifiers"]]
    return sorted((m[1] for m in found if m), key=lambda v: int(v.split(".")[1]))


def distribution(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0].lower()


def light_dependencies() -> list[str]:
    """Return the runtime dependencies of pyproject.toml without what the matrix does not install."""
    return [str(d) for d in project()["dependencies"] if distribution(str(d)) not in NOT_INSTALLED]


def command_works(arguments: list[str]) -> bool:
    return subprocess.run(arguments, capture_output=True, check=False).returncode == 0


def find_python(version: str) -> str | None:
    """Return an interpreter of this version: this one, one on the PATH, or one of pyenv."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    root = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
    installed = glob.glob(f"{root}/versions/{version}.*/bin/python")
    on_path = shutil.which(f"python{version}")
    for candidate in [*sorted(installed, key=lambda p: int(p.split("/bin/")[0].rsplit(".", 1)[1])), on_path]:
        if candidate and command_works([candidate, "-c", "import venv, ensurepip"]):
            return candidate
    return None


def environments(asked: list[str], lowest: bool) -> tuple[list[Environment], list[str]]:
    """Return the environments to run, and the supported Pythons that are not installed.

    The earliest Python has the lowest dependencies if ``lowest``, the others the newest; the running Python has its
    tests in ``make test``, and is left out unless asked for.

    Raises:
        MatrixError: a Python that was asked for is not installed.

    """
    found = {version: find_python(version) for version in asked or supported_versions()}
    missing = [version for version, python in found.items() if python is None]
    if asked and missing:
        raise MatrixError(f"Python {', '.join(missing)} was asked for and is not installed (PATH, then pyenv)")
    running = f"{sys.version_info[0]}.{sys.version_info[1]}"
    there = {version: python for version, python in found.items() if python}
    first = next((v for v in there if not asked or v == supported_versions()[0]), None) if lowest else None
    chosen = [Environment(v, p, v == first) for v, p in there.items() if asked or v == first or v != running]
    return chosen, missing


def constraint_lines(lowest: bool) -> list[str]:
    """Return the pinned test tools, and with ``lowest`` the pinned dependencies, which win over them."""
    lines = [line for line in DEVELOPMENT.read_text(encoding="utf-8").splitlines() if "==" in line and line[0] != "#"]
    wanted = [line for line in lines if distribution(line) in TOOLS]
    if lowest:
        wanted += [line for line in LOWEST.read_text(encoding="utf-8").splitlines() if "==" in line and line[0] != "#"]
    return wanted


def command(arguments: list[str], log: Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and keep what it printed in a log."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, **options)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(arguments[:6])}\n{done.stdout}{done.stderr}\n")
    return done


def quiet_pip(python: str, *arguments: str) -> list[str]:
    return [python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]


def install(environment: Environment, folder: Path, wheel: Path, log: Path) -> str:
    """Make the virtual environment anew and return its interpreter.

    Raises:
        MatrixError: something could not be installed.

    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(constraint_lines(environment.lowest)) + "\n", encoding="utf-8")
    python = str(folder / "bin" / "python")
    wanted = [*light_dependencies(), *TOOLS]
    if environment.lowest:
        wanted += [line.split(";")[0] for line in constraint_lines(lowest=True) if distribution(line) not in TOOLS]
        wanted = [w for w in wanted if distribution(w) != "tomli" or environment.version == "3.10"]
    steps = [
        [environment.interpreter, "-m", "venv", str(folder)],
        quiet_pip(python, "install", "--constraint", str(constraints), *wanted),
        quiet_pip(python, "install", "--no-deps", str(wheel)),
    ]
    for step in steps:
        done = command(step, log)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            raise MatrixError(f"{environment.name}: {' '.join(step[1:4])} failed: {last} (see {log})")
    return python


def outside(folder: Path) -> dict[str, str]:
    """Return an environment that knows neither the checkout nor the user's files."""
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "COLUMNS": "100"}


def installed_commands(python: str, folder: Path, log: Path) -> list[str]:
    """Run the installed commands in a folder outside of the checkout; return what went wrong."""
    program = str(Path(python).parent / "stratadvisor")
    (folder / "ds.json").write_text(
        json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}), encoding="utf-8"
    )
    calls = [
        ["--version"],
        ["recommend", "--help"],
        ["recommend", "--model-size", "1B", "--gpus", "4xRTX4090", "--output", "bundle"],
        ["explain", "bundle"],
        ["check", "ds.json"],
    ]
    failures = []
    for call in calls:
        done = command([program, *call], log, cwd=folder, env=outside(folder), timeout=300)
        if done.returncode != 0:
            failures.append(f"stratadvisor {' '.join(call)} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    if not (folder / "bundle" / "launch.sh").is_file():
        failures.append("the installed recommend wrote no launch.sh")
    return failures


def decisions(python: str, folder: Path, *search: Path) -> dict[str, object]:
    """Return what ``PROGRAM`` found under this interpreter, in an empty folder; ``search`` comes first on its path.

    Raises:
        MatrixError: the program did not end well.

    """
    done = subprocess.run(
        [python, "-I", "-c", PROGRAM, *map(str, search)],
        input=json.dumps(JOBS),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=outside(folder),
        timeout=900,
    )
    if done.returncode != 0:
        raise MatrixError(f"{python}: the decisions ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def run_environment(environment: Environment, folder: Path, wheel: Path) -> Result:
    """Install, and run commands, decisions and tests; a failure is a sentence in the result."""
    started = time.monotonic()
    log = folder.parent / f"{folder.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")
    failures: list[str] = []
    made: dict[str, dict[str, object]] = {}
    tests = "not run"
    try:
        python = install(environment, folder / "venv", wheel, log)
        with tempfile.TemporaryDirectory() as elsewhere:
            failures += installed_commands(python, Path(elsewhere), log)
        with tempfile.TemporaryDirectory() as elsewhere:
            answer = decisions(python, Path(elsewhere))
        if not Path(str(answer["where"])).is_relative_to(folder.resolve()):
            failures.append(f"the installed package is not the one that ran: {answer['where']}")
        made = answer["found"]
        chosen = [*TESTS, *(WITH_LOWEST if environment.lowest else ())]
        skip = [f"--ignore={name}" for name in LEFT_OUT]
        options = ["-q", "-p", "no:cacheprovider", "-m", "not process", "--tb=short", "-r", "fEs", *skip]
        done = command([python, "-m", "pytest", *options, *chosen], log, cwd=ROOT)
        tests = (done.stdout.strip().splitlines() or ["no word"])[-1]
        if done.returncode != 0:
            named = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            failures.append("\n    ".join([f"tests: {tests} (see {log})", *(line[:200] for line in named[:40])]))
    except MatrixError as problem:
        failures.append(str(problem))
    return Result(environment, failures, tests, made, time.monotonic() - started)


def differences(reference: dict[str, dict[str, object]], other: dict[str, dict[str, object]]) -> list[str]:
    """Return, one sentence each, what two runs of the same jobs did not make alike."""
    found = []
    for job in sorted(reference.keys() | other.keys()):
        one, two = reference.get(job, {}), other.get(job, {})
        unlike = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
        if unlike:
            found.append(f"{job}: {', '.join(unlike[:6])}{' ...' if len(unlike) > 6 else ''}")
    return found


def build_wheel(folder: Path) -> Path:
    """Build the wheel of the checkout.

    Raises:
        MatrixError: it could not be built.

    """
    arguments = quiet_pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MatrixError(f"the wheel could not be built: {done.stderr.strip()[-500:]}")
    return next(folder.glob("stratadvisor-*.whl"))


def matrix(chosen: list[Environment], folder: Path, at_once: int) -> list[str]:
    """Run the environments and return all that failed, one sentence each."""
    with tempfile.TemporaryDirectory() as built, tempfile.TemporaryDirectory() as here:
        wheel = build_wheel(Path(built))
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            waiting = [pool.submit(run_environment, e, folder / e.name, wheel) for e in chosen]
            unpacked = Path(built) / "unpacked"
            zipfile.ZipFile(wheel).extractall(unpacked)
            own = decisions(sys.executable, Path(here), unpacked)["found"]
            failures = []
            for future in waiting:
                result = future.result()
                unlike = differences(own, result.decisions) if result.decisions else []
                result.failures.extend(f"other bytes than Python {sys.version.split()[0]}: {line}" for line in unlike)
                verdict = "FAILED" if result.failures else "passed"
                print(f"{result.environment.name}: {verdict} in {result.seconds:.0f} s: {result.tests}", flush=True)
                failures += [f"{result.environment.name}: {sentence}" for sentence in result.failures]
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", action="append", default=[], metavar="3.X", help="only this version; may be repeated"
    )
    parser.add_argument("--no-lowest", action="store_true", help="the newest dependencies for the earliest Python too")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv" / "matrix")
    parser.add_argument("--at-once", type=int, default=2, help="environments at the same time")
    given = parser.parse_args()
    try:
        chosen, missing = environments(given.python, not given.no_lowest)
        failures = matrix(chosen, given.folder.resolve(), given.at_once)
    except MatrixError as problem:
        print(f"matrix: {problem}", file=sys.stderr)
        return 1
    for failure in failures:
        print(failure)
    for version in missing:
        print(f"Python {version} is not installed here: NOT RUN")
    print(f"matrix: {len(JOBS)} decisions, {len(chosen)} environments, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
