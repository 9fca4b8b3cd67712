"""failures: failed attempts, grouped by cause."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.db.schema import Tables
from runner.db.schema.task import Condition
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now
from runner.filter.parse import Filter
from runner.model.task import MOVES, State
from runner.queries.counting import Count
from runner.queries.rows import as_text, moment, readable, text
from runner.queries.task_list.compile import conditions
from runner.queries.task_list.sources import attempts

WINDOW = 20_000
"""Maximum number of attempts that one list of failure groups reads, latest first."""

RECENT_SECONDS = 120.0
"""The period, in seconds, of the current rate; short, so that a burst that is over does not look like a failure now."""

INTERRUPTED_VERB = "interrupt"
"""The move of an attempt that its runner interrupted: not a failure."""

DEAD_VERBS = [verb for verb, move in MOVES.items() if move.target is State.DEAD]


@dataclass(frozen=True, slots=True)
class Failures:
    """A failure group: failed attempts with the same cause.

    Args:
        fingerprint: the id of the cause: handler, error type and message, with numbers and ids masked.
        count: the number of attempts.
        dead: the attempts after which the task was dead.
        tasks: the number of tasks.
        recent: the attempts that ended in the last RECENT_SECONDS seconds.
        first: when the first one ended.
        last: when the last one ended.
        handler: the handler of the tasks.
        error_type: the error type of the last one.
        message: the message of the last one.
        traceback: the traceback of the last one; None if there is none.
        task_id: the task of the last one.
    """

    fingerprint: str
    count: Count
    dead: int
    tasks: int
    recent: int
    first: datetime | None
    last: datetime | None
    handler: str
    error_type: str
    message: str
    traceback: str | None
    task_id: int

    @property
    def rate(self) -> float:
        """Attempts per minute in the last RECENT_SECONDS seconds."""
        return self.recent / (RECENT_SECONDS / 60)


async def failures(
    tx: Transaction,
    task_filter: Filter | None = None,
    since: datetime | None = None,
    limit: int = 50,
    window: int = WINDOW,
) -> list[Failures]:
    """Group failed attempts by fingerprint, largest group first.

    Args:
        tx: an open transaction; one statement is executed.
        task_filter: a filter on the fields of an attempt.
        since: include only attempts that ended at or after this time, aware.
        limit: maximum number of groups.
        window: maximum number of attempts to read; beyond it, the counts cover the latest ones.

    Returns:
        The groups, each with its last attempt as the example.

    Raises:
        InvalidFilter: attempts do not have one of the fields.
    """
    recent, oldest = _recent(tx, task_filter or Filter(), since, window)
    statement = _with_examples(tx, _grouped(tx.tables, recent, limit), recent, oldest)
    return [_failures(row) for row in (await tx.execute(statement)).mappings().all()]


def _recent(tx: Transaction, task_filter: Filter, since: datetime | None, window: int) -> tuple[sa.CTE, Any]:
    """The latest attempts that match the filter, numbered from the last, and the end of the window, if reached.

    The window counts all attempts of the period, so that a filter with few matches does not read all attempts.
    """
    attempt, ended_at = tx.tables.attempt.c, tx.tables.attempt.c.ended_at
    within = _bounds(tx, task_filter) + ([ended_at >= since] if since else [])
    last = sa.select(ended_at).where(*within).order_by(ended_at.desc()).offset(window - 1).limit(1)
    oldest = last.scalar_subquery()
    rank = sa.func.row_number().over(order_by=(ended_at.desc(), attempt.task_id.desc(), attempt.fence.desc()))
    columns = (attempt.task_id, attempt.fence, attempt.fingerprint, attempt.verb, ended_at, rank.label("place"))
    matches = conditions(task_filter, attempts(tx.tables), tx.dialect) or []
    inside = sa.or_(oldest.is_(None), ended_at >= oldest)
    failed = attempt.verb != INTERRUPTED_VERB
    return sa.select(*columns).where(*within, *matches, inside, failed).cte("recent"), oldest


def _bounds(tx: Transaction, task_filter: Filter) -> list[Condition]:
    times = Filter(tuple(term for term in task_filter.terms if term.field in ("since", "until")))
    return conditions(times, attempts(tx.tables), tx.dialect) or []


def _grouped(tables: Tables, recent: sa.CTE, limit: int) -> sa.Subquery:
    count, rank = sa.func.count(), sa.func.min(recent.c.place)
    columns = (
        recent.c.fingerprint,
        count.label("count"),
        sa.func.sum(sa.case((recent.c.verb.in_(DEAD_VERBS), 1), else_=0)).label("deaths"),
        sa.func.count(recent.c.task_id.distinct()).label("tasks"),
        sa.func.sum(sa.case((recent.c.ended_at >= db_later(db_now(), -RECENT_SECONDS), 1), else_=0)).label("recent"),
        sa.func.min(recent.c.ended_at, type_=tables.attempt.c.ended_at.type).label("first"),
        rank.label("place"),
    )
    grouped = sa.select(*columns).group_by(recent.c.fingerprint)
    return grouped.order_by(count.desc(), rank).limit(limit).subquery("grouped")


def _with_examples(tx: Transaction, grouped: sa.Subquery, recent: sa.CTE, oldest: Any) -> sa.Select[Any]:
    attempt = tx.tables.attempt
    last = grouped.join(recent, recent.c.place == grouped.c.place)
    example = last.join(attempt, (attempt.c.task_id == recent.c.task_id) & (attempt.c.fence == recent.c.fence))
    names = ("fingerprint", "ended_at", "handler", "error_type", "message", "traceback", "task_id")
    numbers = [grouped.c[name] for name in ("count", "deaths", "tasks", "recent")]
    first = tx.dialect.readable_time(grouped.c.first).label("first")
    columns = [*readable(tx, [attempt.c[name] for name in names]), *numbers, first, oldest.is_not(None).label("more")]
    return sa.select(*columns).select_from(example).order_by(grouped.c["count"].desc(), grouped.c.place)


def _failures(row: Any) -> Failures:
    return Failures(
        fingerprint=as_text(row["fingerprint"]),
        count=Count(row["count"], bool(row["more"])),
        dead=int(row["deaths"]),
        tasks=row["tasks"],
        recent=int(row["recent"]),
        first=moment(row["first"]),
        last=moment(row["ended_at"]),
        handler=as_text(row["handler"]),
        error_type=as_text(row["error_type"]),
        message=as_text(row["message"]),
        traceback=text(row["traceback"]),
        task_id=row["task_id"],
    )


BUCKETS = 20
"""Parts of a period in a trend."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The attempts of one failure group by place.

    Args:
        versions: attempts by version of the runner; an unregistered runner has no version.
        hosts: attempts by host.
        numbers: attempts that were the first, the second, or later ones.
    """

    versions: dict[str, int]
    hosts: dict[str, int]
    numbers: dict[str, int]


async def trends(tx: Transaction, since: datetime, until: datetime, window: int = WINDOW) -> dict[str, list[int]]:
    """Count the failed attempts of each failure group over time.

    Args:
        tx: an open transaction; one statement is executed.
        since: the start of the period, aware.
        until: its end, aware.
        window: maximum number of attempts to read, latest first.

    Returns:
        For each fingerprint the attempts in BUCKETS equal parts of the period, the first part first.
    """
    attempt = tx.tables.attempt.c
    latest = sa.select(attempt.fingerprint, attempt.ended_at).where(attempt.ended_at >= since)
    rows = await tx.rows(latest.order_by(attempt.ended_at.desc()).limit(window))
    length, counts = until - since, dict[str, list[int]]()
    for fingerprint, ended_at in rows:
        if (at := moment(ended_at)) is not None:
            place = min(max(int((at - since) / length * BUCKETS), 0), BUCKETS - 1)
            counts.setdefault(as_text(fingerprint), [0] * BUCKETS)[place] += 1
    return counts


async def shares(tx: Transaction, fingerprint: str, since: datetime, window: int = WINDOW) -> Shares:
    """Count the attempts of one failure group by version, host and number.

    Args:
        tx: an open transaction; one statement is executed.
        fingerprint: the failure group.
        since: include only attempts that ended at or after this time, aware.
        window: maximum number of attempts to read, latest first.
    """
    attempt, runner = tx.tables.attempt, tx.tables.runner
    columns = (attempt.c.host, attempt.c.attempt, attempt.c.runner_id)
    latest = sa.select(*columns, attempt.c.fingerprint).where(attempt.c.ended_at >= since)
    recent = latest.order_by(attempt.c.ended_at.desc()).limit(window).subquery()
    joined = recent.outerjoin(runner, recent.c.runner_id == runner.c.id)
    groups = (recent.c.host, recent.c.attempt, runner.c.version)
    statement = sa.select(*groups, sa.func.count()).select_from(joined).where(recent.c.fingerprint == fingerprint)
    result = Shares({}, {}, {})
    for host, number, version, count in await tx.rows(statement.group_by(*groups)):
        place = {1: "first", 2: "second"}.get(number, "later")
        for counts, name in ((result.versions, version), (result.hosts, host), (result.numbers, place)):
            if name is not None:
                counts[as_text(name)] = counts.get(as_text(name), 0) + count
    return result
