"""Outcomes whose rows are locked or refused: set apart, while all others are written."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.db.database import Database
from runner.engine.running import Running
from runner.engine.settling.settle_buffer import SettleBuffer, Settling
from runner.engine.slots import Slots
from runner.engine.stuck_rows import StuckRows
from runner.handlers.registry import Handler, Options
from runner.model.outcome import Cancelled, Dead, Done, Failure, Outcome, Release, Retry, Snooze
from runner.model.stuck_row import StuckCause
from runner.model.task import Claimed, NewTask
from runner.store.settle import Settled
from runner.store.submit import submit
from tests.conftest import examples
from tests.engine.harness import Harness, at_work, until, wait_for_event
from tests.store.runners import Runner, settlement
from tests.triggers import SERVER_STATES

on_postgresql = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)

FUNCTION = """
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF old.key = 'silent' THEN RETURN NULL; END IF;
    IF old.key LIKE 'bad:%' THEN RAISE EXCEPTION 'audit says no' USING ERRCODE = substr(old.key, 5); END IF;
    RETURN coalesce(new, old);
END $$
"""
STATES = ("P0001", "23514", "22023", "42501", "58030", "XX001", *SERVER_STATES, "silent")
KINDS = ("ABORT", "FAIL", "ROLLBACK")
"""The errors of a trigger: SQLSTATEs of PostgreSQL, and the words of RAISE in SQLite."""

OUTCOMES: Sequence[Outcome] = (
    Done(),
    Done('{"n": 1}'),
    Retry(failure=Failure("ValueError", "no")),
    Dead("no"),
    Cancelled(),
    Release("no slot"),
    Snooze(60.0, "later"),
)


async def handler() -> None: ...


HANDLER = Handler("work", handler, Options())


def words(database: Database) -> Sequence[str]:
    return STATES if database.dialect.row_locks else KINDS


async def plant(database: Database) -> None:
    """A trigger of a user that refuses to change running tasks with some keys."""
    async with database.writing() as tx:
        if database.dialect.row_locks:
            await tx.execute(sa.text(FUNCTION.replace(":", "\\:")))
            when = "BEFORE UPDATE OR DELETE ON task FOR EACH ROW WHEN (old.state = 'running') EXECUTE FUNCTION audit()"
            await tx.execute(sa.text(f"CREATE TRIGGER audit {when}"))
            return
        for verb in ("UPDATE", "DELETE"):
            for kind in KINDS:
                when = f"BEFORE {verb} ON task WHEN old.key = 'bad\\:{kind}' AND old.state = 'running'"
                raising = f"BEGIN SELECT RAISE({kind}, 'audit says no'); END"
                await tx.execute(sa.text(f"CREATE TRIGGER audit_{verb}_{kind} {when} {raising}"))


async def mend(database: Database) -> None:
    async with database.writing() as tx:
        if database.dialect.row_locks:
            await tx.execute(sa.text("DROP TRIGGER IF EXISTS audit ON task"))
            await tx.execute(sa.text("DROP FUNCTION IF EXISTS audit()"))
            return
        for verb in ("UPDATE", "DELETE"):
            for kind in KINDS:
                await tx.execute(sa.text(f"DROP TRIGGER IF EXISTS audit_{verb}_{kind}"))


class Buffer:
    """A buffer of outcomes at work."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.stuck = StuckRows()
        self.ended = dict[int, str | None]()
        self.buffer = SettleBuffer(runner.database, 1000, 0.001, self._settled, self.stuck)
        self.buffer.runner_id = runner.id

    def _settled(self, batch: Sequence[Settling], settled: Settled) -> None:
        for _, item in batch:
            self.ended[item.id] = settled.verbs.get(item.id)

    def add(self, task: Claimed, outcome: Outcome) -> None:
        self.buffer.add(Running(task, HANDLER, Slots("async", 1)), settlement(task, outcome))


@asynccontextmanager
async def buffering(runner: Runner) -> AsyncIterator[Buffer]:
    buffer = Buffer(runner)
    job = asyncio.ensure_future(buffer.buffer.run())
    try:
        yield buffer
    finally:
        job.cancel()
        await asyncio.wait([job])


async def claimed(runner: Runner, keys: Sequence[str | None]) -> list[Claimed]:
    ids = [await runner.database.write(submit, NewTask("work", key=key)) for key in keys]
    tasks = {task.id: task for task in await runner.claim(1000)}
    return [tasks[id] for id in ids]


@contextmanager
def locking(url: str, ids: Sequence[int]) -> Iterator[psycopg.Connection]:
    """The open transaction of a user that locks rows of tasks."""
    with psycopg.connect(url, application_name="psql") as session:
        session.execute("SELECT id FROM task WHERE id = ANY(%s) FOR UPDATE", (list(ids),))
        yield session
        session.rollback()


async def running(database: Database, ids: Sequence[int]) -> int:
    async with database.reading() as tx:
        task = tx.tables.task.c
        return len(await tx.rows(sa.select(task.id).where(task.id.in_(ids), task.state == "running")))


@pytest.mark.both_databases
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(3, 6))
@given(data=st.data())
async def test_all_outcomes_are_written_but_those_of_refused_rows(database: Database, data: st.DataObject) -> None:
    runner = await Runner.enter(database)
    each = st.tuples(st.sampled_from(OUTCOMES), st.none() | st.sampled_from(words(database)))
    cases = data.draw(st.lists(each, min_size=1, max_size=12))
    keys = [word if word in (None, "silent") else f"bad:{word}" for _, word in cases]
    tasks = await claimed(runner, keys)
    bad = {task.id for task, key in zip(tasks, keys, strict=True) if key is not None}
    await plant(database)
    try:
        async with buffering(runner) as buffer:
            for task, (outcome, _) in zip(tasks, cases, strict=True):
                buffer.add(task, outcome)
            buffer.buffer.note_write()
            while (
                buffer.ended.keys() != {task.id for task in tasks} - bad
                or {row.task for row in buffer.stuck.rows()} != bad
            ):
                buffer.buffer.note_write()  # the heartbeats of a runner
                await asyncio.sleep(0.01)
            assert not buffer.buffer.stalled
            assert await running(database, sorted(bad)) == len(bad)
            assert not bad or not await buffer.buffer.drain(5.0)
            await mend(database)
            buffer.stuck.retry_now("settle")
            buffer.buffer._wake.set()
            await until(lambda: buffer.ended.keys() == {task.id for task in tasks})
            assert not len(buffer.stuck)
            assert None not in buffer.ended.values()
    finally:
        await mend(database)


@on_postgresql
async def test_others_are_written_whatever_the_sqlstate(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    runner = await Runner.enter(database)
    tasks = await claimed(runner, [*[f"bad:{state}" for state in SERVER_STATES], *[None] * 9])
    bad = {task.id for task in tasks[: len(SERVER_STATES)]}
    await plant(database)
    async with buffering(runner) as buffer:
        for number, task in enumerate(tasks):
            buffer.add(task, OUTCOMES[number % len(OUTCOMES)])
        await until(lambda: buffer.ended.keys() == {task.id for task in tasks} - bad)
        await until(lambda: {row.task for row in buffer.stuck.rows()} == bad)
        assert {row.cause for row in buffer.stuck.rows()} == {StuckCause.REFUSED}
        assert sorted(row.fact[:5] for row in buffer.stuck.rows()) == sorted(SERVER_STATES)
        assert not buffer.buffer.stalled
    assert "buffered, retrying" not in caplog.text


@on_postgresql
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(3, 5))
@given(data=st.data())
async def test_all_outcomes_are_written_but_those_of_locked_rows(
    database: Database, migrated_url: str, data: st.DataObject
) -> None:
    runner = await Runner.enter(database)
    cases = data.draw(st.lists(st.tuples(st.sampled_from(OUTCOMES), st.booleans()), min_size=1, max_size=12))
    tasks = await claimed(runner, [None] * len(cases))
    held = {task.id for task, (_, locked) in zip(tasks, cases, strict=True) if locked}
    async with buffering(runner) as buffer:
        with locking(migrated_url, sorted(held)) as session:
            for task, (outcome, _) in zip(tasks, cases, strict=True):
                buffer.add(task, outcome)
            await until(lambda: buffer.ended.keys() == {task.id for task in tasks} - held)
            await until(lambda: {row.task for row in buffer.stuck.rows()} == held)
            for row in buffer.stuck.rows():
                assert row.cause is StuckCause.LOCKED
                assert row.blocker is not None
                assert (row.blocker.pid, row.blocker.application) == (session.info.backend_pid, "psql")
            assert not buffer.buffer.stalled
        await until(lambda: buffer.ended.keys() == {task.id for task in tasks})
        assert None not in buffer.ended.values()
        assert not len(buffer.stuck)


@on_postgresql
async def test_an_outcome_that_waits_for_a_locked_row_of_the_statistics_names_it(
    database: Database, migrated_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    runner = await Runner.enter(database)
    (task,) = await claimed(runner, [None])
    with psycopg.connect(migrated_url, application_name="psql") as session:
        session.execute(
            "INSERT INTO task_minute (minute, queue, handler, runner_id) "
            "SELECT date_trunc('minute', now()) + n * interval '1 minute', queue, handler, runner_id "
            "FROM task CROSS JOIN generate_series(-1, 5) AS n"
        )
        session.commit()
        session.execute("SELECT FROM task_minute FOR UPDATE")
        async with buffering(runner) as buffer:
            buffer.add(task, Done())
            await until(lambda: any(row.blocker for row in buffer.stuck.rows()))
            (row,) = buffer.stuck.rows()
            assert row.blocker is not None
            assert (row.blocker.pid, row.blocker.certain) == (session.info.backend_pid, True)
            place = f", work, {runner.id}, 0, 0 of task_minute"
            assert row.fact.startswith("55P03 ")
            assert row.fact.endswith(place)
            session.rollback()
            await until(lambda: task.id in buffer.ended)
        named = [each.message for each in caplog.records if f"{place}, held by process " in each.message]
        assert len(named) == 1
        assert f"process {session.info.backend_pid} (psql" in named[0]


Hold = Callable[[psycopg.Connection, int], object]


def for_update(session: psycopg.Connection, task: int) -> None:
    session.execute("SELECT FROM task WHERE id = %s FOR UPDATE", (task,))


def foreign_key(session: psycopg.Connection, task: int) -> None:
    session.execute("INSERT INTO mine VALUES (%s)", (task,))


def row_of_a_cascade(session: psycopg.Connection, task: int) -> None:
    """Only the row that a cascade would delete is locked, and not that of the task."""
    foreign_key(session, task)
    session.commit()
    session.execute("SELECT FROM mine WHERE task = %s FOR UPDATE", (task,))


@pytest.mark.representatives(2)
@on_postgresql
@pytest.mark.parametrize("hold", [for_update, foreign_key, row_of_a_cascade])
@pytest.mark.parametrize("retention", ["1d", "0s"])
async def test_a_lock_on_one_task_delays_no_other(
    harness: Harness, hold: Hold, retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on = harness.held_handler("slow")

    @harness.handler("quick")
    async def quick() -> None: ...

    await harness.change(sa.text("CREATE TABLE mine (task bigint REFERENCES task (id) ON DELETE CASCADE)"))
    held = await harness.submit("slow")
    runner = harness.runner(concurrency=2, retention_succeeded=retention)
    async with at_work(runner):
        await wait_for_event(begun)
        with psycopg.connect(harness.url, application_name="psql") as session:
            hold(session, held)
            go_on.set()
            await until(lambda: len(runner.stuck.rows()) == 1)
            for _ in range(3):
                await harness.submit("quick")
            await until(lambda: runner.metrics.verbs["succeed"] == 3)
            assert await harness.state(held) == "running"
            assert not runner.worker.buffer.stalled
            (row,) = runner.stuck.rows()
            assert (row.task, row.handler, row.verb, row.cause) == (held, "slow", "settle", StuckCause.LOCKED)
            assert row.fact.startswith("55P03 ")
            session.rollback()
        await until(lambda: runner.metrics.verbs["succeed"] == 4)
    messages = [record.message for record in caplog.records if record.name == "runner.stuck"]
    assert f"task {held} (slow): 55P03" in messages[0]
    assert "database unavailable" not in caplog.text


@pytest.mark.both_databases
async def test_a_large_batch_with_one_refused_row_is_written_in_few_transactions(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = await Runner.enter(database)
    word = words(database)[0]
    tasks = await claimed(runner, [*[None] * 60, f"bad:{word}", *[None] * 60])
    await plant(database)
    writes = 0
    write = Database.write

    async def counted(*args: object) -> object:
        nonlocal writes
        writes += 1
        return await write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "write", counted)
    async with buffering(runner) as buffer:
        for task in tasks:
            buffer.add(task, Done())
        await until(lambda: len(buffer.ended) == 120 and len(buffer.stuck) == 1)
        assert writes <= 20


@on_postgresql
async def test_the_end_of_a_runner_is_bounded_and_names_the_locked_row(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on = harness.held_handler("slow")
    held = await harness.submit("slow")
    runner = harness.runner(drain_timeout="100ms")
    run = asyncio.ensure_future(runner.run())
    await wait_for_event(begun)
    with locking(harness.url, [held]) as session:
        go_on.set()
        await until(lambda: len(runner.stuck.rows()) == 1)
        runner.stop()
        async with asyncio.timeout(90):
            assert not await run
        (line,) = [record.message for record in caplog.records if record.message.startswith("ending without")]
        assert f"task {held} (slow): 55P03" in line
        assert f"process {session.info.backend_pid} (psql" in line


async def test_a_refused_row_does_not_keep_a_runner_until_idle(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    word = words(harness.database)[0]
    bad = await harness.submit("work", key=f"bad:{word}")
    good = await harness.submit("work")
    await plant(harness.database)
    runner = harness.runner()
    assert not await runner.run(until_idle=True)
    assert await harness.state(bad) == "running"
    assert await harness.state(good) == "succeeded"
    assert [row.task for row in runner.stuck.rows()] == [bad]
