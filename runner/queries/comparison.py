"""Comparison: the queues of two databases, or of one at two times, with the figures that differ."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from runner.db.transaction import Transaction
from runner.model.task import Shown
from runner.policy.limits import SharedLimits
from runner.queries.counting import Count
from runner.queries.counts import QueueCounts, counts
from runner.queries.past.as_of import PastQueue, queues_as_of
from runner.queries.past.reconstruction import UNRECORDED, WAITING
from runner.queries.registries import Pause
from runner.queries.reports import Flow
from runner.queries.runners import runners
from runner.text import formatting

LEAST, FACTOR = 10, 2.0
"""The least difference of two figures that counts, and the factor between them."""

UNKNOWN = (WAITING, UNRECORDED)
"""The words of past states that may be ready, retrying or running."""


class Side(NamedTuple):
    """A database at one time.

    Args:
        name: its name, or the time.
        facts: other facts, by name; empty at a past time.
    """

    name: str
    queues: "Mapping[str, QueueFigures]"
    facts: Mapping[str, str]


class QueueFigures(NamedTuple):
    """The figures of a queue on one side.

    Args:
        oldest: seconds since its first ready task became due; None without one.
        done: tasks that finished in the last full minute.
        failed: attempts that failed in the hour before.
        settings: its pause and its limits in words; empty without any.
    """

    ready: Count
    retrying: Count
    running: Count
    dead: Count
    oldest: float | None
    done: int
    failed: int
    settings: str


async def read_side(tx: Transaction, name: str, at: datetime | None = None) -> Side:
    """Read the figures of one side.

    Args:
        at: the past time; None for the present.
    """
    return await (_present(tx, name) if at is None else _past(tx, name, at))


async def _present(tx: Transaction, name: str) -> Side:
    of_queues, all_runners = await tx.gather(counts(tx), runners(tx))
    queues = {queue.queue: _figures(queue) for queue in of_queues}
    alive = [runner for runner in all_runners if runner.alive]
    slots = sum(runner.capacity for runner in alive)
    versions = ", ".join(sorted({runner.version for runner in alive})) or "none"
    return Side(name, queues, {"runners": str(len(alive)), "slots": f"{slots:,}", "versions": versions})


async def _past(tx: Transaction, name: str, at: datetime) -> Side:
    past = await queues_as_of(tx, at)
    return Side(name, {queue.queue: _past_figures(queue, capped=past.capped) for queue in past.queues}, {})


def _figures(queue: QueueCounts) -> QueueFigures:
    return QueueFigures(
        queue.ready,
        queue.retrying,
        queue.running,
        queue.dead,
        queue.oldest,
        *_rates(queue.minute, queue.hour),
        _settings(queue.paused, queue.limits),
    )


def _past_figures(queue: PastQueue, *, capped: bool) -> QueueFigures:
    is_bound = capped or not {*UNKNOWN}.isdisjoint(queue.states)
    ready, retrying, running = (
        Count(queue.states.get(shown, 0), is_bound) for shown in (Shown.READY, Shown.RETRYING, Shown.RUNNING)
    )
    rates = _rates(queue.minute, queue.hour)
    return QueueFigures(
        ready, retrying, running, queue.dead, queue.oldest, *rates, _settings(queue.pause, queue.limits)
    )


def _rates(minute: Flow, hour: Flow) -> tuple[int, int]:
    return minute.finished, hour.failed


def _settings(pause: Pause | None, limits: SharedLimits) -> str:
    """The pause and the limits in words; empty without any."""
    return ", ".join([*(["paused"] if pause else []), *([str(limits)] if any(limits) else [])])


HEADS: Sequence[tuple[str, str]] = (
    ("READY", "ready"),
    ("RETRY", "retrying"),
    ("RUN", Shown.RUNNING.value),
    ("DEAD", Shown.DEAD.value),
    ("OLDEST", "oldest"),
    ("DONE/M", "done"),
    ("FAIL/H", "failed"),
)
"""The heads of the compared figures, and their fields."""


def text_of(figures: QueueFigures | None, field: str) -> str:
    """A figure as text; empty for a queue that this side does not have."""
    value = getattr(figures, field) if figures is not None else None
    if value is None:
        return ""
    return formatting.age(value) if field == "oldest" else f"{value:,}" if isinstance(value, int) else str(value)


def differs(one: QueueFigures | None, other: QueueFigures | None, field: str) -> bool:
    """True if a figure is certainly far from the other one, or a queue is on one side only."""
    if one is None or other is None:
        return True
    (low, is_bound), (high, _) = sorted(_number(getattr(each, field)) for each in (one, other))
    return not is_bound and high - low >= LEAST and high >= FACTOR * low


def different(one: QueueFigures | None, other: QueueFigures | None) -> list[str]:
    """The fields that differ, `settings` for the pause or the limits; all of them for a queue on one side only."""
    fields = [field for _, field in HEADS if differs(one, other, field)]
    return fields + ["settings"] * ((one and one.settings) != (other and other.settings))


def in_order(one: Side, other: Side) -> dict[str, list[str]]:
    """The fields that differ of each queue of both sides; queues that differ first."""
    names = sorted({*one.queues, *other.queues})
    fields = {name: different(one.queues.get(name), other.queues.get(name)) for name in names}
    return dict(sorted(fields.items(), key=lambda each: not each[1]))


def notable(one: Side, other: Side) -> set[str]:
    """The figures worth their room: those that differ, and those of a queue on one side only that are not zero."""
    names: set[str] = set()
    for name, fields in in_order(one, other).items():
        sides = [side.queues[name] for side in (one, other) if name in side.queues]
        names |= {field for field in fields if len(sides) > 1 or text_of(sides[0], field) not in ("", "0")}
    return names


def facts(one: Side, other: Side) -> list[tuple[str, str, str, bool]]:
    """The other facts that both sides recorded: name, both values, and whether they differ."""
    both = [name for name in one.facts if name in other.facts]
    return [(name, one.facts[name], other.facts[name], one.facts[name] != other.facts[name]) for name in both]


def _number(value: object) -> tuple[float, bool]:
    """A figure, and whether it is only the least that it can be."""
    if isinstance(value, Count):
        return float(value.number), value.more
    return (float(value) if isinstance(value, int | float) else 0.0), False
