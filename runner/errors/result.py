"""The errors of waiting for the result of a task."""

from runner.errors.root import RunnerError


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


class ResultEncrypted(NoResult):
    """
    Task {id} of handler {handler!r} succeeded, but this process cannot decrypt its result: {shown}. Set
    TASKTUI_CODEC_KEYS_FILE, or TASKTUI_CODEC for an own codec.
    """


class InvalidResult(NoResult):
    """
    Task {id} of handler {handler!r} succeeded, but its result does not match the handler's return annotation:
    {why}.
    """
