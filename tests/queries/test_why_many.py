"""Why many tasks are not running: their decisive causes, by the rules of one task."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.sql_text import Recording
from runner.db.transaction import clock
from runner.model.step import StepKind
from runner.model.task import DependsOn, State
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.queries.counting import Count
from runner.queries.why.many import WhyMany, why_many
from runner.queries.why.why import why
from tests.store.rows import add_live, add_past, add_runner, ahead, filtered
from tests.store.table import put, put_many
from tests.store.test_limits import limit

BY = Actor("ana", "web-1", "restore of db-2")


async def explain(database: Database, text: str = "", most: int = 10_000) -> WhyMany:
    return await database.read(why_many, filtered(text), UTC, most)


async def statements(database: Database, text: str, most: int = 10_000) -> tuple[int, WhyMany]:
    """The number of statements, and the answer."""
    async with database.reading() as tx:
        recording = Recording(tx)
        answer = await why_many(recording, filtered(text), UTC, most)
        return len(recording.executed), answer


async def phrases(database: Database, text: str = "") -> dict[str, int]:
    return {group.phrase: group.tasks for group in (await explain(database, text)).causes}


async def paused(database: Database, kind: PauseKind, name: str, *until: datetime) -> None:
    await database.write(pause, PauseTarget(kind, name), BY, *until)


@pytest.fixture
async def troubled(database: Database) -> Database:
    """Tasks with every kind of cause."""
    runner = await add_runner(database, handlers='["h", "sms", "slow"]', capacity=1)
    await add_runner(database, handlers='["served"]', queues='["other"]')
    await add_runner(database, handlers='["draining"]', command="drain", capacity=1)
    await paused(database, PauseKind.QUEUE, "mail")
    await paused(database, PauseKind.HANDLER, "sms")
    await paused(database, PauseKind.QUEUE, "short", await database.read(clock) + timedelta(minutes=5))
    await limit(database, "queue", "narrow", concurrency="1")
    await limit(database, "queue", "tenants", per_tenant="1")
    await limit(database, "handler", "slow", rate="1/h")
    for tenant in ("acme", "umbrella"):
        await add_live(database, "h", queue="tenants", tenant=tenant, state="running", runner_id=runner)
    await add_live(database, "h", queue="narrow", state="running", runner_id=runner)
    await add_past(database, 900_001, State.DEAD, handler="fetch")
    await add_past(database, 900_002, State.DEAD, handler="fetch")
    for customer in ("acme", "acme", "umbrella", "initech", None):
        await add_live(database, "h", queue="tenants", tenant=customer, run_at=ahead(-9))
    for _ in range(3):
        await add_live(database, "h", queue="mail")
        await put(database, handler="h", queue="plain", after=(DependsOn(900_001),))
    await add_live(database, "missing", queue="mail")
    await add_live(database, "missing")
    await add_live(database, "served")
    await add_live(database, "draining")
    await add_live(database, "h", hosts="web-3")
    await add_live(database, "h", hosts="web-1,web-3", queue="hosts")
    await add_live(database, "sms")
    await add_live(database, "h", queue="narrow", run_at=ahead(-9))
    await add_live(database, "h", run_at=ahead(900))
    await add_live(database, "h", queue="short", run_at=ahead(60))
    await add_live(database, "h", queue="short", run_at=ahead(3600))
    await add_live(database, "h", attempt=1, error="no", run_at=ahead(900))
    await add_live(database, "h", attempt=3, max_attempts=3)
    await add_live(database, "h", attempt=4, rescues=2, max_attempts=9)
    await add_live(database, "h", expires_at=ahead(-5))
    await add_live(database, "h", run_at=ahead(900), expires_at=ahead(60))
    await add_live(database, "h", order_key="k")
    await add_live(database, "h", order_key="k")
    await add_live(database, "h", state="blocked")
    await put(database, handler="h", queue="plain", after=(DependsOn(900_001), DependsOn(900_002)))
    await add_live(database, "h", run_at=ahead(-9))
    return database


@pytest.mark.slow
async def test_every_task_has_the_decisive_cause_that_why_gives_it(troubled: Database) -> None:
    async with troubled.reading() as tx:
        task = tx.tables.task.c
        ids = [row[0] for row in await tx.rows(sa.select(task.id).where(task.state != State.RUNNING.value))]
    expected: Counter[tuple[str, str]] = Counter()
    for id in ids:
        cause = (await troubled.read(why, id, UTC)).causes[0]
        assert cause.common is not None, cause
        expected[cause.kind, cause.common.phrase] += 1
    answer = await explain(troubled)
    first = {(group.kind, group.phrase.partition("; also ")[0]): group.tasks for group in answer.causes}
    assert first == expected
    assert answer.examined == Count(len(ids))
    assert [group.tasks for group in answer.causes] == sorted(expected.values(), reverse=True)
    assert len(expected) >= 16
    for group in answer.causes:
        cause = (await troubled.read(why, group.example, UTC)).causes[0]
        assert cause.common is not None
        assert cause.common.phrase == group.phrase.partition("; also ")[0]


async def test_the_change_that_frees_most_has_no_other_cause_beside_it(troubled: Database) -> None:
    answer = await explain(troubled, "queue:mail")
    paused_mail = next(group for group in answer.causes if group.phrase == "queue mail is paused")
    # A runner has no handler for the fourth task.
    assert (paused_mail.tasks, paused_mail.freed, paused_mail.command) == (4, 3, "runner resume mail")
    assert answer.frees_most is paused_mail
    assert answer.verdict == "4 tasks are not running because:"
    due = next(group for group in (await explain(troubled, "state:scheduled")).causes if group.kind == "due")
    assert due.command == "runner retry state:scheduled"
    dead = next(group for group in (await explain(troubled, "queue:plain")).causes)
    assert (dead.tasks, dead.freed, dead.command) == (4, 3, "runner retry 'handler:fetch state:dead'")
    none = await explain(troubled, "state:dead")
    assert (none.examined, none.causes, none.frees_most) == (Count(), (), None)


async def test_tasks_that_wait_for_a_signal_or_sleep_are_not_only_due_later(database: Database) -> None:
    """A retry would start them, and they would wait again."""
    await add_runner(database, handlers='["h"]')
    for kind, signal in ((StepKind.WAIT, "approved"), (StepKind.WAIT, "approved"), (StepKind.SLEEP, "sleep 1")):
        id = await add_live(database, "h", run_at=ahead(900))
        step = {"task_id": id, "name": signal, "kind": kind.value, "signal": signal, "fence": 1, "attempt": 1}
        async with database.writing() as tx:
            await tx.execute(sa.insert(tx.tables.step).values(**step, due_at=ahead(900)))
    await add_live(database, "h", run_at=ahead(900))
    groups = (await explain(database)).causes
    assert [(group.phrase, group.tasks, group.freed) for group in groups] == [
        ("the task waits for signal approved", 2, 0),
        ("the due time is in the future", 1, 1),
        ("the task sleeps", 1, 0),
    ]
    assert groups[0].advice == f"runner signal {groups[0].example} approved"


async def test_tasks_beyond_the_free_slots_wait_for_others(database: Database) -> None:
    await add_runner(database, capacity=2)
    for _ in range(2):
        await add_live(database, run_at=ahead(-9))
    assert await phrases(database) == {"nothing: slots are free": 2}
    await add_live(database, run_at=ahead(-9), queue="other")
    assert await phrases(database) == {"more tasks are due than slots are free: 2 of 2": 3}


async def test_thousands_of_tasks_are_sampled_with_a_fixed_number_of_statements(database: Database) -> None:
    await paused(database, PauseKind.QUEUE, "mail")
    await put_many(database, 3, queue="mail", delay=60.0)
    few, _ = await statements(database, "queue:mail")
    await put_many(database, 300, queue="mail")
    many, answer = await statements(database, "queue:mail", most=100)
    assert answer.examined == Count(100, more=True)
    assert answer.verdict == "The first 100 tasks by due time are not running because:"
    # Those that are due first.
    assert [(group.phrase, group.tasks) for group in answer.causes] == [("queue mail is paused", 100)]
    assert many <= few < 20


async def open_breaker(database: Database, probe_in: float) -> None:
    values = {"breaker_probes": 1, "breaker_wait": 60.0, "breaker_round": 2, "breaker_probe_at": ahead(probe_in)}
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.handler).values(name="sms", breaker_opened_at=ahead(-200), **values))


async def test_a_cause_names_the_open_breaker_that_holds_its_tasks_too(database: Database) -> None:
    await open_breaker(database, probe_in=-1)
    busy = await add_runner(database, handlers='["sms", "h"]', capacity=2)
    for _ in range(3):
        await add_live(database, "sms", run_at=ahead(-9))
    assert await phrases(database) == {"handler sms: the breaker is open": 3}
    for _ in range(3):
        await add_live(database, "h", state=State.RUNNING.value, runner_id=busy)
    full = "no slots are free: 3 h for 2 slots, 1 of them prefetched"
    assert await phrases(database) == {f"{full}; also handler sms: the breaker is open": 3}
    await paused(database, PauseKind.QUEUE, "default")
    assert await phrases(database) == {"queue default is paused; also handler sms: the breaker is open": 3}
    await add_live(database, "h", run_at=ahead(-9))
    text = "queue default is paused; also handler sms: the breaker is open (3 of them)"
    assert await phrases(database) == {text: 4}


async def test_two_dead_parents_of_one_handler_are_one_cause(database: Database) -> None:
    parents = [await add_past(database, id, State.DEAD, handler="fetch") for id in (900_001, 900_002)]
    await put(database, handler="h", after=tuple(DependsOn(id) for id in parents))
    assert await phrases(database) == {"the task depends on a task of fetch that is dead": 1}


async def test_a_retry_frees_no_task_that_an_open_breaker_would_hold(database: Database) -> None:
    await add_runner(database, handlers='["sms", "h"]')
    await open_breaker(database, probe_in=60)
    for handler in ("sms", "sms", "h"):
        await add_live(database, handler, attempt=1, error="no", run_at=ahead(900))
    (group,) = (await explain(database)).causes
    assert (group.kind, group.tasks, group.freed) == ("due", 3, 1)
    await add_live(database, "sms", queue="held", run_at=ahead(-1))
    (held,) = (await explain(database, "queue:held")).causes
    assert (held.command, held.advice) == ("", "repair the service; the next probe that succeeds closes the breaker")
