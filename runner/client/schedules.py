"""Managing schedules at run time: the functions behind `runner.schedules`."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from runner.client.client import get_client, refuse_event_loop
from runner.client.schedule import new_spec, spec_changes
from runner.errors import UnknownSchedule
from runner.handlers.registry import REGISTRY, Handler

if TYPE_CHECKING:
    from runner.db.database import Database
    from runner.queries.schedules import ScheduleRow


class ScheduleFunctions:
    """Add, edit, pause, resume, run, delete and list schedules, each with an audit entry.

    Each function has a form with `_async` at the end of its name, to await on an event loop.
    """

    __name__ = "schedules"

    def all(self) -> "list[ScheduleRow]":
        """Return all schedules with their last runs, the next one first."""
        rows: list[ScheduleRow] = _wait("schedules.all", _all)
        return rows

    async def all_async(self) -> "list[ScheduleRow]":
        """Same as `all`."""
        rows: list[ScheduleRow] = await _awaited(_all)
        return rows

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
        _wait("schedules.add", lambda database: _add(database, id, handler, values, reason))

    async def add_async(self, id: str, handler: Handler | str, /, *, reason: str | None = None, **values: Any) -> None:
        """Same as `add`."""
        await _awaited(lambda database: _add(database, id, handler, values, reason))

    def edit(self, id: str, /, *, reason: str | None = None, **values: Any) -> None:
        """Change values of a schedule, as of `add`. The code of runners does not change them back.

        Raises:
            InvalidSchedule: a value is not valid.
            UnknownSchedule: there is no such schedule.
        """
        _wait("schedules.edit", lambda database: _edit(database, id, values, reason))

    async def edit_async(self, id: str, /, *, reason: str | None = None, **values: Any) -> None:
        """Same as `edit`."""
        await _awaited(lambda database: _edit(database, id, values, reason))

    def pause(self, id: str, /, until: datetime | None = None, *, reason: str | None = None) -> None:
        """Stop the ticks of a schedule.

        Args:
            id: the schedule.
            until: when the pause ends, with a time zone; None for never.
            reason: the reason, shown with the pause.
        """
        _wait("schedules.pause", lambda database: _operate(database, "pause_schedule", id, reason, until=until))

    async def pause_async(self, id: str, /, until: datetime | None = None, *, reason: str | None = None) -> None:
        """Same as `pause`."""
        await _awaited(lambda database: _operate(database, "pause_schedule", id, reason, until=until))

    def resume(self, id: str, /, *, reason: str | None = None) -> None:
        """End the pause of a schedule."""
        _wait("schedules.resume", lambda database: _operate(database, "resume_schedule", id, reason))

    async def resume_async(self, id: str, /, *, reason: str | None = None) -> None:
        """Same as `resume`."""
        await _awaited(lambda database: _operate(database, "resume_schedule", id, reason))

    def run(self, id: str, /, *, reason: str | None = None) -> None:
        """Ask for a run now; a runner submits its task within a second."""
        _wait("schedules.run", lambda database: _operate(database, "run_schedule", id, reason))

    async def run_async(self, id: str, /, *, reason: str | None = None) -> None:
        """Same as `run`."""
        await _awaited(lambda database: _operate(database, "run_schedule", id, reason))

    def delete(self, id: str, /, *, reason: str | None = None) -> None:
        """Delete a schedule that no code defines.

        Raises:
            ScheduleInCode: it is defined in code, which would add it again.
        """
        _wait("schedules.delete", lambda database: _operate(database, "delete_schedule", id, reason))

    async def delete_async(self, id: str, /, *, reason: str | None = None) -> None:
        """Same as `delete`."""
        await _awaited(lambda database: _operate(database, "delete_schedule", id, reason))


schedules = ScheduleFunctions()
"""The schedules of the database that tasks are submitted to."""


def _wait(call: str, work: Any) -> Any:
    refuse_event_loop(call)
    return get_client().run(work).result()


async def _awaited(work: Any) -> Any:
    return await asyncio.wrap_future(get_client().run(work))


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
    await database.write(add_schedule, id, spec, local_actor(reason), get_client().payload_limit)


async def _edit(database: "Database", id: str, values: Mapping[str, Any], reason: str | None) -> None:
    from runner.operations.results import local_actor
    from runner.operations.schedule import edit_schedule
    from runner.queries.schedules import schedules as read_schedules

    rows = await database.read(read_schedules, [id], runs=0)
    if not rows:
        raise UnknownSchedule(id=id, hint="")
    changes = spec_changes(rows[0].spec, values, REGISTRY.get(rows[0].spec.handler))
    limit = get_client().payload_limit
    await database.write(edit_schedule, id, changes, local_actor(reason), version=rows[0].version, payload_limit=limit)


async def _operate(database: "Database", name: str, id: str, reason: str | None, **values: Any) -> None:
    from runner.operations import schedule
    from runner.operations.results import local_actor

    await database.write(getattr(schedule, name), id, local_actor(reason), **values)
