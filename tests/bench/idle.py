"""The parts `idle`, `schedules` and `ticks`: a runner that mostly waits, and schedules beside a backlog."""

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from runner.cli.bench.drain import WARM_UP, percentiles
from runner.cli.bench.exchange import HANDLER
from runner.cli.bench.load import TIMEOUT, Load
from runner.cli.bench.plan import Measurement
from runner.cli.bench.workers import BenchContext, Workers
from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.errors import BenchFailed
from runner.model.task import Priority
from runner.queries.schedules import schedules as list_schedules

SETTLE_SECONDS = 0.5
"""Pause after the last warm-up task."""

IDLE_SCHEDULES, TICKING_SCHEDULES = 10_000, 20
"""Schedules of the parts `schedules` and `ticks`."""

MOST_RUNS = 1_000
"""Runs of each schedule whose lateness is read."""

IDLE_SHARE = 1 / 3
"""The parts last this share of `seconds`."""

PERCENT = 100


async def idle(context: BenchContext) -> Measurement:
    """Measure the CPU usage of a runner without tasks."""
    async with context.create_load() as load:
        return await _idle(context, load)


async def schedules(context: BenchContext) -> Measurement:
    """Measure the CPU usage of a runner without tasks beside many schedules that are not due."""
    async with context.create_load() as load:
        later = datetime.now(UTC) + timedelta(days=1)
        await load.database.write(_add_schedules, IDLE_SCHEDULES, {"rule": "every 1h", "next_at": later})
        return await _idle(context, load)


async def _idle(context: BenchContext, load: Load) -> Measurement:
    async with Workers(context) as workers:
        await load.many(WARM_UP)
        await workers.wait_for_starts(WARM_UP)
        await load.wait_until_done()
        await asyncio.sleep(SETTLE_SECONDS)
        workers.mark()
        await asyncio.sleep(context.plan.seconds * IDLE_SHARE)
        (report,) = await workers.stop()
        (started_at, cpu_before), (end, cpu) = report.marks[-2:]
        share = PERCENT * (cpu - cpu_before) / (end - started_at)
        return Measurement({"cpu_share": share}, WARM_UP, 1, await load.proof(report.hits))


async def ticks(context: BenchContext) -> Measurement:
    """Measure how late the runs of schedules start while a runner works on a backlog of less urgent tasks."""
    plan = context.plan
    async with context.create_load() as load:
        await load.many(plan.tasks)
        await load.analyze()
        options = json.dumps({"priority": Priority.HIGHEST})
        rule = {"rule": "every 1s", "overlap": "allow", "misfire": "all 1000", "options": options}
        await load.database.write(_add_schedules, TICKING_SCHEDULES, rule)
        async with Workers(context) as workers:
            await workers.wait_for_starts(1)
            await asyncio.sleep(plan.seconds * IDLE_SHARE)
            lateness = await _lateness(load.database)
            await workers.stop()
    return Measurement(percentiles(lateness), plan.tasks, 1)


async def _lateness(database: Database) -> list[float]:
    """Wait for the first run of a schedule, and return how many seconds after their ticks all runs started."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        runs = [run for row in await database.read(list_schedules, runs=MOST_RUNS) for run in row.runs]
        if started := [run.late.total_seconds() for run in runs if run.late is not None]:
            return started
        if time.monotonic() > deadline:
            raise BenchFailed(why=f"no run of a schedule started within {TIMEOUT:.0f} s")
        await asyncio.sleep(SETTLE_SECONDS)


async def _add_schedules(tx: Transaction, count: int, values: dict[str, Any]) -> None:
    payload = json.dumps({"i": 0, "t": 0, "pad": ""})
    row = {"handler": HANDLER, "payload": payload} | values
    await tx.execute(sa.insert(tx.tables.schedule), [row | {"id": f"s{number}"} for number in range(count)])
