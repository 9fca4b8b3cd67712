"""alerts: the evaluations of alerts, which store what fires, and decide once which notices are sent."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now
from runner.model.alert import Alert, AlertRecord

EVALUATION = "evaluation"
"""The row whose `seen_at` is the time of the last evaluation."""

MOST_ALERTS = 200
"""Alerts that one evaluation stores, the first ones: causes come before symptoms."""

SLACK = 0.25
"""Share of a period by which an evaluation may be early, because ticks are not exact."""

ABSENT = 3
"""Periods without an alert after which it is over, so that one that comes and goes sends one notice."""

KEPT = 30 * 86_400.0
"""Seconds for which a resolved alert keeps its row."""


class AlertChanges(NamedTuple):
    """The alerts whose notices this evaluation sends.

    Args:
        fired: began, or had a silence that has ended.
        resolved: are over, and sent a notice when they began.
    """

    fired: list[AlertRecord]
    resolved: list[AlertRecord]


async def claim_evaluation(tx: Transaction, every: float) -> bool:
    """Take the next evaluation, unless a runner has done one within the period.

    Args:
        tx: a writing transaction; one statement is executed.
        every: the period in seconds.
    """
    alert = tx.tables.alert
    insert = tx.dialect.insert(alert).values(name=EVALUATION, seen_at=db_now())
    due = alert.c.seen_at.is_(None) | (alert.c.seen_at <= db_later(db_now(), -(1 - SLACK) * every))
    claim = insert.on_conflict_do_update(index_elements=alert.primary_key, set_={"seen_at": db_now()}, where=due)
    return bool(await tx.rows(claim.returning(alert.c.name)))


async def record_alerts(tx: Transaction, alerts: Sequence[Alert], at: datetime, every: float) -> AlertChanges:
    """Store the current alerts, and decide which notices are sent.

    Each decision is one statement whose condition is the state before it: of two simultaneous evaluations, one sends.

    Args:
        tx: a writing transaction; two or three statements are executed while nothing fires.
        alerts: the alerts of an evaluation.
        at: when their figures were read, aware.
        every: the period of evaluations in seconds.
    """
    kept = alerts[:MOST_ALERTS]
    if kept:
        rows = {alert.name: _values(alert, at) for alert in kept}
        await tx.execute(_upsert(tx), [rows[name] for name in sorted(rows)])  # one order: no deadlock
    fired = await _fired(tx, [alert.name for alert in kept]) if kept else []
    resolved = await _resolved(tx, [alert.name for alert in kept], at, every)
    alert = tx.tables.alert.c
    silent = alert.silenced_until.is_(None) | (alert.silenced_until < db_now())
    old = silent & (alert.name != EVALUATION) & (alert.resolved_at < db_later(db_now(), -KEPT))
    await tx.execute(sa.delete(tx.tables.alert).where(old))
    return AlertChanges(fired, resolved)


def _values(alert: Alert, at: datetime) -> dict[str, Any]:
    texts = {"severity": alert.severity.value, "title": alert.title, "text": alert.text, "advice": alert.advice}
    return {"name": alert.name, **texts, "since": at, "seen_at": at}


def _upsert(tx: Transaction) -> Any:
    """Insert an alert, or renew its row: one that was over begins again, unless newer figures have resolved it."""
    alert = tx.tables.alert
    insert = tx.dialect.insert(alert)
    new, old = insert.excluded, alert.c
    begins = old.since.is_(None) | old.resolved_at.is_not(None)
    values: dict[str, Any] = {name: new[name] for name in ("severity", "title", "text", "advice", "seen_at")}
    values["since"] = sa.case((begins, new.since), else_=old.since)
    values["notified_at"] = sa.case((begins, sa.null()), else_=old.notified_at)
    values["resolved_at"] = sa.null()
    current = (old.seen_at.is_(None) | (old.seen_at <= new.seen_at)) & (
        old.resolved_at.is_(None) | (old.resolved_at <= new.seen_at)
    )
    return insert.on_conflict_do_update(index_elements=alert.primary_key, set_=values, where=current)


async def _fired(tx: Transaction, names: Sequence[str]) -> list[AlertRecord]:
    alert = tx.tables.alert
    in_force = alert.c.silenced_until > db_now()
    rules = sorted({name.partition(":")[0] for name in names})
    silenced = await tx.rows(sa.select(alert.c.name).where(tx.dialect.one_of(alert.c.name, rules), in_force))
    covered = {row[0] for row in silenced}
    audible = [name for name in names if name.partition(":")[0] not in covered]
    if not audible:
        return []
    is_new = alert.c.notified_at.is_(None)
    conditions = (tx.dialect.one_of(alert.c.name, audible), alert.c.since.is_not(None), alert.c.resolved_at.is_(None))
    silent = alert.c.silenced_until.is_not(None) & in_force
    change = sa.update(alert).where(*conditions, is_new, ~silent).values(notified_at=db_now())
    order = {name: index for index, name in enumerate(names)}
    return sorted(await _records(tx, change), key=lambda record: order[record.name])


async def _resolved(tx: Transaction, names: Sequence[str], at: datetime, every: float) -> list[AlertRecord]:
    """End the alerts that are absent; those of a rule that fires as a whole are part of that alert."""
    alert = tx.tables.alert
    absent = alert.c.seen_at < db_later(sa.literal(at, alert.c.seen_at.type), -ABSENT * every)
    fires = alert.c.since.is_not(None) & alert.c.resolved_at.is_(None)
    groups = [name for name in names if ":" not in name]
    single = [~alert.c.name.startswith(f"{rule}:", autoescape=True) for rule in groups]
    change = sa.update(alert).where(alert.c.name != EVALUATION, fires, absent, *single).values(resolved_at=db_now())
    return sorted((record for record in await _records(tx, change) if record.noticed), key=lambda each: each.name)


async def _records(tx: Transaction, change: Any) -> list[AlertRecord]:
    alert = tx.tables.alert.c
    texts = (alert.name, alert.severity, alert.title, alert.text, alert.advice)
    rows = await tx.rows(change.returning(*texts, alert.since, alert.resolved_at, alert.notified_at))
    return [
        AlertRecord(row.name, row.severity, row.title, row.text, row.advice, row.since, row.resolved_at, bool(row[7]))
        for row in rows
    ]
