"""Widths, plots, the list and the pace: the pure parts behind the screens."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from runner.filter.parse import parse_filter
from runner.filter.sort import NEWEST
from runner.model.task import Shown
from runner.policy.breaker import OpenBreaker
from runner.policy.histogram import Histogram, Times
from runner.queries.contrast import Contrast, Difference
from runner.queries.counting import Count
from runner.queries.failures import FailureChange, Failures, Shares, by_rise, changes_of, unread_share
from runner.queries.runners import RunnerRow
from runner.queries.task.attempts import Attempt, LogRow
from runner.queries.task_list.cursor import Cursor
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.search import TaskPage
from runner.queries.task_list.shard_page import ShardPage, merged
from runner.text import formatting
from tasktui.data.failures import FailureGroups
from tasktui.data.runners import Workforce, busy_per_minute
from tasktui.data.task_list import Listing, columns_for, empty_column, task_line
from tasktui.panels import task as task_panels
from tasktui.panels.failure import TREND, UNREAD, finding, group_line, in_front, is_hot
from tasktui.panels.schedules import ruler_axis
from tasktui.panels.side import legend, slot_row, slots, slots_per_block
from tasktui.render import theme
from tasktui.render.code import error_rows, payload_rows
from tasktui.render.plot import (
    Mark,
    Span,
    area,
    band,
    compact,
    framed,
    gauge,
    nice,
    resampled,
    sparkline,
    time_axis,
    with_marks,
)
from tasktui.render.render import ListColumn, fitted, widths
from tasktui.render.rows import plain, width_of, wrapped
from tasktui.screens.failures import upper_rows
from tasktui.screens.runners import claimed_rows
from tasktui.screens.task import task_rows
from tasktui.shell.live import LONGEST_WAIT, OLD, PERIOD, SLOW_SHARE, SLOWEST, UNFOCUSED, Poller
from tasktui.widgets.table import Table
from tests.tasktui.test_commands import NOW, row, story

AT = datetime(2026, 11, 20, 13, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def page(*tasks: TaskRow, after: int | None = None) -> ShardPage:
    own = TaskPage(list(tasks), None if after is None else Cursor(after), False, True, AT)
    return merged({"main": own}, {"main": None}, NEWEST, 100)


def test_columns_share_the_room_that_is_left() -> None:
    columns = (ListColumn("A", 3), ListColumn("B", 4, grow=1), ListColumn("C", 5, grow=3))
    assert widths(columns, 22) == [3, 6, 11]
    assert sum(widths(columns, 40)) + 2 == 40


def test_columns_give_way_in_their_order() -> None:
    columns = (ListColumn("A", 3), ListColumn("B", 4, drop=1), ListColumn("C", 5, drop=2))
    assert widths(columns, 14) == [3, 4, 5]
    assert widths(columns, 13) == [3, 4, 0]
    assert widths(columns, 2) == [3, 0, 0]


@pytest.mark.parametrize(
    ("text", "width", "shown"), [("abc", 5, "abc  "), ("abcdef", 4, "abc…"), ("漢字漢字", 5, "漢字…"), ("x", 0, "")]
)
def test_text_is_fitted_by_the_cells_it_takes(text: str, width: int, shown: str) -> None:
    assert fitted(text, width) == shown


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("run at: 17:38 -> 18:05", 21, "run at: 17:38 -> …   "),
        ("priority: 1 -> 12, key", 18, "priority: 1 -> 12…"),
        ("漢字 2026-11-30", 10, "漢字 …    "),
        ("12345678", 4, "123…"),  # else nothing would be left
    ],
)
def test_a_cut_leaves_out_a_number_that_would_lose_digits(text: str, width: int, shown: str) -> None:
    assert fitted(text, width) == shown


def test_an_area_has_a_column_for_each_value_and_an_axis() -> None:
    rows = framed(area([0, 5, 10], 2, "done", top=10), 10)
    assert plain(rows).splitlines() == ["   10 ┤  ▄", "    5 ┤ ▄▄"]
    assert plain(area([0.0, 3.0], 2, "done", behind=[0.0, 5.0], top=10)).splitlines() == [" ▅", " ▅"]


def test_the_times_of_an_axis_are_round_and_stand_in_the_line() -> None:
    span = Span(AT.replace(minute=7), AT.replace(hour=14, minute=7), UTC)
    assert plain([time_axis(span, 52)]) == "    0 └──────── 13:20 ────────── 13:40 ──────────────── now"


def test_a_mark_fills_empty_cells_only_and_its_text_stands_to_the_left() -> None:
    span = Span(AT, AT + timedelta(minutes=10), UTC)
    rows = with_marks(
        area([0, 0, 0, 0, 0, 0, 0, 8, 8, 8], 2, "done", top=8), span, 10, [Mark(AT + 6 * MINUTE, "new", "accent")]
    )
    assert plain(rows).splitlines() == ["  new ┊▄▄▄", "      ┊▄▄▄"]


def test_a_text_without_room_in_its_row_takes_the_first_row_with_room() -> None:
    span = Span(AT, AT + timedelta(minutes=12), UTC)
    grown = area([0] * 8 + [4, 4, 0, 0], 2, "failed", top=8)
    marks = [Mark(AT + 2 * MINUTE, "n", "accent"), Mark(AT + 11 * MINUTE, "opens", "retrying")]
    assert plain(with_marks(grown, span, 12, marks)).splitlines() == ["n ┊  opens ┊", "  ┊     ▄▄ ┊"]


@pytest.mark.parametrize(
    ("width", "axis"),
    [(14, "now ──── 22:00"), (27, "now ──── 21:30 ────── 22:00"), (60, "now ──────── 21:20 ───────────── 21:40")],
)
def test_a_short_ruler_has_the_times_of_its_hour(width: int, axis: str) -> None:
    at = datetime(2026, 11, 25, 21, 4, 30, tzinfo=UTC)
    assert plain([ruler_axis(at, timedelta(hours=1), width, UTC)]).startswith(axis)


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (3, 3), (7, 8), (128, 200), (201, 300)])
def test_an_axis_ends_at_a_number_that_reads_well(value: float, top: float) -> None:
    assert nice(value) == top


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2.5, "2.5"),
        (412, "412"),
        (999.4, "999"),
        (999.5, "1k"),
        (18_000, "18k"),
        (999_700, "1M"),
        (1.2e6, "1.2M"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert compact(value) == text


def test_values_are_stretched_and_averaged() -> None:
    assert resampled([1, 3], 4) == [1, 1, 3, 3]
    assert resampled([1, 3, 5, 7], 2) == [2, 6]
    assert resampled([], 2) == [0, 0]


def test_a_sparkline_is_scaled_to_its_peak_and_shows_zero_as_a_line() -> None:
    assert plain([sparkline([0] * 54 + [2, 0, 200, 0, 0, 0], 10)]) == "▁▁▁▁▁▁▁▁▁▇"
    assert plain([sparkline([0, 1, 1000], 3)]) == "▁▁▇"
    assert sparkline([0, 1], 2) == [("▁", "line"), ("▇", "spark")]


def test_plots_survive_a_tiny_window() -> None:
    assert sparkline([1, 2], -3)
    assert time_axis(Span(AT, AT + MINUTE, UTC), -5)
    assert plain([gauge([(0.5, "dead")], -1)]) == ""
    assert plain(area([], 2, "done")) == "\n"


def test_a_gauge_shows_halves_and_never_hides_a_small_share() -> None:
    assert plain([gauge([(0.55, "running")], 10)]) == "━━━━━╸━━━━"
    assert gauge([(0.001, "running")], 4)[0] == ("╸", "running")
    assert gauge([(0.5, "dead"), (0.5, "ready")], 4) == [("━━", "dead"), ("━━", "ready")]


def test_a_gauge_without_shades_has_a_thin_track(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theme._Current, "palette", theme.THEMES["none"])
    assert plain([gauge([(0.5, "running")], 4)]) == "━━──"
    monkeypatch.setattr(theme._Current, "palette", theme.THEMES["dark"])
    monkeypatch.setattr(theme._Current, "ascii_signs", True)
    assert plain([gauge([(0.5, "running")], 4)]) == "━━──"


def test_an_axis_has_its_middle_only_where_a_row_begins() -> None:
    assert [row[0][0].strip() for row in framed([[]] * 4, 5000)] == ["5k", "", "2.5k", ""]
    assert [row[0][0].strip() for row in framed([[]] * 3, 5000)] == ["5k", "", ""]


def test_a_count_that_stopped_before_the_first_row_is_unknown() -> None:
    counts = (Count(), Count(0, more=True), Count(7, more=True), Count(1_000))
    assert [str(count) for count in counts] == ["0", "?", "7+", "1,000"]


def test_a_band_covers_each_range_on_a_logarithmic_axis() -> None:
    columns = band([None, (0.01, 60.0), (0.01, 0.011), (1.0, 90.0)], 4)
    assert plain(columns).splitlines() == [" █ █", " █ ▁", " █", " █▁"]
    assert columns[0][-1] == ("█", f"failed@{theme.SHADES // 3 + 12}"), "the upper end is late"
    assert columns[1][-1][1].startswith("bg on failed@"), "the ground covers the cell below the lower end"


def test_failed_attempts_stand_in_front_of_the_volume() -> None:
    rows = in_front(area([8.0, 8.0, 0.0], 1, "done", top=8), [0.0, 2.0, 0.001], 8)
    assert plain(rows) == "▄▂▁"
    assert rows[0][1] == ("▂", "failed@31 on done@31")


def test_attempts_are_busy_slots_in_the_minutes_in_which_they_ran() -> None:
    begin = AT.replace(second=0)
    minutes = {begin + 10 * MINUTE: Times(Histogram(), Histogram()), begin: Times(Histogram(), Histogram())}
    minutes[begin + 10 * MINUTE].runs.put(180_000, 2, 240.0)  # two attempts of two minutes each
    minutes[begin].runs.put(7_200_000, 1, 7_200.0)  # it began before
    busy = busy_per_minute(minutes, {begin + 58 * MINUTE: 3}, begin)
    assert busy[7:12] == [0.0, 1.0, 2.0, 1.0, 0.0]
    assert (busy[0], busy[1], busy[57:]) == (0.5, 0.0, [0.0, 3.0, 3.0])


@pytest.mark.parametrize(
    ("rate", "trend", "hot"),
    [
        (66.0, [5] * 20, True),  # all the time, and very often
        (2.5, [5] * 20, False),  # as before
        (2.5, [0] * 12 + [9] * 8, True),
        (0.5, [0] * 12 + [9] * 8, False),  # it is over
    ],
)
def test_a_failure_group_is_bright_while_it_is_worse_than_before(rate: float, trend: list[int], hot: bool) -> None:
    assert is_hot(rate, trend) is hot


@pytest.mark.parametrize(("versions", "named"), [(["1"], False), (["1", "2"], True), ([], True)])
def test_a_version_of_all_runners_is_no_finding(versions: list[str], named: bool) -> None:
    group = Failures("f", Count(3), 0, 3, 3, AT, AT, "h", "OSError", "no route", None, 1)
    data = FailureGroups(AT, AT, (group,), {}, 0.0, (), dict.fromkeys(versions, AT), {}, ())
    text = plain([finding(group, Shares({"1": 3}, {"web-1": 3}, {}), data)])
    assert ("Only version 1" in text) is named
    assert "All on host web-1. 3 attempts of 3 tasks" in text


def test_a_host_that_successes_have_too_is_no_finding() -> None:
    group = Failures("f", Count(8), 0, 8, 8, AT, AT, "h", "OSError", "no route", None, 1)
    data = FailureGroups(AT, AT, (group,), {}, 0.0, (), {}, {}, ())
    found = [finding(group, Shares({}, {"web-1": 8}, {}), data, each) for each in (Contrast(8, 8), Contrast(8, 4))]
    assert ["All on host web-1" in plain([parts]) for parts in found] == [False, True]


def test_a_new_group_has_a_badge_its_usual_rate_and_the_mark_of_its_beginning() -> None:
    start = AT - 12 * MINUTE - timedelta(seconds=20)
    group = Failures("f", Count(140), 0, 9, 28, start, AT, "a.charge", "GatewayError", "502", None, 1)
    trends = {"f": [0] * 16 + [35] * 4}
    changes = changes_of([group], trends, {"f": start}, AT - 60 * MINUTE, AT)
    assert changes == {"f": FailureChange(0.0, start, start, new=True)}
    data = FailureGroups(AT, AT - 60 * MINUTE, (group,), trends, 0.0, (), {}, {}, (), changes)
    cells = [cell.text for cell in group_line(group, data, 140).cells]
    assert cells[0] == "▁▁▁▁▁▁▁▁▁▁┊▄▇▇"
    assert cells[3:5] == ["14.0", "0"]
    assert cells[-1].startswith("  NEW 12m  a.charge  GatewayError: 502")
    found = Contrast(9, 50, (Difference("version", "2", 9, 9, 0, 50),))
    text = plain([finding(group, Shares({"2": 9}, {"web-1": 9}, {}), data, found)])
    assert text == ("Only version 2: 9 of 9 failures, 0 of 50 successes. 140 attempts of 9 tasks in 12m20s.")


def test_a_part_that_is_not_read_completely_lowers_no_usual_rate() -> None:
    group = Failures("f", Count(20_000, True), 0, 9, 28, AT, AT, "h", "E", "", None, 1)
    usual = []
    for read in ([1_500, 9_000, 9_000, 500], [11_000, 9_000]):
        trend = [0] * (20 - len(read)) + read
        usual.append(changes_of([group], {"f": trend}, {}, AT - 60 * MINUTE, AT)["f"].usual)
    assert usual == [3_000.0, None]


def test_the_largest_rise_above_the_usual_rate_is_first() -> None:
    def group(name: str, recent: int) -> Failures:
        return Failures(name, Count(60), 0, 9, recent, AT, AT, "h", "E", "", None, 1)

    steady, risen, over = group("steady", 40), group("risen", 28), group("over", 0)
    trends = {"steady": [60] * 20, "risen": [3] * 14 + [30] * 6, "over": [30] * 20}
    long_ago = dict.fromkeys(trends, AT - 600 * MINUTE)
    groups = [steady, over, risen]
    changes = changes_of(groups, trends, long_ago, AT - 60 * MINUTE, AT)
    assert [changes[name].usual for name in trends] == [20.0, 1.0, 10.0]
    assert [changes[name].rose_at for name in trends] == [None, AT - 18 * MINUTE, None]
    assert not any(change.new for change in changes.values())
    ordered = sorted(groups, key=lambda each: by_rise(each, changes[each.fingerprint]))
    assert [each.fingerprint for each in ordered] == ["risen", "steady", "over"]


def test_figures_of_a_group_whose_older_attempts_were_not_read_are_bounds() -> None:
    trends = {"f": [0] * 10 + [900] * 10, "g": [0] * 12 + [1_375] * 8}
    assert unread_share(trends) == 0.5
    assert unread_share({"f": [1] * 20}) == 0.0
    group = Failures("f", Count(9_000, True), 35, 283, 3, AT - 60 * MINUTE, AT, "h", "OSError", "no route", None, 1)
    data = FailureGroups(AT, AT - 60 * MINUTE, (group,), trends, 0.5, (), {}, {}, ())
    cells = [cell.text for cell in group_line(group, data, 20_000).cells]
    assert cells[0].startswith(UNREAD * (TREND // 2))
    assert UNREAD not in cells[0][TREND // 2 :]
    assert (cells[1], *cells[5:8]) == ("9,000+", "283+", "35+", "1h+")
    assert plain([finding(group, None, data)]) == "9,000+ attempts of 283+ tasks in 1h, older ones not read."
    assert " 9,000+ in 1+ groups, 1.5 / min, " in plain(upper_rows(data, 0, UTC, 120, 40, "rise"))
    storm = replace(data, groups=(replace(group, recent=9_000),))
    assert group_line(storm.groups[0], storm, 20_000).cells[3].text == "4.5k+"
    assert " 9,000+ in 1+ groups, 4.5k+ / min, " in plain(upper_rows(storm, 0, UTC, 120, 40, "rise"))


def test_the_first_attempt_of_a_group_is_exact_where_it_is_known() -> None:
    group = Failures("f", Count(9_000, True), 35, 283, 3, AT - 40 * MINUTE, AT, "h", "OSError", "no route", None, 1)
    firsts = []
    for began in (AT - 50 * MINUTE, AT - 600 * MINUTE):  # An older one is not the first of the span.
        changes = {"f": FailureChange(0.0, began)}
        data = FailureGroups(AT, AT - 60 * MINUTE, (group,), {"f": [9] * 20}, 0.5, (), {}, {}, (), changes)
        firsts.append(group_line(group, data, 9_000).cells[7].text)
    assert firsts == ["50m", "40m+"]


def test_every_slot_of_a_runner_has_its_place() -> None:
    counts, colours = {"a.x": 2, "b.y": 1}, {"a.x": 0, "b.y": 1}
    assert slots(counts, 4, 8, colours) == [("▆▆▆▆", "handler@0"), ("▆▆", "handler@1"), ("▁▁", "line")]
    assert plain([slot_row(counts, 4, 8, colours)]) == "■ ■ ■ ·"


def test_without_colours_each_handler_has_a_letter_that_the_legend_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theme._Current, "palette", theme.THEMES["none"])
    counts = {"mail.receipt": 2, "images.resize": 1, "stock.reserve\u0301": 1}
    colours = dict.fromkeys(counts, 0)
    assert plain([slot_row(counts, 5, 10, colours)]) == "R R E S ·"
    assert plain([slots(counts, 5, 5, colours)]) == "RRES▁"
    assert plain(legend(colours, 80)).split()[::2] == ["R", "E", "S"]


def test_the_legend_tells_how_many_slots_a_block_shows() -> None:
    assert plain([slot_row({"a.x": 60}, 100, 34, {"a.x": 0})]).rstrip() == "■" * 20 + "·" * 14
    assert slots_per_block(100, 34) == 3
    assert plain(legend({"a.x": 0}, 80, 3)) == "  ■ a.x   a block is 3 slots"
    assert plain(legend({"a.x": 0}, 20, 3)).splitlines()[1].strip() == "a block is 3 slots"
    assert slots_per_block(17, 34) == 1


def test_a_long_payload_is_folded_and_says_so() -> None:
    assert plain(payload_rows({"a": 1}, 20, 5)).splitlines() == ["{", '  "a": 1', "}"]
    assert plain(payload_rows(list(range(40)), 40, 5)).splitlines()[-1] == "37 more lines, f unfolds"
    folded = plain(
        payload_rows({"id": 7, "small": [1, 2], "charges": list(range(40)), "last": {"\x1b": "x" * 40}}, 40, 9)
    )
    assert folded.splitlines() == [
        "{",
        '  "id": 7,',
        '  "small": [1, 2],',
        '  "charges": [ 40 items, f unfolds ],',
        '  "last": { 1 item, f unfolds }',
        "}",
    ]
    many = payload_rows({str(key): [key] * 40 for key in range(9)}, 40, 5)
    assert plain(many[-1:]) == "6 more lines, f unfolds"
    assert all(width_of(row) <= 40 for row in many)


def test_a_sentence_breaks_between_words_and_keeps_its_styles() -> None:
    rows = wrapped([(" Late by 7m: ", "bold strong"), ("no runner has handled the tick.", "text")], 20)
    assert plain(rows).splitlines() == [" Late by 7m: no", " runner has handled", " the tick."]
    assert all(width_of(row) <= 20 for row in rows)
    assert rows[0][-1] == ("no", "text")


TRACE = """Traceback (most recent call last):
  File "/srv/venv/lib/python3.12/site-packages/httpx/_client.py", line 825, in request
    return self.send(request)
httpx.ReadTimeout: timed out

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/venv/lib/python3.12/site-packages/anyio/run.py", line 1, in run
    run()
  File "/srv/shop/pay/charge.py", line 52, in charge
    reply = gateway.post("/v2")
            ^^^^^^^^^^^^^^^^^^^
GatewayTimeout: no answer"""


def test_an_error_without_a_message_has_no_colon() -> None:
    assert plain(error_rows("terminated while running", "", None, 60, reveal=False, unfold=False)).endswith("running")


@pytest.mark.parametrize("width", [60, 24])
def test_the_whole_message_of_an_error_is_shown_in_rows_of_its_own(width: int) -> None:
    message = f"the server answered 503 to https://shop.example/{'order' * 6} and said\ntry later " + "again " * 90
    rows = error_rows("shop.GatewayTimeout", message, TRACE, width, reveal=False, unfold=True)
    assert max(map(width_of, rows)) <= width
    joined = "".join(plain(rows).split())
    assert joined.startswith("".join(f"GatewayTimeout: {message}".split()))
    folded = plain(error_rows("shop.GatewayTimeout", message, None, width, reveal=False, unfold=False)).splitlines()
    assert len(folded) == 9
    assert folded[-1].endswith(" of it, f unfolds")


def test_the_frames_of_libraries_are_folded_and_the_failing_line_is_marked() -> None:
    rows = error_rows("shop.GatewayTimeout", "no answer", TRACE, 60, reveal=False, unfold=False)
    assert plain(rows).splitlines() == [
        "GatewayTimeout: no answer",
        "",
        "1 frame of anyio folded, f unfolds",
        "shop/pay/charge.py:52 in charge",
        '▌   52   reply = gateway.post("/v2")',
        "",
        "caused by httpx.ReadTimeout: timed out",
    ]
    rows = error_rows("E", "no", TRACE, 60, reveal=False, unfold=False)
    (failing,) = (row for row in rows if row and row[0][0] == "▌")
    assert all("on tint_dead" in spec for _, spec in failing[1:])
    assert width_of(failing) == 60
    unfolded = plain(error_rows("shop.GatewayTimeout", "no answer", TRACE, 60, reveal=False, unfold=True))
    assert "anyio/run.py:1 in run" in unfolded


def test_a_traceback_hides_secrets_and_escapes() -> None:
    trace = TRACE.replace('gateway.post("/v2")', 'f(password="hunter2", x="\x1b[31m")')
    text = plain(error_rows("E", "token=abcdefgh12345678", trace, 80, reveal=False, unfold=False))
    assert "hunter2" not in text
    assert "\x1b" not in text


def test_the_attempt_under_way_is_part_of_the_story() -> None:
    def text(task: TaskRow) -> str:
        return plain(task_rows(story(task), UTC, 100, reveal=False, unfold=False))

    task = row(7, Shown.RUNNING, attempt=2, runner_id=5, host="web-1", claimed_at=NOW - timedelta(seconds=72))
    assert "1m12s ago  attempt 2 running for 1m12s, runner 5 (web-1)" in text(task)
    assert "Running for 1m12s on web-1, attempt 2" in text(task)
    assert "running for" not in text(row(7))
    assert "It waits for a free runner or a limit; w explains." in text(row(7))
    suspect = text(row(7, rescues=2))
    assert "It lost 2 runners, and is suspected of killing them: a runner runs such tasks in groups of 16." in suspect
    assert "free runner" not in suspect


def test_the_sentence_of_a_due_task_names_the_open_breaker() -> None:
    def text(task: TaskRow, next_in: float = 12.0) -> str:
        detail = replace(story(task), breaker=OpenBreaker(1, next_in, 60.0))
        return plain(task_rows(detail, UTC, 100, reveal=False, unfold=False))

    due = row(7, handler="pay.charge", run_at=NOW - timedelta(minutes=9))
    assert "Due for 9m, but held back: the breaker of pay.charge is open. Next probe in 12s." in text(due)
    assert "is open. It probes now." in text(due, 0.0)
    assert "breaker" not in text(row(7, Shown.RETRYING, run_at=NOW + timedelta(minutes=9)))


def test_an_error_names_the_rule_that_decided() -> None:
    rule = "dead, by on_none of the handler\x1b[31m"
    failed = Attempt(1, 1, NOW, NOW, 5, "web-1", "die", "NoResult", "None", None, "f", None, rule)
    detail = replace(story(row(7, Shown.DEAD)), attempts=(failed,))
    text = plain(task_panels.error(detail, 100, reveal=False, unfold=False))
    assert "\n  dead, by on_none of the handler" in text
    assert "\x1b" not in text


def test_the_log_lines_of_two_days_begin_in_one_column() -> None:
    lines = tuple(LogRow(1, day, 1, NOW - timedelta(days=1 - day), "info", "sent") for day in (0, 1))
    panel = plain(task_panels.log(replace(story(row(7)), log=lines), UTC, 100, reveal=False))
    yesterday, today = (line for line in panel.splitlines() if "sent" in line)
    assert yesterday.index("sent") == today.index("sent")


def test_the_screen_of_runners_counts_abandoned_threads() -> None:
    columns = (7, "web-3", 4117, "1", None, 1.0, 14.0, ("h",), (), (), 8, 4, (), 0, 3, 3, None)
    hung, well = RunnerRow(*columns, 3, 2), RunnerRow(*columns)
    data = Workforce(NOW, (hung,), (), {}, {}, {})
    assert "3 abandoned threads, 1 slot lost" in plain(claimed_rows(hung, data, 120))
    assert "abandoned" not in plain(claimed_rows(well, data, 120))
    assert (hung.sizes["threads"], well.sizes["threads"]) == (3, 4)


def test_an_update_changes_no_order_and_forgets_no_mark() -> None:
    listing = Listing().loaded(page(row(3), row(2), row(1), after=1)).toggled(2)
    changed = listing.refreshed([3, 2, 1], [row(1, Shown.DEAD), row(3, version=4)], AT, 9)
    assert changed.ids == (3, 2, 1)
    assert (changed.has_finished(1), changed.has_finished(3)) == (True, False)
    assert (changed.missing, changed.newer) == (frozenset({2}), 9)
    assert changed.selected(3) == (row(2),)
    assert changed.details == " (1 gone)"
    assert changed.cleared().selected(3) == (row(3, version=4),)


def test_a_further_page_adds_only_what_is_not_there() -> None:
    listing = Listing().loaded(page(row(3), row(2), after=2)).extended(page(row(2, version=9), row(1)))
    assert listing.ids == (3, 2, 1)
    assert listing.tasks[2].version == 0
    assert not listing.next


def test_marks_outlive_a_load_and_are_counted_when_hidden() -> None:
    listing = Listing().loaded(page(row(2), row(1))).toggled(1).loaded(page(row(3)))
    assert (listing.details, [task.id for task in listing.selected(3)]) == (" (1 not in this list)", [1])
    assert listing.selected(3) == listing.toggled(3).toggled(3).selected(3)


def test_what_matches_is_counted_beside_what_is_loaded() -> None:
    listing = Listing().loaded(page(row(3), row(2), after=2))
    assert listing.count_text == "2+ tasks"
    assert replace(listing, capped=True).count_text == "2 found so far"
    assert replace(listing, matching=Count(10_000, more=True)).count_text == "10,000+ tasks, 2 loaded"
    assert replace(listing, matching=Count(1)).count_text == "2+ tasks"
    assert replace(listing, next={}).count_text == "2 tasks"


def test_no_cursor_chooses_nothing() -> None:
    assert Listing().loaded(page(row(1))).selected(None) == ()
    assert Listing().selected(5) == ()


def test_an_error_is_brief_where_there_is_little_room() -> None:
    assert formatting.brief("smtplib.SMTPServerDisconnected: closed\nmore") == "SMTPServerDisconnected: closed"
    assert formatting.brief("a.b_c.KeyError: 'd.E: '") == "KeyError: 'd.E: '"
    assert formatting.brief("see docs.python.org: it says") == "see docs.python.org: it says"
    assert formatting.brief(None) == ""


def test_a_row_shows_state_as_sign_and_word() -> None:
    line = task_line(row(7, Shown.RETRYING)._replace(cancel_requested=True), AT)
    assert [cell.text for cell in line.cells[:2]] == ["7", "↻ retrying!"]


def test_a_feed_never_looks_twice_at_once_and_backs_off() -> None:
    feed = Poller()
    feed.begin(99)
    assert not feed.due(100)
    feed.succeeded(100, 0.001)
    assert not feed.due(100 + PERIOD - 0.01)
    assert feed.due(100 + PERIOD)
    feed.succeeded(100, 0.001, focused=False)
    assert feed.next == 100 + UNFOCUSED
    feed.succeeded(100, 2)
    assert feed.next == 100 + SLOWEST
    feed.succeeded(200, 8)
    assert feed.next == 200 + SLOWEST, "a single slow query does not count"
    feed.succeeded(200, 9)
    assert feed.next == 200 + 8 * SLOW_SHARE
    assert (feed.age(200 + SLOWEST), feed.age(200 + SLOWEST + OLD + 1)) == ("", "15s")
    for _ in range(20):
        feed.failed(100, "no answer")
    assert feed.next == 100 + LONGEST_WAIT
    feed.hurry()
    assert feed.due(100)


def test_a_change_during_a_look_is_read_by_the_next_one() -> None:
    feed = Poller()
    feed.begin(100)
    feed.hurry()
    assert not feed.due(101)
    feed.succeeded(101, 1.0)
    assert feed.due(101)
    feed.begin(101)
    feed.succeeded(102, 0.001)
    assert not feed.due(102)
    feed.begin(103)
    feed.hurry()
    feed.succeeded(104, 1.0)
    feed.rest()
    assert feed.due(104)


def test_a_table_computes_its_layout_once_for_all_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []

    def count(columns: Sequence[ListColumn], room: int, needs: Sequence[int]) -> list[int]:
        computed.append(room)
        return widths(columns, room, needs)

    monkeypatch.setattr("tasktui.widgets.table.widths", count)
    monkeypatch.setattr("tasktui.widgets.table.selectable", lambda _table, strip, _y: strip)  # without a screen
    table: Table[int] = Table((ListColumn("ID", 4, right=True),))
    table.keys = (1, 2, 3)
    for y in range(4):
        table.render_line(y)
    assert len(computed) == 1
    table.columns = (ListColumn("ID", 6, right=True),)
    table.render_line(0)
    assert len(computed) == 2


@pytest.mark.parametrize(("room", "hidden"), [(79, {"QUEUE", "AGE", "REASON"}), (99, {"QUEUE", "AGE"}), (120, set())])
def test_a_narrow_task_list_leaves_out_the_columns_that_can_be_dropped(room: int, hidden: set[str]) -> None:
    columns = [*columns_for(NEWEST).values()]
    assert {column.title for column, width in zip(columns, widths(columns, room), strict=True) if not width} == hidden


def test_the_room_of_a_column_without_texts_goes_to_the_other_one() -> None:
    key, reason = 4, 8
    room = {empty: widths([*columns_for(NEWEST, None, empty).values()], 120) for empty in ("", "KEY", "REASON")}
    assert len({sum(each) for each in room.values()}) == 1
    assert (room["KEY"][key], room["REASON"][reason]) == (3, 6)
    assert room["KEY"][reason] > room[""][reason] + 10
    assert room["REASON"][key] > room[""][key] + 10
    keyed, failed = row(1, key="order-1"), row(2, error="OSError: no route")
    assert [empty_column(tasks) for tasks in ([], [keyed], [failed], [keyed, failed])] == ["", "REASON", "KEY", ""]


@pytest.mark.parametrize(
    ("text", "listed"), [("queue:mail", False), ("queue:mail,sms", True), ("-queue:mail", True), ("handler:h", True)]
)
def test_a_list_of_one_queue_has_no_column_for_it(text: str, listed: bool) -> None:
    titles = {column.title for column in columns_for(NEWEST, parse_filter(text, NOW, UTC)).values()}
    assert ("QUEUE" in titles) is listed
