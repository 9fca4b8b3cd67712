"""For any subset of rows that the database refuses, or that somebody locks: all others proceed, and each is named."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runner.db.database import Database
from runner.db.types import db_now
from runner.engine.events import Events
from runner.engine.lease.rescue_loop import RescueLoop
from runner.engine.periodic.expiry import Expiry
from runner.engine.periodic.maintenance import Maintenance
from runner.engine.periodic.signal_look import SignalLook
from runner.engine.settling.dependency_resolver import DependencyResolver
from runner.engine.stuck_rows import StuckRows
from runner.model.stuck_row import StuckCause, StuckVerb
from runner.model.task import State
from runner.settings import Settings
from runner.store.rescue import Rescuer
from runner.urls import parse_url
from tests.conftest import examples, on_postgresql
from tests.engine.harness import Harness
from tests.store.rows import add_live, add_past, add_runner, ahead
from tests.triggers import Event, accept, refuse

pytestmark = pytest.mark.both_databases

TASKS = 9
subsets = st.sets(st.integers(0, TASKS - 1))
FEW = settings(
    max_examples=examples(3, 6),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # each example takes many transactions: a small one is no easier to read
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class OldLease:
    """The lease of a runner that has been registered for long."""

    may_rescue = True

    def __init__(self, runner_id: int) -> None:
        self.rescuer = Rescuer(runner_id, 0.0)


async def rescue(harness: Harness, stuck: StuckRows) -> None:
    lease: Any = OldLease(await add_runner(harness.database))
    await RescueLoop(harness.database, lease, 60.0, Events(), stuck).run()


async def expire(harness: Harness, stuck: StuckRows) -> None:
    await Expiry(harness.database, Events(), bool, stuck).run()


def resolver_of(harness: Harness, stuck: StuckRows) -> DependencyResolver:
    return DependencyResolver(harness.database, False, Events(), stuck)


async def resolve(harness: Harness, stuck: StuckRows) -> None:
    await resolver_of(harness, stuck).sweep()


async def signal(harness: Harness, stuck: StuckRows) -> None:
    await SignalLook(harness.database, Events(), stuck).run()


async def prune(harness: Harness, stuck: StuckRows) -> None:
    await Maintenance(harness.database, Settings(url=parse_url(harness.url)), bool, stuck).run()


async def put_lost(database: Database, number: int, key: str) -> int:
    return await add_live(database, "work", key=key, state="running", runner_id=10**9, attempt=1, fence=1)


async def put_expired(database: Database, number: int, key: str) -> int:
    return await add_live(database, "work", key=key, expires_at=ahead(-60))


async def put_unbound(database: Database, number: int, key: str) -> int:
    return await add_live(database, "work", key=key, hosts="elsewhere", hosts_until=ahead(-60))


async def put_dependent(database: Database, number: int, key: str) -> int:
    parent = await add_past(database, 10**12 + number, finished_at=ahead(-60))
    child = await add_live(database, "work", key=key, state="blocked", blocked_by=1)
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.dependency).values(task_id=child, parent_id=parent))
    return child


async def put_signalled(database: Database, number: int, key: str) -> int:
    task = await add_live(database, "work", key=key, run_at=ahead(600))
    async with database.writing() as tx:
        wait = {"task_id": task, "name": "go", "kind": "wait", "signal": "go", "fence": 1, "attempt": 1}
        await tx.execute(sa.insert(tx.tables.step), wait)
        await tx.execute(sa.insert(tx.tables.signal), {"task_id": task, "name": "go"})
    return task


async def put_old(database: Database, number: int, key: str) -> int:
    return await add_past(database, 10**12 + number, key=key, handler="work", finished_at=ahead(-86_400 * 100))


class Case(NamedTuple):
    verb: StuckVerb
    put: Callable[[Database, int, str], Awaitable[int]]
    run: Callable[[Harness, StuckRows], Awaitable[None]]
    left: Callable[[Any], Any]
    """The condition that the verb has not changed a row yet."""
    event: Event = "UPDATE"
    table: str = "task"


CASES = {
    "rescue": Case("rescue", put_lost, rescue, lambda task: task.state == State.RUNNING.value),
    "expire": Case("expire", put_expired, expire, lambda task: task.id.is_not(None)),
    "unbind": Case("expire", put_unbound, expire, lambda task: task.hosts != ""),
    "resolve": Case("resolve", put_dependent, resolve, lambda task: task.state == State.BLOCKED.value),
    "signal": Case("signal", put_signalled, signal, lambda task: task.run_at > db_now()),
    "prune": Case("prune", put_old, prune, lambda task: task.id.is_not(None), "DELETE", "task_history"),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


async def left(harness: Harness, case: Case) -> set[int]:
    table = harness.database.tables.task if case.table == "task" else harness.database.tables.history
    return {row.id for row in await harness.rows(sa.select(table.c.id).where(case.left(table.c)))}


async def clear(harness: Harness) -> None:
    tables = harness.database.tables
    for table in (
        tables.dependency,
        tables.step,
        tables.signal,
        tables.attempt,
        tables.task,
        tables.history,
        tables.runner,
    ):
        await harness.change(sa.delete(table))


@pytest.mark.slow
@pytest.mark.representatives(2)
@cases
@FEW
@given(refused=subsets)
async def test_all_but_the_refused_rows_proceed(harness: Harness, case: Case, refused: set[int]) -> None:
    await clear(harness)
    keys = ["bad" if number in refused else "good" for number in range(TASKS)]
    ids = [await case.put(harness.database, number, key) for number, key in enumerate(keys)]
    bad, stuck = {ids[number] for number in refused}, StuckRows()
    name = "task_history_guard" if case.table != "task" else "task_guard"
    await refuse(harness.database, case.event, case.table, name=name)
    try:
        await case.run(harness, stuck)
        assert await left(harness, case) == bad
        rows = {row.task: row for row in stuck.rows(case.verb)}
        assert {id: (row.cause, row.handler) for id, row in rows.items()} == dict.fromkeys(
            bad, (StuckCause.REFUSED, "work")
        )
        assert all("audit says no" in row.fact for row in rows.values())
    finally:
        await accept(harness.database, case.table, name=name)
    for setback in stuck._setbacks.values():
        setback.due = 0.0
    await case.run(harness, stuck)
    assert await left(harness, case) == set()
    assert stuck.rows(case.verb) == []


@pytest.mark.representatives(2)
@pytest.mark.parametrize("sqlstate", ["08006", "40001", "57P01"])
@cases
@on_postgresql
async def test_all_but_the_refused_row_proceed_whatever_the_sqlstate(
    harness: Harness, case: Case, sqlstate: str
) -> None:
    ids = [await case.put(harness.database, number, "bad" if number == 1 else "good") for number in range(4)]
    name, stuck = ("task_history_guard" if case.table != "task" else "task_guard"), StuckRows()
    await refuse(harness.database, case.event, case.table, name=name, sqlstate=sqlstate)
    await case.run(harness, stuck)
    assert await left(harness, case) == {ids[1]}
    assert {row.task: row.cause for row in stuck.rows(case.verb)} == {ids[1]: StuckCause.REFUSED}


@pytest.mark.slow
@pytest.mark.representatives(2)
@cases
@on_postgresql
@FEW
@given(locked=subsets)
async def test_all_but_the_locked_rows_proceed(harness: Harness, case: Case, locked: set[int]) -> None:
    await clear(harness)
    ids = [await case.put(harness.database, number, "good") for number in range(TASKS)]
    bad, stuck = {ids[number] for number in locked}, StuckRows()
    with psycopg.connect(harness.url, application_name="psql") as connection:
        connection.execute(f"SELECT 1 FROM {case.table} WHERE id = ANY(%s) FOR UPDATE", (sorted(bad),))
        for _ in range(4):  # a lock of milliseconds is not named
            stuck.retry_now(case.verb)
            await case.run(harness, stuck)
        assert await left(harness, case) == bad
        assert {row.task: row.cause for row in stuck.rows(case.verb)} == dict.fromkeys(bad, StuckCause.LOCKED)
        if case.table == "task":
            assert {row.blocker and row.blocker.application for row in stuck.rows(case.verb)} == {"psql"} - (
                set() if bad else {"psql"}
            )
    stuck.retry_now(case.verb)
    await case.run(harness, stuck)
    assert await left(harness, case) == set()


@on_postgresql
async def test_a_locked_or_refused_row_of_a_lost_runner_delays_its_own_tasks(harness: Harness) -> None:
    kept, lost = [await add_runner(harness.database, lease=-60) for _ in range(2)]
    ids = [await add_live(harness.database, "work", state="running", runner_id=id, attempt=1) for id in (kept, lost)]
    stuck = StuckRows()
    with psycopg.connect(harness.url) as connection:
        connection.execute(f"SELECT 1 FROM task_runner WHERE id = {kept} FOR UPDATE")
        for _ in range(4):
            stuck.retry_now("rescue")
            await rescue(harness, stuck)
        assert await left(harness, CASES["rescue"]) == {ids[0]}
        assert [row.task for row in stuck.rows("rescue")] == [ids[0]]
    await refuse(harness.database, "DELETE", "task_runner", when=f"{{row}}.id = {kept}")
    others = await add_live(harness.database, "work", state="running", runner_id=10**9, attempt=1)
    await rescue(harness, stuck)
    assert await left(harness, CASES["rescue"]) == {ids[0]}
    assert await harness.state(others) == "waiting"


@pytest.mark.parametrize("case", [CASES[name] for name in ("rescue", "expire", "resolve", "signal", "prune")])
async def test_a_row_that_another_runner_has_changed_is_no_longer_stuck(harness: Harness, case: Case) -> None:
    name = "task_history_guard" if case.table != "task" else "task_guard"
    await case.put(harness.database, 0, "bad")
    await refuse(harness.database, case.event, case.table, name=name)
    stuck = StuckRows()
    await case.run(harness, stuck)
    assert len(stuck.rows(case.verb)) == 1
    await accept(harness.database, case.table, name=name)
    await case.run(harness, StuckRows())
    assert await left(harness, case) == set()
    stuck.retry_now(case.verb)
    await case.run(harness, stuck)
    assert len(stuck) == 0
