"""Filters as people type them: completed, and written from values."""

import re
from collections.abc import Iterable, Mapping, Sequence

from runner.people.fields import FIELDS, STATES, Kind, Operator
from runner.people.filters import Filter, Term

_LAST_TERM = re.compile(r'(?:^|\s)(?P<minus>[-!]?)(?P<term>[^\s"]*)$')
_VALUE = re.compile(r"(?P<head>(?P<field>[a-z_]+)[:=](?:[^,]*,)*)(?P<begun>[^,]*)")


def complete_filter(text: str, names: Mapping[str, Sequence[str]]) -> str | None:
    """The filter that was begun, as it may be meant.

    Args:
        text: what was typed so far.
        names: values that exist, by field: those of queues and handlers.

    Returns:
        The text with its last term completed; None when nothing is known.
    """
    last = _LAST_TERM.search(text)
    if not last or not last["term"]:
        return None
    kept = text[: last.start("term")]
    value = _VALUE.fullmatch(last["term"])
    if not value:
        field = first_of(last["term"], [name for name in FIELDS if name != "text"])
        return f"{kept}{field}{_sign(field)}" if field else None
    field = value["field"]
    known = STATES if field in FIELDS and FIELDS[field].kind is Kind.STATE else names.get(field, ())
    found = first_of(value["begun"], known) if value["begun"] else None
    return f"{kept}{value['head']}{found}" if found and not re.search(r'[\s",*]', found) else None


def filter_of(**values: str) -> str:
    """Write a filter, values quoted where they must be: fields that contain a text, or are equal to one."""
    terms = []
    for name, value in values.items():
        operator = Operator.CONTAINS if name in ("error", "text") else Operator.EQ
        terms.append(Term(name, operator, value))
    return str(Filter(tuple(terms)))


def _sign(field: str) -> str:
    first = FIELDS[field].operators[0]
    return ":" if first is Operator.EQ else first.value


def first_of(begun: str, known: Iterable[str]) -> str | None:
    """The first known word that goes on as it was begun; None when there is none."""
    return next((name for name in known if name.startswith(begun) and name != begun), None)
