"""The interface of the console for commands; avoids an import of the application."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from runner.operations.pause import PauseTarget
from tasktui.session.session import Session


class CommandTarget(Protocol):
    """The console, as commands see it."""

    @property
    def session(self) -> Session:
        """The operator's session."""
        ...

    def switch_mode(self, mode: str) -> Any:
        """Show a screen by name."""
        ...

    async def action_go(self, mode: str) -> None:
        """Show a screen on a key press."""
        ...

    def action_help(self) -> None:
        """Show the keys."""
        ...

    def action_health(self) -> None:
        """Show the state of the database."""
        ...

    async def begin_command(self, name: str) -> None:
        """Open the command line with a command's name."""
        ...

    def ask_pause(self, place: PauseTarget, length: str, reason: str, *, resume: bool) -> None:
        """Ask to pause or resume a queue or a handler."""
        ...

    def ask_limit(self, place: PauseTarget, limits: str, reason: str) -> None:
        """Ask to limit a queue or a handler."""
        ...

    def ask_breaker(self, handler: str, wait: str, reason: str) -> None:
        """Ask to open or close the breaker of a handler."""
        ...

    def ask_submit(self, handler: str) -> None:
        """Ask for a new task of a handler."""
        ...

    def write_incident(self, times: Sequence[str]) -> None:
        """Write the report of a period to a file."""
        ...

    def change_theme(self, name: str) -> None:
        """Draw with another theme."""
        ...

    def list_tasks(self, filter_text: str) -> None:
        """Show the tasks that match a filter."""
        ...

    def views(self) -> Mapping[str, str]:
        """The saved filters by name."""
        ...

    def show_notice(self, text: str, *, bad: bool = False) -> None:
        """Show a notice."""
        ...

    async def action_quit(self) -> None:
        """Exit the console."""
        ...

    def call_later(self, callback: Any, *args: Any) -> Any:
        """Call a function after the current message."""
        ...
