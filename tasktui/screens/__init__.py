"""Screens: one file each, and one line in MODES."""

from tasktui.screens.audit import AuditScreen
from tasktui.screens.failures import FailuresScreen
from tasktui.screens.live import LiveScreen
from tasktui.screens.overview import OverviewScreen
from tasktui.screens.reports import ReportsScreen
from tasktui.screens.runners import RunnersScreen
from tasktui.screens.task import TaskScreen
from tasktui.screens.tasks import TasksScreen

MODES: dict[str, type[LiveScreen]] = {
    "overview": OverviewScreen,
    "tasks": TasksScreen,
    "task": TaskScreen,
    "failures": FailuresScreen,
    "runners": RunnersScreen,
    "reports": ReportsScreen,
    "audit": AuditScreen,
}
"""Every screen by its name, which is also the command that leads to it."""
