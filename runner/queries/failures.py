"""failures: failed attempts, grouped by cause."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any

import sqlalchemy as sa

from runner.db.schema import Tables, is_state
from runner.db.schema.task import Condition
from runner.db.transaction import Transaction, clock
from runner.db.types import db_later, db_now, minute_number
from runner.filter.parse import Filter
from runner.model.task import MOVES, State
from runner.queries.counting import Count
from runner.queries.rows import as_text, from_row, moment, readable
from runner.queries.runners import runner_value
from runner.queries.task_list.compile import conditions
from runner.queries.task_list.row import TaskRow, displayed_state, task_rows
from runner.queries.task_list.sources import attempts
from runner.text.runner_name import process_name

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
        recent: the attempts that ended in the last RECENT_SECONDS seconds.
        first: when the first one ended.
        last: when the last one ended.
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

    @property
    def has_rate_bound(self) -> bool:
        """True if `rate` is a lower bound: all attempts that were read are recent, and there are more."""
        return self.count.more and self.recent == self.count.number

    def counted(self, number: int) -> Count:
        """Return a number of this group as a count; like `count`, it may cover only the latest attempts."""
        return Count(number, self.count.more)


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
    columns = (attempt.task_id, attempt.fence, attempt.fingerprint, attempt.verb, ended_at, rank.label("rank"))
    matches = conditions(task_filter, attempts(tx.tables), tx.dialect) or []
    inside = sa.or_(oldest.is_(None), ended_at >= oldest)
    failed = attempt.verb != INTERRUPTED_VERB
    return sa.select(*columns).where(*within, *matches, inside, failed).cte("recent"), oldest


def _bounds(tx: Transaction, task_filter: Filter) -> list[Condition]:
    times = Filter(tuple(term for term in task_filter.terms if term.field in ("since", "until")))
    return conditions(times, attempts(tx.tables), tx.dialect) or []


def _grouped(tables: Tables, recent: sa.CTE, limit: int) -> sa.Subquery:
    count, rank = sa.func.count(), sa.func.min(recent.c.rank)
    columns = (
        recent.c.fingerprint,
        count.label("count"),
        sa.func.sum(sa.case((recent.c.verb.in_(DEAD_VERBS), 1), else_=0)).label("deaths"),
        sa.func.count(recent.c.task_id.distinct()).label("tasks"),
        sa.func.sum(sa.case((recent.c.ended_at >= db_later(db_now(), -RECENT_SECONDS), 1), else_=0)).label("recent"),
        sa.func.min(recent.c.ended_at, type_=tables.attempt.c.ended_at.type).label("first"),
        rank.label("rank"),
    )
    grouped = sa.select(*columns).group_by(recent.c.fingerprint)
    return grouped.order_by(count.desc(), rank).limit(limit).subquery("grouped")


def _with_examples(tx: Transaction, grouped: sa.Subquery, recent: sa.CTE, oldest: Any) -> sa.Select[Any]:
    attempt = tx.tables.attempt
    last = grouped.join(recent, recent.c.rank == grouped.c.rank)
    example = last.join(attempt, (attempt.c.task_id == recent.c.task_id) & (attempt.c.fence == recent.c.fence))
    names = ("fingerprint", "ended_at", "handler", "error_type", "message", "traceback", "task_id")
    numbers = [grouped.c[name] for name in ("count", "deaths", "tasks", "recent")]
    first = tx.dialect.readable_time(grouped.c.first).label("first")
    columns = [*readable(tx, [attempt.c[name] for name in names]), *numbers, first, oldest.is_not(None).label("more")]
    return sa.select(*columns).select_from(example).order_by(grouped.c["count"].desc(), grouped.c.rank)


def _failures(row: Any) -> Failures:
    return from_row(
        Failures,
        row,
        count=Count(row["count"], bool(row["more"])),
        dead=int(row["deaths"]),
        recent=int(row["recent"]),
        last=moment(row["ended_at"]),
    )


FAILS_NOW = 600.0
"""Seconds after the last failure of a cause in which a retry of its tasks probably fails again."""


async def fails_now(tx: Transaction, task_filter: Filter) -> float | None:
    """Read the seconds since the causes of a filter failed last; None if it names none, or all are calm."""
    values = [term.value for term in task_filter.terms if term.field == "failure" and not term.negated]
    causes = [str(one) for value in values for one in (value if isinstance(value, tuple) else (value,))]
    seconds = await last_failed(tx, causes) if causes else None
    return seconds if seconds is not None and seconds <= FAILS_NOW else None


async def last_failed(tx: Transaction, fingerprints: Sequence[str]) -> float | None:
    """Read the seconds since the last failed attempt of some failure groups; None if they have none.

    Args:
        tx: an open transaction; one statement per group walks along the index of fingerprints, and one reads the clock.
    """
    attempt = tx.tables.attempt.c
    (ended_at,) = readable(tx, [attempt.ended_at])
    counted = sa.select(ended_at).where(attempt.verb != INTERRUPTED_VERB).order_by(attempt.ended_at.desc()).limit(1)
    steps = (tx.rows(counted.where(attempt.fingerprint == fingerprint)) for fingerprint in fingerprints)
    now, found = await tx.gather(clock(tx), tx.gather(*steps))
    times = [at for rows in found for (value,) in rows if (at := moment(value)) is not None]
    return max(0.0, (now - max(times)).total_seconds()) if times else None


async def number_of_groups(tx: Transaction, since: datetime) -> Count:
    """Count the failure groups.

    Args:
        tx: an open transaction; one statement is executed.
        since: include only attempts that ended at or after this time, aware.
    """
    attempt = tx.tables.attempt.c
    ended = (attempt.ended_at >= since) & (attempt.verb != INTERRUPTED_VERB)
    latest = sa.select(attempt.fingerprint).where(ended).order_by(attempt.ended_at.desc()).limit(WINDOW).subquery()
    statement = sa.select(sa.func.count(latest.c.fingerprint.distinct()), sa.func.count()).select_from(latest)
    ((groups, attempts),) = await tx.rows(statement)
    return Count(groups, attempts >= WINDOW)


BUCKETS = 20
"""Parts of a period in a trend."""

NEW_SECONDS, RISE = 3600.0, 3.0
"""The seconds for which a failure group is new, and the multiple of the usual number in a part that is a rise."""

MOST_BEGINNINGS = 400
"""Failure groups whose beginnings are read; SQLite joins no more than 500 selects."""

MOST_VERSIONS = 100
"""Maximum number of versions to read."""

GROUP_WINDOW, SOON_SECONDS = 5_000, 600.0
"""The latest attempts of a group whose tasks are looked up, and the seconds within which a retry is soon."""


@dataclass(frozen=True, slots=True)
class FailureChange:
    """The rate of a failure group against its usual one.

    Args:
        usual: attempts per minute in the median part of the period; None if no part was read completely.
        began: when its first stored attempt ended; None if unknown.
        rose_at: the start of the part from which on it fails more often than usual, or when it began if it is new;
            None if it does not.
        new: True if it began in the last NEW_SECONDS seconds.
    """

    usual: float | None
    began: datetime | None = None
    rose_at: datetime | None = None
    new: bool = False


def changes_of(
    groups: Sequence[Failures],
    trends: Mapping[str, Sequence[int]],
    began: Mapping[str, datetime],
    since: datetime,
    until: datetime,
) -> dict[str, FailureChange]:
    """Compare the present rate of each failure group with its usual one, by fingerprint.

    Args:
        trends: attempts in equal parts of the period.
        began: when the first stored attempt of each group ended.
        since: the start of the period, aware.
    """
    first, is_cut = round(unread_share(trends) * BUCKETS), _is_cut(trends)
    part = (until - since) / BUCKETS
    changes = {}
    for group in groups:
        trend, start = list(trends.get(group.fingerprint, ())), began.get(group.fingerprint)
        # The window ended within the first part that was read. A present part alone has no usual rate to compare.
        read = trend[first + is_cut : -1]
        usual = median(read) if read else None if is_cut else 0.0
        is_new = start is not None and until - start <= timedelta(seconds=NEW_SECONDS)
        place = len(trend) - 1  # The last part is short of attempts that fail in a moment.
        while usual is not None and place > first and trend[place - 1] > RISE * usual:
            place -= 1
        rose = since + place * part if first < place < len(trend) - 1 else None
        changes[group.fingerprint] = FailureChange(
            usual and usual / (part / timedelta(minutes=1)), start, start if is_new else rose, is_new
        )
    return changes


def by_rise(group: Failures, change: FailureChange | None) -> tuple[float, int]:
    """The sort key that puts the largest rise above the usual rate first, and then the largest group."""
    return min(0.0, ((change.usual if change else 0.0) or 0.0) - group.rate), -group.count.number


def unread_share(trends: Mapping[str, Sequence[int]]) -> float:
    """The share of a period, at its beginning, whose attempts were not read because the window ended."""
    if not _is_cut(trends):
        return 0.0
    return min(next(place for place, number in enumerate(trend) if number) for trend in trends.values()) / BUCKETS


def _is_cut(trends: Mapping[str, Sequence[int]]) -> bool:
    """True if the period has attempts that were not read."""
    return sum(map(sum, trends.values())) >= WINDOW


async def beginnings(tx: Transaction, fingerprints: Sequence[str]) -> dict[str, datetime]:
    """Read when the first stored attempt of each failure group ended.

    Args:
        tx: an open transaction; one statement looks up the index of fingerprints once per group.
        fingerprints: at most a few hundred.
    """
    attempt = tx.tables.attempt.c
    first = sa.func.min(attempt.ended_at, type_=attempt.ended_at.type)
    parts = [
        sa.select(sa.literal(fingerprint, sa.Text), tx.dialect.readable_time(first)).where(
            attempt.fingerprint == fingerprint
        )
        for fingerprint in fingerprints[:MOST_BEGINNINGS]
    ]
    rows = await tx.rows(sa.union_all(*parts)) if parts else []
    return {as_text(fingerprint): at for fingerprint, value in rows if (at := moment(value)) is not None}


@dataclass(frozen=True, slots=True)
class Shares:
    """The attempts of one failure group by place.

    Args:
        versions: attempts by version of the runner; an unregistered runner has no version.
        numbers: attempts that were the first, the second, or later ones.
    """

    versions: dict[str, int]
    hosts: dict[str, int]
    numbers: dict[str, int]


@dataclass(frozen=True, slots=True)
class LatestTask:
    """A task of a failure group.

    Args:
        task: the task as it is now.
        failed_at: when its attempt of this group ended.
        runner: the name of the runner of that attempt; empty without one.
    """

    task: TaskRow
    failed_at: datetime | None
    runner: str


@dataclass(frozen=True, slots=True)
class GroupTasks:
    """The tasks of a failure group as they are now.

    Args:
        states: the tasks by displayed state.
        soon: the waiting ones that run within SOON_SECONDS seconds.
        more: True if the group has more attempts than were looked up.
        latest: the tasks that failed last.
    """

    states: dict[str, int]
    soon: int
    more: bool
    latest: tuple[LatestTask, ...]


async def trends(tx: Transaction, since: datetime, until: datetime, window: int = WINDOW) -> dict[str, list[int]]:
    """Count the failed attempts of each failure group over time.

    The times are exact to a minute, or to a fifth of a part of a long period: the database adds up what falls together.

    Args:
        tx: an open transaction; one statement is executed.
        since: the start of the period, aware.
        until: its end, aware.
        window: maximum number of attempts to read, latest first.

    Returns:
        For each fingerprint the attempts in BUCKETS equal parts of the period, the first part first.
    """
    attempt, length = tx.tables.attempt.c, until - since
    step = max(1, length // timedelta(minutes=1) // (5 * BUCKETS))
    latest = sa.select(attempt.fingerprint, attempt.ended_at).where(attempt.ended_at >= since)
    recent = latest.order_by(attempt.ended_at.desc()).limit(window).subquery()
    minute = sa.cast(minute_number(recent.c.ended_at), sa.BigInteger)
    step_index = (minute // sa.literal_column(str(step))).label("step_index")
    groups = (recent.c.fingerprint, step_index)
    counts = dict[str, list[int]]()
    for fingerprint, number, count in await tx.rows(sa.select(*groups, sa.func.count()).group_by(*groups)):
        middle = ((number or 0) + 0.5) * step * 60
        part = min(max(int((middle - since.timestamp()) / length.total_seconds() * BUCKETS), 0), BUCKETS - 1)
        counts.setdefault(as_text(fingerprint), [0] * BUCKETS)[part] += count
    return counts


async def deploys(tx: Transaction, since: datetime) -> dict[str, datetime]:
    """Read when the first runner of each version started, among those that live or ended since a time, oldest first.

    Args:
        tx: an open transaction; one statement is executed.
        since: the time, aware.
    """
    live, ended = tx.tables.runner.c, tx.tables.ended_runner.c
    stopped = sa.select(ended.version, ended.started_at).where(ended.ended_at >= since)
    runner = sa.union_all(sa.select(live.version, live.started_at), stopped).subquery("runners").c
    first = tx.dialect.readable_time(sa.func.min(runner.started_at, type_=runner.started_at.type))
    rows = await tx.rows(sa.select(runner.version, first).group_by(runner.version).limit(MOST_VERSIONS))
    starts = {as_text(version): at for version, value in rows if (at := moment(value)) is not None}
    return dict(sorted(starts.items(), key=lambda item: item[1]))


async def shares(tx: Transaction, fingerprint: str, since: datetime, window: int = WINDOW) -> Shares:
    """Count the attempts of one failure group by version, host and number.

    Args:
        tx: an open transaction; one statement is executed.
        since: include only attempts that ended at or after this time, aware.
        window: maximum number of attempts to read, latest first.
    """
    attempt = tx.tables.attempt
    columns = (attempt.c.host, attempt.c.attempt, attempt.c.runner_id)
    latest = sa.select(*columns, attempt.c.fingerprint).where(attempt.c.ended_at >= since)
    recent = latest.order_by(attempt.c.ended_at.desc()).limit(window).subquery()
    keys = (recent.c.host, recent.c.attempt, recent.c.runner_id)
    counted = sa.select(*keys, sa.func.count().label("number")).where(recent.c.fingerprint == fingerprint)
    groups = counted.group_by(*keys).subquery("groups").c
    version = runner_value(tx.tables, groups.runner_id, "version")
    result = Shares({}, {}, {})
    for host, number, of_version, count in await tx.rows(
        sa.select(groups.host, groups.attempt, version, groups.number)
    ):
        ordinal = {1: "first", 2: "second"}.get(number, "later")
        for counts, name in ((result.versions, of_version), (result.hosts, host), (result.numbers, ordinal)):
            if name is not None:
                counts[as_text(name)] = counts.get(as_text(name), 0) + count
    return result


async def group_tasks(
    tx: Transaction, fingerprint: str, since: datetime, limit: int, window: int = GROUP_WINDOW
) -> GroupTasks:
    """Look up the tasks of one failure group.

    Args:
        tx: an open transaction; five statements are executed.
        since: include only attempts that ended at or after this time, aware.
        limit: maximum number of latest tasks.
        window: maximum number of attempts to read, latest first.
    """
    attempt, task = tx.tables.attempt.c, tx.tables.task
    columns = (attempt.task_id, attempt.ended_at, attempt.host)
    latest = sa.select(*columns).where(attempt.fingerprint == fingerprint, attempt.ended_at >= since)
    latest = latest.order_by(attempt.ended_at.desc())
    recent = latest.limit(window).subquery()
    ids = sa.select(recent.c.task_id).distinct().subquery()
    state = displayed_state(tx.tables, task).label("shown")
    waits = is_state(task.c.state, State.WAITING) & (task.c.run_at <= db_later(db_now(), SOON_SECONDS))
    numbers = (sa.func.count(), sa.func.sum(sa.case((waits, 1), else_=0)))
    live = ids.join(task, task.c.id == ids.c.task_id)
    history = tx.tables.history
    past = ids.join(history, history.c.id == ids.c.task_id)
    ended = sa.select(history.c.state, sa.func.count()).select_from(past).group_by(history.c.state)
    attempts_by_task: dict[int, tuple[datetime | None, str]] = {}
    times = readable(tx, columns)
    rows, finished, read, last = await tx.gather(
        tx.rows(sa.select(state, *numbers).select_from(live).group_by(state)),
        tx.rows(ended),
        tx.rows(sa.select(sa.func.count()).select_from(recent)),
        tx.rows(latest.with_only_columns(*times, runner_value(tx.tables, attempt.runner_id, "pid")).limit(4 * limit)),
    )
    for id, ended_at, host, pid in last:
        attempts_by_task.setdefault(id, (moment(ended_at), process_name(host, pid) if host else ""))
    samples = await task_rows(tx, list(attempts_by_task)[:limit])
    return GroupTasks(
        states={as_text(name): number for name, number, *_ in (*rows, *finished)},
        soon=sum(int(soon or 0) for _, _, soon in rows),
        more=read[0][0] == window,
        latest=tuple(LatestTask(row, *attempts_by_task[row.id]) for row in samples),
    )
