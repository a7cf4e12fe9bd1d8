"""The library as docs/api.md shows it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import stratadvisor

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_example_runs_as_printed(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    program = tmp_path / "example.py"
    program.write_text(code + "import sys; print(sorted({'torch', 'pandas'} & set(sys.modules)))\n")
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    lines = done.stdout.splitlines()
    assert "s a step" in done.stdout
    assert any(line.startswith("SA") for line in lines)
    assert lines[-1] == "[]"
    assert (tmp_path / "bundle" / "launch.sh").is_file()


def test_every_public_name_exists_and_the_types_say_the_same():
    for name in stratadvisor.__all__:
        assert getattr(stratadvisor, name) is not None
    stub = ast.parse((ROOT / "stratadvisor" / "__init__.pyi").read_text(encoding="utf-8"))
    typed = {a.asname: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert set(typed) == set(stratadvisor.__all__) - {"__version__"}
    for name, module in typed.items():
        found = getattr(stratadvisor, name)
        assert module is not None
        assert getattr(sys.modules[module], name) is found


def test_the_page_names_only_public_functions():
    called = set(re.findall(r"`(\w+)\(", PAGE)) | set(re.findall(r"\bsa\.(\w+)", PAGE))
    assert called - {"model_dump_json"} <= set(stratadvisor.__all__)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(stratadvisor, "no_such_name")
    assert "recommend" in dir(stratadvisor)
