"""What can go wrong before a cluster stands."""

from __future__ import annotations


class LabError(Exception):
    """A command of the lab failed; the message has the command and what it said."""


class LabUnavailableError(LabError):
    """This machine or this user cannot lay out a cluster; the message is the reason."""


class SpecError(LabError):
    """A cluster description that cannot be laid out; the message says what and where."""
