"""Editing: the forms for one task and for many."""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from runner.errors import InvalidInput
from runner.model.duration import parse_spread
from runner.operations.results import Result, Target
from runner.operations.targets import objection
from runner.text.redact import MASK
from tasktui.actions.action import Action, Targets
from tasktui.actions.as_command import command_line, edit_words
from tasktui.actions.plan import ActionPlan
from tasktui.actions.question import Dialog, Form, FormField
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Session
from tasktui.session.shards import ShardsSession

if TYPE_CHECKING:
    from runner.operations.edit_values import Changes
    from runner.queries.task.detail import TaskDetail


def ask(action: Action, session: Session, targets: Targets) -> Dialog | Coroutine[Any, Any, Dialog]:
    """Ask for the new values of the selected tasks."""
    task_filter, tasks = targets.task_filter(), targets.tasks()
    if task_filter is not None:
        return _bulk_form(action, session, {session.name: targets}, f"all tasks that match {task_filter}")
    if len(tasks) > 1:
        return _bulk_form(action, session, {session.name: targets}, f"{len(tasks):,} tasks")
    return _ask(session, tasks[0].id) if tasks else Notice(targets.missing(), bad=True)


def ask_in_shards(action: Action, session: ShardsSession, parts: Mapping[str, Targets]) -> Coroutine[Any, Any, Dialog]:
    """Ask for the new values of tasks in several shards.

    Args:
        parts: the tasks of each shard, by its name.
    """
    number = sum(len(targets.tasks()) for targets in parts.values())
    return _bulk_form(action, session, parts, f"{number:,} tasks" if number else "all tasks that match")


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
        detail: the task as the operator saw it.
        typed: the texts of the form by name, with the reason for the audit.
        unchecked: save a payload that the stored signature of the handler refuses.
    """

    session: Session
    detail: "TaskDetail"
    typed: Mapping[str, str]
    unchecked: bool = False

    def command(self) -> str | None:
        """Return the equivalent command line; None if nothing is edited, or it cannot be pasted.

        Raises:
            InvalidInput: a text cannot be parsed, or the payload has secrets.
        """
        from tasktui.actions.edit_form import edited_texts

        self._changes()
        values = edited_texts(self.typed, self.detail)
        if MASK in values.get("payload", ""):
            raise InvalidInput(why="the payload has secrets, which a command line would show")
        words = edit_words(self.detail, values, self._reason, unchecked=self.unchecked)
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
        from runner.operations.bulk import to_each
        from runner.operations.edit import edit_each

        operation = partial(edit_each, changes=self._changes(), **self._options())
        return await to_each(self.session, operation, [Target(self.detail.task.id, self.detail.task.version)])

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
            "checked": not self.unchecked,
        }


BULK_FIELDS = (
    FormField("run_at", "Run at", hint="unchanged; now, +15m, 14:30"),
    FormField("spread", "Spread over", hint="after run at: 10m"),
    FormField("max_attempts", "Max attempts", hint="unchanged; a number, or none for the handler's"),
    FormField("priority", "Priority", hint="unchanged; 1 to 9, 9 runs first"),
    FormField("timeout", "Timeout", hint="unchanged; 30s, or none for the handler's"),
)


async def _bulk_form(action: Action, session: Session, parts: Mapping[str, Targets], of: str) -> Form:
    """Build the form for new values of many tasks: those of a filter, or as they are on the screen.

    Args:
        parts: the tasks in each database, by its name.
    """
    from runner.db.transaction import clock
    from runner.operations.edit_values import Changes, check_bulk
    from tasktui.actions.each_shard import in_databases
    from tasktui.actions.edit_form import parse_value
    from tasktui.actions.shard_plan import planned, question_of

    times, silent = await in_databases(session, parts, lambda each, _targets: each.read(clock))
    at, zone = next(iter(times.values()), session.now()), session.zone

    def read(typed: Mapping[str, str], at: datetime) -> "tuple[Changes, float, dict[str, Any]]":
        texts = {name: text for name, text in typed.items() if text and name != "spread"}
        changes = Changes(**{name: parse_value(name, text, at, zone) for name, text in texts.items()})
        spread = parse_spread(typed["spread"])
        return changes, spread, check_bulk(changes, spread)

    def preview(typed: Mapping[str, str]) -> Sequence[str]:
        from runner.text import formatting

        if not any(typed.values()):
            return ["no changes yet"]
        _, spread, values = read(typed, at)
        lines = []
        for name, value in values.items():
            text = formatting.exact(value, at, zone) if name == "run_at" else "none" if value is None else f"{value:g}"
            more = f", spread over {typed['spread']}" if spread and name == "run_at" else ""
            lines.append(f"{name.replace('_', ' ')}: {text}{more}")
        return lines

    async def submit(typed: Mapping[str, str]) -> "Dialog":
        from runner.operations.edit import edit_all

        words = [word for name, text in typed.items() if text for word in (f"--{name.replace('_', '-')}", text)]

        async def of_database(each: Session, targets: Targets) -> ActionPlan:
            changes, spread, values = read(typed, times[each.name])  # +10m is relative to the clock of each database
            edit = action._replace(
                operation=lambda by, _answer: partial(edit_all, changes=changes, by=by, spread=spread),
                options=lambda _answer: words,
            )
            return await planned(edit, each, targets, values)

        known = {name: targets for name, targets in parts.items() if name in times}
        plans, errors = await in_databases(session, known, of_database)
        return question_of(session, plans, {**silent, **errors}, preview(typed))

    about = [content((f"New values for {line(of)}. Empty entries stay as they are.", "bold strong"))]
    return Form(f"Edit {line(of)}", about, BULK_FIELDS, preview, submit)
