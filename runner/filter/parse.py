"""The filter language of the command line and the console.

    queue:mail handler:smtp.* state:dead,retrying id:100..200 attempts>3 due<5m error~Timeout -tag:slow "db gone"

Terms are separated by blanks, and a task must match all of them; a comma means "or" inside a term. `-` or `!` before a
term negates it, and so do `!=` and `!~`. A word without a field searches error, key and handler. Double quotes make
blanks, commas and stars literal; inside them a backslash escapes a quote or a backslash. For the fields see fields.py.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from runner.errors import InvalidFilter, InvalidInput
from runner.filter.fields import FIELDS, PAYLOAD, Field, Operator, Value, field_of, suggestion
from runner.model.duration import format_duration
from runner.text.redact import is_secret

MOST_TERMS = 50
MOST_CHOICES = 1_000
LONGEST_VALUE = 500

_HEAD = re.compile(r"\s*(?P<minus>[-!]?)(?:(?P<field>[A-Za-z_]+(?:\.[A-Za-z0-9_-]+)*)(?P<sign>!=|!~|<=|>=|[:=<>~]))?")
_TOKEN = re.compile(r'"(?P<quoted>(?:[^"\\]|\\["\\]|\\(?!["\\]))*)"|(?P<bare>[^\s",*]+)|(?P<mark>[,*])')
_ORDINARY = re.compile(r'[^\s",*]*')
_ESCAPED = re.compile(r'\\(["\\])')
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

_SEPARATORS = {Operator.IN: ",", Operator.RANGE: "..", Operator.GLOB: "*"}


class Term(NamedTuple):
    """One condition of a filter.

    Args:
        field: a name in FIELDS, or a member of the payload.
        value: a value of the field's kind, in the operator's shape.
        negated: True for the opposite, which also matches a task without a value for the field.
    """

    field: str
    operator: Operator
    value: Value | tuple[Value, ...]
    negated: bool = False

    def __str__(self) -> str:
        minus = "-" if self.negated else ""
        if self.field == "text":
            return f"{minus}{_format_word(str(self.value))}"
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        field = field_of(self.field)
        is_implied = self.operator in _SEPARATORS or (field is not None and field.operators == (self.operator,))
        sign = Operator.EQ if is_implied else self.operator
        return f"{minus}{self.field}{sign}{_SEPARATORS.get(self.operator, '').join(map(_format_value, values))}"


class Filter(NamedTuple):
    """Terms that must all match; a filter without terms matches every task. Its text parses back to an equal filter."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))


def parse_filter(text: str, now: datetime, zone: tzinfo) -> Filter:
    """Parse a filter.

    Args:
        text: the filter, in the language described at the top of this module.
        now: the current time, aware; `since:1h` counts back from it.
        zone: the time zone of times without an offset.

    Returns:
        The filter, with values of the fields' kinds.

    Raises:
        InvalidFilter: the text is not a filter; the message has the position, from 1, and a correction.
    """
    try:
        return Filter(tuple(_term(raw, now, zone) for raw in _split(text)))
    except _SyntaxError as error:
        excerpt = text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
        raise InvalidFilter(text=excerpt, position=error.at + 1, why=error.why.rstrip(".")) from error.__cause__


class _SyntaxError(Exception):
    """The reason and the position, counted from 0; `parse_filter` adds the whole text."""

    def __init__(self, why: str, at: int) -> None:
        super().__init__(why, at)
        self.why, self.at = why, at


class _RawTerm(NamedTuple):
    """A term before its values are parsed: the choices between commas, each as the pieces between stars."""

    negated: bool
    field: str
    sign: str
    choices: list[list[str]]
    at: int
    value_at: int


def _split(text: str) -> Iterator[_RawTerm]:
    if unstorable := _UNSTORABLE.search(text):
        raise _SyntaxError("databases cannot store this character", unstorable.start())
    text, at, count = text.rstrip(), 0, 0
    while at < len(text) and (head := _HEAD.match(text, at)):
        count += 1
        if count > MOST_TERMS:
            raise _SyntaxError(f"a filter has at most {MOST_TERMS} terms", head.start("minus"))
        choices, at = _choices(text, head.end())
        sign = head["sign"] or Operator.CONTAINS
        negated = bool(head["minus"]) != sign.startswith("!")
        yield _RawTerm(negated, head["field"] or "text", sign.lstrip("!"), choices, head.start("minus"), head.end())


def _choices(text: str, start: int) -> tuple[list[list[str]], int]:
    choices, at = [[""]], start
    while at < len(text) and not text[at].isspace():
        token = _TOKEN.match(text, at)
        if not token:
            raise _SyntaxError("this quote is never closed", at)
        at = token.end()
        if token["mark"] == ",":
            choices.append([""])
        elif token["mark"]:
            choices[-1].append("")
        else:
            choices[-1][-1] += token["bare"] or _ESCAPED.sub(r"\1", token["quoted"])
        if len("*".join(choices[-1])) > LONGEST_VALUE:
            raise _SyntaxError(f"a value has at most {LONGEST_VALUE} characters", start)
    if [""] in choices:
        raise _SyntaxError("a value is missing", start)
    if len(choices) > MOST_CHOICES:
        raise _SyntaxError(f"a list has at most {MOST_CHOICES} values", start)
    return choices, at


def _term(raw: _RawTerm, now: datetime, zone: tzinfo) -> Term:
    field = _field(raw)
    operator = _operator(raw, field)
    first = raw.choices[0]
    try:
        match operator:
            case Operator.GLOB:
                # Two stars in a row mean the same as one.
                value: Value | tuple[Value, ...] = (first[0], *filter(None, first[1:-1]), first[-1])
            case Operator.RANGE:
                value = _ends(*(field.read(end, now, zone) for end in first[0].split("..", 1)))
            case Operator.IN:
                value = tuple(dict.fromkeys(field.read(choice[0], now, zone) for choice in raw.choices))
            case _:
                value = field.read(first[0], now, zone)
    except InvalidInput as error:
        plain = type(error) is InvalidInput
        raise _SyntaxError(error.fields["why"] if plain else str(error), raw.value_at) from error
    if operator is Operator.IN and isinstance(value, tuple) and len(value) == 1:
        return Term(field.name, Operator.EQ, value[0], raw.negated)
    return Term(field.name, operator, value, raw.negated)


def _field(raw: _RawTerm) -> Field:
    first, dot, path = raw.field.partition(".")
    name = f"{first.lower()}{dot}{path}"
    if name == "payload":
        raise _SyntaxError("name a member of the payload: payload.user_id:7", raw.at)
    secret = next((part for part in path.split(".") if is_secret(part)), None)
    if name.startswith(PAYLOAD) and secret is not None:
        raise _SyntaxError(f"{secret} looks like a secret, and a filter could guess it; search another field", raw.at)
    field = field_of(name)
    if field is None:
        hint = suggestion(name, tuple(FIELDS))
        raise _SyntaxError(f"unknown field {name!r}{hint}; put it in quotes to search for the text", raw.at)
    return field


def _ends(low: Value, high: Value) -> tuple[Value, Value]:
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise InvalidInput(why=f"the range is empty; write {high}..{low}")
    return low, high


def _operator(raw: _RawTerm, field: Field) -> Operator:
    plain = raw.sign in (":", "=")
    has_comma, has_star = len(raw.choices) > 1, any(len(choice) > 1 for choice in raw.choices)
    if has_comma or has_star:
        operator = Operator.IN if has_comma else Operator.GLOB
        if (has_comma and has_star) or not plain or operator not in field.operators:
            character = "a star" if has_star else "a comma"
            raise _SyntaxError(f"put {character} in quotes here", raw.value_at)
        return operator
    if plain:
        is_range = Operator.RANGE in field.operators and ".." in raw.choices[0][0]
        return Operator.RANGE if is_range else field.operators[0]
    operator = Operator(raw.sign)
    if operator not in field.operators:
        operators = " ".join(field.operators)
        raise _SyntaxError(f"{field.name} does not support {operator.value!r}; it supports {operators}", raw.value_at)
    return operator


def _format_value(value: Value) -> str:
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return format_duration(value)
        case int():
            return str(value)
    return value if _ORDINARY.fullmatch(value) else _quoted(value)


def _format_word(word: str) -> str:
    head = _HEAD.match(word)
    is_term = head and (head["minus"] or head["field"])
    return _quoted(word) if is_term or not _ORDINARY.fullmatch(word) else word


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
