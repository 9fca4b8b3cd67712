"""Records of alerts: those that fire by the last evaluation, the silences, and the last evaluation itself."""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import db_now
from runner.model.alert import AlertRecord, Silence
from runner.queries.rows import as_text, moment, readable, text
from runner.store.alerts import EVALUATION

MOST = 1_000
"""Maximum number of rows that are read."""


TEXTS = ("severity", "title", "text", "advice")


@dataclass(frozen=True, slots=True)
class AlertRecords:
    """The stored alerts.

    Args:
        firing: those that fire, by name.
        silences: the silences in force, by name.
        evaluated_at: the time of the last evaluation; None without one.
    """

    firing: dict[str, AlertRecord]
    silences: dict[str, Silence]
    evaluated_at: datetime | None

    def silence_of(self, alert: str) -> Silence | None:
        """The silence that covers an alert, by name; None without one."""
        return next((silence for silence in self.silences.values() if silence.covers(alert)), None)


async def read_silences(tx: Transaction) -> tuple[Silence, ...]:
    """Read the silences in force; see `alert_records`."""
    return tuple((await alert_records(tx)).silences.values())


async def alert_records(tx: Transaction) -> AlertRecords:
    """Read the stored alerts that fire or are silenced.

    Args:
        tx: an open transaction; one statement is executed.
    """
    alert = tx.tables.alert.c
    silenced = (alert.silenced_until > db_now()).label("silenced")
    fires = (alert.since.is_not(None) & alert.resolved_at.is_(None)).label("fires")
    statement = sa.select(*readable(tx, alert), silenced, fires).where(silenced | fires | (alert.name == EVALUATION))
    rows = (await tx.execute(statement.order_by(alert.name).limit(MOST))).mappings().all()
    firing, silences = {}, {}
    for row in rows:
        name, since, until = as_text(row["name"]), moment(row["since"]), moment(row["silenced_until"])
        if row["fires"] and since is not None:
            severity, title, sentence, advice = (as_text(row[column]) for column in TEXTS)
            noticed = row["notified_at"] is not None
            firing[name] = AlertRecord(name, severity, title, sentence, advice, since, None, noticed)
        if row["silenced"] and until is not None:
            silences[name] = Silence(name, until, text(row["silenced_by"]), text(row["silenced_why"]))
    evaluated = next((moment(row["seen_at"]) for row in rows if row["name"] == EVALUATION), None)
    return AlertRecords(firing, silences, evaluated)
