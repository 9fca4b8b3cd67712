"""SignalLook: starts the tasks whose signals clients have inserted."""

import contextlib

from runner.db.database import Database
from runner.engine.events import Events, TasksSubmitted
from runner.errors import DatabaseUnavailable
from runner.store.signals import any_new, notice


class SignalLook:
    """Starts the tasks that wait for signals which no runner has noticed. Several runners may do this at the same time.

    The operation of `runner signal` starts its tasks itself; a plain INSERT does not.

    Args:
        events: receives the news of started tasks.
    """

    def __init__(self, database: Database, events: Events) -> None:
        self._database, self._events = database, events

    async def run(self) -> None:
        """Look once. The rest of many signals waits for the next look."""
        with contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            started = await self._database.write(notice) if await self._database.read(any_new) else 0
            if started:
                self._events.publish(TasksSubmitted())
