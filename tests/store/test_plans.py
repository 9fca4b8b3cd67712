"""Hot statements cost the same with any other rows in the tables, and with any planner statistics.

The tables are analysed while empty, which misleads planners most, and never again: new tables, tables that were large
once, which PostgreSQL believes to have one row left, and those of which it also keeps the statistics of the rows that
have left. SQLite has no statistics of empty tables, so these have one.
"""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, timedelta
from itertools import count
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import clock
from runner.db.types import db_later, db_now
from runner.model.outcome import Retry
from runner.model.task import NewTask, OnDuplicate, State
from runner.policy.claim_order import FreshOrder
from runner.policy.lanes import Lane
from runner.policy.positions import LanePosition, TenantPositions
from runner.policy.retention import Retention
from runner.policy.selection import TaskSelection, listed, mask
from runner.policy.suspicion import Ask
from runner.queries import counting
from runner.queries.counts import counts
from runner.queries.deaths import dead_by_handler, repeated_failures
from runner.queries.ended_runners import ended_runners
from runner.queries.health import health
from runner.queries.overview import read_overview
from runner.queries.runners import unknown_handlers
from runner.queries.schedules import schedules
from runner.queries.task.parents import stuck_tasks
from runner.queries.why import facts
from runner.queries.why.why import why
from runner.settings import Settings
from runner.store.claim.limited import LimitedClaim, LimitedLanes, claim_limited
from runner.store.claim.next_due import claim_with_next_due
from runner.store.claim.plain import claim, claim_suspect, first_due
from runner.store.claim.running_count import COUNT_OVERLAP
from runner.store.claim.survey import Pending, pending, survey
from runner.store.dependencies.resolve import FinishedParent, any_open, find_strays, open_dependencies, resolve
from runner.store.heartbeat import heartbeat, running_tasks
from runner.store.rescue import any_lost
from runner.store.retention import forget_expired, prune
from runner.store.submit import submit_many, submit_with_result
from tests.conftest import on_postgresql
from tests.store.dependencies import after, put_after
from tests.store.plans import Cost, Watch, watch
from tests.store.rows import add_live
from tests.store.runners import LEASE, Runner, settle_done, settlement
from tests.store.table import change, expire, put, put_many
from tests.store.test_limits import count_running, limit, settled
from tests.store.unique_tasks import once

pytestmark = pytest.mark.one_database

SOME, MANY, MILLION = 3_000, 30_000, 1_000_000
DAY = 86_400
PARTITIONS = {f"task_history_{part}" for part in ("others", "beyond", "from_1")}
OURS = {"task", "task_history", "task_attempt", "task_unique"} | PARTITIONS
ALIASES = {"entry", "due", "later", "here", "beyond", "earliest", "target", "candidate", "match"}

INDEXES = {
    "survey": {"task_ready"},
    "claim": {"task_ready"},
    "claim_with_next_due": {"task_ready"},
    "claim_lanes": {"task_ready"},
    "claim_suspect": {"task_rescued"},
    "running_tasks": {"task_running"},
    "rescue": {"task_running"},
    "forget_expired": {"task_unique_expires"},
}
UNUSED = {"succeed": {"task_pkey"}, "heartbeat": {"task_running"}}
"""The indexes that must be used; all other look-ups are by id."""

ANALYZE_WITH_ONE_ROW_MORE = """
INSERT INTO task(handler) VALUES ('one more');
INSERT INTO task_history(id, handler, state) VALUES (-1, 'one more', 'succeeded');
ANALYZE;
DELETE FROM task WHERE handler = 'one more';
DELETE FROM task_history WHERE id = -1;
"""

HEARTBEAT = 2
"""Statements of one, whatever the runner runs."""


@pytest.fixture(params=[pytest.param("new", marks=pytest.mark.slow), "drained", "analysed"])
async def watched(
    request: pytest.FixtureRequest, new_database: None, migrated_url: str
) -> AsyncIterator[tuple[Database, Watch]]:
    """A database of the test's own, with recorded statements."""
    prevent_analysis(migrated_url)
    if request.param != "new":
        await _drain(migrated_url, analysed=request.param == "analysed")
    analyse(migrated_url)
    opened = Database.open(migrated_url)
    yield opened, watch(opened)
    await opened.dispose()


async def _drain(url: str, *, analysed: bool) -> None:
    """Make the tables large, and empty them."""
    database = Database.open(url)
    await fill(database, SOME)
    await wait_for_others(database, SOME)
    if analysed:
        analyse(url)
    for table in (database.tables.dependency, database.tables.task, database.tables.history, database.tables.unique):
        await change(database, sa.delete(table))
    await database.dispose()


def prevent_analysis(url: str) -> None:
    """Let only the test analyse the tables; VACUUM would shrink them."""
    if url.startswith("sqlite"):
        return
    with psycopg.connect(url, autocommit=True) as postgresql:
        ours = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relname ~ '^task'"
        for (table,) in postgresql.execute(ours).fetchall():
            postgresql.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")


def analyse(url: str) -> None:
    """Analyse the tables as they are."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        connection.executescript(ANALYZE_WITH_ONE_ROW_MORE)
        connection.close()
        return
    with psycopg.connect(url, autocommit=True) as postgresql:
        postgresql.execute("ANALYZE")


async def fill(database: Database, rows: int) -> None:
    """Add the given number of future tasks, of due tasks of a foreign handler and host, of finished ones, of keys."""
    tables = database.tables
    n = sa.select(sa.literal_column("1").label("i")).cte("n", recursive=True)
    n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < rows))
    most = sa.select(sa.func.coalesce(sa.func.max(tables.history.c.id), 10**9)).scalar_subquery()
    used = sa.select(sa.func.coalesce(sa.func.max(tables.unique.c.task_id), 0)).scalar_subquery() + n.c.i
    key = [used, sa.cast(used, sa.Text), sa.literal("foreign"), sa.literal("for a time"), db_later(db_now(), DAY)]
    work, foreign, done = sa.literal("work"), sa.literal("foreign"), sa.literal("succeeded")
    bound = [work, db_later(db_now(), -DAY), sa.literal("web-9")]
    for table, names, values in (
        (tables.task, ["handler", "run_at"], [work, db_later(db_now(), DAY)]),
        (tables.task, ["handler", "run_at"], [foreign, db_later(db_now(), -DAY)]),
        (tables.task, ["handler", "run_at", "hosts"], bound),
        (tables.history, ["id", "handler", "state"], [most + n.c.i, work, done]),
        (tables.unique, ["task_id", "unique_key", "handler", "scope", "expires_at"], key),
    ):
        await change(database, sa.insert(table).from_select(names, sa.select(*values).select_from(n)))


async def costs(database: Database, looking: Watch) -> dict[str, Cost]:
    """Record each hot statement after many executions."""
    runner = await _worn_in(database)
    by_verb: dict[str, Cost] = {}
    async with looking.seeing() as by_verb["survey"]:
        await runner.survey()
    async with looking.seeing() as by_verb["claim"]:
        claimed = await runner.claim_on(100)
    if database.dialect.writing_ctes:
        lanes = dict.fromkeys(runner.lanes.positions, runner.start)
        async with looking.seeing() as by_verb["claim_with_next_due"]:
            looked, _ = await database.write(claim_with_next_due, runner.who, lanes, runner.terms, 50)
        claimed += looked
    await put_many(database, 50, priority=5, queue="other")
    await runner.survey()
    assert len(runner.lanes.positions) > 1
    async with looking.seeing() as by_verb["claim_lanes"]:
        claimed += await runner.claim_on(100)
    async with looking.seeing() as by_verb["heartbeat"]:
        assert (
            await database.write(heartbeat, runner.id, LEASE, 150, LEASE, tasks=[task.id for task in claimed])
        ).alive
    assert by_verb["heartbeat"].statements == HEARTBEAT
    async with looking.seeing() as by_verb["running_tasks"]:
        running = await database.read(running_tasks, runner.id)
    assert running == {(task.id, task.fence) for task in claimed}
    async with looking.seeing() as by_verb["succeed"]:
        assert len(await database.write(settle_done, runner.id, [settlement(task) for task in claimed[:50]])) == 50
    async with looking.seeing() as by_verb["settle"]:
        assert len((await runner.settle(*(settlement(task, Retry("1h")) for task in claimed[50:100]))).verbs) == 50
    async with looking.seeing() as by_verb["submit"]:
        await put_many(database, 100)
    await _look_at_keys(database, looking, by_verb)
    victim = await Runner.enter(database)
    assert len(await victim.claim(200)) == 200
    await expire(database, victim.id)
    async with looking.seeing() as by_verb["rescue"]:
        assert len(await runner.rescue()) == 200
    task = database.tables.task
    await change(database, sa.update(task).where(task.c.rescues == 1).values(rescues=2))
    await runner.claim_suspect()  # so that the index entries of deleted rows are marked as dead
    async with looking.seeing() as by_verb["claim_suspect"]:
        assert await database.write(claim_suspect, runner.who, runner.lanes.heads, runner.terms, Ask(1, 1))
    near = task.c.run_at.between(db_later(db_now(), -DAY / 2), db_later(db_now(), DAY / 2))
    await change(database, sa.delete(task).where(near))
    return by_verb


async def _look_at_keys(database: Database, looking: Watch, by_verb: dict[str, Cost]) -> None:
    new = [once(f"new {number}", "foreign", delay=DAY) for number in range(100)]
    again = [once(f"new {number}", "foreign", on_duplicate=OnDuplicate.REPLACE) for number in range(100)]
    async with looking.seeing() as by_verb["submit_once"]:
        await database.write(submit_with_result, new)
    async with looking.seeing() as by_verb["submit_again"]:
        assert len((await database.write(submit_with_result, again)).replaced) == len(again)
    async with looking.seeing() as by_verb["forget_expired"]:
        assert await database.write(forget_expired, 100) == 0
    task, unique = database.tables.task.c, database.tables.unique.c
    await change(database, sa.delete(task.id.table).where(task.unique_key.is_not(None)))
    await change(database, sa.delete(unique.task_id.table).where(unique.unique_key.startswith("new")))


async def _worn_in(database: Database) -> Runner:
    runner = await Runner.enter(database, lease=3_600)
    await put_many(database, 1_000)
    for _ in range(15):
        await runner.survey()
        await runner.settle(*(settlement(task, Retry("1h")) for task in await runner.claim_on(10)))
    return runner


async def grown(database: Database, looking: Watch, more: int) -> tuple[dict[str, Cost], dict[str, Cost]]:
    """The costs with a few other rows in the tables, and with many."""
    await fill(database, SOME)
    before = await costs(database, looking)
    await fill(database, more)
    return before, await costs(database, looking)


def report(before: dict[str, Cost], after: dict[str, Cost]) -> str:
    return "\n".join(f"{verb}: {before[verb]}\n    -> {after[verb]}" for verb in before)


def check(before: dict[str, Cost], after: dict[str, Cost]) -> None:
    """Compare two recordings of the same statements."""
    text = report(before, after)
    for verb, cost in after.items():
        assert cost.statements > 0, text
        assert not cost.whole & (OURS | ALIASES), f"{verb} reads a table from end to end\n{text}"
        assert cost.indexes >= INDEXES.get(verb, set()), f"{verb} does not use its index\n{text}"
        assert not cost.indexes & UNUSED.get(verb, set()), f"{verb} does not use the addresses\n{text}"
        # A few more index levels, and rows deleted in between: never a share of the added rows.
        assert cost.rows <= 1.5 * before[verb].rows + 2_000, f"{verb} looks at more rows\n{text}"
        assert cost.pages <= 2 * before[verb].pages + 200, f"{verb} touches more pages\n{text}"


@pytest.mark.representatives(1)
@pytest.mark.both_databases
async def test_hot_statements_cost_the_same_beside_other_rows(watched: tuple[Database, Watch]) -> None:
    check(*await grown(*watched, MANY))


@pytest.mark.slow
async def test_hot_statements_cost_the_same_with_millions_of_other_rows(watched: tuple[Database, Watch]) -> None:
    before, after = await grown(*watched, MILLION)
    print(report(before, after))
    check(before, after)


@pytest.mark.both_databases
async def test_a_full_scan_is_detected(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    await fill(database, SOME)
    task = database.tables.task
    async with looking.seeing() as cost, database.reading() as tx:
        await tx.rows(sa.select(task.c.id).where(task.c.host == "x"))
    assert cost.whole == {"task"}
    assert cost.rows >= SOME / 2


@pytest.mark.both_databases
async def test_a_batch_of_several_outcomes_reads_no_other_tasks(watched: tuple[Database, Watch]) -> None:
    """Nearly all tasks have the same fence: a join by it alone would compare each with the whole batch."""
    database, looking = watched
    runner = await _worn_in(database)
    await fill(database, SOME)
    await put_many(database, 300)
    await runner.survey()
    failed, *done = await runner.claim_on(200)
    async with looking.seeing() as cost:
        settled = await runner.settle(settlement(failed, Retry("1h")), *map(settlement, done))
    assert Counter(settled.verbs.values()) == {"retry": 1, "succeed": 199}
    assert cost.rows <= 100 * 200, cost


@pytest.mark.representatives(1)
@pytest.mark.both_databases
async def test_a_full_batch_reads_as_much_per_task_as_a_small_one(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    runner = await _worn_in(database)
    await fill(database, SOME)
    full = Settings().claim_batch_size
    assert full == Settings().settle_batch_size
    claimed: dict[int, Cost] = {}
    settled: dict[int, Cost] = {}
    await put_many(database, 100 + full)
    for number in (100, full):
        await runner.survey()
        async with looking.seeing() as claimed[number]:
            tasks = await runner.claim_on(number)
        done = [settlement(task) for task in tasks]
        async with looking.seeing() as settled[number]:
            assert len(await database.write(settle_done, runner.id, done)) == number
    for verb, by_size in (("claim", claimed), ("succeed", settled)):
        few, many = by_size[100], by_size[full]
        text = report({verb: few}, {verb: many})
        assert many.statements == few.statements, text
        assert not many.whole & (OURS | ALIASES), text
        assert many.indexes == few.indexes >= INDEXES.get(verb, set()), text
        assert many.rows <= 1.2 * full / 100 * few.rows, text
        assert many.pages <= 1.2 * full / 100 * few.pages + 50, text


@pytest.mark.parametrize("due", [pytest.param(1_000_000, marks=pytest.mark.slow), SOME])
@pytest.mark.both_databases
async def test_a_fresh_claim_reads_no_retried_tasks(watched: tuple[Database, Watch], due: int) -> None:
    database, looking = watched
    n = sa.select(sa.literal_column("1").label("i")).cte("n", recursive=True)
    n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < due))
    values: list[Any] = [sa.literal("work"), db_later(db_now(), -DAY), sa.literal_column("1")]
    retried = sa.select(*values).select_from(n)
    task = database.tables.task
    await change(database, sa.insert(task).from_select(["handler", "run_at", "attempt"], retried))
    fresh = {await add_live(database, "work") for _ in range(20)}
    runner, order = await Runner.enter(database), FreshOrder()
    runner.who, runner.lanes.order = runner.who._replace(order=order), order
    async with looking.seeing() as cost:
        claimed = await runner.claim(20)
    assert {claim.id for claim in claimed} == fresh
    assert "task_ready" in cost.indexes, cost
    assert "task" not in cost.whole, cost
    assert cost.rows < SOME / 2, cost
    async with looking.seeing() as cost:
        assert len(await runner.claim(20)) == 20
    assert cost.rows < SOME / 2, cost


@on_postgresql
async def test_a_claim_with_order_keys_reads_no_running_tasks(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    runner = await Runner.enter(database)
    costs = []
    for _ in range(2):
        for number in range(20):
            await add_live(database, "work", order_key=f"key {number}", priority=9)
        await runner.survey()
        async with looking.seeing() as cost:
            assert len(await runner.claim_on(20)) == 20
        costs.append(cost)
        await change(database, sa.delete(database.tables.task))
        n = sa.select(sa.literal_column("1").label("i")).cte("n", recursive=True)
        n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < SOME))
        values = sa.select(sa.literal("work"), sa.literal("running"), sa.literal(runner.id)).select_from(n)
        await change(database, sa.insert(database.tables.task).from_select(["handler", "state", "runner_id"], values))
    assert costs[1].rows < costs[0].rows + SOME / 2, costs


async def test_a_claim_with_order_keys_reads_no_running_tasks_that_the_statistics_miss(
    migrated_url: str, watched: tuple[Database, Watch]
) -> None:
    database, looking = watched
    n = sa.select(sa.literal_column("1").label("i")).cte("n", recursive=True)
    n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < SOME))
    keys = sa.select(sa.literal("work"), sa.cast(n.c.i, sa.Text)).select_from(n)
    await change(database, sa.insert(database.tables.task).from_select(["handler", "order_key"], keys))
    analyse(migrated_url)
    runner = await Runner.enter(database)
    await runner.survey()
    assert len(await runner.claim_on(500)) == 500  # one page of the index of all running tasks
    async with looking.seeing() as cost:
        assert len(await runner.claim_on(20)) == 20
    assert {"task_order", "task_in_order"} <= cost.indexes, cost
    assert cost.rows < SOME / 2, cost


@pytest.mark.slow
@on_postgresql
async def test_an_old_snapshot_does_not_slow_heartbeats_down(watched: tuple[Database, Watch], rival: Database) -> None:
    database, looking = watched
    await put_many(database, 4_000)
    runner = await Runner.enter(database)
    await runner.survey()

    async def beat() -> Cost:
        async with looking.seeing() as cost:
            assert (await database.write(heartbeat, runner.id, LEASE, 0, LEASE, tasks=range(1, 50))).alive
            assert not await database.read(any_lost, runner.rescuer, None)
        return cost

    async with rival.reading() as old:
        await old.scalar(sa.select(sa.func.count()).select_from(database.tables.task))
        first = await beat()
        for _ in range(30):
            done = [settlement(task) for task in await runner.claim_on(100)]
            await database.write(settle_done, runner.id, done)
        last = await beat()
    assert last.rows <= 1.2 * first.rows + 10
    assert last.pages <= 1.5 * first.pages + 50


@pytest.mark.slow
@on_postgresql
async def test_an_old_snapshot_does_not_slow_claims_down(watched: tuple[Database, Watch], rival: Database) -> None:
    database, looking = watched
    await put_many(database, 4_000)
    runner = await Runner.enter(database)
    await runner.survey()
    async with rival.reading() as old:
        await old.scalar(sa.select(sa.func.count()).select_from(database.tables.task))
        async with looking.seeing() as first:
            await runner.claim_on(100)
        for _ in range(30):
            done = [settlement(task) for task in await runner.claim_on(100)]
            await database.write(settle_done, runner.id, done)
        async with looking.seeing() as last:
            assert len(await runner.claim_on(100)) == 100
    assert last.rows <= 1.2 * first.rows + 10
    assert last.pages <= 1.5 * first.pages + 50


async def take(database: Database, runner: Runner, lanes: LimitedLanes) -> LimitedClaim:
    """Claim and settle some tasks, and return the claim as if it had been some seconds ago."""
    claim = await database.write(claim_limited, runner.who, lanes, runner.terms, 100)
    assert len(claim.claimed) == 100
    await database.write(settle_done, runner.id, [settlement(task) for task in claim.claimed])
    last = settled(claim.last)
    claim.last = {key: each._replace(locked_at=each.locked_at + COUNT_OVERLAP) for key, each in last.items()}
    return claim


@pytest.mark.slow
@on_postgresql
async def test_an_old_snapshot_does_not_slow_the_counts_of_limits_down(
    watched: tuple[Database, Watch], rival: Database
) -> None:
    database, looking = watched
    await put_many(database, 4_000)
    await limit(database, "queue", "default", concurrency="1000")
    runner = await Runner.enter(database)
    lane = Lane("default", "work", 1)
    lanes = LimitedLanes([lane], runner.start, last={})

    async with rival.reading() as old:
        await old.scalar(sa.select(sa.func.count()).select_from(database.tables.task))
        for _ in range(30):
            claim = await take(database, runner, lanes)
            last = claim.claimed[-1]
            lanes = lanes._replace(last=claim.last, passed={lane: LanePosition(last.run_at, last.id)})
        async with looking.seeing() as cost:
            assert await database.read(count_running, lane, lanes.last) == []
    assert "task_running" in cost.indexes
    assert cost.pages < 50


@pytest.mark.slow
@on_postgresql
@pytest.mark.parametrize("waiting", [0, 4_000], ids="statistics that know {} waiting tasks".format)
async def test_an_old_snapshot_does_not_slow_claims_by_tenant_down(
    watched: tuple[Database, Watch], rival: Database, migrated_url: str, waiting: int
) -> None:
    database, looking = watched
    if not waiting:
        await asyncio.to_thread(analyse, migrated_url)
    tenants = [f"tenant {number}" for number in range(20)]
    await database.write(submit_many, [NewTask("work", queue="mail", tenant=each) for each in tenants] * 200)
    if waiting:
        await asyncio.to_thread(analyse, migrated_url)
    await limit(database, "queue", "mail", per_tenant="1000")
    runner = await Runner.enter(database)
    lane, positions = Lane("mail", "work", 1), TenantPositions(runner.start)
    lanes = LimitedLanes([lane], runner.start, with_tenants={lane}, tenants={lane: positions}, last={})
    costs, now = list[Cost](), count(time.monotonic(), COUNT_OVERLAP)
    async with rival.reading() as old:
        await old.scalar(sa.select(sa.func.count()).select_from(database.tables.task))
        for _ in range(35):
            async with looking.seeing() as cost:
                claim = await take(database, runner, lanes)
            costs.append(cost)
            lanes = lanes._replace(last=claim.last)
            positions.meet(claim.visits[lane], next(now))
            for task in claim.claimed:
                positions.advance(task.tenant or "", LanePosition(task.run_at, task.id), next(now))
    assert all("task_tenant" in cost.indexes and "task_ready" not in cost.indexes for cost in costs)
    third, *_, last_cost = costs[2:]
    assert last_cost.rows <= 1.2 * third.rows + 10
    assert last_cost.pages <= 1.5 * third.pages + 50


async def wait_for_others(database: Database, rows: int) -> None:
    """Add blocked tasks, each with one open and one resolved dependency; half of the open ones are by key."""
    task, dependency = database.tables.task, database.tables.dependency
    n = sa.select(sa.literal_column("1").label("i")).cte("n", recursive=True)
    n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < rows))
    blocked, key = sa.literal("blocked"), sa.literal("k") + sa.cast(n.c.i, sa.Text)
    named = sa.insert(task).from_select(["handler", "state", "key"], sa.select(sa.literal("w"), blocked, key))
    await change(database, named)
    ids = sa.select(task.c.id, task.c.key).where(task.c.state == "blocked")
    live = sa.select(sa.func.min(task.c.id)).scalar_subquery()
    by_id = sa.select(ids.subquery().c.id, live, sa.null(), sa.null(), sa.null())
    some = ids.where(task.c.id % 2 == 0).subquery()
    columns = ["task_id", "parent_id", "parent_handler", "parent_key", "satisfied_at"]
    by_key = sa.select(some.c.id, sa.null(), sa.literal("w"), some.c.key, sa.null())
    closed = sa.select(ids.subquery().c.id, sa.literal(2), sa.null(), sa.null(), db_now())
    for values in (by_id, by_key, closed):
        await change(database, sa.insert(dependency).from_select(columns, values))


async def follow(database: Database, looking: Watch, runner: Runner) -> dict[str, Cost]:
    """Record the resolution of dependencies on a finished task."""
    by_verb: dict[str, Cost] = {}
    parent = await put(database, key="parent", priority=9)
    for _ in range(10):
        await put_after(database, parent)
        await put_after(database, ("work", "parent"))
    await runner.survey()
    (task,) = await runner.claim_on(1)
    async with looking.seeing() as by_verb["look up parents"]:
        await put_after(database, parent, ("work", "parent"))
    await runner.end(task)
    async with looking.seeing() as by_verb["any open"]:
        assert await database.write(any_open)
    async with looking.seeing() as by_verb["who waits"]:
        dependencies = await database.write(open_dependencies, [FinishedParent(task.id, task.handler, task.key)])
    async with looking.seeing() as by_verb["sweep"]:
        assert len((await database.write(find_strays)).dependencies) == len(dependencies) == 22
    async with looking.seeing() as by_verb["resolve"]:
        assert len((await database.write(resolve, dependencies)).unblocked) == 21
    return by_verb


@pytest.mark.slow
async def test_resolving_dependencies_costs_the_same_beside_other_blocked_tasks(
    watched: tuple[Database, Watch],
) -> None:
    database, looking = watched
    runner = await _worn_in(database)
    await fill(database, SOME)
    await wait_for_others(database, SOME)
    before = await follow(database, looking, runner)
    await fill(database, MANY)
    await wait_for_others(database, MANY)
    after = await follow(database, looking, runner)
    text = report(before, after)
    for verb, cost in after.items():
        assert not cost.whole & {"task", "task_dependency"}, f"{verb} reads a table from end to end\n{text}"
        assert cost.rows <= 1.2 * before[verb].rows + 1_000, f"{verb} looks at more rows\n{text}"
        assert cost.pages <= 1.5 * before[verb].pages + 200, f"{verb} touches more pages\n{text}"


async def test_each_dependent_of_one_parent_costs_the_same(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    runner = await _worn_in(database)
    few, many = [await _let_go(database, looking, runner, number) for number in (100, 800)]
    assert many.rows <= 10 * few.rows, report({"resolve": few}, {"resolve": many})


async def _let_go(database: Database, looking: Watch, runner: Runner, number: int) -> Cost:
    """Record the release of many dependents of one task."""
    parent = await put(database, priority=9)
    await database.write(submit_many, [after(parent, queue="later")] * number)
    await runner.survey()
    (task,) = await runner.claim_on(1)
    await runner.end(task)
    dependencies = await database.write(open_dependencies, [FinishedParent(task.id, task.handler, task.key)])
    async with looking.seeing() as cost:
        assert len((await database.write(resolve, dependencies)).unblocked) == number
    return cost


QUEUES = sa.text(
    "INSERT INTO task(handler, queue) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
    "SELECT 'work', 'queue ' || i FROM n"
)


async def test_a_bounded_survey_reads_no_lanes_beyond_its_bound(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    await change(database, QUEUES)
    async with looking.seeing() as bounded:
        assert len(await database.read(survey, most=10)) == 10
    async with looking.seeing() as whole:
        assert len(await database.read(survey)) == 2_000
    assert "task" not in bounded.whole, bounded
    assert 20 * bounded.rows < whole.rows, (bounded, whole)


@pytest.mark.slow
@pytest.mark.both_databases
async def test_the_remaining_work_of_a_runner_is_read_from_its_own_lanes(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    half = TaskSelection(mask(range(500)))

    async def remaining() -> Pending:
        return await database.read(pending, 7, "here", ["mine"], (), half)

    by_size: dict[int, Cost] = {}
    for number in (SOME, MANY):
        await fill(database, number)
        async with looking.seeing() as by_size[number]:
            assert not any(await remaining())
    assert not by_size[MANY].whole & OURS, by_size
    assert by_size[MANY].rows <= 1.2 * by_size[SOME].rows + 100, by_size
    assert by_size[MANY].pages <= 1.5 * by_size[SOME].pages + 50, by_size
    await put_many(database, SOME, handler="mine", bucket=700)
    async with looking.seeing() as others:
        assert not any(await remaining())
    assert not others.whole & OURS, others
    assert others.rows <= 1.5 * SOME + by_size[MANY].rows, "each task in the lane is read once"
    await put_many(database, 1, handler="mine", bucket=7)
    assert (await remaining()).returning


@pytest.mark.slow
@pytest.mark.both_databases
async def test_a_claim_around_stuck_rows_walks_the_index_of_its_lanes(watched: tuple[Database, Watch]) -> None:
    """20 rows to leave out among the first of many: it reads them, the ones that it takes, and no others."""
    database, looking = watched
    runner, rows, limit = await _worn_in(database), dict[int, list[int]](), 10
    for number in (SOME, MANY):
        ids = await put_many(database, number, queue="stuck")
        out = TaskSelection(without=listed(ids[: 2 * limit]))
        runner.who = runner.who._replace(selection=out)
        due = {lane: position for lane, position in (await runner.survey()).items() if lane.queue == "stuck"}
        several = dict(await runner.survey())
        rows[number] = []
        for lanes in (due, several):
            async with looking.seeing() as found:
                first = await database.read(first_due, runner.who, lanes, limit)
            assert first
            async with looking.seeing() as cost:
                claimed = await database.write(claim, runner.who, lanes, runner.terms, limit)
            assert {task.id for task in claimed} == {task.id for task in first}
            part = runner.who._replace(selection=TaskSelection(only=listed(ids[3:6])))
            async with looking.seeing() as few:
                taken = await database.write(claim, part, lanes, runner.terms, limit)
            assert {task.id for task in taken} == (set(ids[3:6]) if lanes is due else set())
            assert "task_ready" not in few.indexes, few
            assert not few.whole & OURS, few
            assert "task_ready" in cost.indexes & found.indexes, (cost, found)
            assert not (cost.whole | found.whole) & OURS, (cost, found)
            rows[number] += [cost.rows, found.rows]
        await change(database, sa.delete(database.tables.task).where(database.tables.task.c.queue == "stuck"))
    assert all(many <= 1.2 * some + 100 for some, many in zip(*rows.values(), strict=True)), rows


async def test_figures_for_people_hardly_grow_with_idle_queues(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    by_size: dict[int, Cost] = {}
    for number in (2_000, 4_000):
        await change(database, QUEUES)
        await change(database, sa.text(f"UPDATE task SET queue = 'more ' || queue WHERE id <= {number - 2_000}"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(counting, "MOST_LANES", 200)
            async with looking.seeing() as by_size[number]:
                assert len(await database.read(counts, most=50)) == 50
                assert len(await database.read(unknown_handlers)) == 1
    # The only part that grows reads the newest tasks, up to 10,000, for the tasks submitted in the last minute.
    assert by_size[4_000].rows - by_size[2_000].rows <= 10 * 2_000, by_size


@pytest.mark.slow
async def test_the_facts_of_alerts_are_read_up_to_a_limit(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    found: list[dict[str, Cost]] = []
    for rows in (4 * SOME, MANY):  # the first number is beyond every limit
        await fill(database, rows)
        await _fail_long_ago(database, rows)
        at = await database.read(clock)
        facts: dict[str, Any] = {
            "repeated_failures": (repeated_failures, at - timedelta(days=1), 3),
            "ended_runners": (ended_runners, at - timedelta(minutes=10)),
            "dead_by_handler": (dead_by_handler, at - timedelta(hours=1)),
            "stuck": (stuck_tasks,),
            "health": (health,),
            "schedules": (schedules,),
            "overview": (read_overview,),
        }
        by_verb: dict[str, Cost] = {}
        for name, call in facts.items():
            async with looking.seeing() as by_verb[name]:
                await database.read(*call)
        found.append(by_verb)
    before, after = found
    assert all(after[name].rows <= 1.2 * before[name].rows + 100 for name in before), report(before, after)


async def _fail_long_ago(database: Database, rows: int) -> None:
    """Add failed attempts of earlier days, and dead tasks of them."""
    n = sa.select(sa.literal_column("1").label("i")).cte("n", recursive=True)
    n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < rows))
    attempt, history = database.tables.attempt, database.tables.history
    used = sa.select(sa.func.coalesce(sa.func.max(attempt.c.task_id), 0)).scalar_subquery() + n.c.i
    ago = db_later(db_now(), -3 * DAY)
    texts = {"verb": "retry", "error_type": "OSError", "message": "", "fingerprint": "f", "queue": "q", "handler": "h"}
    values = {"task_id": used, "fence": sa.literal(1), "attempt": sa.literal(5), "ended_at": ago}
    values |= {name: sa.literal(text) for name, text in texts.items()}
    await change(database, sa.insert(attempt).from_select([*values], sa.select(*values.values()).select_from(n)))
    least = sa.select(sa.func.coalesce(sa.func.min(history.c.id), 0)).scalar_subquery() - n.c.i
    dead = {"id": least, "handler": sa.literal("h"), "state": sa.literal("dead"), "finished_at": ago}
    await change(database, sa.insert(history).from_select([*dead], sa.select(*dead.values()).select_from(n)))


async def test_why_reads_a_bounded_number_of_lanes(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    await Runner.enter(database)
    await change(database, QUEUES)
    (task_id,) = await put_many(database, 1, queue="zebra")
    by_size: dict[int, Cost] = {}
    for bound in (50, 5_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(facts, "MANY", bound)
            async with looking.seeing() as by_size[bound], database.reading() as tx:
                explanation = await why(tx, task_id, UTC)
        assert explanation is not None
        (cause, *_) = explanation.causes
        assert ("+" in cause.text) is (bound == 50), cause.text
    assert 5 * by_size[50].rows < by_size[5_000].rows, by_size


async def test_a_pruning_does_not_read_all_open_dependencies(
    watched: tuple[Database, Watch], migrated_url: str
) -> None:
    database, looking = watched
    tables, n = database.tables, sa.select(sa.literal_column("1").label("i")).cte("n", recursive=True)
    n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < MANY))
    finished_at, key = db_later(db_now(), -DAY), sa.cast(n.c.i, sa.Text)
    work, state, other_key = sa.literal("work"), sa.literal("succeeded"), sa.literal("x") + key
    for table, names, values in (
        (tables.history, ["id", "handler", "state", "key", "finished_at"], [work, state, key, finished_at]),
        (tables.dependency, ["task_id", "parent_handler", "parent_key"], [work, other_key]),
        (tables.dependency, ["task_id", "parent_id"], [n.c.i + MILLION]),
    ):
        await change(database, sa.insert(table).from_select(names, sa.select(n.c.i, *values)))
    analyse(migrated_url)
    async with looking.seeing() as cost:
        assert (await database.write(prune, Retention({State.SUCCEEDED: timedelta(0)}), 100)).tasks == {
            State.SUCCEEDED: 100
        }
    assert "task_dependency" not in cost.whole, cost
    assert cost.rows < MANY / 3, cost
