"""What strangers write into names, numbers and files; shared by tests/hostile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from stratadvisor.cli import run

PWNED = "pwned-by-a-name"
"""A file that appears in the working directory when a name was executed."""
NAMES = [
    f"$(touch {PWNED})",
    f"`touch {PWNED}`",
    f"'; touch {PWNED}; '",
    f'"; touch {PWNED} #',
    f"a\ntouch {PWNED}\n",
    f"a[$(touch {PWNED})]",
    f"| touch {PWNED} &",
    "{{ 7 * 7 }}{% for x in y %}",
    "../../../etc/passwd",
    "-rf",
    "--help",
    "\x1b]0;title\x07\x1b[2J\x1b[31m",
    "\x9b31mred\x85next",
    "left\u202eright\u2066\u200b",
    "line\u2028separator",
    "carriage\rreturn",
    "<script>alert(1)</script>",
    "[bold red]markup[/]",
    "](javascript:alert(1))",
    "%s%n%x",
    "\u00e9\u6f22\U0001f600",
    "x" * 5000,
    "",
]
FEW_NAMES = [NAMES[i] for i in (0, 3, 4, 5, 7, 8, 11, 12, 13, 21)]
"""One of each kind, for tests that take a second each."""
DOCUMENTED_CODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12)
"""Of ``stratadvisor --help``, less 70 (a fault of stratadvisor itself) and 130 (interrupted)."""
MOVES_A_TERMINAL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069]",
)


def ask(arguments: Sequence[object], capsys) -> tuple[int, str, str]:
    """Run a command and prove what holds for every input: a documented code, no traceback, a terminal left alone."""
    code = run([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert code in DOCUMENTED_CODES, err
    for text in (out, err):
        assert "Traceback" not in text
        assert MOVES_A_TERMINAL.search(text) is None, repr(MOVES_A_TERMINAL.search(text))
    if code:
        said = [line for line in err.splitlines() if line.startswith("stratadvisor: ")]
        assert len(said) == 1 or arguments[0] == "rules", err
        assert all(len(line) < 2500 for line in err.splitlines())
    return code, out, err


def tree(folder: Path) -> set[str]:
    """Return every path below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
