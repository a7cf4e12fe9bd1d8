from __future__ import annotations

import ast
import typing
from pathlib import Path

import stratadvisor.runtime
from stratadvisor.runtime import FOR_OTHER_FRAMEWORKS, MODULES_BY_ENGINE, config, engine

FOLDER = Path(stratadvisor.runtime.__file__).parent


def imported(name: str) -> set[str]:
    """Return the files of the package that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((FOLDER / name).read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1, f"{name} reaches outside its folder"
            found |= {f"{node.module}.py"} if node.module else {f"{alias.name}.py" for alias in node.names}
    return found


def test_every_engine_has_a_class_and_a_list_of_files() -> None:
    names = set(typing.get_args(config.EngineName))
    assert set(engine.CLASSES) == names
    assert set(MODULES_BY_ENGINE) == names


def test_a_bundle_gets_exactly_the_files_that_its_engine_imports() -> None:
    for name, (module, _) in engine.CLASSES.items():
        needed, waiting = {"__init__.py"}, {"program.py", "model.py", "data.py", f"{module}.py"}
        while waiting:
            file = waiting.pop()
            needed.add(file)
            waiting |= imported(file) - needed
        assert needed == set(MODULES_BY_ENGINE[name]), name


def test_every_file_belongs_to_some_engine() -> None:
    used = {file for files in MODULES_BY_ENGINE.values() for file in files}
    assert used | set(FOR_OTHER_FRAMEWORKS) == {path.name for path in FOLDER.glob("*.py")}


def test_only_one_file_knows_deepspeed() -> None:
    knowing = {path.name for path in FOLDER.glob("*.py") if "import deepspeed" in path.read_text()}
    assert knowing == {"deepspeed_engine.py"}
