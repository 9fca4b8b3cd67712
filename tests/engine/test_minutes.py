"""Reports count in the minutes of the database's clock, whatever the clock of the runner shows."""

import time
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from runner.db.transaction import clock
from tests.engine.harness import Harness, until

NEAR = timedelta(minutes=2)


@pytest.mark.parametrize("hours", [2, -3])
async def test_a_runner_with_a_wrong_clock_counts_in_the_right_minutes(
    harness: Harness, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    task = await harness.submit("work")
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + hours * 3_600)
    async with harness.running() as runner:
        await until(lambda: runner.metrics.verbs["succeed"] == 1)
    monkeypatch.undo()
    await harness.ended(task)
    minute = harness.database.tables.minute.c
    rows = await harness.rows(sa.select(minute.minute, minute.submitted, minute.succeeded))
    assert (sum(row.submitted for row in rows), sum(row.succeeded for row in rows)) == (1, 1)
    at: datetime = await harness.database.read(clock)
    assert all(abs(row.minute - at) < NEAR for row in rows), (at, rows)
