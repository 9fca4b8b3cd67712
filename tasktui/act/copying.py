"""Copying what does the same elsewhere: first the command line, and when that is copied already the SQL."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeAlias

from runner.errors import RunnerError
from tasktui.act.consent import Consent

Sql: TypeAlias = Callable[[], Awaitable[str]]
"""Writes the SQL; it asks the database."""

Scripted: TypeAlias = Callable[[Consent], Awaitable[str]]
"""Writes it for what was answered so far."""

LONGEST = 300
"""Characters of a command line that are shown."""

NO_COMMAND = "There is no command line for this that could be pasted"


class Desk(Protocol):
    """A screen to copy from."""

    @property
    def app(self) -> Any:
        """Has the clipboard."""
        ...

    def run_worker(self, work: Coroutine[Any, Any, None], *, group: str) -> Any:
        """Do something that takes a while."""
        ...

    def call_later(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Do something between two messages, when widgets may be touched."""
        ...

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show what was copied, or why nothing was."""
        ...


def copy(desk: Desk, command: str | None, sql: Sql | None = None) -> None:
    """Copy a command line to the clipboard of the terminal; the SQL when that is what the clipboard holds.

    Args:
        desk: the screen.
        command: None for one that cannot be pasted.
        sql: None where no statement does the same.
    """
    if command is None:
        desk.say(NO_COMMAND, bad=True)
    elif sql is not None and desk.app.clipboard == command:
        desk.run_worker(_write(desk, sql), group="sql")
    else:
        _put(desk, command, shown(command))


def shown(text: str) -> str:
    """What was copied, as far as there is room for it: hundreds of numbers would hide the question."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}… and so on, {len(text):,} characters: all of it is copied"


async def _write(desk: Desk, sql: Sql) -> None:
    try:
        text = await sql()
    except RunnerError as error:
        desk.call_later(partial(desk.say, str(error), bad=True))
    else:
        desk.call_later(_put, desk, text, f"Copied as SQL, to be pasted into psql or sqlite3:\n{text}")


def _put(desk: Desk, text: str, told: str) -> None:
    desk.app.copy_to_clipboard(text)
    desk.say(told)
