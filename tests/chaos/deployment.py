"""Deployment: a database and the processes that use it, with checks from outside."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import ClassVar, Self, TypeVar

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_now
from runner.store.submit import submit
from tests.chaos.check import check
from tests.chaos.dump import Dump, Row, plain, take
from tests.chaos.evidence import OK, UNKNOWN, Violation
from tests.chaos.fleet import Fleet
from tests.chaos.recovery import recoveries
from tests.chaos.workload import PlannedTask
from tests.programs import Program

QUICK = {
    "poll_interval": "200ms",
    "lease_timeout": "1500ms",
    "heartbeat_interval": "300ms",
    "retry": "20ms",
    "concurrency": "20",
    "threads": "4",
    "drain_timeout": "5s",
}
"""Settings of runners under fault: a lease that is over soon, yet not by chance on a busy machine."""

T = TypeVar("T")


class Deployment:
    """A database and its fleet.

    Args:
        url: URL of the database for the checks.
        home: folder for the output of the processes.
        fleet: its processes, or the URL of the database for them, e.g. through a proxy; None for the same URL.
        settings: settings of the runners that differ from QUICK.
    """

    make_fleet: ClassVar[type[Fleet]] = Fleet

    def __init__(self, url: str, home: Path, fleet: str | Fleet | None = None, **settings: str) -> None:
        self.url = url
        if not isinstance(fleet, Fleet):
            fleet = self.make_fleet(fleet or url, home, **QUICK | settings)
        self.fleet = fleet
        self._loop = asyncio.Runner()
        self._database = Database.open(url)
        """For the checks that a storm repeats: a new connection for each would cost more than its statement."""
        self.do(_create_orders)

    def __enter__(self) -> Self:
        self.fleet.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.__exit__()
        self._loop.run(self._database.dispose())
        self._loop.close()

    def submit(self, *tasks: PlannedTask) -> list[int]:
        """Submit tasks from this process, and write them to the journal."""
        for task in tasks:
            self.fleet.journal.write("submit", answer=UNKNOWN, task=None, **task.described())
        ids = self.do(lambda database: _submit(database, tasks))
        for task, task_id in zip(tasks, ids, strict=True):
            self.fleet.journal.write("submit", answer=OK, task=task_id, **task.described())
        return ids

    def freeze(self, process: Program) -> None:
        """Freeze a process outside of a write transaction, which on SQLite would block every other process."""
        self.fleet.freeze(process)
        while not self._is_writable():
            self.fleet.thaw(process)
            self.fleet.freeze(process)

    def _is_writable(self) -> bool:
        if not self.url.startswith("sqlite"):
            return True
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=0.1)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
        return True

    def dump(self) -> Dump:
        return self.do(take)

    def row(self, task_id: int) -> Row:
        return next(row for row in self.dump().rows if row.id == task_id)

    def has_finished(self, *task_ids: int) -> bool:
        """Return True if these tasks have ended."""
        return {row.id for row in self.dump().history} >= set(task_ids)

    def at_rest(self) -> bool:
        """Return True if every task has ended."""
        return self.live_count() == 0

    def live_count(self) -> int:
        """The number of live tasks."""
        return self._loop.run(_count_live(self._database))

    def has_paid(self, tasks: int) -> bool:
        """Return True if there are payments for this number of tasks."""
        return len(self.dump().paid) >= tasks

    def is_lost(self, process: Program) -> bool:
        """True if the database no longer has the runner of a process."""

        async def read(database: Database) -> bool:
            runner = database.tables.runner
            async with database.reading() as tx:
                return not await tx.rows(sa.select(runner.c.id).where(runner.c.pid == process.pid))

        return self.do(read)

    def leases_expired(self) -> bool:
        """True when no runner has a valid lease."""
        return self.do(_count_leases) == 0

    def registered_at(self) -> float:
        """When the runner registered that is there, in seconds of the epoch."""
        return self.do(_registered_at)

    def marked(self) -> int:
        """How many running tasks are known to have started."""
        return self.do(_count_marked)

    def orders(self) -> int:
        """How many orders the application has."""
        return self.do(_count_orders)

    def violations(self, bound: float | None = None) -> list[Violation]:
        """Stop the runners, and compare the history with the promises."""
        self.fleet.stop()
        return check(self.fleet.history(), self.dump(), bound)

    def recoveries(self) -> list[float]:
        """Seconds from the fault to the rescue, for each run that was cut off."""
        return [round(seconds, 2) for seconds in recoveries(self.fleet.history(), self.dump())]

    def do(self, work: Callable[[Database], Awaitable[T]]) -> T:
        """Do something with the database."""

        async def with_database() -> T:
            database = Database.open(self.url)
            try:
                return await work(database)
            finally:
                await database.dispose()

        return asyncio.run(with_database())


async def _submit(database: Database, tasks: tuple[PlannedTask, ...]) -> list[int]:
    async with database.writing() as tx:
        return [await submit(tx, task.task) for task in tasks]


async def _create_orders(database: Database) -> None:
    await database.migrate()
    async with database.writing() as tx:
        await tx.execute(sa.text("CREATE TABLE orders (token TEXT NOT NULL)"))
        await tx.execute(sa.text("CREATE TABLE payments (task BIGINT NOT NULL)"))


async def _count_leases(database: Database) -> int:
    runner = database.tables.runner
    async with database.reading() as tx:
        count = sa.select(sa.func.count()).select_from(runner).where(runner.c.lease_until >= db_now())
        return int(await tx.scalar(count))


async def _registered_at(database: Database) -> float:
    async with database.reading() as tx:
        (row,) = await tx.rows(sa.select(tx.tables.runner.c.started_at))
    return float(plain(row.started_at))


async def _count_marked(database: Database) -> int:
    async with database.reading() as tx:
        task = tx.tables.task
        return int(await tx.scalar(sa.select(sa.func.count(task.c.started_at)).select_from(task)))


async def _count_live(database: Database) -> int:
    async with database.reading() as tx:
        return int(await tx.scalar(sa.select(sa.func.count()).select_from(tx.tables.task)))


async def _count_orders(database: Database) -> int:
    async with database.reading() as tx:
        return int(await tx.scalar(sa.text("SELECT count(*) FROM orders")))
