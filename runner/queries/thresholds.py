"""Thresholds of the tasks: numbers of dead, failing and late tasks that a monitoring system alerts on."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from shlex import quote

import sqlalchemy as sa

from runner.db.schema.task import is_final_state
from runner.db.transaction import Transaction, clock
from runner.model.task import State
from runner.policy.lanes import Head
from runner.queries.counting import Count, lane_heads
from runner.queries.registries import Pauses, pauses
from runner.queries.reports import Flow
from runner.queries.rows import as_text
from runner.queries.summary import results_by
from runner.text import formatting
from runner.text.sanitize import count_noun

FEW, MIN_SHARE = 10, 0.5
"""Most attempts of a queue or a handler fail if more than FEW failed recently, and at least MIN_SHARE of them all."""

RECENT = timedelta(minutes=10)
"""The period of the attempts that decide whether a queue or a handler is failing."""

MOST_NAMES = 3
"""Handlers or queues that one breach lists."""

MOST_DEAD = 10_000
"""Dead tasks that are counted."""


class Breach(StrEnum):
    """The kind of a breach."""

    DEAD = State.DEAD.value
    FAILING = "failing"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The largest numbers that cause no alert.

    Args:
        dead: tasks that died within the span and are still dead.
        failing: share of the attempts of a handler that failed in the last ten minutes, from 0 to 1.
        late: time since the first ready task of a queue became due.
        locked: time since a runner first found a row locked that it could not change.
        refused: rows that the database refuses to change.
    """

    dead: int = 0
    span: timedelta = timedelta(hours=1)
    failing: float = MIN_SHARE
    late: timedelta = timedelta(minutes=5)
    locked: timedelta = timedelta()
    refused: int = 0


DEFAULT_THRESHOLDS = Thresholds()


@dataclass(frozen=True, slots=True)
class ThresholdBreach:
    """A number above its threshold.

    Args:
        text: a sentence, safe to print.
        advice: the next step.
    """

    kind: Breach
    text: str
    advice: str


async def breaches(tx: Transaction, thresholds: Thresholds) -> list[ThresholdBreach]:
    """Find the numbers above their thresholds.

    Args:
        tx: an open transaction; six statements are executed.

    Returns:
        The breaches: dead, failing and late tasks, in this order.
    """
    at = await clock(tx)
    dead = await dead_by_handler(tx, at - thresholds.span)
    results = await results_by(tx, "handler", at - RECENT, at)
    flows = {name: result.flow for name, result in results.items()}
    late = _late(await lane_heads(tx), await pauses(tx), thresholds.late.total_seconds())[:MOST_NAMES]
    return [
        *_dead(dead, thresholds),
        *_failing(flows, thresholds.failing),
        *(_late_queue(*queue, thresholds.late) for queue in late),
    ]


async def dead_by_handler(tx: Transaction, since: datetime | None = None) -> dict[str, Count]:
    """Count the latest MOST_DEAD dead tasks by handler, along the index `ended`.

    Args:
        since: only those that died since then, aware; None for all.
    """
    past = tx.tables.history.c
    window = sa.select(past.handler).where(is_final_state(past.state, State.DEAD))
    if since is not None:
        window = window.where(past.finished_at >= since)
    latest = window.order_by(past.finished_at.desc()).limit(MOST_DEAD).subquery()
    tasks = sa.func.count()
    statement = sa.select(latest.c.handler, tasks).group_by(latest.c.handler).order_by(tasks.desc(), latest.c.handler)
    rows = await tx.rows(statement)
    more = sum(row[1] for row in rows) >= MOST_DEAD
    return {as_text(name): Count(number, more) for name, number in rows}


def _dead(handlers: dict[str, Count], thresholds: Thresholds) -> Iterator[ThresholdBreach]:
    total = Count(sum(count.number for count in handlers.values()), any(count.more for count in handlers.values()))
    if total.number <= thresholds.dead:
        return
    span = formatting.age(thresholds.span.total_seconds())
    names = _listed([f"{name} {count}" for name, count in handlers.items()])
    text = f"{total.of('task')} died in the last {span}: {names} (threshold {thresholds.dead:,})"
    advice = f"The causes: runner failures since:{span}. When these are mended: runner retry state:dead."
    yield ThresholdBreach(Breach.DEAD, text, advice)


def _failing(handlers: dict[str, Flow], share: float) -> Iterator[ThresholdBreach]:
    for name, flow in sorted(handlers.items()):
        failed, attempts = flow.failed, flow.failed + flow.succeeded
        if failed > FEW and failed > share * attempts:
            period = formatting.age(RECENT.total_seconds())
            of = f"{failed:,} of {count_noun(attempts, 'attempt')}"
            text = f"{name} is failing: {of} in {period} failed (threshold {share:.0%})"
            yield ThresholdBreach(Breach.FAILING, text, f"The causes: runner failures {quote(f'handler:{name}')}")


def _late(heads: list[Head], paused: Pauses, seconds: float) -> list[tuple[str, float]]:
    """The queues whose first ready task has been due for longer, latest first; a pause is a decision of people."""
    ages: dict[str, float] = {}
    for head in heads:
        queue, handler = as_text(head.lane.queue), as_text(head.lane.handler)
        if -head.wait > seconds and queue not in paused.queues and handler not in paused.handlers:
            ages[queue] = max(ages.get(queue, 0.0), -head.wait)
    return sorted(ages.items(), key=lambda item: (-item[1], item[0]))


def _late_queue(queue: str, age: float, threshold: timedelta) -> ThresholdBreach:
    limit = formatting.age(threshold.total_seconds())
    text = f"the first ready task of queue {queue} has been due for {formatting.age(age)} (threshold {limit})"
    return ThresholdBreach(Breach.LATE, text, f"The reason: runner why {quote(f'queue:{queue} state:ready')}")


def _listed(names: list[str]) -> str:
    more = [f"{len(names) - MOST_NAMES:,} more"] if len(names) > MOST_NAMES else []
    return ", ".join([*names[:MOST_NAMES], *more])
