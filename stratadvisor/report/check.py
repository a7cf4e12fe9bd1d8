"""The findings of a configuration file on a screen."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from stratadvisor.lint.finding import SEVERITIES, Finding
from stratadvisor.lint.run import Checked
from stratadvisor.report.console import console, safe, wrapped

STYLES = {"error": "bold red", "warning": "yellow", "note": ""}


def show_checked(checked: Checked, path: Path) -> None:
    """Print each finding: where, what, what to write instead; a line with the counts last."""
    out = console()
    for finding in checked.findings:
        place = finding.file or str(path)
        place += f":{finding.line}" if finding.line else ""
        head = f"{finding.severity} {finding.code}"
        head += f" {finding.path}" if finding.path else ""
        out.print(Text(safe(f"{place}: {head}"), style=STYLES[finding.severity]), soft_wrap=True)
        wrapped(out, finding.message, indent=4, hang=0)
        for label, text in _more(finding):
            wrapped(out, f"{label}: {text}", indent=4)
    counts = ", ".join(
        f"{n} {severity}{'s' if n != 1 else ''}" for severity in SEVERITIES if (n := checked.count(severity))
    )
    wrapped(
        out,
        f"{path} (compared with {checked.kind} {checked.framework_version}): {counts or 'nothing found'}",
        indent=0,
    )


def _more(finding: Finding) -> list[tuple[str, str]]:
    source = finding.source if finding.severity != "note" else ""
    pairs = (("instead", finding.fix), ("changed", finding.since), ("source", source))
    return [(label, text) for label, text in pairs if text]
