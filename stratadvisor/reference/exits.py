"""Exit codes: from the errors that carry them."""

from __future__ import annotations

import inspect

from stratadvisor import errors
from stratadvisor.cli import INTERNAL_ERROR_EXIT, INTERRUPTED_EXIT


def exit_codes() -> tuple[tuple[int, str], ...]:
    """Return (code, meaning), ascending; the meaning is the error's own description."""
    found = {0: "Done.", INTERNAL_ERROR_EXIT: "A fault of stratadvisor itself.", INTERRUPTED_EXIT: "Interrupted."}
    for value in vars(errors).values():
        if inspect.isclass(value) and issubclass(value, errors.StratadvisorError):
            text = " ".join((inspect.getdoc(value) or "").partition("\n")[0].split())
            base = value is errors.StratadvisorError
            found[value.exit_code] = "Any other error, said in one sentence." if base else text
    return tuple(sorted(found.items()))
