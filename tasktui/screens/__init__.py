"""Screens: one file each, and one row in MODES. The class of a screen is imported when it is first shown."""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tasktui.screens.live import LiveScreen
    from tasktui.session.session import Session


class Mode(NamedTuple):
    """One screen that the operator can switch to.

    Args:
        key: the key that opens it.
        title: its title, as tabs and headings show it.
        module: the module of this package that defines it.
        name: the name of its class.
    """

    key: str
    title: str
    module: str
    name: str

    @property
    def screen(self) -> "type[LiveScreen]":
        """The class of the screen; imports its module on first use."""
        screen: type[LiveScreen] = getattr(import_module(f"tasktui.screens.{self.module}"), self.name)
        return screen

    def create(self, session: "Session") -> "LiveScreen":
        """Create the screen. Textual calls this before it shows the screen for the first time.

        Args:
            session: the session with the database to which the screen belongs.
        """
        screen = self.screen()
        screen.title, screen.session = self.title, session
        return screen


MODES = {
    "overview": Mode("1", "Overview", "overview", "OverviewScreen"),
    "tasks": Mode("2", "Tasks", "tasks", "TasksScreen"),
    "task": Mode("3", "Task", "task", "TaskScreen"),
    "failures": Mode("4", "Failures", "failures", "FailuresScreen"),
    "runners": Mode("5", "Runners", "runners", "RunnersScreen"),
    "schedules": Mode("6", "Schedules", "schedules", "SchedulesScreen"),
    "reports": Mode("7", "Reports", "reports", "ReportsScreen"),
    "audit": Mode("8", "Audit", "audit", "AuditScreen"),
}
"""The screens by name. The name is also the command that opens the screen."""


DIALOGS = ("answer", "ask", "form", "health", "help", "why")

OPERATIONS = (
    "tasktui.actions.perform",
    *(
        "runner.operations.edit",
        "runner.operations.new_task",
        "runner.operations.reschedule",
        "runner.operations.terminate",
        "runner.operations.unblock",
    ),
)
"""The modules that the actions import when they are first used."""


def preload() -> None:
    """Import the other screens, all dialogs and the operations, so that no key waits, and start garbage collection.

    The collector skips everything imported by then: modules stay until the process ends.
    """
    for mode in MODES.values():
        _ = mode.screen
    for dialog in DIALOGS:
        import_module(f"tasktui.dialogs.{dialog}")
    for module in OPERATIONS:
        import_module(module)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
