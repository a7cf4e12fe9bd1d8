"""The base of every document, and the value that remembers where it came from."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, model_validator

Origin = Literal["measured", "reported", "catalog", "declared", "estimated", "unknown"]
"""measured: timed here. reported: a driver or sysfs said so. catalog: a published figure. declared: the user said so.
estimated: computed from other values. unknown: nobody knows, and ``detail`` says why."""

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
"""Number format of matrix products. ``tf32`` is fp32 storage on tensor cores."""


class Document(BaseModel):
    """Frozen, refuses unknown keys, NaN and infinity. Field docstrings go into the JSON schema."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        ser_json_inf_nan="null",
    )


class Reading(Document):
    """A number with its origin. An absent thing has ``value=None``, origin ``unknown`` and a reason, never a zero."""

    value: float | None = None
    """The number in the base unit named by the field that holds it."""
    origin: Origin = "unknown"
    detail: str = ""
    """How it was measured, which source says so, or, for an unknown, why it is not known."""

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, data: Any) -> Any:
        """Let a hand-edited profile give a bare number: it is then a declared value."""
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            return {"value": data, "origin": "declared"}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Reading:
        if (self.value is None) != (self.origin == "unknown"):
            raise ValueError("a reading without a value has the origin 'unknown', and one with a value has another")
        return self

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return self.value is not None


def measured(value: float, detail: str = "") -> Reading:
    """Return a value timed on this machine."""
    return Reading(value=value, origin="measured", detail=detail)


def reported(value: float, detail: str = "") -> Reading:
    """Return a value that a driver, sysfs or the kernel states."""
    return Reading(value=value, origin="reported", detail=detail)


def unknown(reason: str) -> Reading:
    """Return an absent value with the reason for its absence."""
    return Reading(value=None, origin="unknown", detail=reason)


LARGEST = 1e24
"""No amount in this program comes near it in its base unit; what is larger overflows in a product."""


def _amount(reading: Reading) -> Reading:
    if reading.value is not None and not (reading.value == 0 or 1e-15 <= reading.value <= LARGEST):
        raise ValueError(f"{reading.value:g} is not a possible amount (0, or 1e-15 to {LARGEST:g})")
    return reading


def _rate(reading: Reading) -> Reading:
    if reading.value is not None and not 1e-6 <= reading.value <= LARGEST:
        raise ValueError(
            f"{reading.value:g} per second is not a possible rate (1e-6 to {LARGEST:g}); leave out what is unknown"
        )
    return reading


Amount = Annotated[Reading, AfterValidator(_amount)]
"""Bytes, seconds, watts, cores: never negative."""
Rate = Annotated[Reading, AfterValidator(_rate)]
"""Bytes, FLOP or cycles per second: a rate of zero would be an unknown in disguise."""
NonNegative = Annotated[float, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
Item = TypeVar("Item")
Many = Annotated[tuple[Item, ...], FailFast()]
"""A sequence of documents that is given up at its first wrong item: a file of a million wrong ones stays cheap."""
