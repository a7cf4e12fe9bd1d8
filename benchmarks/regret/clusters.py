"""The clusters that are measured, in an order of which every beginning is a balanced sample."""

from __future__ import annotations

from dataclasses import dataclass

import lab


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A cluster of the lab, and what happens to it while it is used."""

    name: str
    cpu: tuple[float, ...]
    """Processor share of each host."""
    ranks: int = 1
    """Ranks on each host."""
    megabits: float | None = None
    """Rate of every host's link in Mb/s; None: unshaped."""
    latency_ms: float = 0.0
    """One way between two hosts."""
    slows_to: float | None = None
    """Share to which the last host falls every other ``PHASE_SECONDS``; None: speeds are steady."""
    held_out: bool = False
    """Not looked at when rules or formulas are changed."""

    @property
    def spec(self) -> lab.Spec:
        """The cluster as the lab lays it out: hosts of one rank take turns on the processors."""
        rate = None if self.megabits is None else self.megabits * 1e6 / 8
        return lab.Spec(
            hosts=tuple(
                lab.Host(
                    name=f"h{index + 1}",
                    ranks=self.ranks,
                    cpu=share,
                    cores=(index % 2,) if self.ranks == 1 else None,
                    send_bytes_per_second=rate,
                    receive_bytes_per_second=rate,
                    latency_seconds=self.latency_ms / 2000,
                )
                for index, share in enumerate(self.cpu)
            )
        )

    @property
    def network(self) -> str:
        """The links in words."""
        rate = "unshaped" if self.megabits is None else f"{self.megabits:g} Mb/s"
        return f"{rate}, {self.latency_ms:g} ms" if self.latency_ms else rate

    @property
    def hosts(self) -> str:
        """The hosts in words: shares of a processor."""
        shares = " : ".join(f"{share:g}" for share in self.cpu)
        change = "" if self.slows_to is None else f", the last falls to {self.slows_to:g} every other second"
        return f"{shares}{f', {self.ranks} ranks each' if self.ranks > 1 else ''}{change}"


PHASE_SECONDS = 1.0

CASES = (
    Case(name="two-equal-50M", cpu=(0.5, 0.5), megabits=50),
    Case(name="one-half-unshaped", cpu=(0.6, 0.3)),
    Case(name="four-equal-1G-5ms", cpu=(0.28, 0.28, 0.28, 0.28), megabits=1000, latency_ms=5, held_out=True),
    Case(name="three-one-slow-100M", cpu=(0.4, 0.4, 0.2), megabits=100),
    Case(name="two-changing-1G", cpu=(0.5, 0.5), megabits=1000, slows_to=0.15),
    Case(name="two-by-two-equal-100M", cpu=(0.5, 0.5), ranks=2, megabits=100, held_out=True),
    Case(name="one-quarter-200M", cpu=(0.6, 0.15), megabits=200),
    Case(name="four-two-slow-1G", cpu=(0.4, 0.4, 0.2, 0.2), megabits=1000),
    Case(name="two-equal-unshaped", cpu=(0.5, 0.5), held_out=True),
    Case(name="three-equal-200M-5ms", cpu=(0.36, 0.36, 0.36), megabits=200, latency_ms=5),
    Case(name="two-by-two-one-half-200M", cpu=(0.7, 0.35), ranks=2, megabits=200),
    Case(name="one-half-50M-5ms", cpu=(0.6, 0.3), megabits=50, latency_ms=5, held_out=True),
    Case(name="four-equal-100M", cpu=(0.28, 0.28, 0.28, 0.28), megabits=100),
    Case(name="one-third-1G-5ms", cpu=(0.6, 0.2), megabits=1000, latency_ms=5),
    Case(name="three-changing-unshaped", cpu=(0.36, 0.36, 0.36), slows_to=0.12, held_out=True),
    Case(name="two-by-two-equal-1G", cpu=(0.5, 0.5), ranks=2, megabits=1000),
    Case(name="three-steps-1G", cpu=(0.6, 0.3, 0.15), megabits=1000),
    Case(name="four-one-slow-unshaped", cpu=(0.32, 0.32, 0.32, 0.16), held_out=True),
    Case(name="two-equal-200M-20ms", cpu=(0.5, 0.5), megabits=200, latency_ms=20),
    Case(name="one-quarter-50M", cpu=(0.6, 0.15), megabits=50),
    Case(name="three-equal-unshaped", cpu=(0.36, 0.36, 0.36), held_out=True),
    Case(name="two-changing-100M", cpu=(0.5, 0.5), megabits=100, slows_to=0.15),
    Case(name="two-by-two-one-quarter-1G", cpu=(0.7, 0.18), ranks=2, megabits=1000),
    Case(name="one-half-200M-10ms", cpu=(0.6, 0.3), megabits=200, latency_ms=10, held_out=True),
)
