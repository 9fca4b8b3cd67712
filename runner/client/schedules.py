"""Schedules of an application: giving a handler one with @schedule, and managing them at run time."""

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from runner.client.client import get_client, refuse_event_loop
from runner.client.handler import TaskHandler
from runner.errors import InvalidPayload, InvalidSchedule, UnknownSchedule
from runner.handlers.option_values import tags_as_json
from runner.handlers.options import SCHEDULE_OPTIONS, SETTABLE, ScheduledTaskOptions
from runner.handlers.registry import REGISTRY, Handler
from runner.handlers.schedules import SCHEDULES, DeclaredSchedule, check_id, write_options
from runner.model.duration import parse_duration
from runner.model.headers import require_headers
from runner.model.outcome import Delay
from runner.model.schedule import ScheduleSpec
from runner.policy.schedule import write_rule
from runner.policy.schedule_ticks import check_spec
from runner.text.hosts import host_list

if TYPE_CHECKING:
    from runner.db.database import Database
    from runner.queries.schedules import ScheduleRow

H = TypeVar("H", bound=TaskHandler[Any, Any, Any])
"""Type of the handler, which the decorator returns as it is."""


def schedule(  # noqa: PLR0913 - one argument per column that a schedule has
    cron: str | None = None,
    *,
    every: Delay | None = None,
    after_end: Delay | None = None,
    tz: str = "UTC",
    id: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    misfire: str = "once",
    overlap: str = "skip",
    jitter: Delay = 0,
    broadcast: bool = False,
    **options: Unpack[ScheduledTaskOptions],
) -> "ScheduleDecorator":
    """Run a handler regularly. Put it above @handler; a handler may have several schedules with different ids.

    Args:
        cron: a cron line such as "0 9 * * mon-fri", or a name such as "@daily".
        every: instead, a fixed rate: text ("5m"), seconds or timedelta. Ticks are its multiples since 1970 in UTC.
        after_end: instead, the delay from the end of a run to the next one.
        tz: time zone of the cron line, by its name in the IANA database.
        id: id of the schedule; by default the name of the handler.
        arguments: arguments of each task, by name.
        misfire: what to do with ticks that were due while no runner was up: "skip" drops them, "once" runs the latest
            one, "all 10" runs the latest ten.
        overlap: what to do with a tick while an earlier run is unfinished: "skip" drops it, "queue" runs it
            afterwards, "replace" terminates the earlier run, "allow" runs both.
        jitter: longest random delay of a task after its tick.
        broadcast: run each tick on every live runner that has the handler.
        options: options of the tasks, as in `handler.options`, without times, unique and order keys and dependencies.
            `key` is by default the time of the tick, such as 2026-11-22T09:00:00Z.

    Raises:
        InvalidSchedule: a value is not valid.
        InvalidPayload: the arguments do not match the handler's signature.
        DuplicateSchedule: another schedule has this id.

    Examples:
        >>> @schedule("0 9 * * mon-fri", tz="Europe/Berlin")
        ... @handler("reports.daily")
        ... async def daily(ctx: Context) -> None: ...
    """
    rule = {"cron": cron, "every": every, "after_end": after_end, "tz": tz, "jitter": jitter, "broadcast": broadcast}
    values = rule | {"misfire": misfire, "overlap": overlap, "arguments": arguments or {}, **options}
    unknown = [name for name in options if name not in SCHEDULE_OPTIONS]
    if unknown:
        why = f"a schedule sets {', '.join(SCHEDULE_OPTIONS)}"
        raise InvalidSchedule(field="options", value=unknown[0], why=why)
    return ScheduleDecorator(id, values)


class ScheduleDecorator:
    """The decorator that `schedule(...)` returns: it registers the schedule and returns the handler."""

    def __init__(self, id: str | None, values: Mapping[str, Any]) -> None:
        self._id, self._values = id, values

    def __call__(self, target: H) -> H:
        """Register the schedule of a handler, and return the handler."""
        decorated: object = target  # a caller without type checks may pass anything
        if not isinstance(decorated, Handler):
            name = getattr(target, "__name__", str(target))
            why = "put @schedule above @handler, which makes a handler of the function"
            raise InvalidSchedule(field="handler", value=name, why=why)
        try:
            spec = new_spec(target.name, self._values, target)
            id = check_id(target.name if self._id is None else self._id)
        except (InvalidSchedule, InvalidPayload) as error:
            hint = "; set arguments of @schedule" if isinstance(error, InvalidPayload) else ""
            why = f"{error.fields['why']}{hint}; see {target.location}"
            raise type(error)(**error.fields | {"why": why}) from None
        SCHEDULES.add(DeclaredSchedule(id, spec, target.function.__module__, target.location))
        return target


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert task options from Python into values for JSON."""
    values = {name: value for name, value in options.items() if value is not None}
    lengths = {name: value for name, value in values.items() if SETTABLE[name].type == "float"}
    values |= {name: parse_duration(value).total_seconds() for name, value in lengths.items()}
    if "tags" in values:
        tags_as_json(values["tags"])  # rejects a single string, which would become a list of letters
        values["tags"] = list(values["tags"])
    if "headers" in values:
        require_headers("headers", values["headers"])
        values["headers"] = dict(values["headers"])
    if "hosts" in values:
        values["hosts"] = host_list(values["hosts"])
    return values


def encoded(handler: Handler, arguments: Mapping[str, Any]) -> str:
    """Write arguments as the payload of a handler.

    Raises:
        InvalidPayload: they do not match its signature.
    """
    if not isinstance(arguments, Mapping):
        raise InvalidPayload(handler=handler.name, why=f"arguments are a mapping by name, not {arguments!r}"[:200])
    return handler.signature.encode((), dict(arguments))


def new_spec(handler: str, values: Mapping[str, Any], loaded: Handler | None) -> ScheduleSpec:
    """Make a definition from values by the names of `schedule`.

    Args:
        handler: name of the handler.
        values: values by name; `payload` may be given as JSON text instead of `arguments`.
        loaded: the handler, if its code is loaded; it checks the payload and gives defaults.

    Raises:
        InvalidSchedule: a value is not valid.
        InvalidPayload: the payload does not match the handler's signature.
    """
    rule = write_rule(values.get("cron"), _length(values, "every"), _length(values, "after_end"))
    plain = {"timezone": values.get("tz")} | {name: values.get(name) for name in ("misfire", "overlap", "broadcast")}
    spec = ScheduleSpec(handler, rule, **{name: value for name, value in plain.items() if value is not None})
    options = plain_options({name: values[name] for name in SCHEDULE_OPTIONS if name in values})
    spec = spec._replace(
        payload=_payload(handler, values, loaded),
        options=write_options(options, loaded, broadcast=spec.broadcast),
        jitter=parse_duration(values.get("jitter", 0)).total_seconds(),
    )
    check_spec(spec)
    return spec


def spec_changes(spec: ScheduleSpec, values: Mapping[str, Any], loaded: Handler | None) -> dict[str, Any]:
    """Convert new values by the names of `schedule` into columns of an existing schedule.

    Args:
        spec: the current definition; task options that are not given keep their values.
        values: as in `new_spec`.
        loaded: the handler, if its code is loaded.

    Raises:
        InvalidSchedule: a value is not valid.
        InvalidPayload: the payload does not match the handler's signature.
    """
    changes: dict[str, Any] = {name: values[name] for name in ("misfire", "overlap", "broadcast") if name in values}
    if any(values.get(name) is not None for name in ("cron", "every", "after_end")):
        changes["rule"] = write_rule(values.get("cron"), _length(values, "every"), _length(values, "after_end"))
    if "tz" in values:
        changes["timezone"] = values["tz"]
    if "jitter" in values:
        changes["jitter"] = parse_duration(values["jitter"]).total_seconds()
    if "payload" in values or "arguments" in values:
        changes["payload"] = _payload(spec.handler, values, loaded)
    options = plain_options({name: values[name] for name in SCHEDULE_OPTIONS if name in values})
    if options:
        changes["options"] = write_options(json.loads(spec.options) | options)
    return changes


def _length(values: Mapping[str, Any], name: str) -> timedelta | None:
    return None if values.get(name) is None else parse_duration(values[name])


def _payload(handler: str, values: Mapping[str, Any], loaded: Handler | None) -> str:
    arguments = values.get("arguments")
    if arguments is not None and loaded is not None:
        return encoded(loaded, arguments)
    text = values.get("payload", "{}") if arguments is None else json.dumps(arguments)
    try:
        return loaded.signature.check(text) if loaded is not None else str(text)
    except InvalidPayload as error:
        raise InvalidPayload(handler=handler, why=error.fields["why"]) from None


class ScheduleFunctions:
    """Add, edit, pause, resume, run, delete and list schedules, each with an audit entry.

    Each function has a form with `_async` at the end of its name, to await on an event loop.
    """

    __name__ = "schedules"

    def all(self) -> "list[ScheduleRow]":
        """Return all schedules with their last runs, the next one first."""
        refuse_event_loop("schedules.all")
        return [row for client in get_client().each() for row in client.run(_all).result()]

    async def all_async(self) -> "list[ScheduleRow]":
        """Same as `all`."""
        return [row for client in get_client().each() for row in await asyncio.wrap_future(client.run(_all))]

    def add(self, id: str, handler: Handler | str, /, *, reason: str | None = None, **values: Any) -> None:
        """Add a schedule.

        Args:
            id: its id.
            handler: the handler of its tasks.
            reason: the reason, for the audit log.
            values: as of `@schedule`: cron, every, after_end, tz, arguments, misfire, overlap, jitter, broadcast, and
                task options.

        Raises:
            InvalidSchedule: a value is not valid.
            DuplicateScheduleId: there is a schedule with this id.
        """
        _wait("schedules.add", id, lambda database: _add(database, id, handler, values, reason))

    async def add_async(self, id: str, handler: Handler | str, /, *, reason: str | None = None, **values: Any) -> None:
        """Same as `add`."""
        await _awaited(id, lambda database: _add(database, id, handler, values, reason))

    def edit(self, id: str, /, *, reason: str | None = None, **values: Any) -> None:
        """Change values of a schedule, as of `add`. The code of runners does not change them back.

        Raises:
            InvalidSchedule: a value is not valid.
            UnknownSchedule: no schedule has this id.
        """
        _wait("schedules.edit", id, lambda database: _edit(database, id, values, reason))

    async def edit_async(self, id: str, /, *, reason: str | None = None, **values: Any) -> None:
        """Same as `edit`."""
        await _awaited(id, lambda database: _edit(database, id, values, reason))

    def pause(self, id: str, /, until: datetime | None = None, *, reason: str | None = None) -> None:
        """Stop the ticks of a schedule.

        Args:
            id: the schedule.
            until: when the pause ends, with a time zone; None for never.
            reason: the reason, shown with the pause.
        """
        _wait("schedules.pause", id, lambda database: _operate(database, "pause_schedule", id, reason, until=until))

    async def pause_async(self, id: str, /, until: datetime | None = None, *, reason: str | None = None) -> None:
        """Same as `pause`."""
        await _awaited(id, lambda database: _operate(database, "pause_schedule", id, reason, until=until))

    def resume(self, id: str, /, *, reason: str | None = None) -> None:
        """End the pause of a schedule."""
        _wait("schedules.resume", id, lambda database: _operate(database, "resume_schedule", id, reason))

    async def resume_async(self, id: str, /, *, reason: str | None = None) -> None:
        """Same as `resume`."""
        await _awaited(id, lambda database: _operate(database, "resume_schedule", id, reason))

    def run(self, id: str, /, *, reason: str | None = None) -> None:
        """Ask for a run now; a runner submits its task within a second."""
        _wait("schedules.run", id, lambda database: _operate(database, "run_schedule", id, reason))

    async def run_async(self, id: str, /, *, reason: str | None = None) -> None:
        """Same as `run`."""
        await _awaited(id, lambda database: _operate(database, "run_schedule", id, reason))

    def free(self, id: str, /, *, reason: str | None = None) -> int | None:
        """Let the next tick run although the last run, whose task this returns, is unfinished; None without one."""
        freed: int | None = _wait(
            "schedules.free", id, lambda database: _operate(database, "free_schedule", id, reason)
        )
        return freed

    async def free_async(self, id: str, /, *, reason: str | None = None) -> int | None:
        """Same as `free`."""
        freed: int | None = await _awaited(id, lambda database: _operate(database, "free_schedule", id, reason))
        return freed

    def delete(self, id: str, /, *, reason: str | None = None) -> None:
        """Delete a schedule that no code defines.

        Raises:
            ScheduleInCode: it is defined in code, which would add it again.
        """
        _wait("schedules.delete", id, lambda database: _operate(database, "delete_schedule", id, reason))

    async def delete_async(self, id: str, /, *, reason: str | None = None) -> None:
        """Same as `delete`."""
        await _awaited(id, lambda database: _operate(database, "delete_schedule", id, reason))


schedules = ScheduleFunctions()
"""The schedules of the database that tasks are submitted to; with shards, those of all."""


def _wait(call: str, id: str, work: Any) -> Any:
    refuse_event_loop(call)
    return get_client().owner_of(id).run(work).result()


async def _awaited(id: str, work: Any) -> Any:
    return await asyncio.wrap_future(get_client().owner_of(id).run(work))


async def _all(database: "Database") -> "list[ScheduleRow]":
    from runner.queries.schedules import schedules as read_schedules

    return await database.read(read_schedules)


async def _add(
    database: "Database", id: str, handler: Handler | str, values: Mapping[str, Any], reason: str | None
) -> None:
    from runner.operations.results import local_actor
    from runner.operations.schedule import add_schedule

    name = handler.name if isinstance(handler, Handler) else handler
    spec = new_spec(name, values, handler if isinstance(handler, Handler) else REGISTRY.get(name))
    await database.write(add_schedule, id, spec, local_actor(reason), int(get_client().settings.payload_limit))


async def _edit(database: "Database", id: str, values: Mapping[str, Any], reason: str | None) -> None:
    from runner.operations.results import local_actor
    from runner.operations.schedule import edit_schedule
    from runner.queries.schedules import schedules as read_schedules

    rows = await database.read(read_schedules, [id], runs=0)
    if not rows:
        raise UnknownSchedule(id=id, hint="")
    changes = spec_changes(rows[0].spec, values, REGISTRY.get(rows[0].spec.handler))
    limit = int(get_client().settings.payload_limit)
    await database.write(edit_schedule, id, changes, local_actor(reason), version=rows[0].version, payload_limit=limit)


async def _operate(database: "Database", name: str, id: str, reason: str | None, **values: Any) -> Any:
    from runner.operations import schedule
    from runner.operations.results import local_actor

    return await database.write(getattr(schedule, name), id, local_actor(reason), **values)
