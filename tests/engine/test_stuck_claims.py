"""Claims around rows that the database refuses to change, or that another transaction locks: all others proceed."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runner.engine.claiming import part_claims
from runner.engine.claiming.limited_claims import Turn
from runner.engine.claiming.part_claims import UNCHANGED
from runner.engine.claiming.stuck_claims import MOST_RESTING, StuckClaims
from runner.engine.runner import Engine
from runner.engine.slots import Slots
from runner.engine.stuck_rows import StuckRows
from runner.model.stuck_row import StuckCause
from runner.model.task import NewTask
from runner.policy.lanes import Lane
from runner.store.claim.plain import DueTask
from runner.store.submit import submit_many
from tests.conftest import examples, on_postgresql, postgresql_first
from tests.engine.harness import Harness, at_work, until
from tests.engine.test_limits import limit
from tests.engine.test_schedules import InTheMiddle
from tests.triggers import SERVER_STATES, TEXT, accept, refuse

pytestmark = pytest.mark.both_databases


def claims(runner: Engine) -> dict[int, StuckCause]:
    """The tasks that the runner names as stuck in a claim."""
    return {row.task: row.cause for row in runner.stuck.rows("claim")}


async def work(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...


@pytest.mark.slow
async def test_others_run_when_the_database_refuses_the_first_task(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await work(harness)
    await refuse(harness.database, "UPDATE")
    bad = await harness.submit("work", key="bad", priority=9)
    others = [await harness.submit("work") for _ in range(30)]
    with caplog.at_level(logging.WARNING):
        async with harness.running() as runner:
            await harness.wait_for(*others)
            await until(lambda: claims(runner) == {bad: StuckCause.REFUSED})
            (row,) = runner.stuck.rows("claim")
            assert TEXT in row.fact
            assert (await harness.row(bad)).state == "waiting"
            await accept(harness.database)
            await harness.wait_for(bad)
            await until(lambda: claims(runner) == {})
    assert not [record for record in caplog.records if "unavailable" in record.getMessage()]
    assert any(f"task {bad} (work)" in record.getMessage() and TEXT in record.getMessage() for record in caplog.records)
    assert (await harness.row(bad)).attempt == 1, "a refused claim spends no attempt"


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    "sqlstate",
    [
        pytest.param(state, marks=() if state in ("23514", "08006", "40001", "57P01") else pytest.mark.slow)
        for state in ("23514", "42501", "53200", "53300", "XX001", "38000", "HV000", "HV00N", *SERVER_STATES)
    ],
)
@on_postgresql
async def test_others_run_whatever_the_sqlstate(harness: Harness, sqlstate: str) -> None:
    await work(harness)
    await refuse(harness.database, "UPDATE", sqlstate=sqlstate)
    bad = await harness.submit("work", key="bad", priority=9)
    others = [await harness.submit("work") for _ in range(5)]
    async with harness.running() as runner:
        await harness.wait_for(*others)
        await until(lambda: bad in claims(runner))
        assert sqlstate in runner.stuck.rows("claim")[0].fact
        assert claims(runner)[bad] is StuckCause.REFUSED
        assert not runner.worker.buffer.stalled


@pytest.mark.slow
@postgresql_first
async def test_others_run_when_every_task_of_a_handler_is_refused(harness: Harness) -> None:
    await work(harness)

    @harness.handler("ledger")
    async def ledger() -> None: ...

    await refuse(harness.database, "UPDATE", when="{row}.handler = 'ledger'")
    for _ in range(60):
        await harness.submit("ledger", priority=9)
    others = [await harness.submit("work") for _ in range(20)]
    async with harness.running() as runner:
        await harness.wait_for(*others)
        await until(lambda: len(claims(runner)) == 60)
        more = await harness.submit("work")
        await harness.wait_for(more)
        await accept(harness.database)
        await until(lambda: harness_is_empty(harness))


async def harness_is_empty(harness: Harness) -> bool:
    return not await harness.count(harness.database.tables.task)


async def test_a_trigger_that_skips_the_row_is_named(harness: Harness) -> None:
    await work(harness)
    await refuse(harness.database, "UPDATE", silently=True)
    bad = await harness.submit("work", key="bad", priority=9)
    others = [await harness.submit("work") for _ in range(10)]
    async with harness.running() as runner:
        await harness.wait_for(*others)
        await until(lambda: claims(runner) == {bad: StuckCause.REFUSED})
        assert "trigger" in runner.stuck.rows("claim")[0].fact
        more = await harness.submit("work", priority=1)
        await harness.wait_for(more)


async def test_tasks_whose_handler_gets_a_limit_between_survey_and_claim_are_not_stuck(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await work(harness)
    tasks = [await harness.submit("work") for _ in range(3)]
    runner = harness.runner()
    runner.claimer._database = InTheMiddle(  # type: ignore[assignment]
        runner.database, 1, lambda: limit(harness, "handler", "work", concurrency="1")
    )
    async with at_work(runner):
        await harness.wait_for(*tasks)
    assert "work" not in caplog.text


async def test_a_refused_suspect_is_named_and_others_run(harness: Harness) -> None:
    await work(harness)
    bad, suspect = await harness.submit("work", key="bad"), await harness.submit("work")
    task = harness.database.tables.task
    await harness.change(sa.update(task).values(rescues=2, attempt=1, max_attempts=5))
    await refuse(harness.database, "UPDATE")
    async with harness.running(heartbeat_interval="50ms") as runner:
        other = await harness.submit("work")
        await harness.wait_for(suspect, other)
        await until(lambda: claims(runner) == {bad: StuckCause.REFUSED})
        await accept(harness.database)
        await harness.wait_for(bad)


@pytest.mark.slow
@pytest.mark.representatives(2)
@pytest.mark.parametrize("limits", [{"concurrency": "3"}, {"per_tenant": "2"}, {"rate": "1000/s"}], ids=str)
async def test_others_run_in_lanes_with_limits(harness: Harness, limits: dict[str, str]) -> None:
    await work(harness)
    await limit(harness, "handler", "work", **limits)
    await refuse(harness.database, "UPDATE")
    tenants = ["a", "b", None]
    bad = await harness.submit("work", key="bad", priority=9, tenant="a")
    others = [await harness.submit("work", tenant=tenants[number % 3]) for number in range(12)]
    async with harness.running() as runner:
        await harness.wait_for(*others)
        await until(lambda: claims(runner) == {bad: StuckCause.REFUSED})
        await accept(harness.database)
        await harness.wait_for(bad)


@contextmanager
def locked(harness: Harness, condition: str, table: str = "task") -> Iterator[psycopg.Connection]:
    """Hold the locks of some rows, as an open transaction of a person does."""
    with psycopg.connect(harness.url, application_name="psql") as connection:
        connection.execute(f"SELECT 1 FROM {table} WHERE {condition} FOR UPDATE")
        yield connection
        connection.rollback()


@on_postgresql
async def test_locked_tasks_hide_no_tasks_behind_them_and_are_named(harness: Harness) -> None:
    """A claim counts the first tasks of all lanes before it locks them."""
    await work(harness)
    bad = [await harness.submit("work", key="bad", priority=9) for _ in range(12)]
    others = [await harness.submit("work", queue=queue) for queue in ("default", "mail") for _ in range(5)]
    with locked(harness, "key = 'bad'"):
        async with harness.running() as runner:
            await harness.wait_for(*others)
            await until(lambda: claims(runner) == dict.fromkeys(bad, StuckCause.LOCKED))
            row = runner.stuck.rows("claim")[0]
            assert row.blocker is not None
            assert row.blocker.application == "psql"
            more = await harness.submit("work", priority=1)
            await harness.wait_for(more)
    async with harness.running() as runner:
        await harness.wait_for(*bad)
        await until(lambda: claims(runner) == {})


@on_postgresql
async def test_a_lock_that_is_released_lets_the_task_run(harness: Harness) -> None:
    await work(harness)
    bad = await harness.submit("work", key="bad")
    async with harness.running() as runner:
        with locked(harness, "key = 'bad'"):
            pass
        await harness.wait_for(bad)
        with locked(harness, "name = 'work'", "task_handler"):
            await harness.wait_for(await harness.submit("work"))
        await until(lambda: claims(runner) == {})


async def test_a_runner_that_works_until_idle_ends_although_a_task_is_refused(harness: Harness) -> None:
    await work(harness)
    await refuse(harness.database, "UPDATE")
    bad, other = await harness.submit("work", key="bad"), await harness.submit("work")
    runner = await harness.work()
    assert [await harness.state(id) for id in (bad, other)] == ["waiting", "succeeded"]
    assert bad in claims(runner)


@pytest.mark.slow
@postgresql_first
async def test_in_the_traffic_of_two_runners_one_refused_task_delays_no_other(harness: Harness) -> None:
    await work(harness)
    await refuse(harness.database, "UPDATE")
    bad = await harness.submit("work", key="bad", priority=9)
    async with harness.running() as one, harness.running() as two:
        for _ in range(10):
            await harness.wait_for(await harness.submit("work"), await harness.submit("work", queue="mail"))
        await until(lambda: bad in claims(one) and bad in claims(two))
        await accept(harness.database)
        await harness.wait_for(bad)


@settings(
    max_examples=examples(2, 4),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(refused=st.sets(st.integers(0, 11)))
async def test_for_any_refused_tasks_all_others_run_and_each_is_named(harness: Harness, refused: set[int]) -> None:
    await work(harness)
    keys = ["bad" if number in refused else "good" for number in range(12)]
    ids = [
        await harness.submit("work", key=key, priority=1 + number % 3, queue=f"q{number % 2}")
        for number, key in enumerate(keys)
    ]
    await refuse(harness.database, "UPDATE")
    try:
        runner = await harness.work()
    finally:
        await accept(harness.database)
    bad = {ids[number] for number in refused}
    assert claims(runner) == dict.fromkeys(bad, StuckCause.REFUSED)
    assert {id for id in ids if await harness.state(id) != "succeeded"} == bad
    await harness.change(sa.delete(harness.database.tables.task))


@on_postgresql
@pytest.mark.representatives(1)
@pytest.mark.parametrize(("kind", "others"), [("queue", "5000/s"), ("queue", None), ("handler", None)])
async def test_a_locked_registry_row_delays_only_the_lanes_with_its_limits(
    harness: Harness, caplog: pytest.LogCaptureFixture, kind: str, others: str | None
) -> None:
    await work(harness)

    @harness.handler("mail")
    async def mail() -> None: ...

    await limit(harness, kind, "mail", concurrency="3")
    if others is not None:
        await limit(harness, "handler", "work", rate=others)
    async with harness.running():
        await harness.wait_for(await harness.submit("mail", queue="mail"))
        with locked(harness, "name = 'mail'", f"task_{kind}") as session:
            waiting = await harness.submit("mail", queue="mail", priority=9)
            await harness.wait_for(*[await harness.submit("work") for _ in range(5)])
            text = f"row mail of task_{kind} is locked, held by process {session.info.backend_pid} (psql, user "
            while text not in caplog.text:
                await harness.wait_for(await harness.submit("work"))
            assert "last statement: SELECT 1 FROM task_" in caplog.text
            assert await harness.state(waiting) == "waiting"
        await harness.wait_for(waiting)


async def test_looks_pause_and_a_claim_that_succeeds_ends_the_growth_of_parts(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_claims, "LOOK_EVERY", 600.0)

    @harness.handler("work")
    async def work() -> None: ...

    async with harness.running(poll_interval="1h") as runner:
        parts, stuck = runner.claimer.parts, runner.claimer.claims.stuck
        await parts.leave_out_untaken()
        assert not parts.may_look
        assert 2 * stuck.size_after(4) == stuck.size_after(4)
        await harness.wait_for(await harness.submit("work"))
        assert stuck.size_after(4) == 4


def test_locked_tasks_are_left_out_up_to_a_number() -> None:
    stuck = StuckRows()
    claims = StuckClaims(stuck)
    lane = Lane("mail", "work", 1)
    claims.lock({DueTask(id, lane): None for id in range(MOST_RESTING + 100)})
    assert (claims.without or "").count(",") + 1 == MOST_RESTING
    claims.lock({DueTask(0, lane): None, DueTask(MOST_RESTING + 1, lane): None})
    assert (stuck.tries("claim", 0), stuck.tries("claim", MOST_RESTING + 1)) == (2, 0)
    other = StuckClaims(stuck)
    other.lock({DueTask(MOST_RESTING + 1, lane): None})
    assert (other.without, other.due_locks()) == (None, []), "no room is left to remember it"
    claims.refuse_suspect(DueTask(MOST_RESTING + 1, lane), UNCHANGED)
    assert (claims.without or "").count(",") + 1 == MOST_RESTING


async def test_a_turn_leaves_out_lanes_whose_scan_an_earlier_turn_has_ended(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    done = list[str]()

    @harness.handler("report")
    async def report(queue: str) -> None:
        done.append(queue)

    await limit(harness, "queue", "limited", concurrency="40")
    for queue, tasks in (("limited", 5), ("open", 1)):
        new = NewTask("report", json.dumps({"queue": queue}), queue=queue, priority=9 if queue == "limited" else 1)
        await harness.database.write(submit_many, [new] * tasks)
    runner = harness.runner(scans="report=1h", concurrency=50, claim_batch_size=1, poll_interval="1h", notify=False)
    take = runner.claimer._claim_turn

    async def taken(slots: Slots, turn: Turn) -> int | None:
        result = await take(slots, turn)
        if not done:
            await harness.database.write(submit_many, [NewTask("report", '{"queue": "open"}', queue="open")] * 9)
        return result

    runner.claimer._claim_turn = taken  # type: ignore[method-assign]
    async with at_work(runner):
        await until(lambda: done.count("limited") == 5)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
