"""A SQLite file that another program keeps locked: the log names that program, and no attempt is spent."""

import pytest

from runner.db import connect
from tests.conftest import on_sqlite
from tests.engine.harness import Harness, at_work, until
from tests.engine.locks import locked_by_program


@on_sqlite
async def test_a_runner_names_the_program_and_spends_no_attempt(
    harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_SECONDS", 0.2)
    runs = 0

    @harness.handler("work", max_attempts=1)
    async def work() -> None:
        nonlocal runs
        runs += 1

    runner = harness.runner(lease_timeout="1h")
    async with at_work(runner):
        await until(lambda: bool(runner.lease.id))
        task = await harness.submit("work")
        with locked_by_program(harness.url) as name:
            await until(lambda: any(name in each.getMessage() for each in caplog.records))
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.attempt, runs) == ("succeeded", 1, 1)
