"""Translate a filter into SQL: conditions with bound parameters, and scans that each walk along one index."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter, eq, ge, gt, le, lt
from typing import Any

import sqlalchemy as sa

from runner.db.dialects import Dialect
from runner.db.schema.task import Condition
from runner.db.types import db_later, db_now
from runner.errors import InvalidFilter
from runner.filter.fields import PAYLOAD, Operator
from runner.filter.parse import Filter, Term
from runner.model.sealed import PREFIX
from runner.model.task import Shown, State
from runner.queries.task_list.sources import Source

INDEXED_STATES = frozenset({State.BLOCKED, State.RUNNING, Shown.LOST, State.DEAD, State.CANCELLED})
"""The states that have an index."""

QUIET = Term("state", Operator.EQ, State.SUCCEEDED.value, negated=True)
"""The term for all tasks but succeeded ones: the live table, and the indexes of the rare final states."""

COMPARISONS: dict[Operator, Callable[..., Any]] = {
    Operator.EQ: lambda column, value: column == value,
    Operator.LT: lambda column, value: column < value,
    Operator.LE: lambda column, value: column <= value,
    Operator.GT: lambda column, value: column > value,
    Operator.GE: lambda column, value: column >= value,
    Operator.RANGE: lambda column, low, high: column.between(low, high),
    Operator.CONTAINS: lambda column, value: column.icontains(value, autoescape=True),
}

ATTEMPT_TERMS: Mapping[str, str] = {"failure": "fingerprint", "failed": "ended_at"}
"""The column of each field that belongs to the attempts of a task."""

REVERSED = {Operator.LT: Operator.GT, Operator.GT: Operator.LT, Operator.LE: Operator.GE, Operator.GE: Operator.LE}
"""The comparison of times for each comparison of ages: an older task was submitted earlier."""


def conditions(task_filter: Filter, source: Source, dialect: Dialect) -> list[Condition] | None:
    """Translate a filter into conditions.

    Args:
        task_filter: a filter from `parse_filter`.

    Returns:
        Conditions that must all hold; None if no row of the table can match.

    Raises:
        InvalidFilter: the table does not have one of the fields.
    """
    result = []
    for term, *times in _together(task_filter.terms):
        if term.field in ATTEMPT_TERMS:
            condition = _failed_attempt((term, *times), source, dialect)
        else:
            condition = _CONDITIONS.get(term.field.partition(".")[0], _plain)(term, source, dialect)
        if isinstance(condition, sa.False_):
            if term.negated:
                continue
            return None
        if term.field.startswith(PAYLOAD):
            result.append(_is_plain(source))
        # The negation also matches rows that have no value for the field.
        result.append(sa.not_(sa.func.coalesce(condition, sa.false())) if term.negated else condition)
    return result


def _together(terms: Sequence[Term]) -> Iterator[Sequence[Term]]:
    """Each term alone, but a failure group with the times of its attempts: one attempt must match all of them."""
    groups, times = ([term for term in terms if term.field == name and not term.negated] for name in ATTEMPT_TERMS)
    for term in terms:
        if term in groups:
            yield (term, *times)
        elif not groups or term not in times:
            yield (term,)


def indexed(task_filter: Filter) -> bool:
    """True if an index serves the filter, so that a search reads only matching rows."""
    return not task_filter.terms or bool(path(task_filter).terms)


def path(task_filter: Filter) -> Filter:
    """The part of a filter that an index serves; an empty filter if a search must read all rows."""
    served = [term for term in task_filter.terms if _is_served(term)]
    if any(term.field == "failure" for term in served):
        served += [term for term in task_filter.terms if term.field == "failed" and not term.negated]
    return Filter(tuple(served))


def _is_served(term: Term) -> bool:
    match term.field:
        case "id":
            return not term.negated
        case "key" | "failure" | "change" | "batch" | "below":
            return not term.negated and term.operator in (Operator.EQ, Operator.IN)
        case "workflow":  # an index serves ids, or names, but not both in one condition
            alike = len({type(value) for value in values_of(term)}) == 1
            return not term.negated and term.operator in (Operator.EQ, Operator.IN) and alike
        case "state":
            return term == QUIET or (not term.negated and INDEXED_STATES.issuperset(values_of(term)))
    return False


def values_of(term: Term) -> tuple[Any, ...]:
    """The values of a term, of which a row has one."""
    return term.value if isinstance(term.value, tuple) else (term.value,)


def _plain(term: Term, source: Source, dialect: Dialect) -> Condition:
    return _matches(_column(term, source), term, dialect)


def _payload(term: Term, source: Source, dialect: Dialect) -> Condition:
    """Compare a member of the payload as text; no index serves it."""
    first, _, path = term.field.partition(".")
    return _matches(dialect.member(_column(term._replace(field=first), source), path.split(".")), term, dialect)


def _is_plain(source: Source) -> Condition:
    """The condition that a payload is not encrypted: the members of a sealed value are no arguments."""
    condition: Condition = ~sa.cast(source.columns["payload"], sa.Text).startswith(PREFIX, autoescape=True)
    return condition


def _matches(column: Any, term: Term, dialect: Dialect) -> Condition:
    match term.operator:
        case Operator.IN:
            return dialect.one_of(column, values_of(term))
        case Operator.GLOB:
            return dialect.matches(column, values_of(term))
    return _compared(column, term.operator, *values_of(term))


def _column(term: Term, source: Source) -> Any:
    if term.field not in source.columns:
        fields = ", ".join(source.columns)
        raise InvalidFilter(text=str(term), position=1, why=f"unknown field {term.field}; known fields: {fields}")
    return source.columns[term.field]


def _compared(column: Any, operator: Operator, *values: Any) -> Condition:
    condition: Condition = COMPARISONS[operator](column, *values)
    return condition


def _text(term: Term, source: Source, _dialect: Dialect) -> Condition:
    columns = [source.columns[name] for name in ("error", "key", "handler") if name in source.columns]
    return sa.or_(*(_compared(column, Operator.CONTAINS, term.value) for column in columns))


def _state(term: Term, source: Source, dialect: Dialect) -> Condition:
    if not source.states:
        return _plain(term, source, dialect)
    possible = [source.states[word] for word in values_of(term) if word in source.states]
    return sa.or_(*possible) if possible else sa.false()


def _due(term: Term, source: Source, _dialect: Dialect) -> Condition:
    column = _column(term, source)
    if State.WAITING not in source.states:
        return sa.false()
    threshold = db_later(db_now(), values_of(term)[0].total_seconds())
    return source.states[State.WAITING] & _compared(column, term.operator, threshold)


def _age(term: Term, source: Source, _dialect: Dialect) -> Condition:
    moment = db_later(db_now(), -values_of(term)[0].total_seconds())
    return _compared(_column(term, source), REVERSED[term.operator], moment)


def _failed_attempt(terms: Sequence[Term], source: Source, dialect: Dialect) -> Condition:
    """Search the failed attempts, along the index of their fingerprints and times."""
    if "failure" in source.columns:
        return sa.and_(*(_plain(term, source, dialect) for term in terms))
    attempt = source.related.attempt.c
    matches = (_matches(attempt[ATTEMPT_TERMS[term.field]], term, dialect) for term in terms)
    return source.table.c.id.in_(sa.select(attempt.task_id).where(*matches))


def _change(term: Term, source: Source, dialect: Dialect) -> Condition:
    """Search the audit, along the index of its change groups."""
    audit = source.related.audit.c
    matches = dialect.one_of(audit.change_group, values_of(term)) & audit.task_id.is_not(None)
    ids: Condition = source.columns["id"].in_(sa.select(audit.task_id).where(matches))
    return ids


def _batch(term: Term, source: Source, dialect: Dialect) -> Condition:
    """Search the parents of the callback of a batch, along the index of dependencies."""
    dependency = source.related.dependency.c
    matches = dialect.one_of(dependency.task_id, values_of(term)) & dependency.parent_id.is_not(None)
    ids: Condition = source.columns["id"].in_(sa.select(dependency.parent_id).where(matches))
    return ids


def _workflow(term: Term, source: Source, dialect: Dialect) -> Condition:
    """Search along the index of the members of workflows, and along that of names; `*` matches one without a name."""
    column, table, values = _column(term, source), source.related.workflow.c, values_of(term)
    ids = [value for value in values if isinstance(value, int)]
    names = [value for value in values if isinstance(value, str)]
    parts: list[Condition] = [dialect.one_of(column, ids)] if ids else []
    if term.operator is Operator.GLOB and any(names):
        parts.append(column.in_(sa.select(table.id).where(dialect.matches(table.name, names))))
    elif names and term.operator is not Operator.GLOB:
        parts.append(column.in_(sa.select(table.id).where(dialect.one_of(table.name, names))))
    condition: Condition = sa.and_(column.is_not(None), *([sa.or_(*parts)] if parts else []))
    return condition


def _below(term: Term, source: Source, dialect: Dialect) -> Condition:
    """Search the dependents of tasks, theirs in turn, and so on, along the index of dependencies."""
    dependency = source.related.dependency.c
    start = sa.select(dependency.task_id).where(dialect.one_of(dependency.parent_id, values_of(term)))
    below = start.cte(recursive=True)  # without a name: a search may have several
    following = sa.select(dependency.task_id).where(dependency.parent_id == below.c.task_id)
    below = below.union(following)
    ids: Condition = source.columns["id"].in_(sa.select(below.c.task_id))
    return ids | dialect.one_of(source.columns["id"], values_of(term))


def _tag(term: Term, source: Source, _dialect: Dialect) -> Condition:
    return sa.or_(*(_has_tag(_column(term, source), tag) for tag in values_of(term)))


def _has_tag(tags: Any, tag: str) -> Condition:
    """Search for a tag in the text of the JSON array; parsing it would fail on rows with other JSON.

    Escaped quotes are rewritten first, so that every remaining quote starts or ends a string. The tag is present if
    removing it changes the text. Unlike LIKE, this is case-sensitive on both databases.
    """
    text = sa.func.replace(sa.cast(tags, sa.Text), r"\"", r"\u0022")
    needles = {json.dumps(tag, ensure_ascii=plain).replace(r"\"", r"\u0022") for plain in (True, False)}
    return sa.or_(*(text != sa.func.replace(text, needle, "") for needle in sorted(needles)))


_CONDITIONS = {
    "text": _text,
    "state": _state,
    "due": _due,
    "payload": _payload,
    "change": _change,
    "batch": _batch,
    "workflow": _workflow,
    "below": _below,
    "age": _age,
    "tag": _tag,
}
"""The fields that need more than a comparison of one column."""


FAILED_STATES, RUNNING_STATES = (State.DEAD, State.CANCELLED), (State.RUNNING, Shown.LOST)

GROUPS = (*((state,) for state in FAILED_STATES), (State.BLOCKED,), RUNNING_STATES)
"""The rare states, grouped by index: running tasks by runner, the others by id."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The part of a search in one table.

    Args:
        indexed: the conditions that an index serves.
        filtered: the conditions that are checked row by row.
        few: True if the index has another order than the list; its rows are sorted, and expected to be few.
    """

    source: Source
    indexed: list[Condition]
    filtered: list[Condition]
    few: bool


def scans(task_filter: Filter, sources: Iterable[Source], dialect: Dialect, *, by_queue: bool = False) -> list[Scan]:
    """Divide a search into scans.

    Args:
        by_queue: True if the index of failed tasks by queue has the order of the list.

    Returns:
        Scans without common rows; none if no row can match the filter.
    """
    parts = []
    for indexed, rest, few in _divided(task_filter, by_queue=by_queue):
        for source in sources:
            if QUIET in indexed.terms and State.SUCCEEDED in source.states:
                continue  # its rare states are in the other parts
            by_index, by_row = (conditions(part, source, dialect) for part in (indexed, rest))
            if by_index is not None and by_row is not None:
                parts.append(Scan(source, [*source.always, *by_index], by_row, few or source.unordered))
    return parts


def is_few(task_filter: Filter) -> bool:
    """True if an index serves the filter without an order and is expected to find few rows."""
    few = ("key", "failure", "change", "batch", "workflow", "below")
    return any(term.field in few for term in path(task_filter).terms)


def _divided(task_filter: Filter, *, by_queue: bool) -> Iterator[tuple[Filter, Filter, bool]]:
    """For each group of rare states: the indexed terms, the other terms, and whether the rows are few."""
    indexed, is_small = path(task_filter).terms, is_few(task_filter)
    states = [term for term in indexed if term.field == "state"]
    state_term = QUIET if QUIET in states else states[0] if states else None
    if state_term == QUIET:
        yield Filter(indexed), _without(task_filter, indexed), is_small
    if state_term is None:
        yield Filter(indexed), _without(task_filter, indexed), is_small
        return
    words = FAILED_STATES if state_term == QUIET else values_of(state_term)
    for group in GROUPS:
        matches = tuple(word for word in group if word in words)
        if not matches:
            continue
        queues = [term for term in task_filter.terms if by_queue and group[0] in FAILED_STATES and _is_one_queue(term)]
        terms = (Term("state", Operator.IN, matches), *(term for term in indexed if term != state_term), *queues)
        yield Filter(terms), _without(task_filter, (*indexed, *queues)), is_small or group is RUNNING_STATES


def _is_one_queue(term: Term) -> bool:
    return term.field == "queue" and term.operator is Operator.EQ and not term.negated


def _without(task_filter: Filter, terms: Iterable[Term]) -> Filter:
    return Filter(tuple(term for term in task_filter.terms if term not in tuple(terms)))


_OF_ROW: dict[str, Callable[[Any], Any]] = {
    **{name: attrgetter(name) for name in ("id", "queue", "handler", "key", "tenant", "host", "priority", "error")},
    "runner": attrgetter("runner_id"),
    "attempts": attrgetter("attempt"),
    "max_attempts": attrgetter("max_attempts"),
}
"""The value of each field of a row that was read already."""

_TESTS: dict[Operator, Callable[..., bool]] = {
    Operator.EQ: eq,
    Operator.LT: lt,
    Operator.LE: le,
    Operator.GT: gt,
    Operator.GE: ge,
    Operator.RANGE: lambda value, low, high: low <= value <= high,
    Operator.CONTAINS: lambda value, part: part.lower() in value.lower(),
    Operator.IN: lambda value, *choices: value in choices,
    Operator.GLOB: lambda value, *pieces: re.fullmatch(".*".join(map(re.escape, pieces)), value, re.DOTALL) is not None,
}


def matcher(task_filter: Filter, at: datetime) -> Callable[[Any, str], bool]:
    """Translate a filter into a function of a row that was read already, and of the word of its state.

    Args:
        at: the time that due times and ages count from.

    Raises:
        InvalidFilter: a row does not have one of the fields.
    """
    for term in task_filter.terms:
        if term.field not in _ROW_FIELDS:
            why = f"{term.field} is unknown at a past time; known fields: {', '.join(_ROW_FIELDS)}"
            raise InvalidFilter(text=str(term), position=1, why=why)

    def matches(row: Any, word: str) -> bool:
        return all(_row_matches(term, row, word, at) is not term.negated for term in task_filter.terms)

    return matches


_ROW_FIELDS = (*_OF_ROW, "state", "due", "age", "text")


def _row_matches(term: Term, row: Any, word: str, at: datetime) -> bool:
    values = values_of(term)
    match term.field:
        case "state":
            return word in values or row.state in values
        case "text":
            return any(text and str(values[0]).lower() in text.lower() for text in (row.error, row.key, row.handler))
        case "due":
            waits = row.state is State.WAITING and row.run_at is not None
            return waits and _TESTS[term.operator](row.run_at - at, values[0])
        case "age":
            return row.submitted_at is not None and _TESTS[term.operator](at - row.submitted_at, values[0])
    value = _OF_ROW[term.field](row)
    return value is not None and _TESTS[term.operator](value, *values)
