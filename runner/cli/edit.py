"""`runner edit`: change when and how one task runs."""

from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from json import dumps
from typing import Annotated, Any

from cyclopts import Group, Parameter

from runner.cli.connection import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.operation_output import exit_code, print_result, print_script
from runner.cli.output import print_json, print_line
from runner.cli.task_filter import TaskId
from runner.db.transaction import clock
from runner.errors import InvalidEdit, VersionConflict
from runner.model.duration import parse_duration
from runner.operations.edit import EditPreview, edit_each, preview_edit
from runner.operations.edit import edit as apply_edit
from runner.operations.edit_values import KEEP, Changes
from runner.operations.results import Target, local_actor
from runner.policy.retry import parse_plan
from runner.text import formatting
from runner.text.operator import local_zone
from runner.text.redact import differences
from runner.text.times import format_moment, parse_moment

NONE = "none"
"""Restores the handler's value, or removes the key."""


@Parameter(name="*", group=Group("New values", sort_key=50))
@dataclass(frozen=True, slots=True)
class NewValues:
    """New values; options that are left out change nothing.

    Args:
        run_at: Not before this time: now, +10m, 14:30, tomorrow 9:00.
        max_attempts: Maximum number of attempts, or none for the handler's.
        priority: 1 to 9; 9 runs first.
        retry: The retry plan, or none for the handler's.
        timeout: Time limit of an attempt, or none for the handler's.
        payload: The arguments, a JSON object.
        key: The business key, or none.
        expires_at: Not started after this time, or none: +1h, 18:00.
        requeue: Run a dead or cancelled task again with these values.
    """

    run_at: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    max_attempts: str | None = None
    priority: int | None = None
    retry: str | None = None
    timeout: str | None = None
    payload: str | None = None
    key: str | None = None
    expires_at: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    requeue: bool = False

    def changes(self, at: datetime) -> Changes:
        """Parse the values, relative to the database's time `at`."""
        texts = {name: value for name, value in asdict(self).items() if value is not None and name != "requeue"}
        return Changes(**{name: self._read(name, value, at) for name, value in texts.items()})

    def _read(self, name: str, value: Any, at: datetime) -> Any:
        match name:
            case "max_attempts" | "retry" | "timeout" | "key" | "expires_at" if value == NONE:
                return None
            case "run_at" | "expires_at":
                return parse_moment(value, at, local_zone())
            case "max_attempts" if not value.isdecimal():
                raise InvalidEdit(field=name, value=value, why="expected a whole number, or none")
            case "max_attempts":
                return int(value)
            case "retry":
                return str(parse_plan(value))
            case "timeout":
                return parse_duration(value).total_seconds()
        return value


NO_VALUES = NewValues()


async def edit(
    id: TaskId,
    /,
    *,
    values: NewValues = NO_VALUES,
    version: int | None = None,
    dry_run: bool = False,
    sql: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Change when and how one task runs, even while it runs.

    With --requeue a dead or cancelled task runs again with the new values.

    With --version nothing changes if the task has another version than runner show
    printed.

    Args:
        id: The id of the task.
        values: The new values.
        version: The version from runner show.
        dry_run: Only show the changes.
        sql: Only print equivalent SQL for psql or sqlite3.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
        connection: The database.
    """
    settings = connection.settings()
    async with open_database(settings) as database:
        at = await database.read(clock)
        changes = values.changes(at)
        requeue, limit = values.requeue, int(settings.payload_limit)
        if sql:
            operation = partial(
                edit_each, changes=changes, by=local_actor(reason), requeue=requeue, payload_limit=limit
            )
            await print_script(database, operation, [Target(id, version)])
            return Exit.OK
        if dry_run:
            plan = await database.read(preview_edit, id, version, changes, requeue=requeue, payload_limit=limit)
            result = plan.result
        else:
            operation = partial(apply_edit, requeue=requeue, payload_limit=limit)
            result = await database.write(operation, id, version, changes, local_actor(reason))
    for conflict in result.conflicts:
        raise VersionConflict(id=id, seen=version, state=conflict.state, found=conflict.version)
    if dry_run:
        return _show(plan, json=json)
    code = print_result("edit", result, json=json)
    if code == Exit.OK and not json and changes.run_at is not KEEP:
        print_line(
            f"It runs at {format_moment(changes.run_at, local_zone())}, {formatting.distance(changes.run_at, at)}."
        )
    return code


def _show(plan: EditPreview, *, json: bool) -> int:
    """Print the changes of a dry run."""
    before, after = (dumps(values, default=str) for values in (plan.before, plan.after))
    changes = differences(before, after, zone=local_zone())
    if json:
        print_json({"verb": "edit", "eligible": len(plan.result.changed), "changes": changes})
    for change in changes if not json else ():
        print_line(f"would change {change}")
    for line in plan.result.reasons():
        print_stderr(line)
    return exit_code(plan.result)
