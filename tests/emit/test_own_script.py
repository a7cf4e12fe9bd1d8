from __future__ import annotations

import plan_examples
import pytest

from stratadvisor.emit.bundle import render_bundle
from stratadvisor.emit.own_script import with_script
from stratadvisor.emit.traits import plan_traits
from stratadvisor.errors import UsageError

PLAN = plan_examples.examples()["ddp_cpu"]
MINE = "from stratadvisor_runtime.library import training\n"


def test_the_bundle_starts_the_script_with_the_runtime_that_it_imports(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(MINE)
    plan, said = with_script(PLAN, script, tmp_path / "bundle")
    assert said == ""
    assert plan.settings["script"] == "../mine.py"  # relative, so that both may move together
    assert "own_script" in plan_traits(plan)
    assert "own_script" not in plan_traits(PLAN)
    files = {file.path: file.content for file in render_bundle(plan, plan_examples.profile())}
    assert 'SCRIPT = Path("../mine.py")' in files["train.py"]
    assert "build_model" not in files["train.py"]
    assert {"stratadvisor_runtime/library.py", "stratadvisor_runtime/ddp.py"} <= set(files)


def test_a_bundle_without_a_script_has_no_library():
    files = {file.path for file in render_bundle(PLAN, plan_examples.profile())}
    assert "stratadvisor_runtime/library.py" not in files


def test_a_script_that_does_not_use_the_runtime_is_told_so(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("import torch\n")
    _, said = with_script(PLAN, script, tmp_path / "bundle")
    assert "does not import stratadvisor_runtime" in said


@pytest.mark.parametrize(
    ("content", "text"), [(None, "does not exist"), (b"def (", "is not Python"), (b"\xff\xfe\x00", "cannot be read")]
)
def test_what_is_no_script_is_refused_in_one_sentence(tmp_path, content, text):
    script = tmp_path / "mine.py"
    if content is not None:
        script.write_bytes(content)
    with pytest.raises(UsageError, match=text):
        with_script(PLAN, script, tmp_path / "bundle")
