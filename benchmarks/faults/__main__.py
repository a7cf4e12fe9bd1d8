"""``python -m benchmarks.faults``: inject every fault, print the table, end with 1 when an answer is wrong.

Linux, root (namespaces, control groups of version 1), gcc, util-linux and iproute2. About a quarter of an hour
on two cores. ``--only NAME`` may be repeated and takes a part of a name; ``--csv FILE`` keeps the rows.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from pathlib import Path

from benchmarks.faults import probing, rig, storing, validating

FAULTS = (*probing.FAULTS, *validating.FAULTS, *storing.FAULTS)
COLUMNS = ("name", "during", "fault", "injected", "said", "seconds", "kept", "exit code", "right")
SHOWN = COLUMNS[2:-1]


def row(fault: rig.Fault, workplace: Path) -> dict[str, str]:
    """Inject one fault and return its row."""
    folder = workplace / fault.name
    folder.mkdir()
    try:
        seen = fault.run(folder)
        wrong = rig.problems(fault, seen)
    except Exception as problem:
        seen, wrong = rig.Seen(exit_code=-1, seconds=0, said="", cause="not injected"), [f"not injected: {problem}"]
    cause = " ".join(seen.cause.replace(str(workplace), "...").split())
    values = (fault.name, fault.during, fault.what, fault.how, cause[:200], f"{seen.seconds:.1f}", seen.kept)
    return dict(zip(COLUMNS, (*values, str(seen.exit_code), "; ".join(wrong) or "yes"), strict=True))


def line(values: object) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(str(v).replace("|", "/") for v in values) + " |"  # type: ignore[attr-defined]


def main() -> int:
    """Run the asked faults."""
    parser = argparse.ArgumentParser(description="Inject faults for real and check what is said about each.")
    parser.add_argument("--only", action="append", default=[], help="A part of a fault's name; may be repeated.")
    parser.add_argument("--csv", type=Path, help="Append the rows to this file.")
    options = parser.parse_args()
    chosen = [f for f in FAULTS if not options.only or any(part in f.name for part in options.only)]
    during, wrong = "", 0
    with tempfile.TemporaryDirectory(prefix="stratadvisor-faults-") as workplace:
        for fault in chosen:
            found = row(fault, Path(workplace))
            if found["during"] != during:
                during = found["during"]
                print(f"\n### While {during}\n\n{line(SHOWN)}\n{line('---' for _ in SHOWN)}")
            print(line(found[name] for name in SHOWN), flush=True)
            if found["right"] != "yes":
                wrong += 1
                print(f"{fault.name}: {found['right']}", file=sys.stderr, flush=True)
            if options.csv:
                new = not options.csv.exists()
                with options.csv.open("a", newline="") as stream:
                    writer = csv.DictWriter(stream, COLUMNS)
                    if new:
                        writer.writeheader()
                    writer.writerow(found)
    print(f"\n{len(chosen)} faults, {wrong} answered wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
