"""docs/check.md from the codes and the tables: ``python -m stratadvisor.lint.documentation > docs/check.md``."""

from __future__ import annotations

import sys

from stratadvisor.lint.codes import CODES
from stratadvisor.lint.known import KINDS, changes, known

_TITLES = {
    "GEN": "Any file",
    "DS": "DeepSpeed",
    "ACC": "Accelerate",
    "PL": "Lightning",
    "HF": "Hugging Face TrainingArguments",
    "HW": "Hardware, with `--gpus` or `--cluster`",
    "MEM": "Memory, with `--gpus` or `--cluster` and a model",
}
_INTRODUCTION = """\
# `stratadvisor check FILE`

Reads a configuration written for another framework and says what is wrong with it: keys that are unknown, gone or
ignored, values that contradict each other, batch sizes that do not multiply, and, with hardware and a model, whether it
fits in memory. Nothing is imported but the file: known keys lie in `stratadvisor/lint/data`, read from the releases
named below by `benchmarks/framework_keys.py`.

    stratadvisor check ds_config.json --world-size 16
    stratadvisor check ds_config.json --gpus 2x8xA100-80GB --model-size 7B
    stratadvisor check training_args.yaml --json

An **error** is refused by the framework, or the run cannot do what the file says; the exit code is then 11. A
**warning** is accepted but ignored, about to go, or not what it seems (`--strict` makes it count). A **note** is worth
knowing. `--kind` says whose file it is where the keys do not; `--loader` says who reads a DeepSpeed file, since only
libraries fill its "auto" values.

A DeepSpeed file that Trainer arguments or an Accelerate file name is checked with them, when it lies beside them or
below. `stratadvisor recommend --from FILE` starts from a file's batch, precision and optimizer, and shows what the plan
changes in it.

The file is read as JSON where its name ends in `.json`, as plain YAML otherwise; up to 256 KiB, 64 levels, and 50,000
values once YAML aliases are followed.
"""


def render() -> str:
    """Return the page."""
    lines = [_INTRODUCTION, "## Compared with", "", "| framework | release |", "| --- | --- |"]
    lines += [f"| {known(kind).framework} | {known(kind).version} |" for kind in KINDS]
    lines += ["", "## Codes"]
    for prefix, title in _TITLES.items():
        lines += ["", f"### {title}", "", "| code | severity | what | source |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {name} | {code.severity} | {code.title} | {code.source} |"
            for name, code in CODES.items()
            if name.rstrip("0123456789") == prefix
        ]
    lines += ["", "## Keys that changed", "", '"never" marks keys that people write and no release has had.']
    for kind in KINDS:
        lines += [
            "",
            f"### {known(kind).framework}",
            "",
            "| key | what | since | instead |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{path}` | {change.what}{'' if change.error else ', accepted'} | {change.since or '-'} |"
            f" {change.fix.replace('|', '/')} |"
            for path, change in sorted(changes(kind).items())
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
