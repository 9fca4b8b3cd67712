"""The minute statistics of a runner: the minutes of the database's clock, and the times of the attempts."""

import time
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from runner.db.transaction import clock
from runner.errors import DatabaseUnavailable
from runner.handlers.context import Context
from runner.model.outcome import Dead, Retry
from runner.policy.histogram import Histogram, Times, merged
from runner.queries.reports import times_by_minute
from tests.conftest import on_postgresql
from tests.engine.harness import Harness, at_work, until

NEAR = timedelta(minutes=2)


@pytest.mark.parametrize("hours", [2, -3])
async def test_a_runner_with_a_wrong_clock_counts_in_the_right_minutes(
    harness: Harness, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    @harness.handler("fail")
    async def fail() -> Dead:
        return Dead("broken")

    tasks = [await harness.submit("work"), await harness.submit("fail")]
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + hours * 3_600)
    async with harness.running() as runner:
        await until(lambda: runner.metrics.verbs["succeed"] == runner.metrics.verbs["die"] == 1)
    monkeypatch.undo()
    await harness.wait_for(*tasks)
    minute = harness.database.tables.minute.c
    rows = await harness.rows(sa.select(minute.minute, minute.submitted, minute.succeeded, minute.died))
    assert [sum(getattr(row, name) for row in rows) for name in ("submitted", "succeeded", "died")] == [2, 1, 1]
    at: datetime = await harness.database.read(clock)
    assert all(abs(row.minute - at) < NEAR for row in rows), (at, rows)


async def times(harness: Harness) -> Times:
    """The times of all attempts."""
    at = await harness.database.read(clock)
    runs, waits = zip(*(await harness.database.read(times_by_minute, at - NEAR)).values(), strict=True)
    return Times(merged(runs), merged(waits))


async def test_every_attempt_has_its_run_time_and_its_wait(harness: Harness) -> None:
    """The wait starts at the due time of the attempt: not at the submit, nor at the end of the attempt before."""

    @harness.handler("work")
    async def work(ctx: Context) -> object:
        return Retry("1ms") if ctx.attempt == 1 else None

    @harness.handler("copy")
    async def copy(ctx: Context) -> None:
        async with ctx.transaction():
            pass

    due = await harness.database.read(clock) - timedelta(seconds=100)
    await harness.submit("work", run_at=due)
    await harness.submit("copy", run_at=due)
    await harness.work()
    runs, waits = await times(harness)
    assert (runs.number, waits.number) == (3, 3)
    late = [each.number for bound, each in waits.bins.items() if bound > 99_000]
    assert sum(late) == 2
    assert 100 <= (waits.percentile(0.5) or 0.0) < 100 + 30


async def test_times_outlast_an_outage_of_the_database(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    engine = harness.runner()
    histogram = Histogram()
    histogram.add([4.0])
    engine.metrics.times["mail", "send"] = Times(histogram, Histogram())

    async def away(*_: object) -> None:
        engine.metrics.times["mail", "send"] = Times(merged([histogram]), Histogram())
        raise DatabaseUnavailable(url="test", why="test")

    with monkeypatch.context() as patched:
        patched.setattr(engine.database, "write", away)
        await engine.metrics.write_times(engine.database, 1)
    await engine.metrics.write_times(engine.database, 1)
    await engine.database.dispose()
    runs, _ = await times(harness)
    assert (runs.number, runs.percentile(0.5)) == (2, 4.0)
    assert not engine.metrics.times


async def test_two_writes_at_the_same_time_write_each_time_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last heartbeat may still write when the shutdown does."""
    engine = harness.runner()
    histogram = Histogram()
    histogram.add([4.0])
    engine.metrics.times["mail", "send"] = Times(histogram, Histogram())
    own, first = engine.database.write, list[object]()

    async def write(*args: object) -> object:
        if not first:
            first.append(args)
            await engine.metrics.write_times(engine.database, 1)
        return await own(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.database, "write", write)
    await engine.metrics.write_times(engine.database, 1)
    await engine.database.dispose()
    runs, _ = await times(harness)
    assert runs.number == 1


async def test_a_runner_with_a_retention_of_zero_counts_successes_and_keeps_failures(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    @harness.handler("fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError

    runner = harness.runner(retention_succeeded="0s")
    async with at_work(runner):
        first = await harness.submit("work")
        await until(lambda: runner.metrics.verbs["succeed"] == 1)
        failed = await harness.submit("fail")
        for _ in range(19):
            await harness.submit("work")
        await until(lambda: runner.metrics.verbs.total() == 21)
    assert (runner.metrics.verbs["succeed"], runner.metrics.verbs["die"]) == (20, 1)
    tables = harness.database.tables
    assert await harness.rows(sa.select(tables.task.c.id)) == []
    kept = {row.id for row in await harness.rows(sa.select(tables.history.c.id))}
    assert failed in kept <= {first, failed}  # on PostgreSQL, the first statement of a runner keeps its rows
    (row,) = await harness.rows(sa.select(sa.func.sum(tables.minute.c.succeeded), sa.func.sum(tables.minute.c.died)))
    assert tuple(row) == (20, 1)


NEXT_MINUTES = """
INSERT INTO task_minute (minute, queue, handler, runner_id, part, bin_ms)
SELECT minute + n * interval '1 minute', queue, handler, runner_id, part, bin_ms
FROM task_minute, generate_series(1, 5) AS n
"""


@on_postgresql
async def test_a_locked_row_of_the_times_is_named_once_and_no_time_is_lost(
    harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, database, histogram = harness.runner(), harness.database, Histogram()
    histogram.add([4.0])
    writes, write = 0, database.write

    async def counted(*arguments: Any) -> Any:
        nonlocal writes
        writes += 1
        return await write(*arguments)

    async def write_times() -> None:
        engine.metrics.times.update({("mail", f"send{number}"): Times(histogram, Histogram()) for number in range(8)})
        await engine.metrics.write_times(database, 1)

    await write_times()
    monkeypatch.setattr(database, "write", counted)
    with psycopg.connect(harness.url, application_name="psql") as session:
        session.execute(NEXT_MINUTES)
        session.commit()
        session.execute("SELECT FROM task_minute WHERE handler = 'send3' FOR UPDATE")
        await write_times()
        await write_times()
        assert writes == 2, "each write waits for the lock once"
        session.rollback()
        pid = session.info.backend_pid
    (line,) = [record.getMessage() for record in caplog.records if "the times of attempts wait" in record.getMessage()]
    assert f"of task_minute is locked, held by process {pid} (psql, user " in line
    assert "last statement: SELECT FROM task_minute WHERE handler = '…' FOR UPDATE" in line
    assert "mail, send3, 1, 0, " in line
    await write_times()
    assert (await times(harness)).runs.number == 8 * 4
