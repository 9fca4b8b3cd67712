"""The parts of a search; each walks along one index of one table."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runner.db.dialects import Dialect
from runner.db.schema.task import Condition
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import Shown, State
from runner.queries.task_list.compile import conditions, path
from runner.queries.task_list.sources import Source

FAILED_STATES, RUNNING_STATES = (State.DEAD, State.CANCELLED), (State.RUNNING, Shown.LOST)

GROUPS = (*((state,) for state in FAILED_STATES), (State.BLOCKED,), RUNNING_STATES)
"""The rare states, grouped by index: running tasks by runner, the others by id."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The part of a search in one table.

    Args:
        source: the table.
        indexed: the conditions that an index serves.
        filtered: the conditions that are checked row by row.
        few: True if the index has another order than the list; its rows are sorted, and expected to be few.
    """

    source: Source
    indexed: list[Condition]
    filtered: list[Condition]
    few: bool


def scans(task_filter: Filter, subjects: Iterable[Source], dialect: Dialect, *, by_queue: bool = False) -> list[Scan]:
    """Divide a search into sides.

    Args:
        task_filter: the filter.
        subjects: the tables.
        dialect: the dialect of the database.
        by_queue: True if the index of failed tasks by queue has the order of the list.

    Returns:
        Sides without common rows; none if no row can match the filter.
    """
    parts = []
    for served, rest, few in _divided(task_filter, by_queue=by_queue):
        for subject in subjects:
            by_index, by_row = (conditions(part, subject, dialect) for part in (served, rest))
            if by_index is not None and by_row is not None:
                parts.append(Scan(subject, [*subject.always, *by_index], by_row, few or subject.unordered))
    return parts


def is_few(task_filter: Filter) -> bool:
    """True if an index serves the filter without an order and is expected to find few rows."""
    return any(term.field in ("key", "failure", "change", "batch") for term in path(task_filter).terms)


def _divided(task_filter: Filter, *, by_queue: bool) -> Iterator[tuple[Filter, Filter, bool]]:
    """For each group of rare states: the served terms, the other terms, and whether the rows are few."""
    served, is_small = path(task_filter).terms, is_few(task_filter)
    state_term = next((term for term in served if term.field == "state"), None)
    if state_term is None:
        yield Filter(served), _without(task_filter, served), is_small
        return
    words = state_term.value if isinstance(state_term.value, tuple) else (state_term.value,)
    for group in GROUPS:
        matches = tuple(word for word in group if word in words)
        if not matches:
            continue
        queues = [term for term in task_filter.terms if by_queue and group[0] in FAILED_STATES and _is_one_queue(term)]
        terms = (Term("state", Operator.IN, matches), *(term for term in served if term is not state_term), *queues)
        yield Filter(terms), _without(task_filter, (*served, *queues)), is_small or group is RUNNING_STATES


def _is_one_queue(term: Term) -> bool:
    return term.field == "queue" and term.operator is Operator.EQ and not term.negated


def _without(task_filter: Filter, terms: Iterable[Term]) -> Filter:
    return Filter(tuple(term for term in task_filter.terms if term not in tuple(terms)))
