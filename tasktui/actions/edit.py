"""Editing one task: its dialog, and saving the form."""

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from runner.errors import InvalidInput
from runner.operations.results import Result, Target
from runner.operations.targets import objection
from runner.text.redact import MASK
from tasktui.actions.action import Action, Targets
from tasktui.actions.as_command import command_line, edit_words
from tasktui.actions.question import Dialog
from tasktui.actions.tasks import question
from tasktui.messages import Notice
from tasktui.session.session import Session

if TYPE_CHECKING:
    from runner.operations.edit_values import Changes
    from runner.queries.task.detail import TaskDetail


def ask(action: Action, session: Session, targets: Targets) -> Dialog | Coroutine[Any, Any, Dialog]:
    """Ask for the new values of the selected tasks."""
    from tasktui.actions.question import bulk_form  # The first screen does not need it.

    task_filter, tasks = targets.task_filter(), targets.tasks()
    if task_filter is not None:
        return bulk_form(action, session, task_filter, f"all tasks that match {task_filter}", question)
    if len(tasks) > 1:
        return bulk_form(action, session, tasks, f"{len(tasks):,} tasks", question)
    return _ask(session, tasks[0].id) if tasks else Notice(targets.missing(), bad=True)


async def _ask(session: Session, task_id: int) -> Dialog:
    from runner.queries.task.detail import task_detail
    from tasktui.actions.edit_form import requeues  # imports modules that the first screen does not need

    detail = await session.read(task_detail, task_id)
    if not requeues(detail) and (why := objection("edit", detail.task)):
        return Notice(f"Task {task_id} cannot be edited: {why}", bad=True)
    return detail


@dataclass(frozen=True, slots=True)
class TaskEdit:
    """An edit of a task that applies only to the version that the operator saw.

    Args:
        session: the operator's session.
        detail: the task as the operator saw it.
        typed: the texts of the form by name, with the reason for the audit.
    """

    session: Session
    detail: "TaskDetail"
    typed: Mapping[str, str]

    def command(self) -> str | None:
        """Return the equivalent command line; None if nothing is edited, or it cannot be pasted.

        Raises:
            InvalidInput: a text cannot be parsed, or the payload has secrets.
        """
        from tasktui.actions.edit_form import edited_texts

        self._changes()
        values = edited_texts(self.typed, self.detail, self.session.zone)
        if MASK in values.get("payload", ""):
            raise InvalidInput(why="the payload has secrets, which a command line would show")
        words = edit_words(self.detail, values, self._reason)
        return command_line(words, self.session.settings) if values else None

    async def sql(self) -> str:
        """Write the equivalent SQL.

        Raises:
            NoSqlEquivalent: nothing would change, or the SQL cannot be pasted.
        """
        from runner.operations.edit import edit_each
        from runner.operations.sql_export import script

        operation = partial(edit_each, changes=self._changes(), **self._options())
        return await self.session.write(script, operation, [Target(self.detail.task.id, self.detail.task.version)])

    async def save(self) -> Result:
        """Save the values.

        Raises:
            RunnerError: a text cannot be parsed, or the database rejects the change.
        """
        from runner.operations.edit import edit

        task, options = self.detail.task, self._options()
        return await self.session.write(edit, task.id, task.version, self._changes(), **options)

    @property
    def _reason(self) -> str | None:
        return self.typed["reason"] or None

    def _changes(self) -> "Changes":
        from tasktui.actions.edit_form import changes

        return changes(self.typed, self.detail, self.session.zone)

    def _options(self) -> dict[str, Any]:
        from tasktui.actions.edit_form import requeues

        return {
            "by": self.session.by(self._reason),
            "requeue": requeues(self.detail),
            "payload_limit": int(self.session.settings.payload_limit),
        }
