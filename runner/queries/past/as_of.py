"""as of: tasks, queues and causes as they were at a past moment.

No query reads a whole table. The ids follow the order of submission, so a binary search finds the last id of a moment.
A page walks down from it; the tasks that were unfinished then still are, or finished later. Both stop at
CANDIDATES. Tasks that retention has deleted since are missing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import chain
from typing import Any

import sqlalchemy as sa

from runner.db.schema.task import is_final_state
from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput, InvalidMoment, TaskNotFound
from runner.filter.parse import Filter
from runner.model.task import FINAL, Shown, State
from runner.policy.limits import UNLIMITED, SharedLimits
from runner.queries.audit import AuditRecord, entries
from runner.queries.counting import Count, total_of
from runner.queries.counts import counts
from runner.queries.health import reads_audit
from runner.queries.past.reconstruction import Evidence, PastTask, past_task
from runner.queries.registries import Pause, registries_as_of
from runner.queries.reports import Flow, flows_between
from runner.queries.rows import as_text, from_row, moment, readable
from runner.queries.task_list.compile import matcher
from runner.queries.task_list.row import SHORT, TaskRow
from runner.queries.task_list.search import last_id
from runner.text.times import format_moment, parse_moment

CANDIDATES = 10_000
"""Maximum number of tasks that one query reconstructs."""

CHUNK, MAX_CHUNK = 500, 4_000
"""Tasks to reconstruct until the first check whether a page is full, and at most between two checks."""

LEEWAY = timedelta(minutes=1)
"""The time by which the submit of a lower id may be later: transactions overlap."""

MISSING = "Tasks that retention has deleted since are missing."
UNAUDITED = "This login may not read the audit: later edits and retries are not undone."
FORMS = "Write a time such as 03:12, yesterday 03:12, 2026-11-22T03:12+01:00 or 20m"
MINUTE = timedelta(minutes=1)
EVERY_TASK = Filter()
ALIVE = {*Shown} - {Shown(state.value) for state in FINAL} | {State.WAITING.value}
CLAIMED = {Shown.RUNNING, Shown.LOST}
"""The unfinished states that only a claimed task has."""


@dataclass(frozen=True, slots=True)
class PastPage:
    """A page of a task list as of a moment.

    Args:
        tasks: the tasks, newest first.
        next: the id to continue after; None on the last page.
        capped: True if the search stopped after CANDIDATES tasks.
        audited: False if the login may not read the audit: later edits are then not undone.
    """

    at: datetime
    tasks: list[PastTask]
    next: int | None
    capped: bool
    audited: bool


@dataclass(frozen=True, slots=True)
class PastQueue:
    """A queue as of a moment.

    Args:
        states: the number of its tasks by word of their state; finished ones only as dead.
        oldest: seconds since its first ready task became due; None without one.
        minute: its flow in the last full minute.
        hour: its flow in the 60 full minutes before.
        limits: its limits over all runners.
    """

    queue: str
    states: Mapping[str, int]
    dead: Count
    oldest: float | None
    minute: Flow
    hour: Flow
    pause: Pause | None
    limits: SharedLimits


@dataclass(frozen=True, slots=True)
class PastQueues:
    """The queues as of a moment.

    Args:
        busy: the number of running tasks by id and host of their runner.
        capped: True if only the first CANDIDATES unfinished tasks were counted.
        audited: as for PastPage.
    """

    at: datetime
    queues: list[PastQueue]
    handlers: Mapping[str, Pause]
    busy: Mapping[tuple[int | None, str], int]
    capped: bool
    audited: bool


async def read_moment(tx: Transaction, written: str, zone: tzinfo) -> datetime:
    """Parse a past moment, by the database's clock.

    Args:
        written: the moment as typed: `03:12`, `20m ago`, `2026-11-22T03:12+01:00`.
        zone: the time zone of times without an offset.

    Raises:
        InvalidInput: the text is not a moment, or the moment is in the future or before the first task.
    """
    now, *first_submits = await tx.gather(
        clock(tx), *(_first_submit(tx, table) for table in (tx.tables.task, tx.tables.history))
    )
    try:
        at = parse_moment(written.strip().removesuffix(" ago"), now, zone, past=True)
    except InvalidMoment as error:
        raise InvalidInput(why=f"{error.fields['text']} is not a past time: {error.fields['why']}. {FORMS}") from error
    if at > now:
        raise InvalidInput(why=f"{format_moment(at, zone)} is in the future. {FORMS}")
    first = min((time for time in map(moment, first_submits) if time is not None), default=None)
    if first is None or at < first:
        beginning = (
            f"the first known task was submitted at {format_moment(first, zone)}" if first else "there are no tasks"
        )
        raise InvalidInput(why=f"{format_moment(at, zone)} is before the first task: {beginning}. {FORMS}")
    return at


async def _first_submit(tx: Transaction, table: sa.Table) -> Any:
    column = tx.dialect.readable_time(table.c.submitted_at)
    return await tx.scalar(sa.select(column).order_by(table.c.id).limit(1))


async def tasks_as_of(
    tx: Transaction, at: datetime, task_filter: Filter = EVERY_TASK, after: int | None = None, limit: int = 50
) -> PastPage:
    """List the tasks that existed at a moment, newest first, in their states of then.

    Args:
        at: the moment, aware; see `read_moment`.
        task_filter: the filter, which applies to the values of then.
        after: the id to continue after; None to begin.
        limit: maximum number of tasks.

    Raises:
        InvalidFilter: a field of the filter cannot be reconstructed.
    """
    matches = matcher(task_filter, at)
    states = _states(task_filter)
    only_alive = ALIVE.issuperset(states) if states else False
    (audited, undone), last = await tx.gather(_undone(tx, at), last_id(tx, at + LEEWAY))
    if only_alive:
        candidates, more = await _unfinished(tx, at, last, undone, claimed=CLAIMED.issuperset(states))
        ids = [id for id in candidates if after is None or id < after]
    else:
        ids = await _walk(tx, last if after is None else min(last, after - 1))
        more = len(ids) == CANDIDATES
    tasks: list[PastTask] = []
    for chunk in _chunks(ids):
        for task in await reconstructed(tx, chunk, at, audited=audited, states=states):
            if matches(task.task, task.word):
                tasks.append(task)
        if len(tasks) > limit:
            return PastPage(at, tasks[:limit], tasks[limit - 1].task.id, False, audited)
    return PastPage(at, tasks, ids[-1] if more and not only_alive else None, more, audited)


def _states(task_filter: Filter) -> tuple[str, ...]:
    """The words of states, one of which a task must have; empty if the filter does not restrict them."""
    values = [term.value for term in task_filter.terms if term.field == "state" and not term.negated]
    return next((tuple(map(str, value if isinstance(value, tuple) else (value,))) for value in values), ())


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Divide ids into chunks. Each is larger than the one before: if few tasks match, fewer statements are needed."""
    start, size = 0, CHUNK
    while start < len(ids):
        yield ids[start : start + size]
        start, size = start + size, min(2 * size, MAX_CHUNK)


async def task_as_of(tx: Transaction, id: int, at: datetime) -> PastTask:
    """Return one task as it was at a moment; raise TaskNotFound, or InvalidInput if it was submitted later."""
    evidence = await _read_evidence(tx, [id], audited=await reads_audit(tx))
    if id not in evidence:
        raise TaskNotFound(id=id)
    task = past_task(evidence[id], at)
    if task is None:
        raise InvalidInput(why=f"task {id} was submitted later than {at:%Y-%m-%d %H:%M:%S} UTC")
    return task


async def queues_as_of(tx: Transaction, at: datetime) -> PastQueues:
    """Count the tasks of each queue by their state at a moment, with its pause, its limits and its rates of then."""
    (audited, undone), last = await tx.gather(_undone(tx, at), last_id(tx, at + LEEWAY))
    ids, more = await _unfinished(tx, at, last, undone)
    parts = [ids[start : start + MAX_CHUNK] for start in range(0, len(ids), MAX_CHUNK)]
    end = at.replace(second=0, microsecond=0)
    reconstructions, dead, (minute, hour), (queues, handlers) = await tx.gather(
        tx.gather(*(reconstructed(tx, part, at, audited=audited) for part in parts)),
        _dead(tx, at, undone),
        tx.gather(flows_between(tx, end - MINUTE, end), flows_between(tx, end - 60 * MINUTE, end)),
        tx.gather(*(registries_as_of(tx, at, kind, audited=audited) for kind in ("queue", "handler"))),
    )
    states: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    oldest: dict[str, float] = {}
    busy: Counter[tuple[int | None, str]] = Counter()
    for past in chain.from_iterable(reconstructions):
        task = past.task
        states[task.queue][past.word] += 1
        busy.update([(task.runner_id, task.host or "")] if past.word == State.RUNNING else [])
        if past.word == Shown.READY and task.run_at is not None:
            oldest[task.queue] = max(oldest.get(task.queue, 0.0), (at - task.run_at).total_seconds())
    present = await _unfinished_queues(tx) if more else ()
    names = sorted({*states, *dead, *hour, *present, *(name for name, entry in queues.items() if any(entry))})
    rows = [
        PastQueue(
            name,
            {word: number for word, number in states[name].items() if word not in FINAL},
            Count(dead.get(name, Count()).number + states[name].get(State.DEAD, 0), dead.get(name, Count()).more),
            oldest.get(name),
            minute.get(name, Flow()),
            hour.get(name, Flow()),
            *queues.get(name, (None, UNLIMITED)),
        )
        for name in names
    ]
    paused = {name: pause for name, (pause, _) in handlers.items() if pause}
    return PastQueues(at, rows, paused, dict(busy.most_common()), more, audited)


async def _unfinished_queues(tx: Transaction) -> list[str]:
    """The queues with unfinished tasks now: those of a moment may all be older than the tasks that are counted."""
    return [
        each.queue
        for each in await counts(tx, 1)
        if total_of((each.ready, each.scheduled, each.retrying, each.blocked, each.running, each.lost)).number
    ]


async def _walk(tx: Transaction, last: int) -> list[int]:
    """The ids of the next CANDIDATES tasks, newest first."""
    parts = [
        sa.select(
            sa.select(table.c.id).where(table.c.id <= last).order_by(table.c.id.desc()).limit(CANDIDATES).subquery()
        )
        for table in (tx.tables.task, tx.tables.history)
    ]
    union = sa.union_all(*parts).subquery()
    return [row[0] for row in await tx.rows(sa.select(union.c.id).order_by(union.c.id.desc()).limit(CANDIDATES))]


async def _unfinished(
    tx: Transaction, at: datetime, last: int, undone: Sequence[int], *, claimed: bool = False
) -> tuple[list[int], bool]:
    """The ids of tasks that may have been unfinished at a moment, newest first, and True if these are not all.

    They are live now or finished later, or they are `undone`. With `claimed`, tasks that no runner has claimed so far
    are left out.
    """
    task, history = tx.tables.task.c, tx.tables.history.c
    live = sa.select(task.id, task.fence).where(task.id <= last).order_by(task.id.desc())
    later = sa.select(history.id).where(history.finished_at > at, history.id <= last).order_by(history.finished_at)
    rows, finished = await tx.gather(tx.rows(live.limit(CANDIDATES + 1)), tx.rows(later.limit(CANDIDATES + 1)))
    unclaimed = {id for id, fence in rows if claimed and fence == 0}
    ids = {*undone, *(id for id, _ in rows), *(row[0] for row in finished)}
    candidates = sorted(ids, reverse=True)[:CANDIDATES]
    return [id for id in candidates if id not in unclaimed], len(ids) > CANDIDATES


async def _undone(tx: Transaction, at: datetime) -> tuple[bool, list[int]]:
    """Whether the login may read the audit, and the tasks that finished earlier than their rows have it.

    A retry or a submit of them was undone after the moment.
    """
    if not await reads_audit(tx):
        return False, []
    table = tx.tables.audit.c
    undos = [table.verb.in_(("undo_retry", "cancel")), table.at > at, table.task_id.is_not(None)]
    changes = await entries(tx, [], undos, CANDIDATES)
    return True, sorted({entry.task_id for entry in changes if entry.task_id is not None})


async def _dead(tx: Transaction, at: datetime, undone: Sequence[int]) -> dict[str, Count]:
    """The dead tasks of a moment by queue, without the ones requeued later."""
    history = tx.tables.history.c
    window = sa.select(history.queue).where(is_final_state(history.state, State.DEAD), history.finished_at <= at)
    window = window.where(~tx.dialect.one_of(history.id, undone)) if undone else window
    part = window.order_by(history.finished_at.desc()).limit(CANDIDATES + 1).subquery()
    rows = await tx.rows(sa.select(part.c.queue, sa.func.count()).group_by(part.c.queue))
    more = sum(number for _, number in rows) > CANDIDATES
    return {as_text(queue): Count(number, more) for queue, number in rows}


async def reconstructed(
    tx: Transaction, ids: Sequence[int], at: datetime, *, audited: bool, states: Sequence[str] = ()
) -> list[PastTask]:
    """Reconstruct tasks at a moment, in the order of the ids, without the ones submitted later or in other states."""
    evidence = await _read_evidence(tx, ids, audited=audited)
    return [task for id in ids if id in evidence and (task := past_task(evidence[id], at, states)) is not None]


ROW = (*(name for name in TaskRow._fields if name != "shown"), "state", "fence")
ATTEMPT = ("task_id", "fence", "attempt", "started_at", "ended_at", "runner_id", "host", "verb", "error_type", "delay")


async def _read_evidence(tx: Transaction, ids: Sequence[int], *, audited: bool) -> dict[int, Evidence]:
    attempt, dependency, audit, step = tx.tables.attempt, tx.tables.dependency, tx.tables.audit, tx.tables.step
    tasks = []
    for table in (tx.tables.task, tx.tables.history):
        columns = _short(tx, table, [name for name in ROW if name in table.c], ("key", "tenant", "error"))
        tasks.append((sa.select(*columns), table.c.id))
    attempts = sa.select(*_short(tx, attempt, [*ATTEMPT, "message"], ("message",))).order_by(attempt.c.fence)
    names = ("id", "task_id", "parent_id", "parent_state", "satisfied_at", "satisfied_by")
    columns = readable(tx, [dependency.c[name] for name in names])
    columns.append(tx.dialect.readable_time(_called_at(tx)).label("called_at"))
    calls = (step.c.task_id == dependency.c.task_id) & (step.c.name == dependency.c.step)
    dependencies = sa.select(*columns).select_from(dependency.outerjoin(step, calls)).order_by(dependency.c.id)
    changes = sa.select(*readable(tx, audit.c)).order_by(audit.c.id)
    live, past, *others = await tx.gather(
        *(_of(tx, *each, ids) for each in tasks),
        _of(tx, attempts, attempt.c.task_id, ids),
        _of(tx, dependencies, dependency.c.task_id, ids),
        *([_of(tx, changes, audit.c.task_id, ids)] if audited else []),
    )
    of_task: list[dict[int, list[Any]]] = [defaultdict(list) for _ in range(3)]
    for rows_of, rows in zip(of_task, others, strict=False):
        for row in rows:
            rows_of[row["task_id"]].append(row)
    attempts_of, dependencies_of, changes_of = of_task
    return {
        row["id"]: Evidence(
            row,
            attempts_of[row["id"]],
            [from_row(AuditRecord, change) for change in changes_of[row["id"]]],
            dependencies_of[row["id"]],
        )
        for row in (*live, *past)
    }


def _called_at(tx: Transaction) -> sa.ColumnElement[Any]:
    """The time of a call: that of its step, or that of the submit of its child after the step has stored the end."""
    step, dependency = tx.tables.step.c, tx.tables.dependency.c
    submits = [
        sa.select(table.c.submitted_at).where(table.c.id == dependency.parent_id).scalar_subquery()
        for table in (tx.tables.task, tx.tables.history)
    ]
    return sa.case((step.done_at.is_not(None), sa.func.coalesce(*submits, step.at)), else_=step.at)


def _short(tx: Transaction, table: sa.Table, names: Sequence[str], long: Sequence[str]) -> list[Any]:
    """The columns of a table, with long texts cut."""
    columns = readable(tx, [table.c[name] for name in names if name not in long])
    return [*columns, *(sa.func.substr(table.c[name], 1, SHORT).label(name) for name in long)]


async def _of(
    tx: Transaction, statement: sa.Select[Any], column: sa.ColumnElement[int], ids: Sequence[int]
) -> list[dict[str, Any]]:
    result = await tx.execute(statement.where(tx.dialect.one_of(column, ids)))
    names = tuple(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result]
