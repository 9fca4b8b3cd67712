"""gauges: the numbers of the whole queue for a monitoring system, with a bounded number of names."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.model.task import Shown
from runner.policy.histogram import Histogram, Times, merged
from runner.policy.work_keys import MOST_COUNTED, MOST_LISTED, OTHERS, WorkKey, WorkKeys
from runner.queries.breakers import breakers
from runner.queries.counts import QueueCounts, counts
from runner.queries.deaths import dead_by_handler
from runner.queries.health import Health, health
from runner.queries.reports import COUNTS_ROW, histograms, within
from runner.queries.rows import as_text
from runner.queries.runners import RunnerRow, runners, unknown_handlers
from runner.queries.schedules import schedules

MOST_QUEUES = 10_000
"""Maximum number of queues that are counted."""

MOST_NAMES = 100
"""Maximum number of queues, and of handlers, that are listed by name: the largest ones."""

REST = "other"
"""The name of all further ones together."""

STATES = (
    Shown.READY,
    Shown.SCHEDULED,
    Shown.RETRYING,
    Shown.BLOCKED,
    Shown.RUNNING,
    Shown.LOST,
    Shown.DEAD,
)

ALIVE, DRAINING, LOOP_BLOCKED, LOST_RUNNER = "alive", "draining", "loop_blocked", "lost"


class NamedNumbers(NamedTuple):
    """Numbers by name, the largest ones, and how many names are summed up as REST."""

    numbers: Mapping[str, float]
    left_out: int


@dataclass(frozen=True, slots=True)
class Gauges:
    """The numbers of the whole queue.

    Args:
        tasks: tasks by queue and state; each count stops at 10,000.
        oldest: seconds since the first ready task became due, by queue; REST has the longest of the others.
        queues_left_out: queues that are summed up as REST.
        dead: dead tasks by handler, of the latest 10,000.
        runners: registered runners by state; one that drains or is blocked is alive too.
        lateness: seconds by which the latest schedule of a handler is late.
        breakers: handlers with an open breaker.
        unclaimed: seconds since the first task became due of a handler that no live runner has.
        health: the state of the database.
    """

    tasks: Mapping[tuple[str, str], int]
    oldest: Mapping[str, float]
    queues_left_out: int
    dead: NamedNumbers
    runners: Mapping[str, int]
    lateness: NamedNumbers
    breakers: NamedNumbers
    unclaimed: NamedNumbers
    health: Health


async def read_gauges(tx: Transaction) -> Gauges:
    """Read the numbers of `runner metrics`."""
    at, queues = await tx.gather(clock(tx), counts(tx, most=MOST_QUEUES))
    listed = {queue.queue for queue in sorted(queues, key=_size, reverse=True)[:MOST_NAMES]}
    tasks, oldest = _by_queue(queues, listed)
    lateness = dict[str, float]()
    for schedule in await schedules(tx, runs=1):
        seconds = (schedule.lateness(at) or timedelta(0)).total_seconds()
        lateness[schedule.spec.handler] = max(seconds, lateness.get(schedule.spec.handler, 0.0))
    return Gauges(
        tasks,
        oldest,
        len(queues) - len(listed),
        _largest({name: count.number for name, count in (await dead_by_handler(tx)).items()}, sum),
        _runner_states(await runners(tx)),
        _largest(lateness, max),
        _largest({row.handler: 1 for row in await breakers(tx, only_open=True)}, sum),
        _largest({row.handler: max(0.0, row.due) for row in await unknown_handlers(tx)}, max),
        await health(tx),
    )


def _size(queue: QueueCounts) -> int:
    return sum(getattr(queue, state.value).number for state in STATES)


def _by_queue(queues: Iterable[QueueCounts], listed: set[str]) -> tuple[dict[tuple[str, str], int], dict[str, float]]:
    tasks, oldest = dict[tuple[str, str], int](), dict[str, float]()
    for queue in queues:
        name = queue.queue if queue.queue in listed else REST
        oldest[name] = max(oldest.get(name, 0.0), queue.oldest or 0.0)
        for state in STATES:
            key = name, state.value
            tasks[key] = tasks.get(key, 0) + getattr(queue, state.value).number
    return tasks, oldest


def _largest(numbers: Mapping[str, float], join: Callable[[Iterable[float]], float]) -> NamedNumbers:
    """List the names with the largest numbers; `join` makes one number of the others."""
    names = sorted(numbers, key=lambda name: (-numbers[name], name))
    listed, rest = names[:MOST_NAMES], names[MOST_NAMES:]
    result = {name: numbers[name] for name in listed}
    if rest:
        result[REST] = join([result.pop(REST, 0.0), *(numbers[name] for name in rest)])
    return NamedNumbers(result, len(rest))


def _runner_states(rows: Iterable[RunnerRow]) -> dict[str, int]:
    states = dict.fromkeys((ALIVE, DRAINING, LOOP_BLOCKED, LOST_RUNNER), 0)
    for row in rows:
        states[ALIVE if row.alive else LOST_RUNNER] += 1
        states[DRAINING] += row.alive and row.draining
        states[LOOP_BLOCKED] += row.blocked_for > 0
    return states


async def new_times(tx: Transaction, since: datetime, until: datetime, names: WorkKeys) -> dict[WorkKey, Times]:
    """Read the times of attempts that ended in a period.

    Args:
        tx: an open transaction; two statements are executed, or three if not all names are listed.
        since: the first minute, aware.
        until: the end, aware and exclusive.
        names: those listed so far; they grow by those of the period.

    Returns:
        The times by listed queue and handler; OTHERS has all further ones.
    """
    minute = tx.tables.minute.c
    groups, conditions = (minute.queue, minute.handler), within(tx, since, until)
    pairs = sa.select(*groups).where(*conditions, minute.bin_ms > COUNTS_ROW).group_by(*groups).order_by(*groups)
    rows = await tx.rows(pairs.limit(MOST_LISTED + MOST_COUNTED))
    found = [names.name((as_text(queue), as_text(handler))) for queue, handler in rows]
    listed = sorted({work_key for work_key in found if work_key in names.listed})
    # Each column for itself: a join by pairs depends on the planner. More than these is read, and left out.
    of_listed = [tx.dialect.one_of(groups[index], sorted({pair[index] for pair in listed})) for index in (0, 1)]
    times = await histograms(tx, groups, [*conditions, *of_listed]) if listed else {}
    result = {work_key: times[work_key] for work_key in listed}
    if len(listed) < len(found):
        whole = (await histograms(tx, (), conditions))[()]
        parts = (merged(each[index] for each in result.values()) for index in (0, 1))
        rest = Times(*(times.without(part) for times, part in zip(whole, parts, strict=True)))
        before = result.get(OTHERS, Times(Histogram(), Histogram()))
        result[OTHERS] = Times(*(merged(each) for each in zip(before, rest, strict=True)))
    return result
