"""`runner schedules list|show|preview|add|edit|pause|resume|run|free|delete`: periodic tasks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

from cyclopts import Group, Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.handlers import Modules, load_handlers
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, set_options, with_task_options
from runner.cli.output import print_json, print_line, print_pairs, print_table, print_title
from runner.client.schedules import new_spec, spec_changes
from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidInput, UnknownSchedule
from runner.handlers.options import SCHEDULE_OPTIONS
from runner.model.schedule import ScheduleSpec, TickOutcome, overlap_effect
from runner.model.task import Shown
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
from runner.policy.schedule import describe, parse_rule, upcoming
from runner.queries.registries import Pause
from runner.queries.schedules import ScheduleRow, ScheduleRun, recent_starts
from runner.queries.schedules import schedules as read_schedules
from runner.queries.task_list.row import TaskRow
from runner.settings import Settings
from runner.text import formatting
from runner.text.columns import Column, figure
from runner.text.document import Flat
from runner.text.formatting import distance, duration
from runner.text.operator import local_zone
from runner.text.redact import mask
from runner.text.sanitize import count_noun, one_line
from runner.text.times import format_moment, parse_moment

SIGNS = {TickOutcome.SKIPPED: "◇", TickOutcome.MISSED: "‖"}
"""Signs of ticks without a task."""


def print_schedules(rows: Sequence[ScheduleRow], starts: Sequence[tuple[datetime, float]], at: datetime) -> None:
    """Print a table of schedules, and the lateness of their runs."""
    if not rows:
        print_line("There are no schedules. Declare one with @schedule, or: runner schedules add ID HANDLER --every 5m")
        return
    print_table(_columns(at), rows)
    seconds = sorted(late for _, late in starts)
    if seconds:
        half, most = seconds[len(seconds) // 2], seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)]
        figures = f"p50 {duration(half)}, p99 {duration(most)}"
        print_line(f"start lateness of {count_noun(len(seconds), 'run')} in 24 h: {figures}", style="dim")


def _columns(at: datetime) -> tuple[Column[ScheduleRow], ...]:
    return (
        Column("SCHEDULE", lambda row: row.id, fixed=True),
        Column("EVERY", _rule),
        figure("NEXT", lambda row: next_of(row, at)),
        Column("LAST 12", lambda row: map(sign_of, reversed(row.runs)), "".join, fixed=True),
        Column("LATE", lambda row: row.lateness(at) or ((run := _last(row)) and run.late), duration, right=True),
        Column("TOOK", lambda row: _took(_last(row)), duration, right=True),
        Column("NOTE", lambda row: note_of(row, at)),
    )


def _rule(row: ScheduleRow) -> str:
    return describe(row.spec.rule, row.spec.timezone)


def _last(row: ScheduleRow) -> ScheduleRun | None:
    """The last run that has a task."""
    return next((run for run in row.runs if run.task is not None), None)


def _took(run: ScheduleRun | None) -> float | None:
    return run.task.duration if run and run.task else None


def next_of(row: ScheduleRow, at: datetime) -> str:
    """The time until the next tick, for a cell."""
    if row.pause is not None:
        return "paused"
    if row.error is not None:
        return "invalid"
    late = row.lateness(at)
    if late is not None:
        return f"late {formatting.age(late)}"
    return formatting.distance(row.upcoming[0], at) if row.upcoming else "after its run"


def sign_of(run: ScheduleRun) -> str:
    """One character for a run in a row of the last ones."""
    if run.outcome in (TickOutcome.SKIPPED, TickOutcome.MISSED):
        return SIGNS[TickOutcome(run.outcome)]
    if run.task is None:
        return "·"
    return _STATE_SIGNS.get(run.task.shown, "○")


_STATE_SIGNS = {Shown.SUCCEEDED: "•", Shown.DEAD: "✗", Shown.CANCELLED: "⊘", Shown.RETRYING: "↻"}


def note_of(row: ScheduleRow, at: datetime) -> str:
    """The reason why a schedule does not tick, or how it differs from the code."""
    if row.error is not None:
        return row.error
    if row.pause is not None:
        end = f", resumes {formatting.distance(row.pause.until, at)}" if row.pause.until else ""
        return f"by {formatting.text(row.pause.by)}: {formatting.text(row.pause.why)}{end}"
    parts = [f"edited: {', '.join(row.edited)}"] if row.edited else []
    return "; ".join([*parts, *(["broadcast"] if row.spec.broadcast else [])])


def print_schedule(row: ScheduleRow, at: datetime, zone: tzinfo) -> None:
    """Print one schedule: its values, its next ticks and its last runs."""
    overlap = overlap_effect(row.spec.overlap)
    pairs = [
        ("schedule", row.id),
        ("rule", f"{row.spec.rule}  ({describe(row.spec.rule)}, {row.spec.timezone})"),
        ("handler", row.spec.handler),
        ("payload", mask(row.spec.payload)),
        ("options", mask(row.spec.options)),
        ("misfire", row.spec.misfire),
        ("overlap", f"{row.spec.overlap}: {overlap}"),
        ("jitter", duration(row.spec.jitter or None)),
        ("broadcast", "yes" if row.spec.broadcast else "no"),
        ("defined in", row.module or "this database, by an operator"),
        ("edited", ", ".join(row.edited) or formatting.NOTHING),
        ("next", next_of(row, at)),
        ("note", note_of(row, at) or formatting.NOTHING),
    ]
    print_pairs(pairs)
    if row.upcoming:
        print_title("next")
        print_preview(row.upcoming, row.spec.timezone, at)
    print_title("last runs")
    if row.runs:
        print_table(run_columns(zone), row.runs)
    else:
        print_line("It has not run.", style="dim")


def run_columns(zone: tzinfo) -> tuple[Column[ScheduleRun], ...]:
    """The columns of a run, with times of the table in a zone."""
    return (
        Column("TICK", lambda run: run.tick, lambda tick: format_moment(tick, zone), fixed=True),
        Column("TASK", lambda run: run.task_id, formatting.text, right=True),
        Column("STATE", _state, fixed=True),
        Column("LATE", lambda run: run.late, duration, right=True),
        Column("TOOK", _took, duration, right=True),
        Column("ATTEMPT", lambda run: run.task, _attempts, right=True),
        Column("HOST", lambda run: run.task and run.task.host, formatting.text),
    )


def _state(run: ScheduleRun) -> str:
    return formatting.state(run.task.shown) if run.task else run.outcome if run.task_id is None else "pruned"


def _attempts(task: TaskRow | None) -> str:
    return formatting.attempts(task.attempt, task.max_attempts) if task else formatting.NOTHING


def print_preview(ticks: Sequence[datetime], timezone: str, at: datetime, count: int = 10) -> None:
    """Print the next ticks in the time zone of the schedule."""
    for tick in ticks[:count]:
        print_line(f"  {format_moment(tick, ZoneInfo(timezone))}  {formatting.distance(tick, at)}")


class RunDocument(NamedTuple):
    """One tick of a schedule.

    Args:
        outcome: see TickOutcome.
        task: the id of its task; None if there is none.
        state: the displayed state of the task; None without a task, or if it was pruned.
        runner: the runner of a broadcast; None for other schedules.
        late: the lateness of its start; None if it has not started, or if that is unknown.
        took: seconds that the last attempt took.
    """

    tick: datetime
    outcome: str
    task: int | None
    state: Shown | None
    runner: int | None
    late: timedelta | None
    took: float | None


class ScheduleDocument(NamedTuple):
    """A schedule.

    Args:
        next: its next ticks; empty while it is paused or its definition is not valid.
        paused: the pause in force; None if it is not paused.
        module: the module whose code defines it; None for a schedule of an operator.
        edited: the values that differ from the code, because an operator edited them.
        error: why its ticks cannot be computed; None if they can.
        version: the version that an operation must present.
        runs: its last runs, the latest first.
    """

    id: str
    spec: Annotated[ScheduleSpec, Flat()]
    next: tuple[datetime, ...]
    last_tick: datetime | None
    paused: Pause | None
    module: str | None
    edited: tuple[str, ...]
    error: str | None
    version: int
    runs: list[RunDocument]


def _run_document(run: ScheduleRun, state: Shown | None) -> RunDocument:
    return RunDocument(run.tick, run.outcome, run.task_id, state, run.runner_id, run.late, _took(run))


def schedule_document(row: ScheduleRow) -> ScheduleDocument:
    """A schedule for programs."""
    runs = [_run_document(run, run.task.shown if run.task else None) for run in row.runs]
    values = (row.upcoming, row.last_tick, row.pause, row.module, row.edited, row.error, row.version)
    return ScheduleDocument(row.id, row.spec, *values, runs)


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
