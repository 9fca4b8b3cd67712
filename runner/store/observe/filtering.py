"""filtering: a filter as conditions on tables; bound parameters only, columns from fixed maps."""

import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from runner.columns import db_later, db_now
from runner.errors import InvalidFilter
from runner.people.fields import Operator
from runner.people.filters import Filter, Term
from runner.store.dialects import Dialect
from runner.store.observe.subjects import Condition, Subject
from runner.task import Shown, State

RARE = frozenset({State.BLOCKED, State.RUNNING, Shown.LOST, State.DEAD, State.CANCELLED})
"""States with an index of their own."""

COMPARISONS: dict[Operator, Callable[..., Any]] = {
    Operator.EQ: lambda column, value: column == value,
    Operator.LT: lambda column, value: column < value,
    Operator.LE: lambda column, value: column <= value,
    Operator.GT: lambda column, value: column > value,
    Operator.GE: lambda column, value: column >= value,
    Operator.RANGE: lambda column, low, high: column.between(low, high),
    Operator.CONTAINS: lambda column, value: column.icontains(value, autoescape=True),
}

TURNED = {Operator.LT: Operator.GT, Operator.GT: Operator.LT, Operator.LE: Operator.GE, Operator.GE: Operator.LE}
"""What a comparison of ages is as one of times: the older, the earlier."""


def conditions(wanted: Filter, subject: Subject, dialect: Dialect) -> list[Condition] | None:
    """The conditions that a filter means.

    Args:
        wanted: as `parse_filter` read it.
        subject: what it is applied to.
        dialect: of the database.

    Returns:
        Conditions that must all hold; None when no row of the subject can fulfil them.

    Raises:
        InvalidFilter: it names a field that the subject does not know.
    """
    found = []
    for term in wanted.terms:
        condition = _SPECIAL.get(term.field, _plain)(term, subject, dialect)
        if isinstance(condition, sa.False_) and not term.negated:
            return None
        # A row without any value for the field fulfils the negation too.
        found.append(sa.not_(sa.func.coalesce(condition, sa.false())) if term.negated else condition)
    return found


def indexed(wanted: Filter) -> bool:
    """Tell whether an index finds what a filter lets through, so that nothing else is walked over."""
    return not wanted.terms or bool(path(wanted).terms)


def path(wanted: Filter) -> Filter:
    """The part of a filter that an index serves; an empty one when everything must be walked through."""
    return Filter(tuple(term for term in wanted.terms if _is_served(term)))


def _is_served(term: Term) -> bool:
    match term.field:
        case "id":
            return not term.negated
        case "key" | "failure":
            return not term.negated and term.operator in (Operator.EQ, Operator.IN)
        case "state":
            return not term.negated and RARE.issuperset(_values(term))
    return False


def _values(term: Term) -> tuple[Any, ...]:
    return term.value if isinstance(term.value, tuple) else (term.value,)


def _plain(term: Term, subject: Subject, dialect: Dialect) -> Condition:
    column = _column(term, subject)
    match term.operator:
        case Operator.IN:
            return dialect.one_of(column, _values(term))
        case Operator.GLOB:
            return dialect.matches(column, _values(term))
    return _compared(column, term.operator, *_values(term))


def _column(term: Term, subject: Subject) -> Any:
    if term.field not in subject.columns:
        known = ", ".join(subject.columns)
        raise InvalidFilter(text=str(term), position=1, why=f"{term.field} is not known of these; there are {known}")
    return subject.columns[term.field]


def _compared(column: Any, operator: Operator, *values: Any) -> Condition:
    condition: Condition = COMPARISONS[operator](column, *values)
    return condition


def _text(term: Term, subject: Subject, _dialect: Dialect) -> Condition:
    columns = [subject.columns[name] for name in ("error", "key", "handler") if name in subject.columns]
    return sa.or_(*(_compared(column, Operator.CONTAINS, term.value) for column in columns))


def _state(term: Term, subject: Subject, dialect: Dialect) -> Condition:
    if not subject.states:
        return _plain(term, subject, dialect)
    possible = [subject.states[word] for word in _values(term) if word in subject.states]
    return sa.or_(*possible) if possible else sa.false()


def _due(term: Term, subject: Subject, _dialect: Dialect) -> Condition:
    column = _column(term, subject)
    if State.WAITING not in subject.states:
        return sa.false()
    limit = db_later(db_now(), _values(term)[0].total_seconds())
    return subject.states[State.WAITING] & _compared(column, term.operator, limit)


def _age(term: Term, subject: Subject, _dialect: Dialect) -> Condition:
    moment = db_later(db_now(), -_values(term)[0].total_seconds())
    return _compared(_column(term, subject), TURNED[term.operator], moment)


def _failure(term: Term, subject: Subject, dialect: Dialect) -> Condition:
    """Look in the failed attempts; the index of their fingerprints finds them."""
    if subject.failures is None:
        return _plain(term, subject, dialect)
    tried = subject.failures.c
    of_kind = dialect.one_of(tried.fingerprint, _values(term))
    return subject.table.c.id.in_(sa.select(tried.task_id).where(of_kind))


def _tag(term: Term, subject: Subject, _dialect: Dialect) -> Condition:
    return sa.or_(*(_has_tag(_column(term, subject), tag) for tag in _values(term)))


def _has_tag(tags: Any, tag: str) -> Condition:
    """Look for a tag in the text: taking JSON apart would fail on a row whose tags are no array of texts.

    Quotes inside of strings are rewritten, so that a quote begins or ends a string. What is found is taken away, and
    something has then changed: unlike LIKE this tells upper from lower case on both databases.
    """
    written = sa.func.replace(sa.cast(tags, sa.Text), r"\"", r"\u0022")
    needles = {json.dumps(tag, ensure_ascii=plain).replace(r"\"", r"\u0022") for plain in (True, False)}
    return sa.or_(*(written != sa.func.replace(written, needle, "") for needle in sorted(needles)))


_SPECIAL = {"text": _text, "state": _state, "due": _due, "failure": _failure, "age": _age, "tag": _tag}
"""The fields whose terms are not simply about one column."""
