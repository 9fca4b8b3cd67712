"""The queues on the overview: the ones that match a filter, in an order."""

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import eq, ge, gt, le, lt

from runner.errors import InvalidInput
from runner.filter.fields import suggestion
from runner.model.duration import parse_duration
from runner.queries.counts import QueueCounts
from runner.queries.overview import NEGLECTED, Overview

TROUBLE = "trouble"
"""The first order: the queues in trouble, then the others by name."""

FIGURES: Mapping[str, Callable[[QueueCounts], float]] = {
    "ready": lambda queue: queue.ready.number,
    "sched": lambda queue: queue.scheduled.number,
    "retry": lambda queue: queue.retrying.number,
    "blocked": lambda queue: queue.blocked.number,
    "lost": lambda queue: queue.lost.number,
    "dead": lambda queue: queue.dead.number,
    "slots": lambda queue: queue.running.number,
    "oldest": lambda queue: queue.oldest or 0.0,
    "in": lambda queue: queue.arrived.number,
    "out": lambda queue: queue.minute.finished,
    "drained": lambda queue: inf if queue.paused else queue.empty_in or 0.0,
}
"""The figures of a queue by the heads of their columns."""

ORDERS = (TROUBLE, "name", *FIGURES)
"""The orders: figures with the highest first."""

WORDS: Mapping[str, Callable[[QueueCounts], bool]] = {
    "paused": lambda queue: queue.paused is not None,
    "late": lambda queue: queue.falls_behind,
}

HINT = "mail  *.eu  dead>0  ready>=1000  oldest>5m  paused  late  -reports"

_COMPARED = re.compile(r"(?P<figure>[a-z_]+)(?P<sign>>=|<=|>|<|=|:)(?P<value>.+)")
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {">": gt, "<": lt, ">=": ge, "<=": le, "=": eq, ":": eq}


def matcher(text: str) -> Callable[[QueueCounts], bool]:
    """Parse a filter on queues: words that must all match.

    A word is a part of a name, a name with stars, `paused`, `late`, or a figure and a bound such as `dead>0`; `-` or
    `!` before it negates it.

    Raises:
        InvalidInput: a figure is unknown, or its bound is not a number.
    """
    conditions = [_condition(word) for word in text.split()]
    return lambda queue: all(condition(queue) for condition in conditions)


def names_of(text: str) -> list[str]:
    """The words of a filter that ask for names, in order; negated ones are left out."""
    words = [word for word in text.split() if word[0] not in "-!" and word.lower() not in WORDS and word.isprintable()]
    return [word for word in words if not _COMPARED.fullmatch(word.lower())]


def name_matcher(names: Sequence[str]) -> Callable[[str], bool]:
    """The condition on the name of a queue; see `matcher`."""
    conditions = [_name(name) for name in names]
    return lambda name: all(condition(name) for condition in conditions)


def _condition(word: str) -> Callable[[QueueCounts], bool]:
    negated, word = word[:1] in "-!" and len(word) > 1, word.lstrip("-!") or word
    condition = WORDS.get(word.lower()) or _compared(word.lower()) or _named(word)
    return (lambda queue: not condition(queue)) if negated else condition


def _compared(word: str) -> Callable[[QueueCounts], bool] | None:
    match = _COMPARED.fullmatch(word)
    if match is None:
        return None
    figure = FIGURES.get(match["figure"])
    if figure is None:
        hint = suggestion(match["figure"], tuple(FIGURES))
        raise InvalidInput(why=f"{match['figure'][:30]!r} is not a figure of a queue{hint}; use {', '.join(FIGURES)}")
    bound, compare = _bound(match["figure"], match["value"]), _SIGNS[match["sign"]]
    return lambda queue: compare(figure(queue), bound)


def _bound(figure: str, text: str) -> float:
    if figure in ("oldest", "drained"):
        return parse_duration(text).total_seconds()
    digits = text.replace(",", "").replace("_", "")
    if not digits.isdecimal():
        raise InvalidInput(why=f"{text[:20]!r} is not a number: {figure}>100")
    return float(digits[:12])


def _named(word: str) -> Callable[[QueueCounts], bool]:
    matches = _name(word)
    return lambda queue: matches(queue.queue)


def _name(word: str) -> Callable[[str], bool]:
    if "*" in word:
        return lambda name: fnmatch.fnmatchcase(name, word.replace("[", "[[]").replace("?", "[?]"))
    return lambda name: word.lower() in name.lower()


def arranged(queues: Sequence[QueueCounts], order: str, *, reverse: bool = False) -> list[QueueCounts]:
    """Sort queues that are sorted by trouble: by name, or by a figure with the highest first.

    Args:
        order: one of ORDERS.
        reverse: the other way round.
    """
    if order == TROUBLE:
        return list(reversed(queues)) if reverse else list(queues)
    by_name = sorted(queues, key=lambda queue: queue.queue)
    if order == "name":
        return by_name[::-1] if reverse else by_name
    figure = FIGURES[order]
    return sorted(by_name, key=lambda queue: figure(queue) if reverse else -figure(queue))


def sorted_queues(overview: Overview, named: Sequence[QueueCounts] = ()) -> list[QueueCounts]:
    """The queues: those that fail, others in trouble, and the rest, each by name.

    Args:
        named: queues that a filter names; those that are not listed are added.

    While no task arrives or ends, no queue falls behind: then the one with the most ready tasks comes first, and of
    equal ones the one that waits longest. A queue that just fell behind keeps its place for a minute.
    """
    listed, failing = {queue.queue for queue in overview.queues}, overview.failing
    queues = [*overview.queues, *(queue for queue in named if queue.queue not in listed)]
    still = not any(queue.arrived.number or queue.minute.finished for queue in queues)
    neglected = {queue for handler in overview.unknown if handler.due >= NEGLECTED for queue in handler.queues}

    def rank(queue: QueueCounts) -> tuple[bool, bool, int, float, str]:
        ready, oldest = (queue.ready.number, queue.oldest or 0.0) if still else (0, 0.0)
        trouble = queue.falls_behind or queue.lost.number > 0 or queue.queue in neglected
        return queue.queue not in failing, not trouble, -ready, -oldest, queue.queue

    return sorted(queues, key=rank)
