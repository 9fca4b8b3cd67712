"""RunnerError, the root of all errors."""

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
