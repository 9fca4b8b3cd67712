"""EventFacts: the rows behind the status and the events of tasks, many tasks per statement."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.needs import Needs, needs
from runner.db.schema import Tables
from runner.db.statement import Frame, Prepared, Step, Steps
from runner.db.transaction import Transaction
from runner.db.types import db_now
from runner.model.step import error_of
from runner.model.task import State
from runner.queries.rows import as_int, as_text, moment, number, readable, text
from runner.queries.task.steps import waits_for
from runner.text.progress import TaskProgress

MOST_ROWS = 2_000
"""Maximum number of attempts, and of log lines, that one statement reads."""


class EventRequest(NamedTuple):
    """The facts to read about a task.

    Args:
        attempt: the fence of the last known attempt; None to read no attempts.
        lines: the log lines to read, as ranges of fences with the number of the last known line in each.
    """

    id: int
    attempt: int | None
    lines: "tuple[LineRange, ...]"


class LineRange(NamedTuple):
    """Log lines of some attempts.

    Args:
        low, high: the first and the last fence.
        after: number of the last known line.
    """

    low: int
    high: int
    after: int


class AttemptFact(NamedTuple):
    """A failed attempt; its fields are those of its row."""

    fence: int
    attempt: int
    started_at: datetime | None
    ended_at: datetime | None
    error_type: str
    message: str
    delay: float | None


class LineFact(NamedTuple):
    """A log line; its fields are those of its row."""

    fence: int
    number: int
    attempt: int
    at: datetime | None
    level: str
    line: str


@dataclass(slots=True)
class EventFacts:
    """The facts about a task at one time.

    Args:
        error: the last error; None without one.
        now: the time, by the clock of the database.
        waits_for: the signal, the sleep or the call that it waits for; None without one.
        progress_fence: the fence of the attempt that reported the progress; 0 without one.
        complete_attempts: False if there are more failed attempts than were read.
        complete_lines: False if there are more log lines than were read.
    """

    handler: str
    state: State
    fence: int
    attempt: int
    error: str | None
    run_at: datetime | None
    submitted_at: datetime | None
    claimed_at: datetime | None
    finished_at: datetime | None
    cancel_requested: bool
    last_attempt: int
    waits_for: str | None
    progress: TaskProgress | None
    progress_fence: int
    now: datetime | None
    attempts: list[AttemptFact] = field(default_factory=list)
    lines: list[LineFact] = field(default_factory=list)
    complete_attempts: bool = True
    complete_lines: bool = True


STATUS = (
    *("handler", "state", "attempt", "error", "run_at", "submitted_at", "claimed_at", "finished_at"),
    *("cancel_requested", "waits_for", "progress"),
)
"""The facts that are fields of TaskStatus."""


@needs(Needs.PREPARED)
async def status_values(tx: Transaction, id: int) -> dict[str, Any] | None:
    """Read the status of a task.

    Returns:
        The values by field of TaskStatus; None if the task does not exist.
    """
    facts = (await read_event_facts(tx, [EventRequest(id, None, ())])).get(id)
    return None if facts is None else {"id": id} | {name: getattr(facts, name) for name in STATUS}


@needs(Needs.PREPARED)
async def read_event_facts(tx: Transaction, requests: Sequence[EventRequest]) -> dict[int, EventFacts]:
    """Read the facts about tasks; see `event_facts`."""
    return await tx.follow(event_facts(tx, requests))


@needs(Needs.PREPARED)
def event_facts(frame: Frame, requests: Sequence[EventRequest]) -> Steps[dict[int, EventFacts]]:
    """Read the facts about tasks: their rows with one statement, then new attempts and new log lines, if there are any.

    The lines are read last, so that those of an attempt that has ended are complete, except for those that its runner
    has not written yet.

    Returns:
        The facts by id; ids of unknown tasks are missing.
    """
    ids = [request.id for request in requests]
    rows = yield Step(_tasks(frame.tables, frame.driver), frame.dialect.parameters("request", {"id": ids}))
    facts = {row[0]: _facts(row[1:]) for row in rows}
    known = {request.id: request.attempt for request in requests if request.attempt is not None}
    failed = [(id, after) for id, after in known.items() if id in facts and facts[id].last_attempt > after]
    if failed:
        statement = _attempts(frame.tables, frame.driver)
        rows = yield Step(statement, frame.dialect.row_parameters("known", ATTEMPT_REQUEST, failed))
        _add(rows, facts, [id for id, _ in failed], "attempts", _attempt)
    ranges = [(request.id, *lines) for request in requests if _may_log(facts, request) for lines in request.lines]
    if ranges:
        statement = _lines(frame.tables, frame.driver)
        rows = yield Step(statement, frame.dialect.row_parameters("known", LINE_REQUEST, ranges))
        _add(rows, facts, [id for id, *_ in ranges], "lines", _line)
    return facts


def _may_log(facts: dict[int, EventFacts], request: EventRequest) -> bool:
    """True if a task may have more log lines: only an attempt has some."""
    return request.id in facts and facts[request.id].fence > 0


def _add(rows: Sequence[Any], facts: dict[int, EventFacts], ids: Sequence[int], name: str, read: Any) -> None:
    """Add rows to the facts. The rows are in the order of ids: if some are missing, it is those of the last ids."""
    of_tasks = defaultdict[int, list[Any]](list)
    for id, *row in rows:
        of_tasks[id].append(read(row))
    last = rows[-1][0] if len(rows) >= MOST_ROWS else None
    for id in dict.fromkeys(ids):
        setattr(facts[id], name, of_tasks[id])
        if last is not None and id >= last:
            setattr(facts[id], f"complete_{name}", False)


ATTEMPT_REQUEST: dict[str, Any] = {"id": sa.BigInteger, "after": sa.BigInteger}
LINE_REQUEST: dict[str, Any] = dict.fromkeys(("id", "low", "high", "after"), sa.BigInteger)


@lru_cache
def _tasks(tables: Tables, driver: sa.Dialect) -> Prepared:
    """One statement, so that a task that moves between the tables is seen in one of them."""
    dialect, progress, attempt = DIALECTS[driver.name], tables.progress, tables.attempt
    reported = readable(dialect, [progress.c[name] for name in ("fence", "done", "total", "unit", "rate", "at")])
    now = dialect.readable_time(db_now())
    parts = []
    for table in (tables.history, tables.task):
        live = table is tables.task
        names = ("id", "handler", "state", "fence", "attempt", "error", "run_at", "submitted_at", "claimed_at")
        finished_at = sa.null() if live else dialect.readable_time(table.c.finished_at)
        requested = table.c.cancel_requested if live else sa.false()
        last = sa.select(sa.func.max(attempt.c.fence)).where(attempt.c.task_id == table.c.id).scalar_subquery()
        columns = [*readable(dialect, [table.c[name] for name in names]), finished_at.label("finished_at")]
        waits = waits_for(table, tables) if live else sa.null()
        columns += [requested.label("cancel_requested"), last.label("last_attempt"), waits.label("waits_for")]
        columns.append(now.label("now"))
        columns += [column.label(f"progress_{column.name}") for column in reported]
        joined = table.outerjoin(progress, progress.c.task_id == table.c.id)
        parts.append(sa.select(*columns).select_from(joined).where(dialect.in_batch(table.c.id, "request")))
    return Prepared(sa.union_all(*parts), driver)


def _facts(row: Sequence[Any]) -> EventFacts:
    handler, state, fence, attempt, error, run_at, submitted_at, claimed_at, finished_at, *rest = row
    requested, last, waits, now, reporter, done, total, unit, rate, at = rest
    progress, error = None, error_of(text(error))
    if done is not None:
        progress = TaskProgress(number(done) or 0.0, number(total), text(unit), number(rate), moment(at))
    return EventFacts(
        handler=as_text(handler),
        state=State(as_text(state)),
        fence=as_int(fence),
        attempt=as_int(attempt),
        error=error,
        run_at=moment(run_at),
        submitted_at=moment(submitted_at),
        claimed_at=moment(claimed_at),
        finished_at=moment(finished_at),
        cancel_requested=bool(requested),
        last_attempt=as_int(last),
        waits_for=None if error else text(waits),
        progress=progress,
        progress_fence=as_int(reporter),
        now=moment(now),
    )


@lru_cache
def _attempts(tables: Tables, driver: sa.Dialect) -> Prepared:
    dialect, attempt = DIALECTS[driver.name], tables.attempt
    known = dialect.rows("known", ATTEMPT_REQUEST)
    columns = readable(dialect, [attempt.c[name] for name in ("task_id", *AttemptFact._fields)])
    joined = known.join(attempt, (attempt.c.task_id == known.c.id) & (attempt.c.fence > known.c.after))
    order = (attempt.c.task_id, attempt.c.fence)
    return Prepared(sa.select(*columns).select_from(joined).order_by(*order).limit(MOST_ROWS), driver)


def _attempt(row: Sequence[Any]) -> AttemptFact:
    fence, attempt, started_at, ended_at, error_type, message, delay = row
    times = moment(started_at), moment(ended_at)
    return AttemptFact(as_int(fence), as_int(attempt), *times, as_text(error_type), as_text(message), number(delay))


@lru_cache
def _lines(tables: Tables, driver: sa.Dialect) -> Prepared:
    dialect, log = DIALECTS[driver.name], tables.log
    known = dialect.rows("known", LINE_REQUEST)
    columns = readable(dialect, [log.c[name] for name in ("task_id", *LineFact._fields)])
    new = log.c.fence.between(known.c.low, known.c.high) & (log.c.number > known.c.after)
    joined = known.join(log, (log.c.task_id == known.c.id) & new)
    order = (log.c.task_id, log.c.fence, log.c.number)
    return Prepared(sa.select(*columns).select_from(joined).order_by(*order).limit(MOST_ROWS), driver)


def _line(row: Sequence[Any]) -> LineFact:
    fence, number_, attempt, at, level, line = row
    return LineFact(as_int(fence), as_int(number_), as_int(attempt), moment(at), as_text(level), as_text(line))
