"""The root of all errors, and those that stand alone."""

from inspect import cleandoc
from typing import Any, ClassVar


class RunnerError(Exception):
    """Something went wrong."""

    exit_code: ClassVar[int] = 1
    """What a command ends with when this error ends it."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        super().__init__(_sentence(" ".join(cleandoc(type(self).__doc__ or "").split()).format(**fields)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.fields)


def _sentence(text: str) -> str:
    """A message that ends in what somebody else said, without a second full stop behind theirs."""
    return text[:-1] if text.endswith("..") and not text.endswith("...") else text


def _revive(kind: type[RunnerError], fields: dict[str, Any]) -> RunnerError:
    return kind(**fields)


class CountChanged(RunnerError):
    """The tasks that would be changed are {found} now, not {confirmed}: nothing was done. Look again with --dry-run."""

    exit_code = 6


class BenchFailed(RunnerError):
    """The measurement could not be made: {why}."""
