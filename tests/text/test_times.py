import math
import re
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import InvalidDuration, InvalidInput, InvalidMoment
from runner.model.duration import LONGEST, format_duration, parse_duration
from runner.text.formatting import clock, weekday_clock
from runner.text.times import EARLIEST, LATEST, format_age, format_moment, parse_moment, parse_period

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [
    UTC,
    BERLIN,
    ZoneInfo("Asia/Kathmandu"),
    ZoneInfo("America/Sao_Paulo"),
    timezone(timedelta(hours=-3, minutes=-30)),
]
NOW = datetime(2026, 11, 20, 13, 2, 40, tzinfo=UTC)
"""14:02:40 in Berlin, a Friday in winter."""

lengths = st.timedeltas(timedelta(0), LONGEST - timedelta.resolution)
zones = st.sampled_from(ZONES)
moments = st.timedeltas(timedelta(days=1), timedelta(days=2_900_000)).map(lambda distance: EARLIEST + distance)
typed = st.text("0123456789:+-.TZ wdhmsnow()UTCyestrdao", max_size=30)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5_400),
        ("1h 30m", 5_400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("250ms", 0.25),
        ("1.5h", 5_400),
        ("90", 90),
        ("0.5", 0.5),
        (" 5m ", 300),
        ("0s", 0),
        ("1w2d3h4m5s6ms", 788_645.006),
        (90, 90),
        (0.25, 0.25),
        (timedelta(minutes=5), 300),
    ],
)
def test_a_duration_is_parsed(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "m", "5 m", "5M", "1y", "30m1h", "5m5m", "1e3", "1_0", "٣s", "five", "1.s", "--5m"]
)
def test_an_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(InvalidDuration, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("value", ["-5m", -1, -0.001, timedelta(seconds=-1)])
def test_a_negative_duration_is_rejected(value: str | float | timedelta) -> None:
    with pytest.raises(InvalidDuration, match="must not be negative"):
        parse_duration(value)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 1e300, 10**400, LONGEST, "36525d", "9" * 60, "9" * 60 + "w"]
)
def test_an_infinite_duration_is_rejected(value: str | float | timedelta) -> None:
    with pytest.raises(InvalidDuration, match="100 years"):
        parse_duration(value)


@pytest.mark.parametrize("value", [None, True, b"5m", [5]])
def test_a_duration_of_another_type_is_rejected(value: object) -> None:
    with pytest.raises(InvalidDuration, match="must be text, a number"):
        parse_duration(value)  # type: ignore[arg-type]


def test_a_long_text_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidDuration) as caught:
        parse_duration("x" * 10_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (0.000001, "0.001ms"),
        (3.1, "3.1s"),
        (60.25, "1m0.25s"),
        (252, "4m12s"),
        (1_320, "22m"),
        (5_400, "1h30m"),
        (604_800, "7d"),
        (-300, "-5m"),
    ],
)
def test_a_duration_format_is_short_and_exact(seconds: float, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text


@given(lengths)
def test_a_formatted_duration_parses_to_an_equal_duration(length: timedelta) -> None:
    assert parse_duration(format_duration(length)) == length


@given(st.text(max_size=20) | typed | st.floats() | st.integers())
def test_every_input_is_a_bounded_duration_or_rejected(value: str | float) -> None:
    try:
        length = parse_duration(value)
    except InvalidDuration:
        return
    assert timedelta(0) <= length < LONGEST
    assert parse_duration(format_duration(length)) == length


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.04, "0s"),
        (0.97, "0.9s"),
        (3.1, "3.1s"),
        (8, "8s"),
        (41.9, "41s"),
        (60, "1m"),
        (362, "6m02s"),
        (1_320, "22m"),
        (6_060, "1h41m"),
        (187_200, "2d04h"),
        (86_400 * 400, "400d"),
        (-41, "-41s"),
        (-0.01, "0s"),
    ],
)
def test_an_age_is_short(seconds: float, text: str) -> None:
    assert format_age(timedelta(seconds=seconds)) == text


@given(lengths)
def test_an_age_is_rounded_down_by_a_small_amount(age: timedelta) -> None:
    parsed = parse_duration(format_age(age))
    assert parsed <= age
    assert age - parsed <= max(age / 10, timedelta(milliseconds=100))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", "2026-11-20T13:02:40+00:00"),
        ("NOW", "2026-11-20T13:02:40+00:00"),
        ("+15m", "2026-11-20T13:17:40+00:00"),
        ("-5m", "2026-11-20T12:57:40+00:00"),
        ("+1d12h", "2026-11-22T01:02:40+00:00"),
        ("15m", "2026-11-20T13:17:40+00:00"),
        ("1h 30m", "2026-11-20T14:32:40+00:00"),
        ("14:30", "2026-11-20T14:30:00+01:00"),
        ("14:02", "2026-11-21T14:02:00+01:00"),
        ("9:00", "2026-11-21T09:00:00+01:00"),
        ("09:00:30", "2026-11-21T09:00:30+01:00"),
        ("14:30 +05:30", "2026-11-21T14:30:00+05:30"),
        ("today", "2026-11-20T00:00:00+01:00"),
        ("today 9:00", "2026-11-20T09:00:00+01:00"),
        ("Tomorrow  9:00", "2026-11-21T09:00:00+01:00"),
        ("yesterday 23:59", "2026-11-19T23:59:00+01:00"),
        ("2026-12-24", "2026-12-24T00:00:00+01:00"),
        ("2026-07-01 14:30", "2026-07-01T14:30:00+02:00"),
        ("2026-07-01T14:30:05.25", "2026-07-01T14:30:05.250+02:00"),
        ("2026-07-01T14:30Z", "2026-07-01T14:30:00+00:00"),
        ("2026-07-01T14:30:00-0330", "2026-07-01T14:30:00-03:30"),
        ("2026-11-20 14:17:40 CET (+01:00)", "2026-11-20T14:17:40+01:00"),
    ],
)
def test_a_point_in_time_is_parsed(text: str, moment: str) -> None:
    read = parse_moment(text, NOW, BERLIN)
    assert read == at(moment)
    assert read.tzinfo is UTC


def test_a_time_of_day_is_the_next_or_the_last_one() -> None:
    assert parse_moment("14:30", NOW, BERLIN, past=True) == at("2026-11-19T14:30:00+01:00")
    assert parse_moment("9:00", NOW, BERLIN, past=True) == at("2026-11-20T09:00:00+01:00")
    assert parse_moment("14:02:40", NOW, BERLIN, past=True) == NOW
    assert parse_moment("15m", NOW, BERLIN, past=True) == NOW - timedelta(minutes=15)
    assert parse_moment("14:02:40", NOW, BERLIN) == NOW + timedelta(days=1)


def test_the_end_of_a_period_may_be_in_a_minute_but_is_a_time_after_the_begin() -> None:
    def end(text: str, begin: str) -> str:
        return f"{parse_period(begin, text, NOW, UTC)[1]:%d %H:%M}"

    assert (end("13:03", "12:30"), end("12:50", "12:30"), end("", "1h")) == ("20 13:03", "20 12:50", "20 13:02")
    assert end("4:00", "yesterday 23:00") == "20 04:00"


@pytest.mark.parametrize(
    ("begin", "end", "why"),
    [
        ("30m", "1h", "the end '1h' must be after the begin (2026-11-20 12:32:40 UTC (+00:00))"),
        ("13:00", "12:00", "the end '12:00' must be after the begin"),
        ("1h", "tomorrow", "not in the future"),
        ("3000-01-01", "", "'3000-01-01' begins the period in the future, at 3000-01-01 00:00:00 UTC"),
        ("tomorrow", "", "'tomorrow' begins the period in the future"),
    ],
)
def test_a_period_ends_after_its_begin_and_is_in_the_past(begin: str, end: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(why)):
        parse_period(begin, end, NOW, UTC)


def test_today_is_the_day_of_the_zone_not_of_utc() -> None:
    late = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)
    assert parse_moment("today 9:00", late, BERLIN) == at("2026-11-21T09:00:00+01:00")


def test_an_aware_datetime_is_converted_to_utc() -> None:
    given_moment = datetime(2026, 11, 20, 14, 0, tzinfo=BERLIN)
    read = parse_moment(given_moment, NOW, UTC)
    assert (read, read.tzinfo) == (given_moment, UTC)


def test_a_skipped_local_time_is_rejected_with_both_neighbours() -> None:
    with pytest.raises(InvalidMoment, match="skip that time") as caught:
        parse_moment("2026-03-29 02:30", NOW, BERLIN)
    assert "write 2026-03-29 01:30:00+01:00 or 2026-03-29 03:30:00+02:00" in str(caught.value)


def test_an_ambiguous_local_time_is_rejected_with_both_readings() -> None:
    with pytest.raises(InvalidMoment, match="have that time twice") as caught:
        parse_moment("2026-10-25 2:30", NOW, BERLIN)
    assert "write 2026-10-25 02:30:00+02:00 or 2026-10-25 02:30:00+01:00" in str(caught.value)
    assert parse_moment("2026-10-25 02:30:00+02:00", NOW, BERLIN) == at("2026-10-25T00:30:00+00:00")
    assert parse_moment("2026-10-25 02:30:00+01:00", NOW, BERLIN) == at("2026-10-25T01:30:00+00:00")


def test_an_ambiguous_hour_has_passed_after_its_second_occurrence() -> None:
    between = at("2026-10-25T02:40:00+02:00")
    for past in (False, True):
        with pytest.raises(InvalidMoment, match="have that time twice"):
            parse_moment("2:30", between, BERLIN, past=past)
    after = at("2026-10-25T02:40:00+01:00")
    assert parse_moment("2:30", after, BERLIN) == at("2026-10-26T02:30:00+01:00")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a time of day"),
        ("soon", "not a time of day"),
        ("25:00", "not a time of day"),
        ("24:00", "not a time of day"),
        ("14:60", "not a time of day"),
        ("tomorrow9:00", "not a time of day"),
        ("ye\u017fterday", "not a time of day"),
        ("14:30 CET", "not a time of day"),
        ("1793", "not a time of day"),
        ("30", "not a time of day"),
        ("5m5m", "not a time of day"),
        ("2026-02-30", "the date 2026-02-30 does not exist"),
        ("+5x", "the units are"),
        ("+200000d", "100 years"),
        ("1969-12-31", "1970 to 9998"),
        ("-90w90w", "the units are"),
        ("-36000d", "1970 to 9998"),
        ("9999-01-02", "1970 to 9998"),
        ("0001-01-01", "outside the calendar"),
    ],
)
def test_an_invalid_point_in_time_is_rejected_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidMoment, match=why):
        parse_moment(text, NOW, BERLIN)


def test_a_naive_time_from_any_source_is_rejected() -> None:
    naive = NOW.replace(tzinfo=None)
    for read in (
        lambda: parse_moment(naive, NOW, UTC),
        lambda: parse_moment("14:30", naive, UTC),
        lambda: format_moment(naive, UTC),
    ):
        with pytest.raises(InvalidMoment, match="it has no time zone"):
            read()


@given(st.text(max_size=30) | typed, moments, zones, st.booleans())
def test_every_text_is_a_storable_time_or_rejected(text: str, now: datetime, zone: ZoneInfo, past: bool) -> None:
    try:
        moment = parse_moment(text, now, zone, past=past)
    except InvalidMoment:
        return
    assert EARLIEST <= moment < LATEST


@given(st.times(), moments, zones)
def test_a_time_of_day_is_within_two_days_on_its_side_of_now(clock: object, now: datetime, zone: ZoneInfo) -> None:
    text = str(clock)[:8]
    try:
        assert now < parse_moment(text, now, zone) <= now + timedelta(hours=49)
        assert now - timedelta(hours=49) <= parse_moment(text, now, zone, past=True) <= now
    except InvalidMoment as refused:
        if "that time" not in refused.fields["why"]:
            raise


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        (BERLIN, "2026-11-20 14:02:40 CET (+01:00)"),
        (UTC, "2026-11-20 13:02:40 UTC (+00:00)"),
        (ZoneInfo("Asia/Kathmandu"), "2026-11-20 18:47:40 +05:45"),
    ],
)
def test_a_time_is_formatted_with_zone_and_offset(zone: ZoneInfo, text: str) -> None:
    assert format_moment(NOW, zone) == text


@given(moments, zones, zones)
def test_a_formatted_time_parses_in_any_zone(moment: datetime, zone: ZoneInfo, elsewhere: ZoneInfo) -> None:
    to_the_second = moment.replace(microsecond=0)
    assert parse_moment(format_moment(moment, zone), NOW, elsewhere) == to_the_second


def test_an_error_quotes_the_text_as_it_was_typed() -> None:
    with pytest.raises(InvalidMoment, match="'99999999d' is not a"):
        parse_moment("99999999d", NOW, UTC, past=True)


@pytest.mark.parametrize(
    ("moment", "minute", "second"),
    [
        ("2026-11-20T14:17:40+00:00", "14:17", "14:17:40"),
        ("2026-11-19T23:59:59+00:00", "19 Nov 23:59", "19 Nov 23:59:59"),
        ("2026-12-04T06:00:00+00:00", "4 Dec 06:00", "4 Dec 06:00:00"),
    ],
)
def test_a_short_time_has_its_date_unless_it_is_today(moment: str, minute: str, second: str) -> None:
    at = datetime(2026, 11, 20, 15, tzinfo=UTC)
    shown = [clock(datetime.fromisoformat(moment), at, UTC, seconds=seconds) for seconds in (False, True)]
    assert shown == [minute, second]


def test_a_regular_run_has_its_weekday_in_the_next_days() -> None:
    at = datetime(2026, 11, 20, 15, tzinfo=UTC)
    runs = [at + timedelta(hours=1), at + timedelta(days=2, seconds=5), at + timedelta(days=20)]
    assert [weekday_clock(run, at, UTC) for run in runs] == ["16:00", "Sun 15:00", "10 Dec"]
