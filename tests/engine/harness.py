"""A harness: a database, handlers of a test, and runners that execute them."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from runner.db.database import Database
from runner.engine.runner import Engine
from runner.handlers.registry import Handler, Options
from runner.model.task import NewTask
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.policy.polling import LookAhead
from runner.settings import Settings
from runner.store.submit import submit
from runner.urls import parse_url

if TYPE_CHECKING:
    from runner.engine.shards import ShardEngines

WAIT_SECONDS = 120.0
"""Timeout of a test in seconds; the expected events take a fraction of a second."""

QUICK: dict[str, Any] = {
    "poll_interval": "50ms",
    "lease_timeout": "5s",
    "heartbeat_interval": "100ms",
    "settle_interval": "1ms",
    "drain_timeout": "2s",
    "retry": "1ms",
    "concurrency": 4,
    "threads": 2,
}


class OneAhead(LookAhead):
    """The prefetch after a while of quick work."""

    def tasks(self, now: float) -> int:
        return 1


class TwoAhead(LookAhead):
    """The same for two tasks."""

    def tasks(self, now: float) -> int:
        return 2


Function = TypeVar("Function", bound=Callable[..., Any])


class Harness:
    """The environment of an engine test.

    Args:
        database: a database with the tables.
        url: its URL, for additional runners.
    """

    def __init__(self, database: Database, url: str) -> None:
        self.database = database
        self.url = url
        self.handlers: dict[str, Handler] = {}

    def handler(self, name: str, **options: Any) -> Callable[[Function], Function]:
        """Register a function as a handler."""

        def enter(function: Function) -> Function:
            self.handlers[name] = Handler(name, function, Options(**options))
            return function

        return enter

    def held_handler(self, name: str, **options: Any) -> tuple[asyncio.Event, asyncio.Event]:
        """Register a handler that sets the first event, and then waits for the second one."""
        begun, go_on = asyncio.Event(), asyncio.Event()

        @self.handler(name, **options)
        async def work() -> None:
            begun.set()
            await go_on.wait()

        return begun, go_on

    async def submit(self, handler: str, payload: dict[str, Any] | None = None, **options: Any) -> int:
        """Submit a task in a transaction of its own."""
        task = NewTask(handler, json.dumps(payload or {}), **options)
        return await self.database.write(submit, task)

    def runner(self, **settings: Any) -> Engine:
        """Create a runner without starting it."""
        return Engine(Settings(**{"url": parse_url(self.url)} | QUICK | settings), self.handlers)

    async def work(self, **settings: Any) -> Engine:
        """Run a runner until there is nothing left to do."""
        runner = self.runner(**settings)
        async with asyncio.timeout(WAIT_SECONDS):
            assert await runner.run(until_idle=True)
        return runner

    async def run(self, handler: str, payload: dict[str, Any] | None = None, **options: Any) -> int:
        """Submit a task, and run a runner until there is nothing left to do."""
        task = await self.submit(handler, payload, **options)
        await self.work()
        return task

    @asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[Engine]:
        """Keep a runner at work during the block, then stop it."""
        runner = self.runner(**settings)
        async with at_work(runner):
            yield runner

    async def row(self, task_id: int) -> Any:
        """A task, live or ended."""
        for table in (self.database.tables.task, self.database.tables.history):
            for row in await self.rows(sa.select(table).where(table.c.id == task_id)):
                return row
        raise LookupError(task_id)

    async def state(self, task_id: int) -> str:
        return str((await self.row(task_id)).state)

    async def attempts(self, task_id: int) -> Sequence[Any]:
        """The failed attempts of a task, in order."""
        attempt = self.database.tables.attempt
        return await self.rows(sa.select(attempt).where(attempt.c.task_id == task_id).order_by(attempt.c.fence))

    async def count(self, table: sa.Table, *conditions: Any) -> int:
        rows = await self.rows(sa.select(sa.func.count()).select_from(table).where(*conditions))
        return int(rows[0][0])

    async def rows(self, statement: Any) -> Sequence[Any]:
        async with self.database.reading() as tx:
            return await tx.rows(statement)

    async def change(self, statement: Any) -> None:
        """Execute a statement directly, as an operator with a database client may."""
        async with self.database.writing() as tx:
            await tx.execute(statement)

    async def pause(self, queue: str) -> None:
        """Pause a queue."""
        await self.database.write(pause, PauseTarget(PauseKind.QUEUE, queue), Actor("ana", "desk", "relay is down"))

    async def wait_for(self, *task_ids: int) -> None:
        """Wait until these tasks are in the history."""
        history = self.database.tables.history
        await until(lambda: self._all_in(history, task_ids))

    async def _all_in(self, table: sa.Table, task_ids: Sequence[int]) -> bool:
        return await self.count(table, table.c.id.in_(task_ids)) == len(task_ids)


@asynccontextmanager
async def at_work(runner: "Engine | ShardEngines") -> AsyncIterator[asyncio.Task[bool]]:
    """Keep a runner at work during the block, then stop it."""
    run = asyncio.ensure_future(runner.run())
    try:
        yield run
    finally:
        runner.stop()
        async with asyncio.timeout(WAIT_SECONDS):
            await run


LONGEST_PAUSE = 0.1
"""Maximum seconds between two checks of a condition, which may query the database."""


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until a condition is true."""
    pause = 0.01
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            value = condition()
            if await value if inspect.isawaitable(value) else value:
                return
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 1.5)


async def wait_for_event(event: asyncio.Event) -> None:
    """Wait for an event; fail after WAIT_SECONDS."""
    async with asyncio.timeout(WAIT_SECONDS):
        await event.wait()
