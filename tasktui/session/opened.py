"""Opened: the arguments with which the screens of a database were opened last."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from runner.filter.sort import NEWEST, Sort

QUIET_TEXT = "-state:succeeded"
"""The filter of a list that no command and no other screen has opened."""

TargetScreen: TypeAlias = Literal["runners", "audit", "failures", "schedules", "workflows"]
"""The screens that open at a target."""


@dataclass(slots=True)
class OpenedList:
    """The arguments of the task list.

    Args:
        sort: order of the list.
        before: the filter and the order to which escape goes back; None if another screen opened the list.
    """

    filter_text: str = QUIET_TEXT
    sort: Sort = NEWEST
    before: tuple[str, Sort] | None = None

    def go_back(self) -> bool:
        """Restore the filter and the order before; False if there are none."""
        if self.before is None:
            return False
        (self.filter_text, self.sort), self.before = self.before, None
        return True


@dataclass(slots=True)
class OpenedTask:
    """The arguments of the screen of a task.

    Args:
        id: the open task; None if none is open.
        ids: tasks of the list that it was opened from.
    """

    id: int | None = None
    ids: Sequence[int] = ()


@dataclass(slots=True)
class OpenedTarget:
    """The arguments of the runners, the schedules, the workflows, the failures and the audit.

    Args:
        queue: of the failures, the queue whose largest group has the initial cursor; empty as soon as it is found.
        target: initial cursor: a runner as id or host:pid, a schedule, a workflow, a handler or a failure group,
            or the target of an operation; empty once the screen has moved there.
        name: of the workflows, the name of those that the list shows; empty for all.
        has_new_change: True after a change on another screen than the audit, until the audit has looked for it.
    """

    target: str = ""
    queue: str = ""
    name: str = ""
    has_new_change: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """The arguments by the name of the screen; a screen and its twin of a past time share them."""

    tasks: OpenedList = field(default_factory=OpenedList)
    task: OpenedTask = field(default_factory=OpenedTask)
    runners: OpenedTarget = field(default_factory=OpenedTarget)
    audit: OpenedTarget = field(default_factory=OpenedTarget)
    failures: OpenedTarget = field(default_factory=OpenedTarget)
    schedules: OpenedTarget = field(default_factory=OpenedTarget)
    workflows: OpenedTarget = field(default_factory=OpenedTarget)
