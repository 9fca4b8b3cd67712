"""Sleeps and timeouts: the clock of the database alone counts, also while it jumps."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_now, seconds_until
from runner.engine.executing.durable_steps import DurableSteps
from runner.engine.executing.step_store import StoredSteps
from runner.handlers.steps import Suspension
from runner.model.outcome import Done, Outcome
from runner.model.task import NewTask
from runner.store.submit import submit
from tests.chaos.clock import SteppedClock, shift_sqlite
from tests.engine.step_attempts import stored_steps
from tests.store.runners import Runner

pytestmark = pytest.mark.both_databases
HOUR, HALF = 3600.0, 1800.0


class Sleeper:
    """A task that sleeps for half an hour, and waits for a signal for half an hour."""

    def __init__(self, database: Database, runner: Runner, clock: SteppedClock) -> None:
        self.database, self.runner, self.clock = database, runner, clock

    async def body(self, steps: DurableSteps) -> None:
        await steps.sleep(HALF, None)
        assert await steps.wait_for("go", HALF) is None

    async def attempt(self) -> str | None:
        """The move after an attempt; None if the task is not due."""
        claimed = await self.runner.claim(1)
        if not claimed:
            return None
        (task,) = claimed
        store = stored_steps(self.runner, task, self.body, StoredSteps)
        outcome: Outcome = Done()
        try:
            await self.body(DurableSteps(task, store, 1_000, lambda: True))
        except Suspension as suspension:
            outcome = suspension.outcome
        return (await self.runner.end(task, outcome)).verbs[task.id]

    async def left(self) -> int:
        """Minutes until the task is due, by the clock of the database."""
        async with self.database.reading() as tx:
            seconds = await tx.scalar(sa.select(seconds_until(tx.tables.task.c.run_at)))
            return round(float(seconds) / 60)

    async def make_due(self) -> None:
        """Start the task now, as an operator does."""
        async with self.database.writing() as tx:
            await tx.execute(sa.update(tx.tables.task).values(run_at=db_now()))


async def test_a_step_of_the_clock_moves_the_end_of_a_sleep_once(
    migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sqlite3", "sqlite3.dbapi2"):
        monkeypatch.setattr(f"{module}.connect", __import__("sqlite3").connect)
    with SteppedClock(migrated_url, tmp_path / "clock") as clock:
        if not clock.differs:
            shift_sqlite(lambda: clock.database)
        database = Database.open(migrated_url)
        runner = await Runner.enter(database, lease=100 * HOUR)
        await database.write(submit, NewTask("work"))
        sleeper = Sleeper(database, runner, clock)
        assert (await sleeper.attempt(), await sleeper.left()) == ("snooze", 30)
        clock.step(-HOUR)
        assert (await sleeper.attempt(), await sleeper.left()) == (None, 90)
        await sleeper.make_due()
        assert (await sleeper.attempt(), await sleeper.left()) == ("snooze", 90), "the sleep began again"
        clock.step(2 * HOUR)
        assert (await sleeper.attempt(), await sleeper.left()) == ("snooze", 30), "the timeout counts from its wait"
        clock.step(-HOUR)
        await sleeper.make_due()
        assert (await sleeper.attempt(), await sleeper.left()) == ("snooze", 90), "the sleep that has ended began again"
        clock.step_runners(0.0 if not clock.differs else 10 * HOUR)
        assert await sleeper.attempt() is None
        clock.step(2 * HOUR)
        assert await sleeper.attempt() == "succeed"
        await database.dispose()
