"""An outage in a call of the Context costs no attempt: in ctx.transaction(), in a checkpoint, in results of parents."""

import asyncio
import contextlib
import select
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Context, Dead, Retry
from runner.db.database import Database
from runner.engine.executing import outages
from runner.model.task import DependsOn
from runner.policy import attempt_verdict
from runner.store.registration import register
from tests.conftest import on_postgresql
from tests.engine.conftest import PAY, Payments
from tests.engine.harness import WAIT_SECONDS, Harness, at_work, until
from tests.engine.lost_replies import LostCommits, losing_commits
from tests.engine.test_lost_commits import runner_of
from tests.engine.test_processes import HANDLERS as PROCESS_HANDLERS
from tests.postgres import Server, create_database

TIMEOUT = 5.0
"""Timeout of a handler in seconds; after its begin and before this, a test lets the server hang."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_verdict, "OUTAGE_PAUSE", 0.001)


class Break:
    """Breaks the connection of a transaction: ends its session, or fills the disk of a file."""

    def __init__(self, url: str) -> None:
        self._is_server = url.startswith("postgresql")
        self.error_type = "DatabaseUnavailable" if self._is_server else "DiskFull"

    async def connection(self, tx: Any) -> None:
        """Break the connection of a coroutine."""
        await tx.run_sync(self.connection_in_thread)

    def connection_in_thread(self, tx: Any) -> None:
        """Break the connection of a plain function."""
        if self._is_server:
            tx.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))
        pages = tx.execute(sa.text("PRAGMA page_count")).scalar()
        tx.execute(sa.text(f"PRAGMA max_page_count = {pages}"))
        try:
            tx.execute(sa.text(FILL))
        finally:
            tx.execute(sa.text("PRAGMA max_page_count = 1073741823"))


FILL = """CREATE TABLE filled AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)
    SELECT i, randomblob(4096) FROM n"""


class AppError(Exception):
    """The exception of an application."""


def raise_as(how: str, error: Exception) -> None:
    """Raise an error of a connection as handlers do."""
    match how:
        case "as it is":
            raise error
        case "as the cause":
            raise AppError("could not pay") from error
        case "as the context":
            raise AppError("could not pay") from None
        case "in a group":
            raise ExceptionGroup("payments", [ValueError("bad row"), error])
        case "as a retry":
            raise Retry("1ms") from error


HOW = ["as it is", "as the cause", "as the context", "in a group", "as a retry"]


@pytest.mark.representatives(2)
@pytest.mark.both_databases
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_an_outage_in_a_transaction_costs_no_attempt(
    harness: Harness, payments: Payments, kind: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, runs = Break(harness.url), 0

    async def coroutine(ctx: Context) -> None:
        nonlocal runs
        runs += 1
        try:
            async with ctx.transaction() as tx:
                await tx.execute(PAY, {"task": ctx.id})
                if runs == 1:
                    await broken.connection(tx)
        except Exception as error:
            raise_as(how, error)

    def thread(ctx: Context) -> None:
        nonlocal runs
        runs += 1
        try:
            with ctx.transaction() as tx:
                tx.execute(PAY, {"task": ctx.id})
                if runs == 1:
                    broken.connection_in_thread(tx)
        except Exception as error:
            raise_as(how, error)

    harness.handler("pay", max_attempts=1, on_error="dead")(coroutine if kind == "coroutine" else thread)
    task = await harness.run("pay")
    row = await harness.row(task)
    assert (row.state, row.attempt, runs) == ("succeeded", 1, 2)
    assert await payments() == 1
    (attempt,) = await harness.attempts(task)
    assert (attempt.verb, attempt.error_type) == ("interrupt", broken.error_type)
    assert "The attempt does not count" in attempt.message
    assert any("interrupted" in line and broken.error_type in line for line in caplog.messages)


def define_broken(harness: Harness, kind: str, runs: list[int], **options: Any) -> None:
    """Define a handler whose transaction breaks each time."""
    broken = Break(harness.url)

    async def coroutine(ctx: Context) -> None:
        runs.append(ctx.attempt)
        async with ctx.transaction() as tx:
            await broken.connection(tx)

    def thread(ctx: Context) -> None:
        runs.append(ctx.attempt)
        with ctx.transaction() as tx:
            broken.connection_in_thread(tx)

    harness.handler("pay", **options)(coroutine if kind == "coroutine" else thread)


@pytest.mark.representatives(1)
@pytest.mark.both_databases
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_attempts_count_after_too_many_outages(harness: Harness, kind: str) -> None:
    runs: list[int] = []
    define_broken(harness, kind, runs, max_attempts=2)
    task = await harness.submit("pay")
    await harness.work(max_interruptions=3)
    row = await harness.row(task)
    assert (row.state, row.attempt, runs) == ("dead", 2, [1, 1, 1, 1, 2])
    verbs = [attempt.verb for attempt in await harness.attempts(task)]
    assert verbs == ["interrupt", "interrupt", "interrupt", "retry", "die"]


@pytest.mark.both_databases
async def test_a_handler_that_catches_the_outage_decides(harness: Harness) -> None:
    broken = Break(harness.url)

    @harness.handler("pay", max_attempts=1)
    async def pay(ctx: Context, end: str) -> str:
        try:
            async with ctx.transaction() as tx:
                await broken.connection(tx)
        except sa.exc.DBAPIError as error:
            if end == "dead":
                raise Dead("no bank") from error
        return "later"

    tasks = [await harness.submit("pay", {"end": end}) for end in ("dead", "return")]
    await harness.work()
    rows = [await harness.row(task) for task in tasks]
    assert [(row.state, row.result) for row in rows] == [("dead", None), ("succeeded", '"later"')]


@pytest.mark.both_databases
async def test_a_statement_after_the_outage_is_part_of_it(harness: Harness) -> None:
    broken, runs = Break(harness.url), 0

    @harness.handler("pay", max_attempts=1)
    async def pay(ctx: Context) -> None:
        nonlocal runs
        runs += 1
        async with ctx.transaction() as tx:
            if runs == 1:
                with contextlib.suppress(sa.exc.DBAPIError):
                    await broken.connection(tx)
                if harness.url.startswith("sqlite"):
                    await broken.connection(tx)
            await tx.execute(sa.text("SELECT 1"))

    task = await harness.run("pay")
    assert ((await harness.row(task)).state, runs) == ("succeeded", 2)


@on_postgresql
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_an_error_of_the_driver_is_an_outage_too(harness: Harness, kind: str) -> None:
    runs = 0

    async def coroutine(ctx: Context) -> None:
        nonlocal runs
        runs += 1
        async with ctx.transaction() as tx:
            driver: Any = (await tx.get_raw_connection()).driver_connection
            await driver.execute(KILL if runs == 1 else "SELECT 1")

    def thread(ctx: Context) -> None:
        nonlocal runs
        runs += 1
        with ctx.transaction() as tx:
            driver: Any = tx.connection.driver_connection
            driver.execute(KILL if runs == 1 else "SELECT 1")

    harness.handler("pay", max_attempts=1)(coroutine if kind == "coroutine" else thread)
    task = await harness.run("pay")
    assert ((await harness.row(task)).state, runs) == ("succeeded", 2)


KILL = "SELECT pg_terminate_backend(pg_backend_pid())"


@on_postgresql
@pytest.mark.parametrize("inside", [True, False])
async def test_an_outage_of_another_database_is_a_failure_of_the_handler(harness: Harness, inside: bool) -> None:
    url = harness.url.replace("postgresql://", "postgresql+psycopg://")

    def other() -> None:
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.text(KILL))

    @harness.handler("pay", max_attempts=1)
    def pay(ctx: Context) -> None:
        if not inside:
            other()
        with ctx.transaction():
            other()

    task = await harness.run("pay")
    row = await harness.row(task)
    assert (row.state, [attempt.verb for attempt in await harness.attempts(task)]) == ("dead", ["die"])


@on_postgresql
async def test_a_transaction_that_the_server_ends_for_its_pause_is_a_failure(harness: Harness) -> None:
    @harness.handler("pay", max_attempts=1)
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 1"))
            driver: Any = (await tx.get_raw_connection()).driver_connection
            await until(lambda: driver.broken or bool(select.select([driver.fileno()], [], [], 0)[0]))
            await tx.execute(sa.text("SELECT 1"))

    task = await harness.run("pay")
    assert (await harness.row(task)).state == "dead"


@pytest.fixture
async def commits(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LostCommits]:
    async with losing_commits(harness.url, monkeypatch) as commits:
        yield commits


@pytest.mark.representatives(1)
@pytest.mark.both_databases
@pytest.mark.parametrize("kind", ["coroutine", "thread", "process"])
async def test_an_outage_in_a_checkpoint_costs_no_attempt(harness: Harness, commits: LostCommits, kind: str) -> None:
    runs: list[Any] = []

    async def coroutine(ctx: Context) -> None:
        runs.append(ctx.state)
        await ctx.checkpoint({"row": 1})

    def thread(ctx: Context) -> None:
        runs.append(ctx.state)
        ctx.checkpoint({"row": 1})

    if kind == "process":
        harness.handlers |= PROCESS_HANDLERS
    else:
        harness.handler("work")(coroutine if kind == "coroutine" else thread)
    commits.lose("INSERT INTO task_checkpoint")
    task = await harness.submit("process.checkpoint" if kind == "process" else "work", max_attempts=1)
    runner = runner_of(harness, commits, processes=1)
    async with at_work(runner):
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.attempt, commits.lost) == ("succeeded", 1, 1)
    assert [attempt.error_type for attempt in await harness.attempts(task)] == ["DatabaseUnavailable"]
    assert kind == "process" or len(runs) == 2


@on_postgresql
@pytest.mark.parametrize("kind", ["coroutine", pytest.param("process", marks=pytest.mark.slow)])
async def test_an_outage_in_results_of_parents_costs_no_attempt(
    harness: Harness, commits: LostCommits, kind: str
) -> None:
    @harness.handler("parent")
    async def give() -> str:
        return "rows"

    @harness.handler("child")
    async def child(ctx: Context) -> Any:
        assert ctx.batch is not None
        return await ctx.batch.results_async()

    harness.handlers |= PROCESS_HANDLERS
    parent = await harness.run("parent")
    name = "child" if kind == "coroutine" else "process.parents_async"
    task = await harness.submit(name, max_attempts=1, after=(DependsOn(parent),))
    commits.lose("SELECT task_dependency.parent_id")
    runner = runner_of(harness, commits, processes=1)
    async with at_work(runner):
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.attempt, row.result, commits.lost) == ("succeeded", 1, '["rows"]', 1)


@on_postgresql
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_commit_without_an_answer_is_not_repeated(
    harness: Harness, payments: Payments, commits: LostCommits, kind: str
) -> None:
    async def coroutine(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(PAY, {"task": ctx.id})
            commits.lose("COMMIT\0")

    def thread(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(PAY, {"task": ctx.id})
            commits.lose("COMMIT\0")

    harness.handler("pay", max_attempts=1)(coroutine if kind == "coroutine" else thread)
    task = await harness.submit("pay")
    runner = runner_of(harness, commits)
    async with at_work(runner):
        await until(lambda: runner.metrics.verbs.total() == 1)
    assert (runner.metrics.verbs, commits.lost) == ({"succeed": 1}, 1)
    assert ((await harness.row(task)).state, await payments()) == ("succeeded", 1)
    assert not await harness.attempts(task)


@pytest.mark.both_databases
async def test_an_outage_of_a_runner_that_lost_the_task_is_fenced_out(harness: Harness) -> None:
    broken, runs = Break(harness.url), 0

    @harness.handler("pay", max_attempts=1)
    async def pay(ctx: Context) -> None:
        nonlocal runs
        runs += 1
        try:
            async with ctx.transaction() as tx:
                await broken.connection(tx)
        except sa.exc.DBAPIError:
            table = harness.database.tables.task
            other = await harness.database.write(register, runner.lease.identity, 60.0)
            claimed = {"fence": table.c.fence + 1, "runner_id": other}
            await harness.change(sa.update(table).where(table.c.id == ctx.id).values(claimed))
            raise

    task = await harness.submit("pay")
    async with harness.running() as runner:
        await until(lambda: runner.metrics.verbs.total() == 1)
    row = await harness.row(task)
    assert (dict(runner.metrics.verbs), row.state, row.fence, runs) == ({"fenced": 1}, "running", 2, 1)
    assert not await harness.attempts(task)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["transaction", "checkpoint"])
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_restart_of_the_server_kills_no_task(
    own_server: Server, kind: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    tasks, begun, go_on = 15, threading.Semaphore(0), threading.Event()
    url = create_database(own_server)
    database = Database.open(url)
    await database.migrate()
    harness = Harness(database, url)
    await harness.change(sa.text("CREATE TABLE payments (task INTEGER NOT NULL)"))

    async def coroutine(ctx: Context) -> None:
        if where == "transaction":
            async with ctx.transaction() as tx:
                await tx.execute(PAY, {"task": ctx.id})
                begun.release()
                await until(go_on.is_set)
                await tx.execute(sa.text("SELECT 1"))
        else:
            begun.release()
            await until(go_on.is_set)
            await ctx.checkpoint({"row": 1})

    def thread(ctx: Context) -> None:
        if where == "transaction":
            with ctx.transaction() as tx:
                tx.execute(PAY, {"task": ctx.id})
                begun.release()
                go_on.wait(WAIT_SECONDS)
                tx.execute(sa.text("SELECT 1"))
        else:
            begun.release()
            go_on.wait(WAIT_SECONDS)
            ctx.checkpoint({"row": 1})

    harness.handler("work", max_attempts=1)(coroutine if kind == "coroutine" else thread)
    ids = [await harness.submit("work") for _ in range(tasks)]
    async with harness.running(concurrency=tasks, threads=tasks, transaction_connections=tasks, lease_timeout="60s"):
        await asyncio.to_thread(lambda: [begun.acquire(timeout=WAIT_SECONDS) for _ in ids])
        await database.dispose()
        await asyncio.to_thread(own_server.stop, "fast")
        go_on.set()
        await until(lambda: "DatabaseUnavailable" in caplog.text or "database unavailable" in caplog.text)
        await asyncio.to_thread(own_server.start)
        await harness.wait_for(*ids)
    rows = [await harness.row(id) for id in ids]
    assert [(row.state, row.attempt) for row in rows] == [("succeeded", 1)] * tasks
    verbs = [attempt.verb for id in ids for attempt in await harness.attempts(id)]
    assert set(verbs) == {"interrupt"}  # a checkpoint that waited for a connection finds the server again
    if where == "transaction":
        assert len(await harness.rows(sa.text("SELECT task FROM payments"))) == tasks
    await database.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_server_that_hangs_in_a_transaction_costs_no_attempt(own_server: Server, kind: str) -> None:
    begun, go_on, errors = threading.Event(), threading.Event(), list[BaseException]()
    url = create_database(own_server)
    database = Database.open(url)
    await database.migrate()
    harness = Harness(database, url)
    await harness.change(sa.text("CREATE TABLE payments (task INTEGER NOT NULL)"))

    async def coroutine(ctx: Context) -> None:
        try:
            async with ctx.transaction() as tx:
                await tx.execute(PAY, {"task": ctx.id})
                begun.set()
                await until(go_on.is_set)
                await tx.execute(sa.text("SELECT 1"))
        except sa.exc.DBAPIError as error:
            errors.append(error)
            raise

    def thread(ctx: Context) -> None:
        try:
            with ctx.transaction() as tx:
                tx.execute(PAY, {"task": ctx.id})
                begun.set()
                go_on.wait(WAIT_SECONDS)
                tx.execute(sa.text("SELECT 1"))
        except sa.exc.DBAPIError as error:
            errors.append(error)
            raise

    harness.handler("work", max_attempts=1)(coroutine if kind == "coroutine" else thread)
    task = await harness.submit("work")
    async with harness.running(lease_timeout="5s", heartbeat_interval="1s"):
        await until(begun.is_set)
        await database.dispose()
        await asyncio.to_thread(own_server.hang)
        try:
            go_on.set()
            await until(lambda: bool(errors))
        finally:
            await asyncio.to_thread(own_server.go_on)
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.attempt) == ("succeeded", 1)
    assert [attempt.verb for attempt in await harness.attempts(task)] == ["interrupt"]
    assert len(await harness.rows(sa.text("SELECT task FROM payments"))) == 1
    await database.dispose()


async def call_on_loop(ctx: Context, where: str) -> None:
    if where == "checkpoint":
        await ctx.checkpoint({"page": 1})
    else:
        assert ctx.batch is not None
        assert await ctx.batch.results_async() == [None]


def call_in_thread(ctx: Context, where: str) -> None:
    if where == "checkpoint":
        ctx.checkpoint({"page": 1})
    else:
        assert ctx.batch is not None
        assert ctx.batch.results() == [None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("coroutine", "transaction"),
        pytest.param("thread", "transaction", marks=pytest.mark.slow),
        pytest.param("coroutine", "checkpoint", marks=pytest.mark.slow),
        pytest.param("thread", "checkpoint", marks=pytest.mark.slow),
        pytest.param("coroutine", "results", marks=pytest.mark.slow),
        pytest.param("thread", "results", marks=pytest.mark.slow),
    ],
)
async def test_a_timeout_while_the_server_hangs_costs_no_attempt(
    own_server: Server, kind: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "QUESTION_SECONDS", 0.3)
    begun, go_on, runs = threading.Event(), threading.Event(), 0
    url = create_database(own_server)
    database = Database.open(url)
    await database.migrate()
    harness = Harness(database, url)

    async def coroutine(ctx: Context) -> None:
        if where != "transaction":
            begin()
            await until(go_on.is_set)
            await call_on_loop(ctx, where)
            return
        async with ctx.transaction() as tx:
            begin()
            await until(go_on.is_set)
            await tx.execute(sa.text("SELECT 1"))

    def thread(ctx: Context) -> None:
        if where != "transaction":
            begin()
            go_on.wait(WAIT_SECONDS)
            call_in_thread(ctx, where)
            return
        with ctx.transaction() as tx:
            begin()
            go_on.wait(WAIT_SECONDS)
            tx.execute(sa.text("SELECT 1"))

    def begin() -> None:
        nonlocal runs
        runs += 1
        begun.set()

    harness.handler("work", max_attempts=1, timeout=TIMEOUT)(coroutine if kind == "coroutine" else thread)
    task = await harness.submit("work", after=(DependsOn(await succeeded(harness)),))
    async with harness.running(lease_timeout="30s", heartbeat_interval="1s") as runner:
        await until(begun.is_set)
        await database.dispose()
        await asyncio.to_thread(own_server.hang)
        try:
            go_on.set()
            await until(lambda: runner.worker.buffer.stalled)  # the outcome waits for the database
        finally:
            await asyncio.to_thread(own_server.go_on)
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.attempt, runs) == ("succeeded", 1, 2)
    (attempt,) = await harness.attempts(task)
    assert attempt.verb == "interrupt"
    assert "no answer for" in attempt.message
    await database.dispose()


async def succeeded(harness: Harness) -> int:
    """The id of a task that has succeeded."""

    @harness.handler("parent")
    async def parent() -> None: ...

    return await harness.run("parent")


LATE_CALLS = ["late_checkpoint", "late_checkpoint_async", "late_results", "late_results_async"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"process.{call}" for call in LATE_CALLS])
async def test_a_timeout_of_a_process_while_the_server_hangs_costs_no_attempt(
    own_server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "QUESTION_SECONDS", 0.3)
    url = create_database(own_server)
    database = Database.open(url)
    await database.migrate()
    harness = Harness(database, url)
    harness.handlers |= PROCESS_HANDLERS
    parent = DependsOn(await succeeded(harness))
    task = await harness.submit(name, {"folder": str(tmp_path)}, max_attempts=1, after=(parent,))
    async with harness.running(lease_timeout="30s", heartbeat_interval="1s", processes=1) as runner:
        await until((tmp_path / "runs").exists)
        await database.dispose()
        await asyncio.to_thread(own_server.hang)
        try:
            (tmp_path / "go").touch()
            await until(lambda: runner.worker.buffer.stalled)  # the outcome waits for the database
        finally:
            await asyncio.to_thread(own_server.go_on)
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.attempt, (tmp_path / "runs").read_text()) == ("succeeded", 1, "11")
    (attempt,) = await harness.attempts(task)
    assert attempt.verb == "interrupt"
    assert "no answer for" in attempt.message
    await database.dispose()


@on_postgresql
@pytest.mark.parametrize("kind", ["coroutine", pytest.param("thread", marks=pytest.mark.slow)])
async def test_a_slow_statement_on_a_server_that_works_is_a_timeout(
    harness: Harness, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "QUESTION_SECONDS", WAIT_SECONDS)
    sleep = sa.text("SELECT pg_sleep(4)")

    async def coroutine(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(sleep)

    def thread(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute(sleep)

    harness.handler("work", max_attempts=1, timeout=1.0)(coroutine if kind == "coroutine" else thread)
    task = await harness.submit("work")
    async with harness.running():
        await harness.wait_for(task)
    assert (await harness.row(task)).state == "dead"
    assert [attempt.error_type for attempt in await harness.attempts(task)] == ["Timeout"]


@on_postgresql
@pytest.mark.parametrize("sqlstate", ["08006", "57P01"])
async def test_an_error_that_a_function_raises_is_a_failure_of_the_handler(harness: Harness, sqlstate: str) -> None:
    block = f"DO $$ BEGIN RAISE EXCEPTION 'the other server is away' USING ERRCODE = '{sqlstate}'; END $$"

    @harness.handler("work", max_attempts=1)
    async def work(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute(sa.text(block))

    task = await harness.run("work")
    assert await harness.state(task) == "dead"
    (attempt,) = await harness.attempts(task)
    assert "the other server is away" in attempt.message
