"""Screens: one file each, and one line in MODES; each is loaded when it is shown first, or before that while idle."""

from typing import TYPE_CHECKING, NamedTuple

from runner.later import names_of

if TYPE_CHECKING:
    from tasktui.screens.ask import AskScreen
    from tasktui.screens.audit import AuditScreen
    from tasktui.screens.command import CommandScreen
    from tasktui.screens.confirm import ConfirmScreen
    from tasktui.screens.edit import EditScreen
    from tasktui.screens.failures import FailuresScreen
    from tasktui.screens.health import HealthScreen
    from tasktui.screens.help import HelpScreen
    from tasktui.screens.live import LiveScreen
    from tasktui.screens.overview import OverviewScreen
    from tasktui.screens.reports import ReportsScreen
    from tasktui.screens.runners import RunnersScreen
    from tasktui.screens.task import TaskScreen
    from tasktui.screens.tasks import TasksScreen
    from tasktui.screens.why import WhyScreen

__all__ = [
    "MODES",
    "AskScreen",
    "AuditScreen",
    "CommandScreen",
    "ConfirmScreen",
    "EditScreen",
    "FailuresScreen",
    "HealthScreen",
    "HelpScreen",
    "LiveScreen",
    "Mode",
    "OverviewScreen",
    "ReportsScreen",
    "RunnersScreen",
    "TaskScreen",
    "TasksScreen",
    "WhyScreen",
]


class Mode(NamedTuple):
    """Where one can go.

    Args:
        key: that leads to it.
        title: what it is called.
        name: of its class, in this package.
    """

    key: str
    title: str
    name: str

    @property
    def screen(self) -> "type[LiveScreen]":
        """Its class; asking loads it."""
        found: type[LiveScreen] = __getattr__(self.name)
        return found

    def made(self) -> "LiveScreen":
        """Make the screen, as Textual asks for it when it is shown first."""
        made = self.screen()
        made.title = self.title
        return made


MODES = {
    "overview": Mode("1", "Overview", "OverviewScreen"),
    "tasks": Mode("2", "Tasks", "TasksScreen"),
    "task": Mode("3", "Task", "TaskScreen"),
    "failures": Mode("4", "Failures", "FailuresScreen"),
    "runners": Mode("5", "Runners", "RunnersScreen"),
    "reports": Mode("7", "Reports", "ReportsScreen"),
    "audit": Mode("8", "Audit", "AuditScreen"),
}
"""Every screen by its name, which is also the command that leads to it."""

__getattr__ = names_of(__name__)
