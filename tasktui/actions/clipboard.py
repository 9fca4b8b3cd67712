"""Copying the equivalent of a screen or an action: first as a command line, then as SQL."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeAlias

from runner.errors import RunnerError
from tasktui.actions.action import Confirmation

SqlSource: TypeAlias = Callable[[], Awaitable[str]]
"""Returns the SQL; reads the database."""

ConsentSql: TypeAlias = Callable[[Confirmation], Awaitable[str]]
"""Returns the SQL for the answers of the operator so far."""

LONGEST = 300
"""Maximum number of characters of a command line to show."""

NO_COMMAND = "No command line does this, or it cannot be pasted safely"


class CopyTarget(Protocol):
    """A screen to copy from."""

    @property
    def app(self) -> Any:
        """The application, which owns the clipboard."""
        ...

    def run_worker(self, work: Coroutine[Any, Any, None], *, group: str) -> Any:
        """Run a coroutine in a worker."""
        ...

    def call_later(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Call a function between two messages, when it may touch widgets."""
        ...

    def report(self, text: str, *, bad: bool = False) -> None:
        """Show the copied text, or an error."""
        ...


def copy(target: CopyTarget, command: str | None, sql: SqlSource | None = None) -> None:
    """Copy a command line to the terminal's clipboard, or its SQL if the clipboard already holds the command line.

    Args:
        target: the screen to copy from.
        command: the command line; None if it cannot be pasted.
        sql: source of the equivalent SQL; None if there is none.
    """
    if command is None:
        target.report(NO_COMMAND, bad=True)
    elif sql is not None and target.app.clipboard == command:
        target.run_worker(_copy_sql(target, sql), group="sql")
    else:
        _put(target, command, shorten(command))


def shorten(text: str) -> str:
    """Cut a long command line: hundreds of ids would hide the dialog."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}… (all {len(text):,} characters copied)"


async def _copy_sql(target: CopyTarget, sql: SqlSource) -> None:
    try:
        text = await sql()
    except RunnerError as error:
        target.call_later(partial(target.report, str(error), bad=True))
    else:
        target.call_later(_put, target, text, f"Copied as SQL for psql or sqlite3:\n{text}")


def _put(target: CopyTarget, text: str, report: str) -> None:
    target.app.copy_to_clipboard(text)
    target.report(report)
