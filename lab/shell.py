"""Commands of iproute2."""

from __future__ import annotations

import subprocess

from lab.errors import LabError


def call(*words: str, text: str | None = None) -> str:
    """Run a command and return what it printed.

    Raises:
        LabError: it failed.

    """
    done = subprocess.run(words, capture_output=True, text=True, check=False, input=text, timeout=60)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"{' '.join(words)}: {said[-1] if said else f'exit status {done.returncode}'}")
    return done.stdout


def namespaces() -> list[str]:
    """Return the names of all network namespaces."""
    return [line.split()[0] for line in call("ip", "netns", "list").splitlines() if line.strip()]


def pids(namespace: str) -> list[int]:
    """Return the processes in a namespace; none when it is gone."""
    try:
        return [int(word) for word in call("ip", "netns", "pids", namespace).split()]
    except LabError:
        return []
