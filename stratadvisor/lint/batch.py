"""DeepSpeed's batch identity: train_batch_size = micro batch x accumulation x world size, any two of three given."""

from __future__ import annotations

from stratadvisor.lint.finding import Path
from stratadvisor.lint.subject import AUTO, Subject, shown, whole

TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
MAX_SUGGESTED = 100_000_000


def check_batch(subject: Subject) -> None:
    """Report sizes that are no positive whole numbers, are missing, or do not multiply."""
    given = {key: subject.data.get(key) for key in (TOTAL, MICRO, STEPS) if subject.data.get(key) is not None}
    bad = {key: value for key, value in given.items() if value != AUTO and (whole(value) or 0) < 1}
    for key, value in bad.items():
        subject.report("DS114", (key,), f"{key} is {shown(value)}, not a whole number from 1", "a whole number from 1")
    if bad or any(value == AUTO for value in given.values()):
        return
    total, micro, steps = (whole(given.get(key)) for key in (TOTAL, MICRO, STEPS))
    if total is None and micro is None:
        if subject.loader in ("unknown", "none"):
            subject.report(
                "DS202",
                (STEPS,) if steps is not None else (),
                f"neither {TOTAL} nor {MICRO} is given; DeepSpeed cannot guess one",
                f"{MICRO} with {STEPS}; {TOTAL} follows",
            )
        return
    _products(subject, total, micro, steps)


def _products(subject: Subject, total: int | None, micro: int | None, steps: int | None) -> None:
    world = subject.world_size
    split = (subject.data.get("sequence_parallel_size"), subject.at("tensor_parallel", "autotp_size"))
    if any((whole(size) or 0) > 1 for size in split):
        world = None  # then it is the data-parallel ranks that count, and how many depends on the launch
    if total is None:
        return
    if micro is not None and steps is not None:
        if world is None and total % (micro * steps):
            _report(
                subject,
                "DS201",
                f"{TOTAL} {total} is not a multiple of {micro} x {steps} = {micro * steps}; no world size helps",
                f"delete {TOTAL}: it follows from the other two",
            )
        elif world is not None and total != micro * steps * world:
            _report(
                subject,
                "DS201",
                f"{TOTAL} {total} is not {MICRO} {micro} x {STEPS} {steps} x world size {world}"
                f" = {micro * steps * world}",
                f"{TOTAL} {min(micro * steps * world, MAX_SUGGESTED)}, or delete it: it follows from the other two",
            )
        return
    if world is None:
        if micro is not None and total % micro:
            _report(subject, "DS203", f"{TOTAL} {total} is not a multiple of {MICRO} {micro}", "a multiple of it")
        return
    parts = world * (micro or steps or 1)
    if total < parts:
        _report(
            subject,
            "DS203",
            f"{TOTAL} {total} is less than {parts}, one sequence for each of {world} ranks"
            + (f" times {micro or steps}" if parts != world else "")
            + ": the share of a rank becomes 0",
            f"{TOTAL} of at least {min(parts, MAX_SUGGESTED)}, or fewer ranks",
        )
    elif total % parts:
        _report(
            subject,
            "DS203",
            f"{TOTAL} {total} does not divide by {parts} ({world} ranks"
            + (f" x {micro or steps}" if parts != world else "")
            + f"); {total % parts} sequences are left over",
            f"{TOTAL} {total - total % parts} or {total - total % parts + parts}",
        )


def _report(subject: Subject, code: str, message: str, fix: str) -> None:
    path: Path = (TOTAL,)
    subject.report(code, path, message, fix)
