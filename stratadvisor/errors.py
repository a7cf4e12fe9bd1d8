"""Every error a user can meet, with its exit code. Exceptions never print; the command line does."""

from __future__ import annotations


class StratadvisorError(Exception):
    """Base of all errors that are shown as one sentence, with a hint of what to do next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(StratadvisorError):
    """Options that contradict each other, or a value that cannot be read."""

    exit_code = 2


class ProbeError(StratadvisorError):
    """Nothing could be measured, or something asked for explicitly could not."""

    exit_code = 3


class ProfileError(StratadvisorError):
    """A cluster profile or cluster file that cannot be read or contradicts itself."""

    exit_code = 4


class RuleError(StratadvisorError):
    """A rule file that is wrong: it names the file, the branch and the nearest right spelling."""

    exit_code = 5


class NoFeasiblePlanError(StratadvisorError):
    """No way to train fits; the message carries the number that kills it, the hint the smallest change that fits."""

    exit_code = 6


class EmitError(StratadvisorError):
    """A file could not be rendered, does not parse by its own format, or would overwrite edits."""

    exit_code = 7


class ValidationFailedError(StratadvisorError):
    """The validation run failed; the message is its true cause, the hint the smallest fix."""

    exit_code = 8


class OutsideToleranceError(StratadvisorError):
    """The validation run finished, but what was measured lies far outside what was predicted."""

    exit_code = 9


class DriftError(StratadvisorError):
    """Files of the bundle, or the cluster, changed since the plan was made."""

    exit_code = 10


class CheckFailedError(StratadvisorError):
    """A checked configuration has problems of the severity error; they have been shown."""

    exit_code = 11


class ModelError(StratadvisorError):
    """A model description that cannot be read or is not supported."""

    exit_code = 12
