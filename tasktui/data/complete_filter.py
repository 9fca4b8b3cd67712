"""Typed filters: completion, and quoting of values."""

import re
from collections.abc import Iterable, Mapping, Sequence

from runner.filter.fields import FIELDS, STATES, FieldKind, Operator
from runner.filter.parse import Filter, Term

_LAST_TERM = re.compile(r'(?:^|\s)(?P<minus>[-!]?)(?P<term>[^\s"]*)$')
_VALUE = re.compile(r"(?P<head>(?P<field>[a-z_]+)[:=](?:[^,]*,)*)(?P<begun>[^,]*)")


def complete_filter(text: str, names: Mapping[str, Sequence[str]]) -> str | None:
    """Complete the last term of a filter.

    Args:
        text: the text so far.
        names: existing values by field, of queues and handlers.

    Returns:
        The completed text; None without a completion.
    """
    last = _LAST_TERM.search(text)
    if not last or not last["term"]:
        return None
    prefix = text[: last.start("term")]
    value = _VALUE.fullmatch(last["term"])
    if not value:
        field = first_of(last["term"], [name for name in FIELDS if name != "text"])
        return f"{prefix}{field}{_sign(field)}" if field else None
    field = value["field"]
    candidates = STATES if field in FIELDS and FIELDS[field].kind is FieldKind.STATE else names.get(field, ())
    completion = first_of(value["begun"], candidates) if value["begun"] else None
    is_plain = completion and not re.search(r'[\s",*]', completion)
    return f"{prefix}{value['head']}{completion}" if is_plain else None


def filter_of(**values: str) -> str:
    """Write a filter from values: error and text match substrings, other fields whole values."""
    terms = []
    for name, value in values.items():
        operator = Operator.CONTAINS if name in ("error", "text") else Operator.EQ
        terms.append(Term(name, operator, value))
    return str(Filter(tuple(terms)))


def _sign(field: str) -> str:
    first = FIELDS[field].operators[0]
    return ":" if first is Operator.EQ else first.value


def first_of(prefix: str, candidates: Iterable[str]) -> str | None:
    """The first candidate that continues the prefix; None if there is none."""
    return next((name for name in candidates if name.startswith(prefix) and name != prefix), None)
