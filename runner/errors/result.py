"""Errors: why a task that was waited for has no result."""

from runner.errors.root import RunnerError


class NoResult(RunnerError):
    """Task {id} has no result."""


class TaskFailed(NoResult):
    """Task {id} of handler {handler!r} failed for good in attempt {attempts}: {reason}."""

    exit_code = 8

    @property
    def attempts(self) -> int:
        """How often it was tried."""
        return int(self.fields["attempts"])

    @property
    def error_type(self) -> str:
        """The class of the exception there, or a word such as Timeout."""
        return str(self.fields["error_type"])

    @property
    def message(self) -> str:
        """What the exception said there."""
        return str(self.fields["message"])

    @property
    def traceback(self) -> str:
        """The traceback there, from the handler's own frame on, as far as it was kept."""
        return str(self.fields["traceback"])


class TaskCancelled(NoResult):
    """Task {id} of handler {handler!r} was cancelled: {reason}."""

    exit_code = 8


class TimedOut(NoResult):
    """Task {id} had not ended after {waited}. It goes on: wait again, or see what it does with: runner why {id}."""

    exit_code = 9


class ResultNotKept(NoResult):
    """Task {id} of handler {handler!r} succeeded, but {reason}."""


class InvalidResult(NoResult):
    """Task {id} of handler {handler!r} succeeded, but its result is not what the handler promises: {why}."""
