"""How a sub-probe says that it does not apply here."""

from __future__ import annotations


class UnsupportedHereError(Exception):
    """The sub-probe does not apply to this machine; the message is the reason, in one sentence."""
