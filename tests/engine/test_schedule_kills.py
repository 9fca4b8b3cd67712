"""Ticks under kill -9: real runner processes die at random moments, and no tick happens twice or is missed."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_now
from tests.conftest import postgresql_first
from tests.programs import Program
from tests.store.table import change

HANDLERS = "import runner\n\n\n@runner.handler('work')\nasync def work() -> None: ...\n"

PROCESSES = 3

QUICK = {"HEARTBEAT_INTERVAL": "200ms", "LEASE_TIMEOUT": "2s", "POLL_INTERVAL": "200ms", "DRAIN_TIMEOUT": "5s"}


class Runners:
    """Runner processes, of which one dies from time to time."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "ticking.py").write_text(HANDLERS)
        settings = {f"RUNNER_{name}": value for name, value in QUICK.items()}
        self._environment = dict(os.environ) | settings | {"RUNNER_URL": url}
        self._folder = folder
        self.programs = [self._start() for _ in range(PROCESSES)]
        self.kills = 0

    def _start(self) -> Program:
        log = self._folder / "runners.log"
        return Program(
            "runner", "work", "-H", "ticking", log=log, directory=self._folder, environment=self._environment
        )

    def kill(self) -> None:
        """Kill one with SIGKILL, and start another one."""
        place = random.randrange(PROCESSES)
        self.programs[place].kill()
        self.programs[place].wait(10)
        self.programs[place] = self._start()
        self.kills += 1

    def close(self) -> None:
        for program in self.programs:
            program.kill()
            program.wait(10)


@asynccontextmanager
async def dying(folder: Path, url: str, every: float) -> AsyncIterator[Runners]:
    """Keep runners at work, and kill one of them every so many seconds."""
    runners = Runners(folder, url)

    async def kill() -> None:
        while True:
            await asyncio.sleep(every * random.uniform(0.5, 1.5))
            await asyncio.to_thread(runners.kill)

    killer = asyncio.ensure_future(kill())
    try:
        yield runners
    finally:
        killer.cancel()
        with suppress(asyncio.CancelledError):
            await killer
        await asyncio.to_thread(runners.close)


async def ticks(database: Database) -> list[Any]:
    tick = database.tables.tick
    async with database.reading() as tx:
        return list(await tx.rows(sa.select(tick).order_by(tick.c.schedule, tick.c.tick)))


async def check_ticks(database: Database, schedules: int, least: int, folder: Path, every: float) -> None:
    """Run schedules that tick each second until there are enough ticks, and compare them with the clock."""
    table = database.tables.schedule
    values = {"handler": "work", "rule": "every 1s", "misfire": "all 1000", "overlap": "allow", "next_at": db_now()}
    for number in range(schedules):
        await change(database, sa.insert(table).values(id=f"s{number}", **values))
    async with dying(folder, database.url, every) as runners, asyncio.timeout(600):
        while len(await ticks(database)) < least or runners.kills < 3:
            await asyncio.sleep(0.3)
    rows = await ticks(database)
    for earlier, later in pairwise(rows):
        if earlier.schedule == later.schedule and earlier.tick.microsecond == 0:
            assert (later.tick - earlier.tick).total_seconds() == 1.0, (earlier, later)
    assert {row.outcome for row in rows} == {"submitted"}
    assert len({row.task_id for row in rows}) == len(rows)
    async with database.reading() as tx:
        tasks = [
            await tx.scalar(sa.select(sa.func.count()).where(each.c.submitted_by.like("schedule %")))
            for each in (tx.tables.task, tx.tables.history)
        ]
    assert sum(tasks) == len(rows)


@pytest.mark.slow
@postgresql_first
async def test_no_tick_is_repeated_or_missed_when_runners_are_killed(
    database: Database, migrated_url: str, tmp_path: Path
) -> None:
    database.url = migrated_url
    await check_ticks(database, 20, 150, tmp_path, every=0.7)


@pytest.mark.slow
async def test_ten_thousand_ticks_under_kills(database: Database, migrated_url: str, tmp_path: Path) -> None:
    database.url = migrated_url
    await check_ticks(database, 250, 10_000, tmp_path, every=1.0)
