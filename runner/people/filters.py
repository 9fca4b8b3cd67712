"""The filter language, which the command line and the console share.

    queue:mail handler:smtp.* state:dead,retrying id:100..200 attempts>3 due<5m error~Timeout -tag:slow "db gone"

Blanks stand between terms, and all terms must hold; a comma means "or" inside one. `-` or `!` before a term negates it,
and so do `!=` and `!~`. A word without a field is looked for in error, key and handler. Double quotes make blanks,
commas and stars ordinary; inside them a backslash goes before a quote or a backslash. The fields: see fields.py.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from runner.errors import InvalidFilter, InvalidInput
from runner.people.fields import FIELDS, Field, Operator, Value, suggestion
from runner.people.times import format_duration

MOST_TERMS = 50
MOST_CHOICES = 1_000
LONGEST_VALUE = 500

_HEAD = re.compile(r"\s*(?P<minus>[-!]?)(?:(?P<field>[A-Za-z_]+)(?P<sign>!=|!~|<=|>=|[:=<>~]))?")
_PIECE = re.compile(r'"(?P<quoted>(?:[^"\\]|\\["\\]|\\(?!["\\]))*)"|(?P<bare>[^\s",*]+)|(?P<mark>[,*])')
_ORDINARY = re.compile(r'[^\s",*]*')
_ESCAPED = re.compile(r'\\(["\\])')
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

_JOINTS = {Operator.IN: ",", Operator.RANGE: "..", Operator.GLOB: "*"}


@dataclass(frozen=True, slots=True)
class Term:
    """One condition.

    Args:
        field: a name in FIELDS.
        operator: one of that field's.
        value: of the field's kind, in the operator's shape.
        negated: the opposite is meant, which a task without any value for the field fulfils too.
    """

    field: str
    operator: Operator
    value: Value | tuple[Value, ...]
    negated: bool = False

    def __str__(self) -> str:
        minus = "-" if self.negated else ""
        if self.field == "text":
            return f"{minus}{_written_word(str(self.value))}"
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        implied = self.operator in _JOINTS or FIELDS[self.field].operators == (self.operator,)
        sign = Operator.EQ if implied else self.operator
        return f"{minus}{self.field}{sign}{_JOINTS.get(self.operator, '').join(map(_written, values))}"


@dataclass(frozen=True, slots=True)
class Filter:
    """Terms that must all hold; without any it lets everything through. Its text reads back as an equal filter."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))


def parse_filter(text: str, now: datetime, zone: tzinfo) -> Filter:
    """Read a filter.

    Args:
        text: as the top of this module shows.
        now: the present, aware, from which `since:1h` counts back.
        zone: where a time without an offset is meant.

    Returns:
        The filter, its values checked and of their fields' kinds.

    Raises:
        InvalidFilter: not understood; it says at which character, counted from 1, and what to write instead.
    """
    try:
        return Filter(tuple(_term(typed, now, zone) for typed in _split(text)))
    except _Misread as misread:
        shown = text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
        raise InvalidFilter(text=shown, position=misread.at + 1, why=misread.why.rstrip(".")) from misread.__cause__


class _Misread(Exception):
    """Why, and at which character counted from 0; the whole text is known further out."""

    def __init__(self, why: str, at: int) -> None:
        super().__init__(why, at)
        self.why, self.at = why, at


class _Typed(NamedTuple):
    """A term as it was typed: the choices between its commas, each as the pieces between its stars."""

    negated: bool
    field: str
    sign: str
    choices: list[list[str]]
    at: int
    value_at: int


def _split(text: str) -> Iterator[_Typed]:
    if unstorable := _UNSTORABLE.search(text):
        raise _Misread("no database can hold this character", unstorable.start())
    text, at, count = text.rstrip(), 0, 0
    while at < len(text) and (head := _HEAD.match(text, at)):
        count += 1
        if count > MOST_TERMS:
            raise _Misread(f"a filter has {MOST_TERMS} terms at most", head.start("minus"))
        choices, at = _choices(text, head.end())
        sign = head["sign"] or Operator.CONTAINS
        negated = bool(head["minus"]) != sign.startswith("!")
        yield _Typed(negated, head["field"] or "text", sign.lstrip("!"), choices, head.start("minus"), head.end())


def _choices(text: str, start: int) -> tuple[list[list[str]], int]:
    choices, at = [[""]], start
    while at < len(text) and not text[at].isspace():
        piece = _PIECE.match(text, at)
        if not piece:
            raise _Misread("the quote that opens here is not closed", at)
        at = piece.end()
        if piece["mark"] == ",":
            choices.append([""])
        elif piece["mark"]:
            choices[-1].append("")
        else:
            choices[-1][-1] += piece["bare"] or _ESCAPED.sub(r"\1", piece["quoted"])
        if len("*".join(choices[-1])) > LONGEST_VALUE:
            raise _Misread(f"a value has {LONGEST_VALUE} characters at most", start)
    if [""] in choices:
        raise _Misread("a value is missing", start)
    if len(choices) > MOST_CHOICES:
        raise _Misread(f"a list has {MOST_CHOICES} values at most", start)
    return choices, at


def _term(typed: _Typed, now: datetime, zone: tzinfo) -> Term:
    field = _field(typed)
    operator = _operator(typed, field)
    first = typed.choices[0]
    try:
        match operator:
            case Operator.GLOB:
                # Two stars in a row say what one does.
                value: Value | tuple[Value, ...] = (first[0], *filter(None, first[1:-1]), first[-1])
            case Operator.RANGE:
                value = _ends(*(field.read(end, now, zone) for end in first[0].split("..", 1)))
            case Operator.IN:
                value = tuple(dict.fromkeys(field.read(choice[0], now, zone) for choice in typed.choices))
            case _:
                value = field.read(first[0], now, zone)
    except InvalidInput as error:
        plain = type(error) is InvalidInput
        raise _Misread(error.fields["why"] if plain else str(error), typed.value_at) from error
    if operator is Operator.IN and isinstance(value, tuple) and len(value) == 1:
        return Term(field.name, Operator.EQ, value[0], typed.negated)
    return Term(field.name, operator, value, typed.negated)


def _field(typed: _Typed) -> Field:
    name = typed.field.lower()
    if name not in FIELDS:
        hint = suggestion(name, tuple(FIELDS))
        raise _Misread(f"there is no field {name!r}{hint}; quotes make it a word to look for", typed.at)
    return FIELDS[name]


def _ends(low: Value, high: Value) -> tuple[Value, Value]:
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise InvalidInput(why=f"nothing is in that range; write {high}..{low}")
    return low, high


def _operator(typed: _Typed, field: Field) -> Operator:
    plain = typed.sign in (":", "=")
    listed, starred = len(typed.choices) > 1, any(len(choice) > 1 for choice in typed.choices)
    if listed or starred:
        operator = Operator.IN if listed else Operator.GLOB
        if (listed and starred) or not plain or operator not in field.operators:
            what = "a star" if starred else "a comma"
            raise _Misread(f"{what} can stand here in quotes only", typed.value_at)
        return operator
    if plain:
        ranged = Operator.RANGE in field.operators and ".." in typed.choices[0][0]
        return Operator.RANGE if ranged else field.operators[0]
    operator = Operator(typed.sign)
    if operator not in field.operators:
        known = " ".join(field.operators)
        raise _Misread(f"{field.name} does not take {operator.value!r}; it takes {known}", typed.value_at)
    return operator


def _written(value: Value) -> str:
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return format_duration(value)
        case int():
            return str(value)
    return value if _ORDINARY.fullmatch(value) else _quoted(value)


def _written_word(word: str) -> str:
    head = _HEAD.match(word)
    like_a_term = head and (head["minus"] or head["field"])
    return _quoted(word) if like_a_term or not _ORDINARY.fullmatch(word) else word


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
