"""`runner edit`: change when and how tasks run."""

from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from json import dumps
from typing import Annotated, Any, Literal, NamedTuple

from cyclopts import Group, Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.operate import (
    Change,
    Targets,
    change_matching_in_shards,
    change_targets,
    works_in_shards,
)
from runner.cli.operation_output import CHANGE_DOCUMENTS, exit_code, print_result, print_script, undo_command
from runner.cli.options import DEFAULT_CONNECTION, NO_OPTIONS, ChangeOptions, Connection, open_database, read_targets
from runner.cli.output import print_json, print_line
from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidInput, VersionConflict
from runner.filter.parse import Filter
from runner.model.duration import parse_spread
from runner.operations.bulk import to_each
from runner.operations.edit import EditPreview, edit_all, edit_each, preview_edit
from runner.operations.edit_values import KEEP, Changes, check_bulk, parse_value
from runner.operations.results import Target, local_actor
from runner.queries.audit_words import changed_values, column_words
from runner.text import formatting
from runner.text.operator import local_zone, now
from runner.text.redact import differences
from runner.text.times import format_moment

NO_COLUMNS = ("requeue", "unchecked")
"""The options of an edit that are not values of a task."""


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
        hosts: The hosts that may take it, web-1,web-2; same, failed for the host of a failed attempt, or any for all.
        unchecked: Do not compare the payload with the signature that runners stored.
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
    hosts: str | None = None
    unchecked: bool = False
    requeue: bool = False

    def changes(self, at: datetime) -> Changes:
        """Parse the values, relative to the database's time `at`."""
        texts = {name: value for name, value in asdict(self).items() if value is not None and name not in NO_COLUMNS}
        zone = local_zone()
        return Changes(**{name: parse_value(name, str(value), at, zone) for name, value in texts.items()})


NO_VALUES = NewValues()


class EditDocument(NamedTuple):
    """The dry run of an edit of one task.

    Args:
        eligible: 1 if it would change.
        changes: the values before and after, one line for each.
    """

    verb: Literal["edit"]
    eligible: int
    changes: list[str]


DOCUMENTS = (*CHANGE_DOCUMENTS, EditDocument)


async def edit(
    *targets: Targets,
    values: NewValues = NO_VALUES,
    version: int | None = None,
    spread: str | None = None,
    options: ChangeOptions = NO_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Change when and how tasks run, even while they run.

    TASKS are ids or a filter, as for runner retry. Payload and key belong to one
    task. With --requeue a dead or cancelled task runs again with the new values.

    With --version nothing changes if the task has another version than runner show
    printed.

    Args:
        targets: Task ids, or a filter.
        values: The new values.
        version: The version from runner show; for one task.
        spread: Spread the due times at random over this time after --run-at: 10m.
        options: Confirmation.
        connection: The database.
    """
    tasks, settings = read_targets(targets), connection.settings()
    seconds = parse_spread(spread)
    if isinstance(tasks, Filter) and works_in_shards(settings, options):

        def of_time(at: datetime) -> Change:
            return _edit_matching(_named_changes(values, at), values, version, seconds)

        return await change_matching_in_shards(of_time(now())._replace(at=of_time), tasks, options, settings)
    async with open_database(settings) as database:
        at = await database.read(clock)
        changes = _named_changes(values, at)
        if isinstance(tasks, list) and len(tasks) == 1 and not spread:
            limit = int(settings.payload_limit)
            how: dict[str, Any] = {"requeue": values.requeue, "payload_limit": limit, "checked": not values.unchecked}
            if values.payload is not None:
                from runner.handlers.keyring import Keyring  # few edits have a payload

                how["keyring"] = Keyring(settings)
            return await _edit_one(database, SingleEdit(Target(tasks[0], version), changes, how), options, at)
        change = _edit_matching(changes, values, version, seconds)
        return await change_targets(database, change, tasks, options, settings)


def _named_changes(values: NewValues, at: datetime) -> Changes:
    changes = values.changes(at)
    if not changes.edited():
        more = "to run a task again as it is, use runner retry" if values.requeue else "see runner edit --help"
        raise InvalidInput(why=f"name at least one change, such as --priority 9; {more}")
    return changes


def _edit_matching(changes: Changes, values: NewValues, version: int | None, spread: float) -> Change:
    """The edit of several tasks."""
    if version is not None or values.requeue:
        name = "--requeue" if values.requeue else "--version"
        raise InvalidInput(why=f"{name} works with one task id; to run many tasks again use runner retry")
    function = partial(edit_all, changes=changes, spread=spread)
    return Change("edit", function, check_bulk(changes, spread))


class SingleEdit(NamedTuple):
    """An edit of one task, with the other arguments of `edit`."""

    target: Target
    changes: Changes
    how: dict[str, Any]


async def _edit_one(database: Database, task: SingleEdit, options: ChangeOptions, at: datetime) -> int:
    (id, version), changes, how = task
    by = local_actor(options.reason)
    if options.sql:
        await print_script(database, partial(edit_each, changes=changes, by=by, **how), [task.target])
        return Exit.OK
    if options.dry_run:
        plan = await database.read(preview_edit, id, version, changes, **how)
        result = plan.result
    else:
        result = await to_each(database, partial(edit_each, changes=changes, by=by, **how), [task.target])
    for conflict in result.conflicts:
        raise VersionConflict(id=id, seen=version, state=conflict.state, found=conflict.version)
    if options.dry_run:
        return _show(plan, json=options.json)
    code = print_result("edit", result, json=options.json, undo=await undo_command(database, result))
    if code == Exit.OK and not options.json and changes.run_at is not KEEP:
        print_line(
            f"It runs at {format_moment(changes.run_at, local_zone())}, {formatting.distance(changes.run_at, at)}."
        )
    return code


def _show(plan: EditPreview, *, json: bool) -> int:
    """Print the changes of a dry run."""
    before, after = (dumps(values, default=str) for values in (plan.before, plan.after))
    if json:
        stored = map(str, differences(before, after, zone=local_zone()))
        print_json(EditDocument("edit", len(plan.result.changed), [*stored]))
    for name, old, new in changed_values(before, after, local_zone()) if not json else ():
        print_line(f"would change {column_words(name)}: {old or 'none'} -> {new}")
    for line in plan.result.reasons():
        print_stderr(line)
    return exit_code(plan.result)
