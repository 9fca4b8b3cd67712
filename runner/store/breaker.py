"""The opening and closing of a handler's breaker by the ends of its attempts."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now
from runner.model.text_limits import to_storable
from runner.policy.breaker import BreakerDefinition, Probe

WHY_LIMIT = 1_000
"""Maximum size of a stored reason in bytes."""

STATE = ("breaker_probes", "breaker_wait", "breaker_round", "breaker_probe_at")
"""The columns that are null while a breaker is closed."""


class Report(NamedTuple):
    """The ends of attempts of a handler that concern its breaker.

    Args:
        failed: reason of the last failure that counts; empty without one.
        opens: reason of a failure that opens it; empty without one.
        passed: the rounds of the probes that found the service well.
        missed: the rounds of the probes that failed.
    """

    handler: str
    failed: str = ""
    opens: str = ""
    passed: frozenset[Probe] = frozenset()
    missed: frozenset[Probe] = frozenset()


class Review(NamedTuple):
    """The state of a breaker after a report.

    Args:
        is_open: True if it is open.
        change: the effect of the report: opened, closed, or waits after a failed probe; empty for nothing.
        why: the reason of an opening, or the seconds until the next probe, for people.
    """

    is_open: bool
    change: str = ""
    why: str = ""


async def review(tx: Transaction, report: Report) -> Review:
    """Open or close a breaker after a report, if the report decides it.

    Args:
        report: from a runner that settled these attempts.
    """
    handler = tx.tables.handler
    columns = (handler.c.breaker, *(handler.c[name] for name in STATE))
    rows = await tx.rows(sa.select(*columns).where(handler.c.name == report.handler))
    definition = BreakerDefinition.of(rows[0].breaker) if rows else None
    if definition is None:
        return Review(False)
    if rows[0].breaker_probes is not None:
        return await _of_probes(tx, report, definition)
    why = report.opens or await _reason(tx, report, definition)
    if why and await open_breaker(tx, report.handler, definition, why):
        return Review(True, "opened", why)
    return Review(False)


async def _of_probes(tx: Transaction, report: Report, definition: BreakerDefinition) -> Review:
    handler = tx.tables.handler
    for probe in report.missed:
        wait = definition.wait(probe.round + 1, random.random())  # noqa: S311 - spreads probes, guards nothing
        values = {
            "breaker_probes": definition.probes,
            "breaker_wait": wait,
            "breaker_round": handler.c.breaker_round + 1,
            "breaker_probe_at": db_later(db_now(), wait),
        }
        if await _update(tx, report.handler, values, *_of_round(handler, probe)):
            return Review(True, "waits", f"{wait:.0f} s")
    for probe in report.passed:
        if await close_breaker(tx, report.handler, *_of_round(handler, probe)):
            return Review(False, "closed")
    return Review(True)


# Several runners probe in one round, and report in any order. The first report that matters ends the round; the round
# number in its condition makes all later ones find no row, so that one failed round waits once.
def _of_round(handler: sa.Table, probe: Probe) -> Sequence[sa.ColumnElement[bool]]:
    """The condition that no report has ended a round of probes, and no operator has closed the breaker since."""
    return handler.c.breaker_opened_at == probe.opened_at, handler.c.breaker_round == probe.round


async def _reason(tx: Transaction, report: Report, definition: BreakerDefinition) -> str:
    """The reason to open a closed breaker; empty if the failures in the window are too few."""
    if not report.failed or definition.failures is None:
        return ""
    handler, attempt = tx.tables.handler, tx.tables.attempt.c
    closed = sa.select(handler.c.breaker_closed_at).where(handler.c.name == report.handler).scalar_subquery()
    counted = (
        attempt.handler == report.handler,
        attempt.breaks.is_not(None),
        attempt.ended_at > db_later(db_now(), -(definition.window or 0.0)),
        closed.is_(None) | (attempt.ended_at > closed),
    )
    some = sa.select(attempt.task_id).where(*counted).limit(definition.failures).subquery()
    (row,) = await tx.rows(sa.select(sa.func.count()).select_from(some))
    if row[0] < definition.failures:
        return ""
    return f"{row[0]:,} failures in {definition.span}, the last one {report.failed}"


async def open_breaker(
    tx: Transaction,
    name: str,
    definition: BreakerDefinition,
    why: str | None,
    operator: str | None = None,
    wait: float | None = None,
) -> bool:
    """Open a closed breaker.

    Args:
        operator: the operator; None if it opens by itself.
        wait: seconds until the first probe; None for those of the definition.

    Returns:
        False if it was open.
    """
    first = definition.wait(1, random.random())  # noqa: S311 - spreads probes, guards nothing
    values = {
        "breaker_probes": definition.probes,
        "breaker_wait": first,
        "breaker_round": 1,
        "breaker_opened_at": db_now(),
        "breaker_probe_at": db_later(db_now(), first if wait is None else wait),
        "breaker_by": operator,
        "breaker_why": None if why is None else to_storable(why, WHY_LIMIT),
    }
    return await _update(tx, name, values, tx.tables.handler.c.breaker_probes.is_(None))


async def close_breaker(tx: Transaction, name: str, *conditions: sa.ColumnElement[bool]) -> bool:
    """Close an open breaker: its tasks start again, and earlier failures do not count.

    Args:
        conditions: further conditions about its registry row.

    Returns:
        False if it was closed, or a condition was not true.
    """
    values = dict.fromkeys(STATE) | {"breaker_closed_at": db_now()}
    return await _update(tx, name, values, tx.tables.handler.c.breaker_probes.is_not(None), *conditions)


async def _update(tx: Transaction, name: str, values: Mapping[str, Any], *conditions: sa.ColumnElement[bool]) -> bool:
    handler = tx.tables.handler
    update = sa.update(handler).where(handler.c.name == name, *conditions).values(dict(values))
    return bool((await tx.execute(update.returning(handler.c.name))).all())


async def declare_breakers(tx: Transaction, handlers: Sequence[str], breakers: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the breakers of the handlers' code that have changed. A handler without one starts its tasks again.

    Args:
        handlers: names of the handlers of a runner, which are in the registry.
    """
    handler = tx.tables.handler
    rows = await tx.rows(sa.select(handler.c.name, handler.c.breaker).where(handler.c.breaker.is_not(None)))
    former = {row.name: row.breaker for row in rows if row.name in handlers}
    for name in sorted(breakers.keys() | former.keys()):
        text = json.dumps(breakers[name], sort_keys=True) if name in breakers else None
        if text != json_text(former.get(name)):
            values = {"breaker": text} | ({} if text else dict.fromkeys(STATE))
            await tx.execute(sa.update(handler).where(handler.c.name == name).values(values))


def json_text(value: Any) -> str | None:
    """A JSON column as the text that was written; psycopg decodes it."""
    return value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True)
