"""The tutorial from its first command to its last, pasted as it stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from docs_pages import ROOT, blocks, commands, text_of


@pytest.mark.process
@pytest.mark.timeout(1500)
def test_the_tutorial_works_as_printed(tmp_path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    printed: dict[str, str] = {}
    lines = [words for body in blocks(text_of(ROOT / "docs" / "tutorial.md"), "console") for words in commands(body)]
    for words in lines:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        printed[" ".join(words[:2])] = done.stdout
    assert [w[1] for w in lines[:3]] == ["probe", "recommend", "explain"]
    profile = json.loads((tmp_path / "cluster.json").read_text())
    assert len(profile["calibrations"]) == 1  # what run-config measured was kept
    again = next(words for words in lines if words[1] == "recommend")
    corrected = subprocess.run(
        [*again, "--no-write"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert "corrected by an earlier validation run" in corrected.stdout
    assert "8 of 8 steps" in printed["stratadvisor run-config"]
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert (tmp_path / "bigger" / "comparison.json").is_file()
    metrics = (tmp_path / "stratadvisor-bundle" / "run" / "metrics.jsonl").read_text()
    assert metrics.count('"event": "step"') >= 10
