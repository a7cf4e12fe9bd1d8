"""Links resolve, options exist, and the commands that need no cluster run."""

from __future__ import annotations

import re

import pytest
import yaml
from docs_pages import PAGES, ROOT, anchors, blocks, commands, files_of, links, mentioned, name_of, text_of

from stratadvisor.cli import run
from stratadvisor.cli.app import app
from stratadvisor.derive import facts
from stratadvisor.reference.options import commands as known_commands
from stratadvisor.rules_engine import load
from stratadvisor.strategies import STRATEGIES

KNOWN = {c.name: c for c in known_commands(app)}
MEASURING = ("probe", "run-config")
"""Commands that take long or start processes; the tutorial's are run by a test of their own."""
DS_CONFIG = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
HARDWARE = ["--gpus", "2x8xA100-80GB", "--inter-node", "200Gb/s"]
CLUSTER = 'inter_node = "200Gb/s"\n[[node]]\ncount = 2\ngpus = "8xA100-80GB"\n'
NEEDS_MEASURING = {"docs/tutorial.md"}

pages = pytest.mark.parametrize("page", PAGES, ids=name_of)


@pages
def test_every_link_leads_to_something(page):
    for target in links(text_of(page)):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in anchors(text_of(there)), f"{target}: no such heading"


@pages
def test_every_command_and_option_that_is_named_exists(page):
    for words in mentioned(text_of(page)):
        rest = [w for w in words[1:] if not re.fullmatch(r"[A-Z_-]+", w)]
        options = [w.partition("=")[0] for w in rest if re.match(r"--?[a-z]", w)]
        if not rest or rest[0].startswith("-"):
            assert set(options) <= {"--help", "--version", "--install-completion", "--show-completion"}, words
            continue
        name = " ".join(rest[:2]) if " ".join(rest[:2]) in KNOWN else rest[0]
        if name == "rules":
            continue
        assert name in KNOWN, f"no command {name!r}: {words}"
        there = {n for p in KNOWN[name].options for n in p.names} | {"--help"}
        assert set(options) <= there, f"{words}: no such option"


def _shown(page) -> bool:
    return bool(blocks(text_of(page), "console")) and name_of(page) not in NEEDS_MEASURING


@pytest.mark.parametrize("page", [p for p in PAGES if _shown(p)], ids=name_of)
def test_commands_of_a_page_run_as_they_stand(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = {"ds_config.json": DS_CONFIG, "our-cluster.toml": CLUSTER, **files_of(text_of(page))}
    for name, content in given.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert run(["recommend", "--model-size", "1B", *HARDWARE, "-o", "first", "--json"]) == 0
    (tmp_path / "cluster.json").write_bytes((tmp_path / "first" / "cluster.json").read_bytes())
    for body in blocks(text_of(page), "console"):
        for words in commands(body):
            assert words[0] == "stratadvisor", f"{words}: mark blocks that need a shell with bash"
            if words[1] in MEASURING:
                continue
            code = run(words[1:])
            captured = capsys.readouterr()
            assert code == 0, f"{words}: {captured.err}"


def test_the_table_of_contents_has_every_page_once():
    class Plain(yaml.SafeLoader):
        pass

    def leaves(entry):
        if isinstance(entry, str):
            return [entry]
        return [x for e in (entry.values() if isinstance(entry, dict) else entry) for x in leaves(e)]

    listed = leaves(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Plain)["nav"])
    there = [str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(there)


def test_each_row_that_other_tools_lack_is_answered_with_things_that_exist():
    text = text_of(ROOT / "docs" / "peers.md")
    rows = {int(n): here for n, here in re.findall(r"^\| (\d+) \| [^|]+ \| (.+) \|$", text, re.MULTILINE)}
    none = {12, 27, 32, 33, 34, 35, 37, 41, 44, 48, 49, 54, 56}
    assert set(rows) == none | {3, 8, 11, 15, 40, 42, 43, 47, 50, 53, 55, 59}
    ruleset = load.load_ruleset()
    for identifier in re.findall(r"SA\d{4}", text):
        assert ruleset.branch(identifier), identifier
    for question in re.findall(r"rules show ([a-z_]+)", text):
        assert question in ruleset.questions
    for fact in re.findall(r"`((?!launch\.sh)[a-z]+\.[a-z_]+)`", text):
        assert fact in facts.SPECS, fact
    for strategy in re.findall(r"(?:--why-not|--strategy) (\w+)", text):
        assert strategy in STRATEGIES
    for row in rows.values():
        assert re.search(r"`|\[|first screen|interval|exit code", row)
