"""Rules of alerts: what each finds, what it leaves to another, and that it reads a bounded number of rows."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import clock
from runner.model.alert import Alert, AlertRule
from runner.model.outcome import RUNNER_LOST
from runner.model.schedule import ScheduleSpec, TickOutcome
from runner.model.task import State
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.operations.schedule import add_schedule
from runner.queries.alerts.facts import AlertFacts, SlowFacts
from runner.queries.alerts.reading import current_alerts, read_facts
from runner.queries.alerts.rules import alerts
from runner.queries.alerts.thresholds import Thresholds
from runner.queries.deaths import MOST_ATTEMPTS, repeated_failures
from runner.queries.health import DeadRows, Health
from runner.queries.overview import Overview
from runner.queries.registries import Pause
from runner.queries.schedules import ScheduleRow, ScheduleRun
from runner.settings import Settings
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead
from tests.store.table import change

AT = datetime(2026, 11, 20, 13, 30, 20, tzinfo=UTC)
HALF = "the database file is bloated: 2 GiB of 3 GiB are unused"
QUIET = Overview(AT, (), {}, (), (), {}, (), AT)
BY = Actor("ana", "desk")


def found(facts: AlertFacts) -> list[str]:
    return [alert.sentence for alert in alerts(facts)]


def schedule(*outcomes: TickOutcome, **values: object) -> ScheduleRow:
    runs = [ScheduleRun(AT, AT, outcome.value, AT, None, None, None, None) for outcome in outcomes]
    row = ScheduleRow("nightly", ScheduleSpec("h", "every 1h"), AT, (), AT, None, None, None, (), None, 0, tuple(runs))
    return replace(row, **values)  # type: ignore[arg-type] # the test knows the fields


def test_the_thresholds_come_from_the_settings() -> None:
    settings = Settings(
        alert_max_dead=3, alert_max_failing=20, alert_max_failures=7, alert_max_late=timedelta(minutes=1)
    )
    expected = Thresholds(dead=3, failing=0.2, failures=7, late=timedelta(minutes=1))
    assert Thresholds.of(settings) == expected
    assert Thresholds.of(Settings()) == Thresholds()


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (schedule(next_at=AT - timedelta(minutes=6)), "schedule nightly is late: 6m (threshold 5m)"),
        (schedule(next_at=AT - timedelta(minutes=4)), None),
        (schedule(error="no such zone"), "schedule nightly cannot run: no such zone"),
        (schedule(error="no such zone", pause=Pause(AT, None, "ana", None)), None),
        (
            schedule(*[TickOutcome.SKIPPED] * 2, TickOutcome.SUBMITTED, TickOutcome.MISSED),
            "schedule nightly does not keep up: 2 skipped and 1 missed of its last 4 ticks",
        ),
        (schedule(*[TickOutcome.SKIPPED] * 2, *[TickOutcome.SUBMITTED] * 3, *[TickOutcome.SKIPPED] * 3), None),
        (schedule(*[TickOutcome.SKIPPED] * 3, pause=Pause(AT, None, "ana", None)), None),
    ],
)
def test_a_schedule_that_is_late_or_skips_is_named_unless_people_paused_it(row: ScheduleRow, text: str | None) -> None:
    assert found(AlertFacts(QUIET, SlowFacts(schedules=[row]))) == ([text] if text else [])


@pytest.mark.parametrize(
    ("health", "text"),
    [
        (
            Health(AT, "postgresql", "15", dead=(DeadRows("task", 1_000, 300_000, None),), tables={"task": 2**30}),
            "table task is bloated: 300,000 dead and 1,000 live rows, 1 GiB; last vacuum: never",
        ),
        (Health(AT, "postgresql", "15", dead=(DeadRows("task", 400_000, 300_000, 60.0),)), None),
        (Health(AT, "postgresql", "15", dead=(DeadRows("task", 10, 90_000, 60.0),)), None),
        (
            Health(AT, "sqlite", "3", size=3 << 30, free=2 << 30),
            HALF,
        ),
        (Health(AT, "sqlite", "3", size=9 << 30, free=2 << 30), None),
        (Health(AT, "sqlite", "3", size=1 << 30, free=900 << 20), None),
    ],
)
def test_a_table_is_bloated_if_much_of_it_is_unused(health: Health, text: str | None) -> None:
    assert found(AlertFacts(QUIET, SlowFacts(health=health))) == ([text] if text else [])


def test_the_kind_of_a_subject_is_known_for_each_rule() -> None:
    kinds = {rule.value: rule.subject for rule in AlertRule}
    assert kinds["queue-late"] == "queue"
    assert kinds["slots-held"] == "handler"
    assert kinds["tasks-dead"] == kinds["no-runner"] == ""


async def one(database: Database, rule: AlertRule) -> Alert:
    (alert,) = [alert for alert in await database.read(current_alerts) if alert.rule is rule]
    return alert


async def test_a_task_that_keeps_failing_is_named_with_its_handler(database: Database) -> None:
    often, dead, seldom = [await add_live(database, "pay", attempt=n, run_at=ahead(600)) for n in (4, 4, 3)]
    await change(database, database.tables.task.delete().where(database.tables.task.c.id == dead))
    await add_past(database, dead, State.DEAD, handler="pay", finished_at=ahead(-3 * 3600))
    for task, number in [*((often, n) for n in range(1, 5)), *((dead, n) for n in range(1, 5)), (seldom, 3)]:
        await add_attempt(database, task, number, handler="pay", ended_at=ahead(-60))
    alert = await one(database, AlertRule.TASKS_FAILING)
    assert (alert.subject, alert.title) == ("pay", "1 task of pay keeps failing")
    assert alert.text == f"task {often}, up to attempt 4 (threshold 3 failures)"
    assert alert.since == await ended_at(database, often, 4)
    assert AlertRule.TASKS_FAILING not in [
        alert.rule for alert in await database.read(current_alerts, Thresholds(failures=4))
    ]
    await add_attempt(database, often, 5, handler="pay", ended_at=ahead(-30))
    assert (await one(database, AlertRule.TASKS_FAILING)).since == alert.since
    await add_attempt(database, await add_live(database, "pay", attempt=9), 9, handler="pay", ended_at=ahead(-30))
    assert (await one(database, AlertRule.TASKS_FAILING)).since is None


async def ended_at(database: Database, task: int, number: int) -> datetime:
    async with database.reading() as tx:
        attempt = tx.tables.attempt.c
        moment: datetime = await tx.scalar(sa.select(attempt.ended_at).filter_by(task_id=task, attempt=number))
        return moment


async def test_failures_of_another_day_do_not_count(database: Database) -> None:
    task = await add_live(database, "pay", attempt=4)
    await add_attempt(database, task, 4, handler="pay", ended_at=ahead(-90_000))
    at = await database.read(clock)
    assert await database.read(repeated_failures, at - timedelta(days=1), 3) == []
    assert await database.read(repeated_failures, at - timedelta(days=2), 3) != []
    assert MOST_ATTEMPTS <= 10_000


async def test_a_runner_that_a_rescue_removed_is_named_for_ten_minutes(database: Database) -> None:
    await add_runner(database)
    ended = database.tables.ended_runner.insert()
    times = {"started_at": ahead(-900), "heartbeat_at": ahead(-90)}
    row = {"host": "web-2", "pid": 41, "version": "1", "lost": True, "tasks": 3, **times}
    await change(database, ended.values(runner_id=9, ended_at=ahead(-60), **row))
    await change(database, ended.values(runner_id=8, ended_at=ahead(-700), **row | {"host": "web-1"}))
    await change(database, ended.values(runner_id=7, ended_at=ahead(-60), **row | {"host": "web-3", "lost": False}))
    alert = await one(database, AlertRule.RUNNER_LOST)
    assert (alert.subject, alert.title) == ("web-2:41", "web-2:41 was lost")
    assert alert.text.startswith("3 tasks rescued 1m")
    for number in range(3):
        await change(database, ended.values(runner_id=20 + number, ended_at=ahead(-30), **row))
    assert (await one(database, AlertRule.RUNNER_LOST)).title == "4 runners were lost"


@pytest.mark.both_databases
@pytest.mark.parametrize(("lost", "end"), [(True, "was lost"), (False, "stopped")])
async def test_the_runner_that_ended_last_is_named_if_none_is_alive(database: Database, lost: bool, end: str) -> None:
    await add_live(database)
    await lose(database, 7, tasks=1, lost_at=-25 * 3600)
    assert (await one(database, AlertRule.NO_RUNNER)).text.endswith("; none is registered")
    await lose(database, 8, tasks=1, lost_at=-3.5 * 3600)
    await lose(database, 9, tasks=1, lost_at=-4 * 3600)
    await change(database, database.tables.ended_runner.update().values(lost=lost))
    alert = await one(database, AlertRule.NO_RUNNER)
    assert f"; web-2:8 was the last, and {end} 3h3" in alert.text
    async with database.reading() as tx:
        ended_at = await tx.scalar(sa.select(tx.tables.ended_runner.c.ended_at).filter_by(runner_id=8))
    assert alert.since == ended_at


@pytest.mark.both_databases
async def test_a_lost_runner_counts_the_tasks_that_died_or_were_cancelled_apart(database: Database) -> None:
    await add_runner(database)
    await lose(database, 9, tasks=4, lost_at=-60)
    for verb in ("die", "cancel", "rescue"):
        await lose_task(database, await add_live(database), 9, verb=verb)
    await add_attempt(database, await add_live(database), runner_id=9, ended_at=ahead(-60), verb="die")
    alert = await one(database, AlertRule.RUNNER_LOST)
    assert alert.text.startswith("2 tasks rescued, 1 died, 1 cancelled 1m")
    assert alert.advice == "Its last log lines have the reason."
    for number in range(3):
        await lose(database, 20 + number, tasks=1, lost_at=-30)
    assert (await one(database, AlertRule.RUNNER_LOST)).text.startswith("5 tasks rescued, 1 died, 1 cancelled: web-2:")


@pytest.mark.both_databases
async def test_the_task_that_ran_on_each_lost_runner_is_named_as_their_probable_end(database: Database) -> None:
    await add_runner(database)
    poison, other = [await add_live(database, "pdf.render") for _ in range(2)]
    for number, runner in enumerate((8, 9)):
        await lose(database, runner, tasks=2, lost_at=-60 * number)
        await lose_task(database, poison, runner, verb="die" if number else "rescue")
    await lose_task(database, other, 9)
    found = [alert for alert in await database.read(current_alerts) if alert.rule is AlertRule.RUNNER_LOST]
    assert len(found) == 2
    for alert in found:
        assert alert.text.endswith(f"; task {poison} (pdf.render) ran on 2 lost runners")
        assert alert.advice == f"It may have ended them: runner show {poison}"
    for runner in (20, 21):
        await lose(database, runner, tasks=1, lost_at=-30)
    alert = await one(database, AlertRule.RUNNER_LOST)
    assert alert.title == "4 runners were lost"
    assert alert.text.endswith(f"; task {poison} (pdf.render) ran on 2 of them")


async def lose(database: Database, id: int, tasks: int, lost_at: float) -> None:
    """Add a runner that a rescue removed."""
    times = {"started_at": ahead(-900), "heartbeat_at": ahead(lost_at - 30), "ended_at": ahead(lost_at)}
    row = {"runner_id": id, "host": "web-2", "pid": id, "version": "1", "lost": True, "tasks": tasks}
    await change(database, database.tables.ended_runner.insert().values(**row, **times))


async def lose_task(database: Database, task: int, runner: int, verb: str = "rescue") -> None:
    """Add the attempt of a task that ended with its runner."""
    ended = {"error_type": RUNNER_LOST, "handler": "pdf.render", "ended_at": ahead(-30)}
    await add_attempt(database, task, runner, runner_id=runner, verb=verb, **ended)


async def test_the_facts_of_an_empty_database_cause_no_alert(database: Database) -> None:
    facts = await database.read(read_facts)
    assert list(alerts(facts)) == []
    assert facts.slow.health is not None


async def test_a_late_schedule_is_read_from_the_database(database: Database) -> None:
    await add_runner(database)
    await database.write(add_schedule, "nightly", ScheduleSpec("h", "every 1h"), BY)
    schedules = database.tables.schedule
    await change(database, schedules.update().values(next_at=ahead(-400)))
    assert (await one(database, AlertRule.SCHEDULE_LATE)).subject == "nightly"


async def test_a_breaker_whose_handler_or_queues_are_paused_has_no_probe_now(database: Database) -> None:
    await add_runner(database)
    opened = {"breaker_probes": 1, "breaker_wait": 60.0, "breaker_round": 2, "breaker_probe_at": ahead(-5)}
    await change(database, database.tables.handler.insert().values(name="h", breaker_opened_at=ahead(-200), **opened))
    for queue in ("payments", "refunds"):
        await add_live(database, queue=queue, run_at=ahead(-60))
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "payments"), BY)
    assert (await one(database, AlertRule.BREAKER_OPEN)).text.endswith("; probes now")
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "refunds"), BY)
    text = (await one(database, AlertRule.BREAKER_OPEN)).text
    assert text.endswith("; no probe while queues payments, refunds are paused")
    await database.write(pause, PauseTarget(PauseKind.HANDLER, "h"), BY)
    assert (await one(database, AlertRule.BREAKER_OPEN)).text.endswith("; no probe while the handler is paused")
