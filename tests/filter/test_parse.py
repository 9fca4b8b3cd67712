import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import InvalidFilter
from runner.filter.fields import FIELDS, STATES, Field, FieldKind, Operator, Value
from runner.filter.parse import LONGEST_VALUE, MOST_CHOICES, MOST_TERMS, Filter, Term, parse_filter
from runner.model.duration import LONGEST
from runner.model.task import Shown, State
from runner.text.times import EARLIEST, LATEST

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 20, 13, 2, 40, tzinfo=UTC)
"""14:02:40 in Berlin."""

SHAPES = (Operator.IN, Operator.RANGE, Operator.GLOB)

ends = st.timedeltas(-LONGEST + timedelta.resolution, LONGEST - timedelta.resolution)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
tricky = st.text(' ",*\\-!~<>=:.ab', min_size=1, max_size=12)


def values(field: Field) -> st.SearchStrategy[Value]:
    match field.kind:
        case FieldKind.WHOLE | FieldKind.ID_OR_NAME:
            numbers = st.integers(field.lowest, field.highest)
            names = (texts | tricky).filter(lambda text: not re.fullmatch("-?[0-9]+", text))
            return numbers if field.kind is FieldKind.WHOLE else numbers | names
        case FieldKind.STATE:
            return st.sampled_from(STATES)
        case FieldKind.LENGTH:
            return ends.map(abs)
        case FieldKind.OFFSET:
            return ends
        case FieldKind.MOMENT:
            longest = LATEST - EARLIEST - timedelta.resolution
            return st.timedeltas(timedelta(0), longest).map(lambda passed: EARLIEST + passed)
        case _:
            return texts | tricky


@st.composite
def terms(draw: st.DrawFn) -> Term:
    field = draw(st.sampled_from(list(FIELDS.values())))
    operator = draw(st.sampled_from(field.operators))
    value: Value | tuple[Value, ...]
    match operator:
        case Operator.GLOB:
            outer = st.just("") | tricky
            value = (draw(outer), *draw(st.lists(tricky, max_size=2)), draw(outer))
        case Operator.IN:
            value = tuple(draw(st.lists(values(field), min_size=2, max_size=4, unique=True)))
        case Operator.RANGE:
            value = tuple(sorted(draw(st.tuples(*2 * [st.integers(field.lowest, field.highest)]))))
        case _:
            value = draw(values(field))
    name = "payload.To.city-1" if field.name == "payload" else field.name
    return Term(name, operator, value, draw(st.booleans()))


filters = st.lists(terms(), max_size=5).map(lambda drawn: Filter(tuple(drawn)))
scraps = st.sampled_from(
    [
        *FIELDS,
        *STATES,
        *Operator,
        *'-!= "\\',
        "!=",
        "!~",
        "5",
        "1h",
        "9:00",
        "2026-11-20",
        "word",
        '"a b"',
        "\0",
        "\ud800",
    ]
)
typed = st.lists(scraps, max_size=12).map("".join)


def read(text: str) -> Filter:
    return parse_filter(text, NOW, BERLIN)


def only(text: str) -> Term:
    (term,) = read(text).terms
    return term


@pytest.mark.parametrize(
    ("text", "field", "operator", "value"),
    [
        ("queue:mail", "queue", Operator.EQ, "mail"),
        ("queue=mail", "queue", Operator.EQ, "mail"),
        ("Queue:Mail", "queue", Operator.EQ, "Mail"),
        ("queue:mail,sms", "queue", Operator.IN, ("mail", "sms")),
        ("queue:mail,mail", "queue", Operator.EQ, "mail"),
        ("handler:smtp.*", "handler", Operator.GLOB, ("smtp.", "")),
        ("handler:*.send*all", "handler", Operator.GLOB, ("", ".send", "all")),
        ("handler:a**b", "handler", Operator.GLOB, ("a", "b")),
        ("key:*", "key", Operator.GLOB, ("", "")),
        ("handler~send", "handler", Operator.CONTAINS, "send"),
        ("state:dead", "state", Operator.EQ, "dead"),
        ("state:READY,lost", "state", Operator.IN, ("ready", "lost")),
        ("id:123", "id", Operator.EQ, 123),
        ("id:123,124", "id", Operator.IN, (123, 124)),
        ("id:100..200", "id", Operator.RANGE, (100, 200)),
        ("id:7..7", "id", Operator.RANGE, (7, 7)),
        ("key:order-17", "key", Operator.EQ, "order-17"),
        ("key:a..b", "key", Operator.EQ, "a..b"),
        ("attempts>3", "attempts", Operator.GT, 3),
        ("attempts:0", "attempts", Operator.EQ, 0),
        ("max_attempts:1", "max_attempts", Operator.EQ, 1),
        ("priority>=5", "priority", Operator.GE, 5),
        ("priority:5..9", "priority", Operator.RANGE, (5, 9)),
        ("due<5m", "due", Operator.LT, timedelta(minutes=5)),
        ("due<-1h30m", "due", Operator.LT, timedelta(minutes=-90)),
        ("due:5m", "due", Operator.LE, timedelta(minutes=5)),
        ("age>1h", "age", Operator.GT, timedelta(hours=1)),
        ("age:1h", "age", Operator.GE, timedelta(hours=1)),
        ("error~Timeout", "error", Operator.CONTAINS, "Timeout"),
        ("error:Timeout", "error", Operator.CONTAINS, "Timeout"),
        ("error:Key*", "error", Operator.GLOB, ("Key", "")),
        ("host:web-1", "host", Operator.EQ, "web-1"),
        ("runner:7", "runner", Operator.EQ, 7),
        ("tag:slow,big", "tag", Operator.IN, ("slow", "big")),
        ("by:ana", "by", Operator.EQ, "ana"),
        ("since:1h", "since", Operator.GE, NOW - timedelta(hours=1)),
        ("since:-1h", "since", Operator.GE, NOW - timedelta(hours=1)),
        ("since:9:00", "since", Operator.GE, datetime(2026, 11, 20, 8, 0, tzinfo=UTC)),
        ("since:23:00", "since", Operator.GE, datetime(2026, 11, 19, 22, 0, tzinfo=UTC)),
        ("until:2026-11-20", "until", Operator.LT, datetime(2026, 11, 19, 23, 0, tzinfo=UTC)),
        ('until:"today 18:00"', "until", Operator.LT, datetime(2026, 11, 20, 17, 0, tzinfo=UTC)),
        ("Timeout", "text", Operator.CONTAINS, "Timeout"),
        ("text:Timeout", "text", Operator.CONTAINS, "Timeout"),
        ("smtplib.SMTPError", "text", Operator.CONTAINS, "smtplib.SMTPError"),
        ("1832017", "text", Operator.CONTAINS, "1832017"),
        ('"db is gone"', "text", Operator.CONTAINS, "db is gone"),
        ('"queue:mail"', "text", Operator.CONTAINS, "queue:mail"),
        ('"-x"', "text", Operator.CONTAINS, "-x"),
        ("'email'", "text", Operator.CONTAINS, "'email'"),
        ('key:"order 17"', "key", Operator.EQ, "order 17"),
        ('key:"a,b*"', "key", Operator.EQ, "a,b*"),
        ('key:"a b"*', "key", Operator.GLOB, ("a b", "")),
        ('key:"a,b",c', "key", Operator.IN, ("a,b", "c")),
        (r'key:"say \"hi\" C:\temp \\"', "key", Operator.EQ, 'say "hi" C:\\temp \\'),
        (r"error~C:\temp", "error", Operator.CONTAINS, r"C:\temp"),
    ],
)
def test_a_term_is_parsed(text: str, field: str, operator: Operator, value: object) -> None:
    assert only(text) == Term(field, operator, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "positive"),
    [
        ("-queue:mail", "queue:mail"),
        ("!queue:mail", "queue:mail"),
        ("queue!=mail,sms", "queue:mail,sms"),
        ("queue!~mail", "queue~mail"),
        ("-key:*", "key:*"),
        ("-Timeout", "Timeout"),
        ('-"db gone"', '"db gone"'),
        ("-attempts>3", "attempts>3"),
    ],
)
def test_a_negated_term_is_the_same_term_with_a_sign(text: str, positive: str) -> None:
    term, plain = only(text), only(positive)
    assert term == Term(plain.field, plain.operator, plain.value, negated=True)
    assert str(term) == f"-{plain}"


def test_two_negations_cancel_out() -> None:
    assert only("-queue!=mail") == only("queue:mail")


def test_terms_keep_their_order_and_spaces_do_not_matter() -> None:
    parsed = read("  queue:mail\tstate:retrying \n error~Disconnected   gone ")
    assert [term.field for term in parsed.terms] == ["queue", "state", "error", "text"]
    assert str(parsed) == "queue:mail state:retrying error~Disconnected gone"


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_filter_has_no_terms(text: str) -> None:
    assert read(text) == Filter()
    assert str(read(text)) == ""


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("QUEUE=mail", "queue:mail"),
        ("error:Timeout", "error~Timeout"),
        ("due:90", "due<=1m30s"),
        ("due<-90s", "due<-1m30s"),
        ("since:1h", "since:2026-11-20T12:02:40Z"),
        ("since>=9:00", "since:2026-11-20T08:00:00Z"),
        ("id:0100..0200", "id:100..200"),
        ('key:"plain"', "key:plain"),
        ('key:or"der 1"7', 'key:"order 17"'),
        ("text~a", "a"),
        ('"a:b"', '"a:b"'),
        ("12:30", "12:30"),
    ],
)
def test_a_filter_has_one_format(text: str, canonical: str) -> None:
    assert str(read(text)) == canonical


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("queue:mail stat:dead", 12, "unknown field 'stat', did you mean 'state'"),
        ("  -quue:mail", 3, "unknown field 'quue', did you mean 'queue'"),
        ("http://x", 1, "unknown field 'http'; put it in quotes"),
        ("state:deed", 7, "unknown state 'deed', did you mean 'dead'; the states are waiting, blocked"),
        ("state:dead,zzz", 7, "unknown state 'zzz'; the states are"),
        ("queue:", 7, "a value is missing"),
        ("queue: mail", 7, "a value is missing"),
        ("queue:mail,", 7, "a value is missing"),
        ('queue:""', 7, "a value is missing"),
        ("mail -", 7, "a value is missing"),
        ('error~"gone', 7, "this quote is never closed"),
        ('key:a"b\\"', 6, "this quote is never closed"),
        ("queue>5", 7, "queue does not support '>'; it supports : , * ~"),
        ("since<1h", 7, "since does not support '<'; it supports >="),
        ("attempts~3", 10, "attempts does not support '~'"),
        ("handler:a*,b", 9, "put a star in quotes here"),
        ("error~Time*", 7, "put a star in quotes here"),
        ("state:d*", 7, "put a star in quotes here"),
        ("error:a,b", 7, "put a comma in quotes here"),
        ("one,two", 1, "put a comma in quotes here"),
        ("attempts>3,4", 10, "put a comma in quotes here"),
        ("attempts>many", 10, "attempts must be a whole number, not 'many'"),
        ("id:٣", 4, "id must be a whole number"),
        ("id:1_0", 4, "id must be a whole number"),
        ("id:100..", 4, "id must be a whole number, not ''"),
        ("id:1..2..3", 4, "id must be a whole number, not '2..3'"),
        ("id:200..100", 4, "the range is empty; write 100..200"),
        ("id:0", 4, "id must be from 1 to 9223372036854775807"),
        ("id:9223372036854775808", 4, "id must be from 1 to"),
        ("id:" + "9" * 400, 4, "id must be from 1 to 9223372036854775807, not 9"),
        ("priority>10", 10, "priority must be from 1 to 9"),
        ("attempts>-1", 10, "attempts must be from 0 to 2147483647"),
        ("due<soon", 5, "'soon' is not a duration"),
        ("age>-5m", 5, "must not be negative"),
        ("since:whenever", 7, "'whenever' is not a point in time"),
        ("until:2026-03-29T02:30", 7, "skip that time"),
        ("error~a\0b", 8, "databases cannot store this character"),
        ("error~\udc80", 7, "databases cannot store this character"),
        ("key:" + "x" * (LONGEST_VALUE + 1), 5, "a value has at most 500 characters"),
        ("key:" + "*x" * LONGEST_VALUE, 5, "a value has at most 500 characters"),
        ("id:" + "1," * MOST_CHOICES + "1", 4, "a list has at most 1000 values"),
        ("a " * MOST_TERMS + "a", 2 * MOST_TERMS + 1, "a filter has at most 50 terms"),
    ],
)
def test_an_invalid_term_is_rejected_with_its_position(text: str, position: int, why: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        read(text)
    assert why in caught.value.fields["why"]
    assert caught.value.fields["position"] == position
    assert len(str(caught.value)) < 1_500
    assert not str(caught.value).endswith("..")


@given(filters)
def test_a_formatted_filter_parses_to_an_equal_filter(parsed: Filter) -> None:
    assert read(str(parsed)) == parsed


@given(st.text(max_size=40) | typed)
def test_every_text_is_parsed_or_rejected_with_a_position(text: str) -> None:
    try:
        parsed = read(text)
    except InvalidFilter as refused:
        position = refused.fields["position"]
    else:
        assert read(str(parsed)) == parsed
        position = 1
    assert 1 <= position <= len(text) + 1


@given(typed)
def test_values_have_the_shape_of_their_operator(text: str) -> None:
    try:
        parsed = read(text)
    except InvalidFilter:
        return
    for term in parsed.terms:
        assert term.operator in FIELDS[term.field.partition(".")[0]].operators
        assert isinstance(term.value, tuple) == (term.operator in SHAPES)
        assert not isinstance(term.value, tuple) or len(term.value) >= 2


@pytest.mark.parametrize("field", FIELDS.values(), ids=lambda field: field.name)
def test_every_example_of_a_field_is_a_filter_on_it(field: Field) -> None:
    assert {term.field.partition(".")[0] for term in read(field.examples).terms} == {field.name}


def test_the_table_of_fields_fits_a_narrow_screen() -> None:
    assert all(len(f"{name:13}{field.help}  {field.examples}") <= 80 for name, field in FIELDS.items())


def test_stored_and_displayed_states_are_valid() -> None:
    assert set(STATES) == {*State, *Shown}
    assert all(only(f"state:{word}").value == word for word in STATES)


def test_a_member_of_the_payload_keeps_the_case_of_its_path() -> None:
    assert only("Payload.userId.n:7") == Term("payload.userId.n", Operator.EQ, "7")
    assert str(only('payload.to:"a b"')) == 'payload.to:"a b"'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("payload:7", "name a member of the payload: payload.user_id:7"),
        ("payload.user.password:a*", "password looks like a secret, and a filter could guess it"),
        ("queue.name:mail", "unknown field 'queue.name'"),
        ("payload.n>7", "payload.n does not support '>'"),
    ],
)
def test_a_wrong_field_of_the_payload_is_explained(text: str, why: str) -> None:
    with pytest.raises(InvalidFilter, match=re.escape(why)):
        read(text)
