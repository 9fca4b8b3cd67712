"""What commands and choices need of the console: they know no application, which knows them."""

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from tasktui.operator.session import Session


class Console(Protocol):
    """The console, as far as it can be told what to do."""

    @property
    def session(self) -> Session:
        """Of the operator who commands."""
        ...

    def switch_mode(self, mode: str) -> Any:
        """Go to a screen, by its name."""
        ...

    async def action_go(self, mode: str) -> None:
        """Do that when a key says so."""
        ...

    def action_help(self) -> None:
        """Show the keys."""
        ...

    def action_health(self) -> None:
        """Show how the database does."""
        ...

    async def begin_command(self, name: str) -> None:
        """Open the line for commands with a name in it."""
        ...

    def list_tasks(self, wanted: str) -> None:
        """Show the tasks that a filter finds."""
        ...

    def views(self) -> Mapping[str, str]:
        """The saved filters, by name."""
        ...

    def tell(self, text: str, *, bad: bool = False) -> None:
        """Show a notice."""
        ...

    def run_worker(self, work: Coroutine[Any, Any, None], *, group: str) -> Any:
        """Do something that takes a while."""
        ...

    def exit(self) -> None:
        """End."""
        ...
