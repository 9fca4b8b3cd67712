"""SignalLook: starts the tasks whose signals clients have inserted."""

import contextlib
from collections.abc import Sequence

from runner.db.database import Database
from runner.db.halves import write_in_halves
from runner.engine.events import Events, TasksSubmitted
from runner.engine.stuck_rows import StuckRows, set_locked_apart
from runner.errors import DatabaseUnavailable
from runner.model.stuck_row import RowFault
from runner.store.signals import any_new, notice, signalled_tasks


class SignalLook:
    """Starts the tasks that wait for signals which no runner has noticed. Several runners may do this at the same time.

    The operation of `runner signal` starts its tasks itself; a plain INSERT does not.

    Args:
        events: receives the news of started tasks.
        stuck: receives the tasks that the database refuses to change, or that another transaction locks.
    """

    def __init__(self, database: Database, events: Events, stuck: StuckRows) -> None:
        self._database, self._events, self._stuck = database, events, stuck

    async def run(self) -> None:
        """Look once. The rest of many signals waits for the next look."""
        with contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            if await self._database.read(any_new):
                await self._notice()
            else:
                self._stuck.retain("signal", ())

    async def _notice(self) -> None:
        tasks = await self._database.read(signalled_tasks, self._stuck.resting("signal"))
        left = dict(tasks)

        async def write(part: Sequence[int]) -> None:
            started, seen = await self._database.write(notice, part)
            for id in seen:
                del left[id]
            self._stuck.free("signal", seen)
            if started:
                self._events.publish(TasksSubmitted())

        def set_apart(id: int, fault: RowFault) -> None:
            self._stuck.set_apart("signal", id, left.pop(id), fault)

        await write_in_halves(list(tasks), write, set_apart)
        await set_locked_apart(self._database, self._stuck, "signal", left)
