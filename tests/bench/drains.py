"""The parts `pinned` and `profile`: a drain beside an old transaction, and one with a stopwatch around each step."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace

from runner.cli.bench.drain import MICRO, drain, drain_backlog
from runner.cli.bench.exchange import WorkerReport
from runner.cli.bench.plan import Measurement
from runner.cli.bench.workers import BenchContext
from runner.db.database import Database
from tests.bench import stopwatch
from tests.bench.statements import Cost, Statements
from tests.bench.stopwatch import STEPS


async def pinned(context: BenchContext) -> Measurement:
    """Run a backlog plainly, then one while an older transaction is open, so that no dead row can be removed."""
    plain = await drain(context)
    async with context.create_load() as load, _snapshot(Database.of(context.sandbox.settings)):
        measurement, _ = await drain_backlog(context, load, context.plan.runners)
    ratio = measurement.figures["rate"] / plain.figures["rate"]
    return replace(measurement, figures={**measurement.figures, "ratio": ratio})


@asynccontextmanager
async def _snapshot(database: Database) -> AsyncIterator[None]:
    """Hold a transaction open on a snapshot of the current tables."""
    try:
        async with database.reading() as tx:
            await tx.rows(tx.tables.task.select().limit(1))  # PostgreSQL takes its snapshot with the first statement
            yield
    finally:
        await database.dispose()


@dataclass(frozen=True, slots=True)
class ProfiledMeasurement(Measurement):
    """A measurement of `profile`, with the time per step."""

    costs: Sequence[Cost] = ()


async def profile(context: BenchContext) -> Measurement:
    """Run a backlog with a stopwatch around each step. Its overhead is the difference in CPU from `drain`."""
    async with context.create_load() as load:
        statements = Statements(load.database, context.sandbox.settings)
        await statements.begin()
        measurement, (report,) = await drain_backlog(context, load, 1, ("-P", stopwatch.__file__))
        costs = [*_costs(report), *await statements.costs(load, context.plan.tasks)]
        return ProfiledMeasurement(
            **{each.name: getattr(measurement, each.name) for each in fields(measurement)}, costs=costs
        )


def _costs(report: WorkerReport) -> Iterator[Cost]:
    """The cost of each step, and of the rest."""
    per_task = MICRO / report.hits
    for name, description in STEPS.items():
        step = report.steps[name]
        took = per_task * step["took"] if step["took"] else None
        yield Cost(name, description, per_task * step["cpu"], took, int(step["calls"]))
    rest = report.loop_cpu - sum(step["cpu"] for step in report.steps.values())
    yield Cost("rest", "event loop, connections, ticks", per_task * rest, None, 0)
    threads = max(0.0, report.cpu - report.loop_cpu)
    yield Cost("threads", "other threads: SQLite and its driver", per_task * threads, None, 0)
