"""What is fuzzed: one function for each reader. It may refuse with an error of ours, and with nothing else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from stratadvisor import plain, units
from stratadvisor.backtest.rows import read_rows
from stratadvisor.backtest.run import predict_rows
from stratadvisor.catalog.hugging_face import read_config
from stratadvisor.derive.cluster import planning_view
from stratadvisor.derive.declared import parse_gpus, read_cluster_file
from stratadvisor.errors import StratadvisorError
from stratadvisor.lint.run import check_file
from stratadvisor.probe.host_list import parse_hosts
from stratadvisor.probe.merge import merge_profiles
from stratadvisor.rules_engine.load import parse_file
from stratadvisor.runtime import config as training
from stratadvisor.store import read_plan, read_profile

Target = Callable[[bytes], None]
REFUSED = (StratadvisorError, training.ConfigError)


@cache
def _folder(_pid: int) -> tempfile.TemporaryDirectory[str]:
    """Return a process's own folder: a forked one must neither write into its parent's nor remove it."""
    return tempfile.TemporaryDirectory(prefix="fuzz-")


def _file(data: bytes, name: str) -> Path:
    path = Path(_folder(os.getpid()).name) / name
    path.write_bytes(data)
    return path


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def profile(data: bytes) -> None:
    """Fuzz a cluster profile: read, joined with itself, seen as the planner sees it."""
    found = read_profile(_file(data, "profile.json"))
    merge_profiles([found], replace=True)
    planning_view(found)


def plan(data: bytes) -> None:
    """Fuzz a plan as ``explain`` and ``run-config`` read it."""
    read_plan(_file(data, "plan.json"))


def cluster_file(data: bytes) -> None:
    """Fuzz a hand-written cluster file."""
    planning_view(read_cluster_file(_file(data, "cluster.toml")))


def gpus(data: bytes) -> None:
    """Fuzz the text behind --gpus, and what is made of it."""
    planning_view(parse_gpus(_text(data)))


def model_config(data: bytes) -> None:
    """Fuzz a config.json of the Hugging Face kind."""
    read_config(_file(data, "config.json"))


def rule_file(data: bytes) -> None:
    """Fuzz a question of an overlay; what is not UTF-8 is refused before it comes here."""
    parse_file(data.decode("utf-8", "replace"), "rules/10_fuzz.toml", shipped=True)


def runs_csv(data: bytes) -> None:
    """Fuzz published runs."""
    predict_rows(read_rows(_file(data, "runs.csv")))


def deepspeed_json(data: bytes) -> None:
    """Fuzz a DeepSpeed configuration under ``check``."""
    check_file(_file(data, "ds_config.json"), kind="deepspeed", world_size=8)


def accelerate_yaml(data: bytes) -> None:
    """Fuzz an Accelerate configuration under ``check``."""
    check_file(_file(data, "accelerate.yaml"))


def train_config(data: bytes) -> None:
    """Fuzz the configuration of the training program."""
    training.load(_file(data, "train_config.json"))


def hosts(data: bytes) -> None:
    """Fuzz the text behind --hosts."""
    parse_hosts(_text(data))


def quantity(data: bytes) -> None:
    """Fuzz a number with a unit, and its way back to a screen."""
    text = _text(data)
    for dimension in ("bytes", "bytes_per_second", "seconds"):
        try:
            value = units.parse_quantity(text, dimension)  # type: ignore[arg-type]
        except ValueError:  # what it documents
            continue
        units.format_bytes(value), units.format_seconds(value), units.format_count(value)


def screen(data: bytes) -> None:
    """Fuzz the cleaning of text: what comes out moves no terminal."""
    for cleaned in (plain.printable(_text(data)), plain.one_line(_text(data))):
        assert not any(ord(c) < 9 or 10 < ord(c) < 32 or 127 <= ord(c) < 160 for c in cleaned), repr(cleaned)


TARGETS: dict[str, Target] = {
    f.__name__: f
    for f in (
        profile,
        plan,
        cluster_file,
        gpus,
        model_config,
        rule_file,
        runs_csv,
        deepspeed_json,
        accelerate_yaml,
        train_config,
        hosts,
        quantity,
        screen,
    )
}


def attempt(name: str, data: bytes) -> bool:
    """Run one input; whether it was accepted. Anything but an error of ours is a finding and goes through."""
    try:
        TARGETS[name](data)
    except REFUSED as refused:
        said = str(refused)
        assert said, "refused without a word"
        assert len(said) < 5000, f"refused with {len(said)} characters"
        return False
    return True
