"""once: how an author says what makes a task unique, and what that is for one call."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from runner.errors import InvalidDuration, InvalidPayload, InvalidTask
from runner.people.times import parse_duration
from runner.rules.derived import derive, require_names
from runner.signature import Signature
from runner.storable import require_text
from runner.task import OnDuplicate, Scope, Unique

UniqueKey: TypeAlias = str | Callable[..., str | None]
"""A key, or a function that makes it of the call's arguments: it takes those that it needs by name, as the handler
would get them, and returns None for a call that need not be unique."""

Duplicate: TypeAlias = Literal["skip", "replace", "error"]

SCOPES = "write forever, until finished, or for and a length of time: for 1h"


class Lasting(NamedTuple):
    """How long a key is held.

    Args:
        scope: by what it is limited.
        seconds: the length of time of Scope.FOR_A_TIME; None for the other scopes.
    """

    scope: Scope
    seconds: float | None = None


class Once(NamedTuple):
    """What makes tasks unique; None leaves it to whoever says the rest.

    Args:
        key: the key, or how it is made.
        lasting: how long it is held; until its task is finished when None.
        on_duplicate: what to do with another task of that key; to skip it when None.
    """

    key: UniqueKey | None = None
    lasting: Lasting | None = None
    on_duplicate: OnDuplicate | None = None

    @classmethod
    def read(cls, key: UniqueKey | None, unique: str | None, on_duplicate: str | None) -> Self:
        """Read what an author said.

        Raises:
            InvalidTask: the key, the scope, or what to do with duplicates, is none.
        """
        if key is not None and not callable(key):
            require_text("unique_key", key)
        return cls(
            key,
            None if unique is None else parse_scope(unique),
            None if on_duplicate is None else parse_on_duplicate(on_duplicate),
        )

    def over(self, general: "Once") -> "Once":
        """This, with what it leaves open taken from something more general."""
        return Once(
            general.key if self.key is None else self.key,
            self.lasting or general.lasting,
            self.on_duplicate or general.on_duplicate,
        )

    def require(self, signature: Signature) -> None:
        """Refuse a function that does not fit the handler, and a scope that is said of no key.

        Raises:
            InvalidHandler: the function asks for what the handler does not take.
            InvalidTask: there is no key.
        """
        if callable(self.key):
            require_names("unique_key", self.key, signature)
        self.require_key()

    def require_key(self) -> None:
        """Refuse a scope, or an answer to duplicates, that is said of no key.

        Raises:
            InvalidTask: there is no key.
        """
        if self.key is None:
            raise InvalidTask(field="unique_key", value=None, why="how to be unique is said, but not by which key")

    def of(self, handler: str, arguments: Callable[[], Mapping[str, Any]]) -> Unique | None:
        """What makes one call unique; None when nothing does.

        Args:
            handler: its name.
            arguments: gives the call's arguments, as the handler would get them.

        Raises:
            InvalidPayload: no key can be made of the arguments.
        """
        key = derive("unique_key", self.key, handler, arguments()) if callable(self.key) else self.key
        if key is None:
            return None
        if not isinstance(key, str):
            why = f"its unique_key function returned {type(key).__name__}, and must return text, or None"
            raise InvalidPayload(handler=handler, why=why)
        lasting = self.lasting or Lasting(Scope.UNTIL_FINISHED)
        return Unique(key, *lasting, self.on_duplicate or OnDuplicate.SKIP)


def parse_scope(text: str) -> Lasting:
    """Read how long a key is held: `forever`, `until finished`, `for 1h`.

    Raises:
        InvalidTask: it is none of these.
    """
    match text.split():
        case ["forever"]:
            return Lasting(Scope.FOREVER)
        case ["until", "finished"]:
            return Lasting(Scope.UNTIL_FINISHED)
        case ["for", *length] if length:
            with contextlib.suppress(InvalidDuration):
                return Lasting(Scope.FOR_A_TIME, parse_duration(" ".join(length)).total_seconds())
    raise InvalidTask(field="unique", value=text, why=SCOPES)


def parse_on_duplicate(text: str) -> OnDuplicate:
    """Read what to do with a duplicate.

    Raises:
        InvalidTask: it is none of `skip`, `replace` and `error`.
    """
    try:
        return OnDuplicate(text)
    except ValueError:
        raise InvalidTask(field="on_duplicate", value=text, why="write skip, replace or error") from None
