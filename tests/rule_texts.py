"""A small flowchart for tests of the rules engine: two questions, four facts."""

from __future__ import annotations

from stratadvisor.rules_engine.load import ruleset_of
from stratadvisor.rules_engine.model import RuleSet
from stratadvisor.schema.facts import FactSpec

SPECS = {
    s.name: s
    for s in (
        FactSpec(name="cluster.speed_spread", type="number", unit="ratio", description="fastest over slowest"),
        FactSpec(name="link.bytes_per_second", type="number", unit="bytes_per_second", description="rate of the link"),
        FactSpec(name="link.name", type="text", description="name of the link"),
        FactSpec(name="cpu.workers", type="number", unit="count", description="workers that fit"),
    )
}

SPEEDS = """\
schema_version = 1

[question]
id = "speeds"
ask = "Are they equal?"
entry = true
next = "links"

[[branch]]
id = "SA1001"
name = "equal"
when.all = ["cluster.speed_spread <= 1.1"]
set = { family = "synchronous" }
because = "Nobody waits."
sources = ["a book"]

[[branch]]
id = "SA1090"
name = "unequal"
when = "otherwise"
set = { family = "local_sgd" }
warn = "Not exact."
next = "end"
because = "Somebody waits."
sources = ["a book"]

[[branch]]
id = "SA1099"
name = "not-known"
when = "unknown"
set = { data_loader_workers = { fact = "cpu.workers" } }
because = "Nobody knows."
sources = ["a book"]

[[example]]
facts = { "cluster.speed_spread" = 1.1 }
takes = "SA1001"

[[example]]
facts = { "cluster.speed_spread" = 1.11 }
takes = "SA1090"

[[example]]
facts = { "link.name" = "eth0" }
takes = "SA1099"
"""

LINKS = """\
schema_version = 1

[question]
id = "links"
ask = "Is the link fast?"
next = "end"

[[branch]]
id = "SA2001"
name = "fast-link"
when.all = ["link.bytes_per_second >= 100Gb/s"]
when.any = ["link.name == 'ib0'", "link.name == 'eth0'"]
when.not = ["chosen.family == 'local_sgd'"]
set = { environment.GLOO_SOCKET_IFNAME = { fact = "link.name" }, environment.WORKERS = { fact = "cpu.workers" } }
because = "It carries it."
sources = ["a book"]

[[branch]]
id = "SA2090"
name = "slow-link"
when = "otherwise"
set = { family = "hierarchical", compression = "bf16" }
because = "It does not."
sources = ["a book"]

[[branch]]
id = "SA2099"
name = "link-not-known"
when = "unknown"
because = "Nobody knows."
sources = ["a book"]

[[example]]
facts = { "link.bytes_per_second" = "100Gb/s", "link.name" = "eth0", "chosen.family" = "synchronous" }
takes = "SA2001"

[[example]]
facts = { "link.bytes_per_second" = "99Gb/s" }
takes = "SA2090"

[[example]]
facts = { "link.name" = "eth0" }
takes = "SA2099"
"""


def small_ruleset(speeds: str = SPEEDS, links: str = LINKS, *, overlays: tuple[str, ...] = ()) -> RuleSet:
    """Return the flowchart of the two texts, with overlay texts on top."""
    texts = [("rules/10_speeds.toml", speeds, True), ("rules/20_links.toml", links, True)]
    texts += [(f"mine/rules/{i}.toml", text, False) for i, text in enumerate(overlays)]
    return ruleset_of(texts)


def replaced(text: str, old: str, new: str, count: int = 1) -> str:
    """Return ``text`` with ``old`` replaced; fails where it does not occur."""
    assert old in text
    return text.replace(old, new, count)
