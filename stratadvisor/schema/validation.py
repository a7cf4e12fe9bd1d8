"""What a validation run measured, beside what was predicted."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stratadvisor.schema.base import Document
from stratadvisor.schema.plan import Interval

Outcome = Literal["completed", "failed", "hung", "interrupted"]


class Comparison(Document):
    """One quantity."""

    quantity: str
    unit: str
    predicted: Interval | None
    measured: float | None
    ratio: float | None = None
    """measured over predicted.likely."""
    inside: bool | None = None
    note: str = ""


class FailureCause(Document):
    """Why a run failed, as far as the evidence says."""

    kind: Literal[
        "device_out_of_memory",
        "host_out_of_memory",
        "shared_memory_exhausted",
        "hang",
        "port_in_use",
        "network_interface",
        "missing_package",
        "missing_compiler",
        "bad_config",
        "disk_full",
        "rank_died",
        "launcher_died",
        "resource_limit",
        "interrupted",
        "version_mismatch",
        "unknown",
    ]
    summary: str
    evidence: tuple[str, ...] = ()
    """The lines that show it."""
    fix: str = ""
    """The smallest change that should help."""
    rank: int | None = None


class ValidationResult(Document):
    """The result of one bundle's run."""

    schema_version: int = 1
    strategy: str
    outcome: Outcome
    exit_code: int | None = None
    steps_asked: int
    steps_done: int
    wall_seconds: float
    comparisons: tuple[Comparison, ...] = ()
    data_wait_fraction: float | None = None
    communication_fraction: float | None = None
    """Exposed: time that a step waits for it."""
    straggler_fraction: float | None = None
    """Own time of the slowest rank less that of the fastest, over the step."""
    energy_joules_per_thousand_samples: float | None = None
    """Of devices and hosts, as far as counters are readable."""
    energy_origin: str = ""
    """What was counted, and why the rest is unknown."""
    carbon_grams_per_thousand_samples: float | None = None
    """CO2 at the grid intensity given with the plan; None without one or without a counter."""
    loss_first: float | None = None
    loss_last: float | None = None
    loss_falling: bool | None = None
    """None: too few steps to say."""
    tokens_per_second: float | None = None
    proxy: str = ""
    """How the run was scaled down from the plan, in words; empty when it ran as planned."""
    cause: FailureCause | None = None
    log_path: str = ""
    notes: tuple[str, ...] = ()
    step_seconds: tuple[float, ...] = Field(default=())


class RunConfigOutcome(Document):
    """Everything ``run-config`` found: the bundle's own run first, runners-up after it."""

    results: tuple[ValidationResult, ...] = Field(min_length=1)
    calibrated_profiles: tuple[str, ...] = ()
    """Files that now hold the measured ratio."""
    notes: tuple[str, ...] = ()
