from __future__ import annotations

import ast
import sys
from importlib.resources import files

import pytest

from stratadvisor.emit.manifest import RUNTIME_FOLDER
from stratadvisor.emit.runtime_files import engine_module, needed_modules, own_imports, runtime_files
from stratadvisor.emit.train_config import ADAPTIVE_ENGINE, ENGINES
from stratadvisor.errors import EmitError
from stratadvisor.schema.emission import EmittedFile

PROGRAM = f"from {RUNTIME_FOLDER}.program import main\n"


def program(text: str = PROGRAM) -> EmittedFile:
    return EmittedFile(path="train.py", content=text, format="python")


@pytest.mark.parametrize("engine", sorted({*ENGINES.values(), ADAPTIVE_ENGINE} - {"megatron"}))
def test_copies_are_closed_under_imports_and_need_only_torch_and_the_standard_library(engine):
    copies = {file.path: file.content for file in runtime_files([program()], engine)}
    assert f"{RUNTIME_FOLDER}/__init__.py" in copies
    assert f"{RUNTIME_FOLDER}/{engine_module(engine)}.py" in copies
    allowed = set(sys.stdlib_module_names) | {"torch", "numpy", "bitsandbytes", "torchao"}
    if engine == "deepspeed":
        allowed.add("deepspeed")
    for path, text in copies.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module.split(".")[0] in allowed, path
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1, path
                names = [node.module] if node.module else [alias.name for alias in node.names]
                assert {f"{RUNTIME_FOLDER}/{name}.py" for name in names} <= set(copies), path


def test_a_bundle_carries_no_engine_it_does_not_use():
    names = {file.path for file in runtime_files([program()], "single")}
    assert f"{RUNTIME_FOLDER}/deepspeed_engine.py" not in names
    assert f"{RUNTIME_FOLDER}/diloco.py" not in names


def test_a_program_without_the_runtime_gets_none_of_it():
    assert runtime_files([program("import torch\n")], "ddp") == ()


@pytest.mark.parametrize(
    "text",
    [
        f"import {RUNTIME_FOLDER}.config\n",
        f"from {RUNTIME_FOLDER} import config\n",
        f"from {RUNTIME_FOLDER}.config import load\n",
        f"def late():\n    from {RUNTIME_FOLDER}.config import load\n",
    ],
)
def test_every_way_to_import_is_seen(text):
    assert "config" in needed_modules(text, "train.py", "ddp")


def test_a_module_that_does_not_exist_is_named():
    with pytest.raises(EmitError, match=rf"train\.py imports {RUNTIME_FOLDER}\.nothing, which does not exist"):
        needed_modules(f"import {RUNTIME_FOLDER}.nothing\n", "train.py", "ddp")


def test_an_engine_that_does_not_exist_is_named():
    with pytest.raises(EmitError, match="no engine 'quantum'"):
        needed_modules(PROGRAM, "train.py", "quantum")


def test_a_program_that_is_not_python_is_named():
    with pytest.raises(EmitError, match=r"train\.py would not be valid python"):
        needed_modules("def (", "train.py", "ddp")


@pytest.mark.parametrize("engine", sorted({*ENGINES.values(), ADAPTIVE_ENGINE} - {"megatron"}))
def test_copies_are_the_modules_byte_by_byte(engine):
    folder = files("stratadvisor") / "runtime"
    for copy in runtime_files([program()], engine):
        assert copy.content.encode() == (folder / copy.path.removeprefix(f"{RUNTIME_FOLDER}/")).read_bytes()


def test_the_quick_look_at_imports_sees_what_the_parser_sees():
    modules = sorted((files("stratadvisor") / "runtime").glob("*.py"))
    assert len(modules) > 20
    for module in modules:
        text = module.read_text(encoding="utf-8")
        parsed = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                parsed |= {node.module} if node.module else {alias.name for alias in node.names}
        assert own_imports(text) == parsed, module.name
    assert own_imports("    from . import (\n        clock,\n        ddp as other,\n    )\n") == {"clock", "ddp"}
