"""sides: the parts of a search, each of which walks along one index of one table."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runner.people.fields import Operator
from runner.people.filters import Filter, Term
from runner.store.dialects import Dialect
from runner.store.observe.filtering import conditions, path
from runner.store.observe.subjects import Condition, Subject
from runner.task import Shown, State

ENDED, IN_HAND = (State.DEAD, State.CANCELLED), (State.RUNNING, Shown.LOST)

GROUPS = (*((state,) for state in ENDED), (State.BLOCKED,), IN_HAND)
"""The rare states, by the index that finds them: what runs is found by its runner, all else in the order of its ids."""


@dataclass(frozen=True, slots=True)
class Side:
    """What a search does in one table.

    Args:
        subject: the table.
        served: conditions that an index serves.
        sifted: conditions that are checked row by row.
        few: the served rows are found by something else than what they are sorted by.
    """

    subject: Subject
    served: list[Condition]
    sifted: list[Condition]
    few: bool


def sides(wanted: Filter, subjects: Iterable[Subject], dialect: Dialect, *, by_queue: bool = False) -> list[Side]:
    """Divide a search.

    Args:
        wanted: the filter.
        subjects: the tables.
        dialect: of the database.
        by_queue: of ended tasks in a rare state an index finds those of one queue too, in the order that is asked for.

    Returns:
        Sides that have no row in common; none when no row can fulfil the filter.
    """
    found = []
    for served, rest, few in _divided(wanted, by_queue=by_queue):
        for subject in subjects:
            by_index, by_row = (conditions(part, subject, dialect) for part in (served, rest))
            if by_index is not None and by_row is not None:
                found.append(Side(subject, [*subject.always, *by_index], by_row, few or subject.unordered))
    return found


def is_few(wanted: Filter) -> bool:
    """Tell whether what a filter lets through is found by an index in no order, and taken for few."""
    return any(term.field in ("key", "failure") for term in path(wanted).terms)


def _divided(wanted: Filter, *, by_queue: bool) -> Iterator[tuple[Filter, Filter, bool]]:
    """What an index serves of a filter, what is left, and whether that is few; for each group of rare states."""
    served, few = path(wanted).terms, is_few(wanted)
    states = next((term for term in served if term.field == "state"), None)
    if states is None:
        yield Filter(served), _without(wanted, served), few
        return
    words = states.value if isinstance(states.value, tuple) else (states.value,)
    for group in GROUPS:
        chosen = tuple(word for word in group if word in words)
        if not chosen:
            continue
        queues = [term for term in wanted.terms if by_queue and group[0] in ENDED and _is_one_queue(term)]
        mine = (Term("state", Operator.IN, chosen), *(term for term in served if term is not states), *queues)
        yield Filter(mine), _without(wanted, (*served, *queues)), few or group is IN_HAND


def _is_one_queue(term: Term) -> bool:
    return term.field == "queue" and term.operator is Operator.EQ and not term.negated


def _without(wanted: Filter, terms: Iterable[Term]) -> Filter:
    return Filter(tuple(term for term in wanted.terms if term not in tuple(terms)))
