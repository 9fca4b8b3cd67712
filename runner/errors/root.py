"""RunnerError, the root of all errors, and the errors of confirmations and of waiting for the result of a task."""

from inspect import cleandoc
from typing import Any, ClassVar


class RunnerError(Exception):
    """Something went wrong."""

    exit_code: ClassVar[int] = 1
    """Exit code of a command that fails with this error."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        super().__init__(_sentence(" ".join(cleandoc(type(self).__doc__ or "").split()).format(**fields)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.fields)


def _sentence(text: str) -> str:
    """Remove the full stop after a message that already ends with one or with a question mark."""
    return text[:-1] if text.endswith(("..", "?.")) and not text.endswith("...") else text


def _revive(kind: type[RunnerError], fields: dict[str, Any]) -> RunnerError:
    return kind(**fields)


class NotConfirmed(RunnerError):
    """not confirmed; nothing was changed"""

    exit_code = 2


class CountChanged(RunnerError):
    """{found} tasks would change now, not {confirmed}; nothing was changed. Check the tasks again with --dry-run."""

    exit_code = 6


class NoResult(RunnerError):
    """Task {id} has no result."""


class TaskFailed(NoResult):
    """Task {id} of handler {handler!r} is dead after attempt {attempts}: {reason}."""

    exit_code = 8

    @property
    def attempts(self) -> int:
        """Number of attempts."""
        return int(self.fields["attempts"])

    @property
    def error_type(self) -> str:
        """Class of the handler's exception, or a word such as Timeout."""
        return str(self.fields["error_type"])

    @property
    def message(self) -> str:
        """Message of the handler's exception."""
        return str(self.fields["message"])

    @property
    def traceback(self) -> str:
        """Traceback from the handler's own frame on, shortened as it was stored."""
        return str(self.fields["traceback"])


class TaskCancelled(NoResult):
    """Task {id} of handler {handler!r} was cancelled: {reason}."""

    exit_code = 8


class TimedOut(NoResult):
    """Task {id} did not finish within {waited}. It continues: wait again, or check it with: runner why {id}."""

    exit_code = 9


class ResultNotKept(NoResult):
    """Task {id} of handler {handler!r} succeeded, but {reason}."""


class InvalidResult(NoResult):
    """
    Task {id} of handler {handler!r} succeeded, but its result does not match the handler's return annotation:
    {why}.
    """


for _kind in (RunnerError, *RunnerError.__subclasses__(), *NoResult.__subclasses__()):
    _kind.__module__ = "runner.errors"  # tracebacks and error trackers show the module to import them from
