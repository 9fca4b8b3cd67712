"""`runner schedules list|show|preview|add|edit|pause|resume|run|free|delete`: periodic tasks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from cyclopts import Group, Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.handlers import Modules, load_handlers
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, set_options, with_task_options
from runner.cli.output import print_json, print_line
from runner.cli.schedule_output import (
    ScheduleDocument,
    print_preview,
    print_schedule,
    print_schedules,
    schedule_document,
)
from runner.client.schedules import new_spec, spec_changes
from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidInput, UnknownSchedule
from runner.handlers.options import SCHEDULE_OPTIONS
from runner.model.schedule import ScheduleSpec
from runner.operations.names import handler_warning, name_warning
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor, local_actor
from runner.operations.schedule import (
    add_schedule,
    delete_schedule,
    edit_schedule,
    free_schedule,
    pause_schedule,
    resume_schedule,
    run_schedule,
)
from runner.policy.schedule import parse_rule, upcoming
from runner.queries.schedules import ScheduleRow, recent_starts
from runner.queries.schedules import schedules as read_schedules
from runner.settings import Settings
from runner.text.formatting import distance
from runner.text.operator import local_zone
from runner.text.sanitize import one_line
from runner.text.times import parse_moment

Action = Literal["list", "show", "preview", "add", "edit", "pause", "resume", "run", "free", "delete"]

DAY = timedelta(days=1)

RULE_OPTIONS = ("cron", "every", "after_end", "tz", "payload", "misfire", "overlap", "jitter", "broadcast")
"""The options of a schedule itself; SCHEDULE_OPTIONS are those of its tasks."""


@Parameter(name="*", group=Group("Tasks", sort_key=60))
@dataclass(frozen=True)
@with_task_options(SCHEDULE_OPTIONS)
class TasksOfSchedule:
    """The options of the tasks of a schedule."""


NO_TASK_OPTIONS = TasksOfSchedule()


@Parameter(name="*", group=Group("Schedule", sort_key=50))
@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """The values of a schedule, for add, edit and preview.

    Args:
        cron: A cron line: "0 9 * * mon-fri", or a name: @daily.
        every: A fixed rate instead: 5m.
        after_end: The delay from the end of a run to the next one instead: 30s.
        tz: Time zone of the cron line: Europe/Berlin; UTC by default.
        payload: Arguments of each task, a JSON object.
        misfire: Ticks missed while no runner was up: skip, once (the latest), or "all 10" (the latest ten).
        overlap: A tick during a run: skip, queue, replace or allow.
        jitter: Longest random delay of a task: 30s.
        broadcast: Run each tick on every live runner: yes or no.
        tasks: Options of the tasks.
    """

    cron: str | None = None
    every: str | None = None
    after_end: str | None = None
    tz: str | None = None
    payload: str | None = None
    misfire: str | None = None
    overlap: str | None = None
    jitter: str | None = None
    broadcast: Literal["yes", "no"] | None = None
    tasks: TasksOfSchedule = NO_TASK_OPTIONS

    def values(self) -> dict[str, Any]:
        """The given values by the names that `new_spec` takes."""
        values = {name: value for name in RULE_OPTIONS if (value := getattr(self, name)) is not None}
        if "broadcast" in values:
            values["broadcast"] = values["broadcast"] == "yes"
        return values | set_options(self.tasks, SCHEDULE_OPTIONS)


NO_OPTIONS = ScheduleOptions()


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Request:
    """How an action is done.

    Args:
        until: End of a pause: 30m, 14:30.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
    """

    until: str | None = None
    reason: str | None = None
    json: bool = False


NO_REQUEST = Request()


class ScheduleList(NamedTuple):
    """All schedules, the next one first."""

    schedules: list[ScheduleDocument]


class SchedulePreview(NamedTuple):
    """The next ticks of a rule."""

    rule: str
    timezone: str
    next: Sequence[datetime]


class ScheduleChange(NamedTuple):
    """The result of an action.

    Args:
        id: the schedule.
        schedule: the schedule after it; None if it was deleted.
    """

    verb: Action
    id: str
    schedule: ScheduleDocument | None


DOCUMENTS = (ScheduleList, ScheduleDocument, SchedulePreview, ScheduleChange)


async def schedules(
    action: Action = "list",
    id: str | None = None,
    handler: str | None = None,
    /,
    *,
    options: ScheduleOptions = NO_OPTIONS,
    request: Request = NO_REQUEST,
    handlers: Modules = (),
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List, preview, add, edit, pause, resume, run, free or delete schedules.

    runner schedules list                  all schedules, the next one first
    runner schedules show ID               one schedule: next times, last runs
    runner schedules preview --cron LINE   the next ten times of a rule
    runner schedules add ID HANDLER --every 5m
    runner schedules edit ID --cron "0 9 * * mon-fri" --tz Europe/Berlin
    runner schedules pause ID [--until 14:30] and resume ID
    runner schedules run ID                run it now, beside its rule
    runner schedules free ID               its next tick waits for no earlier run
    runner schedules delete ID             a schedule that no code defines

    If the handler is loaded, from -H or the configuration, the payload is checked
    against its signature. Each change can be undone with runner undo.

    Args:
        action: list, show, preview, add, edit, pause, resume, run, free or delete.
        id: The schedule.
        handler: The handler of its tasks, for add.
        options: Values of the schedule.
        request: How the action is done.
        handlers: A module that defines handlers; may be repeated.
        connection: The database.
    """
    _check_words(action, id, handler, options, request)
    settings = connection.settings(handlers=handlers or None)
    if action == "preview":
        return _preview(options, as_json=request.json)
    # A refused schedule must not leave a new file.
    loaded = load_handlers(settings) if action == "add" else {}
    new = new_spec(handler or "", options.values(), loaded.get(handler or "")) if action == "add" else None
    async with open_database(settings, creates=action == "add") as database:
        if action in ("list", "show"):
            return await _print(database, id, as_json=request.json)
        by = local_actor(request.reason)
        await _warn_of_queue(database, options.values().get("queue"))
        if new is not None:
            sentence = await _add(database, settings, id or "", new, loaded, by)
        else:
            sentence = await _change(database, settings, action, id or "", options, request, by)
        rows = await database.read(read_schedules, [id or ""])
    if request.json:
        print_json(ScheduleChange(action, id or "", schedule_document(rows[0]) if rows else None))
    else:
        print_line(sentence)
        if rows and action in ("add", "edit", "resume"):
            print_preview(rows[0].upcoming, rows[0].spec.timezone, datetime.now(UTC), count=3)
    return Exit.OK


def _check_words(
    action: Action, id: str | None, handler: str | None, options: ScheduleOptions, request: Request
) -> None:
    """Reject words and options that an action does not take, instead of ignoring them."""
    if action == "preview" and id is not None:
        raise InvalidInput(why="preview takes a rule: --cron, --every or --after-end; show previews a schedule")
    if action not in ("list", "preview") and id is None:
        raise InvalidInput(why=f"name the schedule: runner schedules {action} ID")
    if (handler is not None) != (action == "add"):
        why = (
            "name the handler of its tasks: runner schedules add ID HANDLER"
            if action == "add"
            else (f"schedules {action} takes one name")
        )
        raise InvalidInput(why=why)
    if options.values() and action not in ("add", "edit", "preview"):
        raise InvalidInput(why=f"schedules {action} changes no values; use schedules edit")
    if request.until is not None and action != "pause":
        raise InvalidInput(why="--until belongs to schedules pause")


async def _add(
    database: Database, settings: Settings, id: str, spec: ScheduleSpec, loaded: Collection[str], by: Actor
) -> str:
    """Add a schedule and return a sentence about it; `loaded` are the names of the handlers that check payloads."""
    warning = "" if spec.handler in loaded else await database.read(handler_warning, spec.handler)
    await database.write(add_schedule, id, spec, by, int(settings.payload_limit))
    if warning:
        print_stderr(f"runner: {warning}; its tasks wait until a runner has it")
    elif loaded and spec.handler not in loaded:
        print_stderr(f"runner: no handler named {one_line(spec.handler)!r} is loaded; nothing checked the payload")
    return f"added schedule {one_line(id)}"


async def _warn_of_queue(database: Database, queue: str | None) -> None:
    """Warn about a queue that was never used and is similar to a known one."""
    if queue is not None:
        warning = await database.read(name_warning, PauseTarget(PauseKind.QUEUE, queue), if_similar=True)
        if warning:
            print_stderr(f"runner: {warning}")


async def _change(
    database: Database,
    settings: Settings,
    action: Action,
    id: str,
    options: ScheduleOptions,
    request: Request,
    by: Actor,
) -> str:
    """Execute an action on a schedule that exists, and return a sentence about it."""
    name, limit = one_line(id), int(settings.payload_limit)
    match action:
        case "edit":
            row = await _row(database, id)
            changes = spec_changes(row.spec, options.values(), load_handlers(settings).get(row.spec.handler))
            after = await database.write(edit_schedule, id, changes, by, version=row.version, payload_limit=limit)
            return f"edited schedule {name}: {', '.join(after)}" if after else f"schedule {name} has these values"
        case "pause":
            at = await database.read(clock)
            until = parse_moment(request.until, at, local_zone()) if request.until is not None else None
            await database.write(pause_schedule, id, by, until)
            end = f"resumes {distance(until, at)}" if until else f"resume with: runner schedules resume {name}"
            return f"paused schedule {name}; {end}"
        case "resume":
            return f"schedule {name} {'resumed' if await database.write(resume_schedule, id, by) else 'was not paused'}"
        case "run":
            await database.write(run_schedule, id, by)
            done = f"requested a run of schedule {name}; a live runner submits it within a second"
        case "free":
            task = await database.write(free_schedule, id, by)
            freed = f"freed the round of schedule {name}; its run continues: runner terminate {task} ends it"
            done = f"schedule {name} has no unfinished run" if task is None else freed
        case _:
            await database.write(delete_schedule, id, by)
            done = f"deleted schedule {name}"
    return done


async def _row(database: Database, id: str) -> ScheduleRow:
    rows = await database.read(read_schedules, [id])
    if not rows:
        raise UnknownSchedule(id=id, hint="")
    return rows[0]


async def _print(database: Database, id: str | None, *, as_json: bool) -> int:
    rows = await database.read(read_schedules) if id is None else [await _row(database, id)]
    at = await database.read(clock)
    if id is not None:
        print_json(schedule_document(rows[0])) if as_json else print_schedule(rows[0], at, local_zone())
        return Exit.OK
    starts = await database.read(recent_starts, DAY)
    if as_json:
        print_json(ScheduleList([schedule_document(row) for row in rows]))
    else:
        print_schedules(rows, starts, at)
    return Exit.OK


def _preview(options: ScheduleOptions, *, as_json: bool) -> int:
    spec = new_spec("preview", options.values(), None)
    now = datetime.now(UTC)
    ticks = upcoming(parse_rule(spec.rule, spec.timezone), now, 10)
    if as_json:
        print_json(SchedulePreview(spec.rule, spec.timezone, ticks))
    else:
        print_preview(ticks, spec.timezone, now)
    return Exit.OK
