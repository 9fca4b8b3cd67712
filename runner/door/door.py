"""The door to the store for applications: opened at the first submit, shared by the whole process."""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from runner.door.gathering import Gathering
from runner.door.waiting import Waiting
from runner.errors import DatabaseAway
from runner.settings import Settings, load
from runner.task import NewTask, Receipt

if TYPE_CHECKING:
    from runner.door.borrowed import Verb
    from runner.store.database import Database
    from runner.store.observe.endings import Ending

T = TypeVar("T")

FAREWELL = 10.0
"""Seconds that what is under way is given when the door is closed."""


class Door:
    """Connections for submitting, on an event loop in a thread of its own.

    Callers with an event loop and callers without one, in any thread, come through the same door: what it does is
    written once, and its connections belong to one loop.

    Args:
        settings: where the database is.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.payload_limit = int(settings.payload_limit)
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self.waiting = Waiting(self._look, self._loop)
        """Those who wait for tasks to end."""
        self._gathering = Gathering(self._submit, self._loop) if settings.coalesce else None
        self._database: asyncio.Future[Database] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="runner-door", daemon=True)
        self._thread.start()

    def submit(self, tasks: Sequence[NewTask]) -> Future[Receipt]:
        """Submit tasks in one transaction of their own."""
        if self._gathering is not None and len(tasks) == 1 and tasks[0].independent:
            return self._gathering.put(tasks[0])
        return asyncio.run_coroutine_threadsafe(self._submit(tasks), self._loop)

    async def submit_async(self, tasks: Sequence[NewTask]) -> Receipt:
        """Do what `submit` does without blocking the caller's event loop."""
        return await asyncio.wrap_future(self.submit(tasks))

    async def _submit(self, tasks: Sequence[NewTask]) -> Receipt:
        from runner.store.submit import hand_in, takes_one_statement  # SQLAlchemy takes a quarter of a second to import

        database = await self._opened()
        transact = database.state if takes_one_statement(tasks) else database.write
        return await transact(hand_in, tasks, notify=self.settings.notify)

    def submit_within(self, tx: object, tasks: Sequence[NewTask]) -> Receipt:
        """Submit tasks in the transaction of an application's connection; no other connection is used."""
        from runner.door.borrowed import follow

        return follow(tx, self._submission(tasks))

    async def submit_within_async(self, tx: object, tasks: Sequence[NewTask]) -> Receipt:
        """Do what `submit_within` does with a connection that is awaited."""
        from runner.door.borrowed import follow_async

        return await follow_async(tx, self._submission(tasks))

    def _submission(self, tasks: Sequence[NewTask]) -> "Verb[Receipt]":
        from runner.door.borrowed import Borrowing
        from runner.store.submit import submission

        return lambda driver: submission(Borrowing.of(self.settings, driver), tasks, self.settings.notify)

    async def _look(self, ids: Sequence[int]) -> "Mapping[int, Ending | None]":
        from runner.store.observe.endings import endings

        return await (await self._opened()).read(endings, ids)

    def run(self, work: "Callable[[Database], Coroutine[Any, Any, T]]") -> Future[T]:
        """Run something with the database on the door's loop."""

        async def with_database() -> T:
            return await work(await self._opened())

        return asyncio.run_coroutine_threadsafe(with_database(), self._loop)

    async def _opened(self) -> "Database":
        if self._database is None or (self._database.done() and self._database.exception()):
            self._database = asyncio.ensure_future(self._open())
        return await asyncio.shield(self._database)

    async def _open(self) -> "Database":
        from runner.migrations import ensure
        from runner.store.database import Database

        database = Database.of(self.settings)
        try:
            await ensure(database)
        except BaseException:
            await database.dispose()
            raise
        return database

    def close(self) -> None:
        """Close the connections and end the thread."""
        if self._loop.is_closed() or os.getpid() != self.pid:
            return
        asyncio.run_coroutine_threadsafe(self._dispose(), self._loop).result(timeout=FAREWELL)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=FAREWELL)
        self._loop.close()

    async def _dispose(self) -> None:
        if self._gathering is not None:
            await self._gathering.end()
        await self.waiting.end(DatabaseAway(url=self.settings.url, why="this program has disconnected from it"))
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        if under_way:
            await asyncio.wait(under_way, timeout=FAREWELL / 2)
        if self._database is not None:
            with contextlib.suppress(Exception):  # it could not be opened, which whoever needed it was told
                await (await self._database).dispose()


_lock = threading.Lock()
_door: Door | None = None


def door() -> Door:
    """The process's door, opened with the settings at hand if nobody has opened it; a forked child gets its own."""
    global _door  # noqa: PLW0603 - one door per process is the point
    with _lock:
        if _door is None or _door.pid != os.getpid():
            _door = Door(_door.settings if _door is not None else load())
        return _door


def connect(settings: Settings | None = None, **overrides: Any) -> None:
    """Say where tasks are submitted to, instead of leaving it to environment and configuration file.

    Args:
        settings: all of them, or None to load them.
        overrides: single settings by name, e.g. url="postgresql://db/app".

    Raises:
        InvalidSettings: when a value is not valid.
    """
    old = replace(Door(settings or load(**overrides)))
    if old is not None:
        old.close()


def disconnect() -> None:
    """Close the process's door; the next submit opens it again."""
    old = replace(None)
    if old is not None:
        old.close()


def replace(door: Door | None) -> Door | None:
    """Put another door in the place of the process's, which is returned as it is."""
    global _door
    with _lock:
        old, _door = _door, door
    return old


atexit.register(disconnect)
