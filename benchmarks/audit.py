"""Known advisories against everything that is installed for development, as pip-audit finds them, and no false peace.

``make audit`` runs pip-audit from an environment of its own on the exact releases of ``.venv``. Where its service does
not answer, pip-audit itself ends well and says that nothing was found; this program tells the two apart.

Exit codes: 0 audited and nothing found, 1 advisories, 3 not audited (0 with ``--where-reachable``).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path

NOT_AUDITED = 3


def installed() -> list[str]:
    """Return what this environment holds as exact releases, without this project and without local builds' marks."""
    found = {d.name.lower(): d.version.partition("+")[0] for d in importlib.metadata.distributions()}
    return sorted(f"{name}=={version}" for name, version in found.items() if name != "stratadvisor")


def verdict(answer: str, errors: str) -> tuple[int, list[str]]:
    """Return the exit code and the sentences for what pip-audit printed as JSON."""
    try:
        dependencies = json.loads(answer)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        last = (errors.strip().splitlines() or ["no word"])[-1]
        return NOT_AUDITED, [f"NOT AUDITED: the advisory service could not be asked: {last[:200]}"]
    skipped = [d["name"] for d in dependencies if "skip_reason" in d]
    audited = [d for d in dependencies if "skip_reason" not in d]
    if not audited:
        return NOT_AUDITED, [f"NOT AUDITED: the advisory service answers for none of {len(skipped)} packages from here"]
    found = [
        f"{d['name']} {d['version']}: {v['id']}, fixed in {', '.join(v.get('fix_versions', [])) or 'no release'}"
        for d in audited
        for v in d["vulns"]
    ]
    said = [*found, f"{len(audited)} packages audited, {len(found)} advisories"]
    if skipped:
        said.append(f"not audited, unknown to the service: {', '.join(skipped)}")
    return (1 if found else 0), said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pip_audit", type=Path, help="the program")
    parser.add_argument("--where-reachable", action="store_true", help="an unreachable service is said, and no failure")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text("\n".join(installed()) + "\n", encoding="utf-8")
        done = subprocess.run(
            [given.pip_audit, "--disable-pip", "--no-deps", "--format", "json", "--timeout", "15", "-r", wanted],
            capture_output=True,
            text=True,
            check=False,
        )
    code, sentences = verdict(done.stdout, done.stderr)
    print("\n".join(f"audit: {sentence}" for sentence in sentences))
    return 0 if code == NOT_AUDITED and given.where_reachable else code


if __name__ == "__main__":
    sys.exit(main())
