"""How much of the machine others took while a run went on."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path


class Neighbours:
    """Processor time of everything but this process and its ended children, over all there was (Linux)."""

    def __init__(self) -> None:
        self._busy, self._own, self._begin = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        busy = sum(fields) - fields[3] - fields[4]  # all but idle and iowait; stolen time counts as taken by others
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(u.ru_utime + u.ru_stime for u in used)
        return busy / os.sysconf("SC_CLK_TCK"), own, time.perf_counter()

    def share(self) -> float:
        """Return it since the start."""
        busy, own, end = self._now()
        taken = max(0.0, (busy - self._busy) - (own - self._own))
        return taken / ((end - self._begin) * (os.cpu_count() or 1))
