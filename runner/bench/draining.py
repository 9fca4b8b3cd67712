"""The parts `drain` and `pinned`: how fast a backlog is run, and what that costs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runner.bench.ground import Ground
from runner.bench.load import Load
from runner.bench.orders import Account
from runner.bench.report import Measurement
from runner.store.database import Database

MICRO = 1e6


async def drain(ground: Ground) -> Measurement:
    """Run a backlog, from the first start until the database says that nothing is left."""
    async with ground.loaded() as load:
        measurement, _ = await drained(ground, load, ground.plan.runners)
        return measurement


async def pinned(ground: Ground) -> Measurement:
    """Run a backlog while a transaction from before it is open, under which no dead row may be removed."""
    async with ground.loaded() as load, _snapshot(Database.of(ground.place.settings)):
        measurement, _ = await drained(ground, load, ground.plan.runners)
        return measurement


async def drained(
    ground: Ground, load: Load, runners: int, *, watched: bool = False
) -> tuple[Measurement, list[Account]]:
    """Submit a backlog and let it be run.

    Args:
        ground: to stand on.
        load: with nothing submitted yet.
        runners: processes that run it.
        watched: measure what each step costs.

    Returns:
        What was measured, and what each runner reports.
    """
    tasks = ground.plan.tasks
    await load.many(tasks)
    await load.settled()
    async with ground.crew(runners, watched=watched) as crew:
        await crew.started(tasks)
        ended = await load.done()
        first = crew.first
        accounts = await crew.stop()
    hits = sum(account.hits for account in accounts)
    cpu = sum(account.cpu for account in accounts if account.hits)
    figures = {"rate": tasks / (ended - first), "cpu_us": MICRO * cpu / tasks}
    return Measurement(figures, tasks, runners, await load.proof(hits)), accounts


@asynccontextmanager
async def _snapshot(database: Database) -> AsyncIterator[None]:
    """Hold a transaction open that sees the tables as they are now."""
    try:
        async with database.reading() as tx:
            await tx.rows(tx.tables.task.select().limit(1))  # PostgreSQL takes its snapshot with the first statement
            yield
    finally:
        await database.dispose()
