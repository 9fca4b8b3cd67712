"""An evaluation stores what fires, and of several evaluations one sends each notice."""

import asyncio
from datetime import timedelta

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import clock
from runner.db.types import db_later
from runner.model.alert import Alert, AlertRule, Severity
from runner.operations.results import Actor
from runner.operations.silence import silence, unsilence
from runner.operations.undo.undo import undo
from runner.queries.alerts.records import alert_records
from runner.queries.audit import audit
from runner.store.alerts import AlertChanges, claim_evaluation, record_alerts

BY = Actor("ana", "desk", "known")
EVERY = 60.0
LATE = Alert(AlertRule.QUEUE_LATE, "mail", Severity.WARNING, "queue mail is late", "7m", "runner why")
DEAD = Alert(AlertRule.TASKS_DEAD, "", Severity.CRITICAL, "3 tasks died", "", "runner failures")


async def evaluate(database: Database, *alerts: Alert, ago: float = 0.0) -> AlertChanges:
    at = await database.read(clock) - timedelta(seconds=ago)
    return await database.write(record_alerts, alerts, at, EVERY)


def names(changes: AlertChanges) -> tuple[list[str], list[str]]:
    return [each.name for each in changes.fired], [each.name for each in changes.resolved]


async def age(database: Database, *columns: str, seconds: float) -> None:
    """Let times of all rows lie further back."""
    alert = database.tables.alert
    async with database.writing() as tx:
        values = {name: db_later(alert.c[name], -seconds) for name in columns}
        await tx.execute(sa.update(alert).values(values))


async def test_an_alert_fires_once_and_is_resolved_once(database: Database) -> None:
    assert names(await evaluate(database, LATE, DEAD)) == ([LATE.name, DEAD.name], [])
    assert names(await evaluate(database, LATE, DEAD)) == ([], [])
    await age(database, "seen_at", seconds=4 * EVERY)
    fired, resolved = await evaluate(database, DEAD)
    assert (fired, [each.name for each in resolved]) == ([], [LATE.name])
    assert resolved[0].resolved_at is not None
    assert names(await evaluate(database, DEAD)) == ([], [])
    assert (await database.read(alert_records)).firing.keys() == {DEAD.name}


async def test_an_alert_that_is_absent_for_a_moment_sends_no_notice(database: Database) -> None:
    await evaluate(database, LATE)
    await age(database, "seen_at", seconds=2 * EVERY)
    assert names(await evaluate(database)) == ([], [])
    assert names(await evaluate(database, LATE)) == ([], [])


async def test_an_alert_that_begins_again_sends_its_notice_again(database: Database) -> None:
    first = await evaluate(database, LATE)
    await age(database, "seen_at", "since", seconds=4 * EVERY)
    await evaluate(database)
    again = await evaluate(database, LATE)
    assert names(again) == ([LATE.name], [])
    assert again.fired[0].since >= first.fired[0].since


@pytest.mark.parametrize("name", [LATE.name, "queue-late"])
async def test_a_silenced_alert_sends_its_notice_when_the_silence_ends(database: Database, name: str) -> None:
    await evaluate(database, DEAD)  # else its queue would be unknown
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.queue).values(name="mail"))
    await database.write(silence, name, await database.read(clock) + timedelta(hours=1), BY)
    assert names(await evaluate(database, LATE)) == ([], [])
    assert LATE.name in (await database.read(alert_records)).firing
    assert await database.write(unsilence, name, BY)
    assert names(await evaluate(database, LATE)) == ([LATE.name], [])


async def test_a_silence_can_be_undone_whatever_the_microseconds_of_its_end(database: Database) -> None:
    end = (await database.read(clock)).replace(microsecond=140_907) + timedelta(hours=1)
    await database.write(silence, "tasks-dead", end, BY)
    (entry,) = await database.read(audit)
    assert len((await database.write(undo, [entry.id], BY)).changed) == 1
    assert (await database.read(alert_records)).silences == {}


async def test_an_alert_that_was_silenced_from_its_beginning_is_resolved_without_a_notice(database: Database) -> None:
    await database.write(silence, "tasks-dead", await database.read(clock) + timedelta(hours=1), BY)
    await evaluate(database, DEAD)
    await age(database, "seen_at", seconds=4 * EVERY)
    assert names(await evaluate(database)) == ([], [])


async def test_older_figures_do_not_bring_a_resolved_alert_back(database: Database) -> None:
    await evaluate(database, LATE)
    await age(database, "seen_at", seconds=4 * EVERY)
    await evaluate(database)
    assert names(await evaluate(database, LATE, ago=30)) == ([], [])
    assert not (await database.read(alert_records)).firing


async def test_the_alerts_of_a_rule_that_fires_as_a_whole_are_not_over(database: Database) -> None:
    whole = LATE._replace(subject="", title="9 alerts queue-late")
    assert names(await evaluate(database, LATE)) == ([LATE.name], [])
    await age(database, "seen_at", seconds=4 * EVERY)
    assert names(await evaluate(database, whole)) == (["queue-late"], [])
    await age(database, "seen_at", seconds=4 * EVERY)
    assert names(await evaluate(database)) == ([], ["queue-late", LATE.name])


async def test_of_evaluations_at_once_one_sends_each_notice(database: Database) -> None:
    alerts = [LATE, DEAD]
    runs = await asyncio.gather(*(evaluate(database, *alerts) for _ in range(4)))
    assert sorted(name for run in runs for name in names(run)[0]) == sorted(alert.name for alert in alerts)
    await age(database, "seen_at", seconds=4 * EVERY)
    runs = await asyncio.gather(*(evaluate(database) for _ in range(4)))
    assert sorted(name for run in runs for name in names(run)[1]) == sorted(alert.name for alert in alerts)


async def test_of_several_runners_one_evaluates_in_each_period(database: Database) -> None:
    claims = await asyncio.gather(*(database.write(claim_evaluation, EVERY) for _ in range(4)))
    assert sorted(claims) == [False, False, False, True]
    await age(database, "seen_at", seconds=EVERY)
    assert await database.write(claim_evaluation, EVERY)
    assert (await database.read(alert_records)).evaluated_at is not None


async def test_a_resolved_alert_is_forgotten_after_a_month_unless_it_is_silenced(database: Database) -> None:
    await evaluate(database, LATE, DEAD)
    await age(database, "seen_at", seconds=4 * EVERY)
    await evaluate(database)
    await database.write(silence, "tasks-dead", await database.read(clock) + timedelta(hours=1), BY)
    await age(database, "resolved_at", seconds=31 * 86_400)
    await evaluate(database)
    async with database.reading() as tx:
        assert [row[0] for row in await tx.rows(sa.select(tx.tables.alert.c.name))] == [DEAD.name]
