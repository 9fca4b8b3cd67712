"""The ticks of schedules: rules, time zones, missed ticks, overlaps and jitter, under any clock."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from unittest.mock import ANY
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import InvalidSchedule
from runner.model.schedule import Overlap, ScheduleSpec
from runner.policy.schedule import describe, parse_rule, parse_zone, upcoming, write_rule
from runner.policy.schedule_ticks import check_spec, delayed, due_ticks, next_ticks, parse_misfire, resolve_overlap

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def local(zone: str, *rule: str, day: str, count: int = 3) -> list[str]:
    """The next ticks from the start of a local day, as local times with their offsets."""
    start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) - timedelta(seconds=1)
    ticks = upcoming(parse_rule(" ".join(rule), zone), start, count)
    return [tick.astimezone(ZoneInfo(zone)).isoformat(" ", "minutes") for tick in ticks]


GAPS = [
    # zone, a local time that the clocks skip, the day, the tick
    ("Europe/Berlin", "30 2", "2026-03-29", "2026-03-29 03:00+02:00"),
    ("America/New_York", "30 2", "2026-03-08", "2026-03-08 03:00-04:00"),
    ("America/St_Johns", "15 2", "2026-03-08", "2026-03-08 03:00-02:30"),
    ("Australia/Lord_Howe", "15 2", "2026-10-04", "2026-10-04 02:30+11:00"),
    ("Pacific/Chatham", "0 3", "2026-09-27", "2026-09-27 03:45+13:45"),
    ("America/Havana", "30 0", "2026-03-08", "2026-03-08 01:00-04:00"),
    ("Africa/Cairo", "0 0", "2026-04-24", "2026-04-24 01:00+03:00"),
    ("Asia/Beirut", "30 0", "2026-03-29", "2026-03-29 01:00+03:00"),
    ("America/Sao_Paulo", "0 0", "2018-11-04", "2018-11-04 01:00-02:00"),
    ("Asia/Tehran", "30 0", "2021-03-22", "2021-03-22 01:00+04:30"),
    ("Pacific/Apia", "0 9", "2011-12-29", "2011-12-29 09:00-10:00"),
]


@pytest.mark.parametrize(("zone", "time", "day", "tick"), GAPS)
def test_a_skipped_time_runs_once_at_the_end_of_the_gap(zone: str, time: str, day: str, tick: str) -> None:
    first, second, _ = local(zone, time, "* * *", day=day)
    assert first == tick
    assert datetime.fromisoformat(second).date() > datetime.fromisoformat(first).date()


FOLDS = [
    # zone, a local time that the clocks repeat, the day, the tick
    ("Europe/Berlin", "30 2", "2026-10-25", "2026-10-25 02:30+02:00"),
    ("America/New_York", "30 1", "2026-11-01", "2026-11-01 01:30-04:00"),
    ("America/St_Johns", "15 1", "2026-11-01", "2026-11-01 01:15-02:30"),
    ("Australia/Lord_Howe", "45 1", "2026-04-05", "2026-04-05 01:45+11:00"),
    ("Pacific/Chatham", "0 3", "2026-04-05", "2026-04-05 03:00+13:45"),
    ("America/Havana", "30 0", "2026-11-01", "2026-11-01 00:30-04:00"),
    ("Africa/Cairo", "30 23", "2026-10-29", "2026-10-29 23:30+03:00"),
    ("Asia/Beirut", "30 23", "2026-10-24", "2026-10-24 23:30+03:00"),
    ("America/Sao_Paulo", "30 23", "2018-02-17", "2018-02-17 23:30-02:00"),
    ("Asia/Tehran", "30 23", "2021-09-21", "2021-09-21 23:30+04:30"),
]


@pytest.mark.parametrize(("zone", "time", "day", "tick"), FOLDS)
def test_a_repeated_time_runs_once_the_first_time(zone: str, time: str, day: str, tick: str) -> None:
    first, second, _ = local(zone, time, "* * *", day=day)
    assert first == tick
    assert datetime.fromisoformat(second) - datetime.fromisoformat(first) > timedelta(hours=23)


@pytest.mark.parametrize(("zone", "time", "day", "tick"), GAPS + FOLDS)
def test_a_line_with_seconds_follows_the_clocks_as_one_without(zone: str, time: str, day: str, tick: str) -> None:
    assert local(zone, f"0 {time}", "* * *", day=day) == local(zone, time, "* * *", day=day)


@pytest.mark.parametrize(
    "line", ["*/3 */3 * * *", "*/20 1,3 * * *", "*/7 2-3 * * *", "15 */2 * * *", "*/30 */5 * 4,9,10 *"]
)
@pytest.mark.parametrize(("zone", "day"), [(zone, day) for zone, _, day, _ in GAPS + FOLDS])
def test_a_line_with_a_star_has_each_minute_whose_local_time_it_matches(zone: str, day: str, line: str) -> None:
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=14)
    faces = set(upcoming(parse_rule(line), start - timedelta(days=2), 4_000))
    minutes = [start + number * MINUTE for number in range(1, 60 * 60)]
    zoned = ZoneInfo(zone)
    matches = [minute for minute in minutes if minute.astimezone(zoned).replace(tzinfo=UTC) in faces]
    assert upcoming(parse_rule(line, zone), start, len(matches)) == matches
    for minute in minutes[::37]:
        assert parse_rule(line, zone).next(minute) == next((each for each in matches if each > minute), ANY)


def test_a_tick_after_the_first_pass_of_a_repeated_hour_is_not_in_the_past() -> None:
    rule = parse_rule("30 2 * * *", "Europe/Berlin")
    second_pass = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 for the second time
    assert rule.next(second_pass) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(("zone", "day"), [(zone, day) for zone, _, day, _ in GAPS + FOLDS])
def test_a_line_with_a_star_follows_real_time_through_every_change(zone: str, day: str) -> None:
    rule = parse_rule("0 * * * *", zone)
    ticks = upcoming(rule, datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=1), 72)
    steps = {later - earlier for earlier, later in pairwise(ticks)}
    assert steps <= {timedelta(minutes=30), timedelta(hours=1), timedelta(minutes=90)}
    assert len(ticks) == len(set(ticks))


@given(
    st.sampled_from(sorted({zone for zone, *_ in GAPS + FOLDS})),
    st.sampled_from(["30 2 * * *", "*/20 * * * *", "15,45 0-3 * * *", "0 0 * * sun", "59 23 L * *", "*/7 1 * * *"]),
    st.integers(0, 20 * 365 * 24 * 60),
)
def test_ticks_only_move_forward_in_every_zone(zone: str, line: str, minutes: int) -> None:
    start = datetime(2010, 1, 1, tzinfo=UTC) + minutes * MINUTE
    ticks = upcoming(parse_rule(line, zone), start, 5)
    assert ticks == sorted(set(ticks))
    assert ticks[0] > start


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("0 9 ? * mon", "0 9 * * mon"),
        ("0 0 9 1 * ?", "0 0 9 1 * *"),
        ("0 9 * * fri-mon", "0 9 * * fri,sat,sun,mon"),
        ("0 9 * * 7-2", "0 9 * * sun,mon,tue"),
        ("0 9 1 nov-mar *", "0 9 1 11,12,1,2,3 *"),
        ("0 22-3/2 * * *", "0 22,0,2 * * *"),
        ("0 9 28-2 * *", "0 9 28,29,30,31,1,2 * *"),
        ("34-34/2 5-5/3 * * *", "34 5 * * *"),
        ("@every 5m", "every 5m"),
    ],
)
def test_lines_of_other_crons_have_the_same_ticks(line: str, same: str) -> None:
    for zone in ("UTC", "Europe/Berlin"):
        assert upcoming(parse_rule(line, zone), NOON, 50) == upcoming(parse_rule(same, zone), NOON, 50)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("TZ=Europe/Berlin 0 9 * * *", 'the time zone is an option: "0 9 * * *" with tz="Europe/Berlin", or --tz'),
        ("CRON_TZ=UTC 0 9 * * *", 'the time zone is an option: "0 9 * * *" with tz="UTC"'),
        ("60 9 * * *", "bad minute '60': expected 0 to 59"),
        ("0 9 * * mox", "bad day-of-week 'mox': expected 0 to 7 or sun to sat"),
        ("0 9 31 2 *", "this date never comes"),
        ("0 9 0 * *", "bad day-of-month '0': expected 1 to 31"),
        ("? 9 * * *", "bad minute '?'"),
        ("@reboot", "the names are @hourly, @daily"),
        ("0 0 9 ? * MON 2026", "it has 7 fields"),
    ],
)
def test_a_refused_line_names_the_value_or_the_line_to_write(line: str, why: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        parse_rule(line)
    assert refused.value.fields["why"].startswith(why)


@pytest.mark.parametrize("text", ["every 1w", "every 2w", "every 14d"])
def test_weeks_begin_on_mondays(text: str) -> None:
    assert {tick.strftime("%a %H:%M") for tick in upcoming(parse_rule(text), NOON, 9)} == {"Mon 00:00"}


def test_a_fixed_rate_has_the_same_ticks_on_every_runner() -> None:
    rule = parse_rule("every 10m")
    assert rule.next(NOON) == NOON + 10 * MINUTE
    assert rule.next(NOON + timedelta(seconds=1)) == NOON + 10 * MINUTE
    assert rule.next(NOON - timedelta(milliseconds=1)) == NOON


def test_a_long_fixed_rate_ends_before_the_year_10000() -> None:
    ticks = upcoming(parse_rule("every 36500d"), NOON, 300)
    assert 9900 <= ticks[-1].year <= 9999


def test_a_fixed_delay_counts_from_the_end_of_a_run() -> None:
    assert upcoming(parse_rule("after_end 30s"), NOON, 10) == [NOON + timedelta(seconds=30)]


@pytest.mark.parametrize(
    ("rule", "zone", "why"),
    [
        ("61 * * * *", "UTC", "bad minute"),
        ("0 0 31 2 *", "UTC", "this date never comes"),
        ("* * * *", "UTC", "it has 4 fields"),
        ("tomorrow", "UTC", "it has 1 field "),
        ("", "UTC", "it has 0 fields"),
        ("every 0s", "UTC", "at least 1s"),
        ("every 200ms", "UTC", "at least 1s"),
        ("every monday", "UTC", "the units are"),
        ("after_end -5s", "UTC", "must not be negative"),
        ("* * * * *", "Mars/Olympus", "there is no such time zone"),
        ("* * * * *", "../etc/passwd", "there is no such time zone"),
        ("* * * * *", "", "there is no such time zone"),
        ("* " * 200, "UTC", "up to 200 characters"),
    ],
)
def test_an_impossible_rule_is_refused_with_its_value_and_the_reason(rule: str, zone: str, why: str) -> None:
    with pytest.raises(InvalidSchedule, match=why) as refused:
        parse_rule(rule, zone)
    assert refused.value.fields["value"] in (rule, rule[:80], zone)


@pytest.mark.parametrize(
    "wrong",
    [
        {"misfire": "all"},
        {"misfire": "all 0"},
        {"misfire": "later"},
        {"overlap": "wait"},
        {"jitter": -1.0},
        {"jitter": float("nan")},
        {"payload": "[1]"},
        {"payload": '{"a": NaN}'},
        {"options": '{"priority": 10}'},
        {"options": '{"delay": "5m"}'},
        {"options": '{"retry": "sometimes"}'},
        {"options": json.dumps({"headers": {f"h{n}": "" for n in range(32)}})},
        {"options": "no"},
        {"handler": ""},
        {"rule": "after_end 5s", "broadcast": True},
        {"options": '{"queue": "mail"}', "broadcast": True},
    ],
)
def test_a_definition_that_could_not_run_is_refused(wrong: dict[str, object]) -> None:
    values: dict[str, object] = {"handler": "work", "rule": "every 5m"}
    with pytest.raises(Exception, match=r"Invalid value|is not a retry plan"):
        check_spec(ScheduleSpec.of(values | wrong))


def test_a_time_or_a_zone_as_an_object_is_refused_with_its_type() -> None:
    time: Any = datetime(2026, 11, 30, 9, tzinfo=UTC)
    zone: Any = ZoneInfo("Europe/Berlin")
    with pytest.raises(InvalidSchedule, match="for `rule` of a schedule: expected text, got datetime"):
        write_rule(time, None, None)
    with pytest.raises(InvalidSchedule, match="for `timezone` of a schedule: expected its name as text, got ZoneInfo"):
        parse_zone(zone)


def test_one_rule_is_given_in_one_form() -> None:
    assert write_rule("0  9 * * *", None, None) == "0 9 * * *"
    assert write_rule(None, 5 * MINUTE, None) == "every 5m"
    assert write_rule(None, None, timedelta(seconds=90)) == "after_end 1m30s"
    for rules in ((None, None, None), ("* * * * *", MINUTE, None)):
        with pytest.raises(InvalidSchedule, match="give one of"):
            write_rule(*rules)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("every 5m", "every 5 min"),
        ("every 1h30m", "every 1h30m"),
        ("*/15 * * * *", "every 15 min"),
        ("30 * * * *", "hourly at :30"),
        ("@daily", "daily at 00:00"),
        ("15 3 * * *", "daily at 03:15"),
        ("0 2 * * 0", "Sun at 02:00"),
        ("0 9 * * mon-fri", "Mon-Fri at 09:00"),
        ("0 0 1 * *", "day 1 at 00:00"),
        ("0 9 * * 1#2", "0 9 * * 1#2"),
        ("after_end 30s", "30 s after end"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_rule_is_described_in_a_few_words(rule: str, words: str) -> None:
    assert describe(rule) == words
    assert describe(rule, "Asia/Tokyo") == f"{words} Asia/Tokyo"


def ago(*minutes: int) -> list[datetime]:
    return [NOON - each * MINUTE for each in minutes]


@pytest.mark.parametrize(
    ("misfire", "run", "missed"),
    [
        ("skip", [], ago(5)),
        ("once", ago(5), ago(15)),
        ("all 2", ago(15, 5), ago(25)),
        ("all 9", ago(35, 25, 15, 5), []),
    ],
)
def test_the_misfire_policy_chooses_among_the_ticks_of_an_outage(
    misfire: str, run: list[datetime], missed: list[datetime]
) -> None:
    rule = parse_rule("5,15,25,35,45,55 * * * *")
    due = due_ticks(rule, parse_misfire(misfire), NOON - 35 * MINUTE, NOON)
    assert due.run == run
    assert due.missed == (missed[0] if missed else None)
    assert due.next_at == NOON + 5 * MINUTE


@pytest.mark.parametrize("misfire", ["skip", "once", "all 5"])
def test_a_tick_that_is_a_little_late_runs_under_every_policy(misfire: str) -> None:
    due = due_ticks(parse_rule("every 1h"), parse_misfire(misfire), NOON, NOON + timedelta(seconds=40))
    assert due.run == [NOON]
    assert due.missed is None


@given(st.integers(0, 10**7), st.sampled_from(["every 1s", "* * * * * *", "*/5 * * * *", "0 9 * * mon-fri"]))
def test_after_any_outage_the_last_ticks_run_in_order(seconds: int, line: str) -> None:
    rule = parse_rule(line, "Europe/Berlin")
    first = rule.next(NOON)
    assert first is not None
    now = first + timedelta(seconds=seconds)
    due = due_ticks(rule, parse_misfire("all 3"), first, now)
    assert due.run == sorted(set(due.run))
    assert all(first <= tick <= now for tick in due.run)
    assert 1 <= len(due.run) <= 3
    assert rule.next(due.run[-1]) == due.next_at
    assert (due.missed is None) == (due.run[0] == first)


def test_nothing_is_due_when_the_clock_steps_back() -> None:
    rule = parse_rule("every 1m")
    due = due_ticks(rule, parse_misfire("all 9"), NOON, NOON - timedelta(hours=1))
    assert due == ([], None, NOON)


def test_a_fixed_delay_that_was_missed_runs_once_or_counts_from_now() -> None:
    rule = parse_rule("after_end 30s")
    late = NOON + timedelta(hours=1)
    assert due_ticks(rule, parse_misfire("all 9"), NOON, late) == ([NOON], None, None)
    assert due_ticks(rule, parse_misfire("skip"), NOON, late) == ([], NOON, late + timedelta(seconds=30))


def test_the_overlap_policy_decides_about_a_tick_during_a_run() -> None:
    ticks = ago(10, 5)
    assert resolve_overlap(Overlap.SKIP, ticks, True) == ([], ticks, False, False)
    assert resolve_overlap(Overlap.SKIP, ticks, False) == (ticks[:1], ticks[1:], False, False)
    assert resolve_overlap(Overlap.QUEUE, ticks, True) == (ticks, (), True, False)
    assert resolve_overlap(Overlap.REPLACE, ticks, True) == (ticks[1:], ticks[:1], True, True)
    assert resolve_overlap(Overlap.ALLOW, ticks, True) == (ticks, (), False, False)


def test_jitter_is_the_same_on_every_runner_and_stays_below_its_limit() -> None:
    delays = [delayed("reports", NOON + n * MINUTE, 30.0) - (NOON + n * MINUTE) for n in range(200)]
    assert delays == [delayed("reports", NOON + n * MINUTE, 30.0) - (NOON + n * MINUTE) for n in range(200)]
    assert timedelta(0) <= min(delays) < timedelta(seconds=3)
    assert timedelta(seconds=27) < max(delays) < timedelta(seconds=30)


def test_a_preview_begins_with_the_stored_tick() -> None:
    rule = parse_rule("every 10m")
    assert next_ticks(rule, NOON, NOON, 3) == [NOON, NOON + 10 * MINUTE, NOON + 20 * MINUTE]
    assert next_ticks(rule, None, NOON, 2) == [NOON + 10 * MINUTE, NOON + 20 * MINUTE]
    assert next_ticks(parse_rule("after_end 5m"), NOON, NOON) == [NOON]
