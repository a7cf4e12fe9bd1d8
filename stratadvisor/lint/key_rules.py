"""Keys that are unknown, or in the table of changes; the same walk for every framework."""

from __future__ import annotations

from dataclasses import dataclass

from stratadvisor.lint.finding import Kind
from stratadvisor.lint.known import Change, changes, known
from stratadvisor.lint.subject import Subject, meant, shown

_WORDS = {
    "removed": "was removed",
    "renamed": "has another name now",
    "deprecated": "is deprecated",
    "never": "has never been a key",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """Which code stands for what in one framework."""

    removed: str
    old_name: str
    never: str


COMMENTS = ("_comment", "//", "#")
"""How people write remarks in JSON."""
CHANGED = {
    "deepspeed": Codes(removed="DS111", old_name="DS112", never="DS113"),
    "accelerate": Codes(removed="ACC103", old_name="ACC104", never="ACC101"),
    "lightning": Codes(removed="PL102", old_name="PL102", never="PL103"),
    "transformers": Codes(removed="HF102", old_name="HF103", never="HF101"),
}


def report_change(subject: Subject, kind: Kind, path: tuple[str, ...], change: Change) -> None:
    """Add the finding of a key that changed."""
    codes = CHANGED[kind]
    if change.what == "never":
        code = codes.never
    elif change.what == "removed" or change.error:
        code = codes.removed
    else:
        code = codes.old_name
    framework = known(kind).framework
    message = f"{path[-1]} {_WORDS[change.what]}"
    if change.what == "never":
        message += f" of {framework}: it is {'refused' if change.error else 'read by nobody'}"
    elif change.since:
        message += f" in {framework} {change.since}"
    subject.report(
        code,
        path,
        message,
        change.fix,
        since=f"{framework} {change.since}" if change.since else "",
        source=change.source,
        severity="error" if change.error else "warning",
    )


def check_section(
    subject: Subject,
    kind: Kind,
    path: tuple[str, ...],
    *,
    section: str,
    code: str,
    what: str,
    also: frozenset[str] = frozenset(),
) -> None:
    """Report the keys of one section that changed or are unknown."""
    keys = known(kind).sections[section] | also
    table = changes(kind)
    for key in subject.section(*path) if path else subject.data:
        where = (*path, str(key))
        change = table.get(".".join(where))
        if change is not None:
            report_change(subject, kind, where, change)
        elif key not in keys and not str(key).startswith(COMMENTS):
            subject.report(code, where, f"{shown(key)} {what}", meant(key, keys))


def report_twice(subject: Subject, *, refused: bool) -> None:
    """Report keys that stand twice in one mapping: DeepSpeed refuses that, other readers take the later one."""
    for path, line in subject.places.twice:
        subject.report(
            "GEN101",
            path,
            f"{shown(path[-1])} stands here and in line {line}",
            "keep one of them",
            severity="error" if refused else "warning",
        )
