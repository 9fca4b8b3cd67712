"""Site: a database under fault, with the processes at work on it, looked at from outside."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self, TypeVar

import sqlalchemy as sa

from runner.store.database import Database
from runner.store.submit import submit
from tests.chaos.check import OK, Violation, check, recoveries
from tests.chaos.drafts import Draft
from tests.chaos.dump import Dump, Row, take
from tests.chaos.fleet import Fleet

QUICK = {
    "every": "200ms",
    "lease": "1500ms",
    "beat": "300ms",
    "retry": "20ms",
    "slots": "20",
    "threads": "4",
    "drain_timeout": "5s",
}
"""Settings of runners under fault: a lease that is over soon, yet not by chance on a busy machine."""

T = TypeVar("T")


class Site:
    """A database and its fleet.

    Args:
        url: of the database.
        home: a folder for what the processes write.
    """

    def __init__(self, url: str, home: Path, **settings: str) -> None:
        self.url = url
        self.fleet = Fleet(url, home, **QUICK | settings)
        self._do(_create_orders)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.__exit__()

    def submit(self, *drafts: Draft) -> list[int]:
        """Submit tasks from here, and say so in the journal."""
        ids = self._do(lambda database: _submit(database, drafts))
        for draft, task_id in zip(drafts, ids, strict=True):
            known = {"token": draft.token, "given": draft.data, "run_at": draft.run_at}
            self.fleet.journal.write("submit", answer=OK, task=task_id, **known)
        return ids

    def dump(self) -> Dump:
        return self._do(take)

    def row(self, task_id: int) -> Row:
        return next(row for row in self.dump().rows if row.id == task_id)

    def ended(self, *task_ids: int) -> bool:
        """Tell whether these tasks have ended."""
        return {row.id for row in self.dump().ended} >= set(task_ids)

    def at_rest(self) -> bool:
        """Tell whether every task has ended."""
        return not self.dump().live

    def has_paid(self, tasks: int) -> bool:
        """Tell whether there are payments for so many tasks."""
        return len(self.dump().paid) >= tasks

    def orders(self) -> int:
        """How many orders the application has."""
        return self._do(_count_orders)

    def violations(self, bound: float | None = None) -> list[Violation]:
        """Stop the runners, and hold what happened against the promises."""
        self.fleet.stop()
        return check(self.fleet.history(), self.dump(), bound)

    def recoveries(self) -> list[float]:
        """Seconds that it took to take work back, for each run that was cut off."""
        return [round(seconds, 2) for seconds in recoveries(self.fleet.history(), self.dump())]

    def _do(self, work: Callable[[Database], Awaitable[T]]) -> T:
        async def with_database() -> T:
            database = Database.open(self.url)
            try:
                return await work(database)
            finally:
                await database.dispose()

        return asyncio.run(with_database())


async def _submit(database: Database, drafts: tuple[Draft, ...]) -> list[int]:
    async with database.writing() as tx:
        return [await submit(tx, draft.task) for draft in drafts]


async def _create_orders(database: Database) -> None:
    await database.migrate()
    async with database.writing() as tx:
        await tx.execute(sa.text("CREATE TABLE orders (token TEXT NOT NULL)"))
        await tx.execute(sa.text("CREATE TABLE payments (task BIGINT NOT NULL)"))


async def _count_orders(database: Database) -> int:
    async with database.reading() as tx:
        return int(await tx.scalar(sa.text("SELECT count(*) FROM orders")))
