"""`runner edit`: when and how one task runs."""

from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from json import dumps
from typing import Annotated, Any

from cyclopts import Group, Parameter

from runner.cli.answer import code as code_of
from runner.cli.answer import tell
from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit, complain
from runner.cli.printing import print_json, print_line
from runner.cli.script import print_script
from runner.cli.targets import TaskId
from runner.errors import InvalidEdit, TaskMovedOn
from runner.people import cells
from runner.people.person import local_zone
from runner.people.redaction import differences
from runner.people.times import format_moment, parse_duration, parse_moment
from runner.policy.retry import parse_plan
from runner.store import intervene
from runner.store.intervene import KEEP, Changes, Editing, Target, who
from runner.store.observe import clock

NONE = "none"
"""Typed to give a value back to the handler's, or to have no key."""


@Parameter(name="*", group=Group("New values", sort_key=50))
@dataclass(frozen=True, slots=True)
class NewValues:
    """What is to be set; what is left out stays.

    Args:
        run_at: Not before this time: now, +10m, 14:30, tomorrow 9:00.
        max_attempts: How often it may be tried, or none for the handler's.
        priority: 1 to 9, 9 goes first.
        retry: The retry plan, or none for the handler's.
        timeout: How long an attempt may take, or none for the handler's.
        payload: The arguments, a JSON object.
        key: The business key, or none.
        again: Run a task again that is dead or cancelled, with these values.
    """

    run_at: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None
    max_attempts: str | None = None
    priority: int | None = None
    retry: str | None = None
    timeout: str | None = None
    payload: str | None = None
    key: str | None = None
    again: bool = False

    def changes(self, at: datetime) -> Changes:
        """Read what was typed, at the database's time `at`."""
        given = {name: value for name, value in asdict(self).items() if value is not None and name != "again"}
        return Changes(**{name: self._read(name, value, at) for name, value in given.items()})

    def _read(self, name: str, value: Any, at: datetime) -> Any:
        match name:
            case "run_at":
                return parse_moment(value, at, local_zone())
            case "max_attempts" | "retry" | "timeout" | "key" if value == NONE:
                return None
            case "max_attempts" if not value.isdecimal():
                raise InvalidEdit(field=name, value=value, why="it must be a whole number, or none")
            case "max_attempts":
                return int(value)
            case "retry":
                return str(parse_plan(value))
            case "timeout":
                return parse_duration(value).total_seconds()
        return value


NOTHING = NewValues()


async def edit(
    id: TaskId,
    /,
    *,
    values: NewValues = NOTHING,
    version: int | None = None,
    dry_run: bool = False,
    sql: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """Change when and how one task runs, a running one too.

    One that is dead or cancelled is run again with the new values by --again.

    With --version nothing is changed when the task is at another version than
    runner show said.

    Args:
        id: The task's number.
        values: What to set.
        version: The version that you saw.
        dry_run: Only show what would be changed.
        sql: Only print the SQL that does the same, for psql or sqlite3.
        reason: Why; it is kept with the change.
        json: Print one JSON document.
        connection: Which database.
    """
    settings = connection.settings()
    async with opened(settings) as database:
        at = await database.read(clock)
        changes = values.changes(at)
        again, limit = values.again, int(settings.payload_limit)
        if sql:
            operation = partial(intervene.edit_each, changes=changes, by=who(reason), again=again, payload_limit=limit)
            await print_script(database, operation, [Target(id, version)])
            return Exit.OK
        if dry_run:
            seen = await database.read(intervene.editing, id, version, changes, again=again, payload_limit=limit)
            result = seen.answer
        else:
            operation = partial(intervene.edit, again=again, payload_limit=limit)
            result = await database.write(operation, id, version, changes, who(reason))
    for left in result.moved_on:
        raise TaskMovedOn(id=id, seen=version, state=left.state, found=left.version)
    if dry_run:
        return _show(seen, json=json)
    code = tell("edit", result, json=json)
    if code == Exit.OK and not json and changes.run_at is not KEEP:
        print_line(f"It runs at {format_moment(changes.run_at, local_zone())}, {cells.distance(changes.run_at, at)}.")
    return code


def _show(seen: Editing, *, json: bool) -> int:
    """Print what would be changed."""
    before, after = (dumps(values, default=str) for values in (seen.before, seen.after))
    changes = differences(before, after, zone=local_zone())
    if json:
        print_json({"verb": "edit", "eligible": len(seen.answer.changed), "changes": changes})
    for change in changes if not json else ():
        print_line(f"would change {change}")
    for line in seen.answer.left_alone():
        complain(line)
    return code_of(seen.answer)
