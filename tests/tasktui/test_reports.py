"""Reports: the table, its plots and the export."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.segment import Segment
from textual.color import Color

from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidInput
from runner.queries.counting import Count
from runner.queries.reports import Flow, MinuteFlow
from runner.queries.summary import GroupBy, Summary, SummaryLine
from tasktui.data.reports import ALL, SPANS, ReportData, export, figures_of, plot_values, read_report, usual_name
from tasktui.panels.side import density
from tasktui.render import theme
from tasktui.render.rows import Row, plain
from tasktui.render.theme import Ascii
from tasktui.screens.reports import PLOTS, spread
from tasktui.widgets.table import Table
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_live, add_runner, ahead
from tests.store.test_limits import limit
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Watch

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BLACK = Color(0, 0, 0)
LINE = SummaryLine("send", Count(3), Flow(succeeded=3), 0.1, 0.2, 0.3, 0.4)
SUMMARY = Summary(NOON, NOON - timedelta(hours=1), NOON, GroupBy.HANDLER, LINE, (LINE,))


@pytest.fixture
async def worked(database: Database) -> None:
    at = (await database.read(clock)).replace(second=0, microsecond=0)
    for queue, handler, ago, succeeded, died in (
        ("mail", "smtp.send", 1, 30, 10),
        ("mail", "smtp.send", 60 * 5, 300, 0),
        ("bulk", "report.make", 2, 5, 0),
    ):
        minute = Minute(at - timedelta(minutes=ago), queue, handler)
        minute.counts |= {"succeeded": succeeded, "first_try": succeeded, "died": died}
        await database.write(write_statistics, 1, [minute], {})


@pytest.mark.parametrize("size", [NARROW, pytest.param(WIDE, marks=pytest.mark.slow)])
async def test_success_is_shown_by_handler(worked: None, watch: Watch, size: tuple[int, int]) -> None:
    async with watch("reports", size) as operator:
        await operator.sees("SUCCESS", "1ST ATT", "P95", "smtp.send", "75.0 %", "report.make", "100 %")
        await operator.sees(
            *(
                ("peak 30 / min", "success 77.8 %")
                if size == NARROW
                else ("failed per minute", "VOLUME", "from p50 to p95")
            )
        )
        assert len(operator.text.splitlines()) == size[1]


@ON_ONE_DATABASE
async def test_the_peak_of_submitted_tasks_on_a_narrow_screen_is_a_bound_while_some_have_not_run(
    database: Database, worked: None, watch: Watch
) -> None:
    at = (await database.read(clock)).replace(second=0, microsecond=0)
    minute = Minute(at - timedelta(minutes=1), "mail", "smtp.send")
    minute.counts["submitted"] = 40
    await database.write(write_statistics, 1, [minute], {})
    async with watch("reports", (60, 20)) as operator:
        await operator.sees("peak 40 / min")
    await add_live(database, "smtp.send", queue="mail", submitted_at=ahead(-60))
    async with watch("reports", (60, 20)) as operator:
        await operator.sees("peak 30 / min", "peak 40+ / min")


@ON_ONE_DATABASE
async def test_the_figures_are_compared_with_the_span_before(database: Database, watch: Watch) -> None:
    at = (await database.read(clock)).replace(second=0, microsecond=0)
    for ago, succeeded, died in ((5, 30, 10), (65, 300, 0)):
        minute = Minute(at - timedelta(minutes=ago), "mail", "smtp.send")
        minute.counts |= {"succeeded": succeeded, "died": died}
        await database.write(write_statistics, 1, [minute], {})
    async with watch("reports", (200, 60)) as operator:
        await operator.sees("30  ▼ 90 %", "75.0 %  ▼ 25.0", "10  ▲ 10", "FAILED ATTEMPTS, SHARE BY TIME")
        await operator.sees("against the 1 h before")


@ON_ONE_DATABASE
async def test_an_hour_is_compared_with_the_same_hour_of_yesterday(database: Database, watch: Watch) -> None:
    at = (await database.read(clock)).replace(second=0, microsecond=0)
    for ago, succeeded in ((5, 33), (65, 300), (24 * 60 + 5, 30)):
        minute = Minute(at - timedelta(minutes=ago), "mail", "smtp.send")
        minute.counts |= {"succeeded": succeeded}
        await database.write(write_statistics, 1, [minute], {})
    async with watch("reports", WIDE) as operator:
        await operator.sees("33  ▲ 10 %", "against yesterday")


def test_only_a_change_for_the_worse_has_a_colour() -> None:
    better = replace(LINE, flow=Flow(succeeded=90, first_try=80), p95=0.1, wait95=0.4)
    worse = replace(LINE, flow=Flow(succeeded=1800, first_try=900, died=200), p95=0.31, wait95=0.2)
    changes = [(figure.change, figure.change_role) for figure in figures_of(worse, better)]
    assert changes == [
        ("▲ 20 times", "muted"),
        ("▼ 10.0", "dead"),
        ("▼ 43.9", "retrying"),
        ("▲ 210 %", "retrying"),
        ("▼ 50 %", "muted"),
        ("▲ 200", "dead"),
    ]
    back = figures_of(better, worse)
    assert {figure.change_role for figure in back if figure.label != "WAIT P95"} == {"muted"}
    assert {figure.change for figure in figures_of(worse, None)} == {""}
    assert {figure.change for figure in figures_of(worse, worse)} == {""}


@ON_ONE_DATABASE
async def test_the_rows_are_sorted_by_the_worst_figure(worked: None, watch: Watch) -> None:
    async with watch("reports", WIDE) as operator:
        table = operator.screen.query_one(Table)
        await operator.until(lambda: table.keys == (ALL, "smtp.send", "report.make"))
        for order, first in (("success", "smtp.send"), ("run time", "smtp.send"), ("wait", "smtp.send")):
            await operator.press("o")
            await operator.sees(f"by {order}, o sorts")
            assert table.keys[1] == first
        await operator.press("o")
        await operator.until(lambda: table.keys == (ALL, "report.make", "smtp.send"))


def test_the_share_of_failed_attempts_has_a_shade() -> None:
    assert density([0, 0, 1, 20, 300, 600], [0, 5, 999, 980, 700, 400]) == [
        *[(" ··", "line"), ("▁", "spark"), ("█", "failed@16"), ("█", "failed@31")],
    ]


async def test_the_run_times_of_each_step_are_a_range_of_the_row(database: Database) -> None:
    at = (await database.read(clock)).replace(second=0, microsecond=0)
    for handler, ago, seconds in (("a", 3, (0.2, 0.2, 4.0)), ("b", 3, (60.0,)), ("a", 7, (0.1,))):
        minute = Minute(at - timedelta(minutes=ago), "mail", handler)
        minute.durations.add(seconds)
        await database.write(write_statistics, 1, [minute], {})
    async with database.reading() as tx:
        report = await read_report(tx, SPANS[0], GroupBy.HANDLER, "a")
        everything = await read_report(tx, SPANS[0], GroupBy.HANDLER, ALL)
    ranges = report.ranges(SPANS[0])
    assert [each for each in ranges if each] == [(0.1, 0.1), (0.2, 4.0)]
    assert ranges.index((0.2, 4.0)) - ranges.index((0.1, 0.1)) == 4
    assert (0.2, 60.0) in everything.ranges(SPANS[0])


async def test_the_waits_of_each_step_are_a_range_of_the_row(database: Database) -> None:
    at = (await database.read(clock)).replace(second=0, microsecond=0)
    for queue, ago, seconds in (("a", 3, (0.2, 0.2, 400.0)), ("b", 3, (900.0,)), ("a", 7, (0.1,))):
        minute = Minute(at - timedelta(minutes=ago), queue, "smtp.send")
        minute.waits.add(seconds)
        minute.durations.add((1.0,))
        await database.write(write_statistics, 1, [minute], {})
    async with database.reading() as tx:
        report = await read_report(tx, SPANS[0], GroupBy.QUEUE, "a")
        everything = await read_report(tx, SPANS[0], GroupBy.QUEUE, ALL)
    ranges = report.ranges(SPANS[0], waits=True)
    assert [each for each in ranges if each] == [(0.1, 0.1), (0.2, 400.0)]
    assert ranges.index((0.2, 400.0)) - ranges.index((0.1, 0.1)) == 4
    assert (0.2, 900.0) in everything.ranges(SPANS[0], waits=True)
    assert {each for each in report.ranges(SPANS[0]) if each} == {(1.0, 1.0)}


@pytest.fixture
async def waited(database: Database) -> None:
    at = (await database.read(clock)).replace(second=0, microsecond=0)
    for ago in range(1, 60):
        minute = Minute(at - timedelta(minutes=ago), "mail", "smtp.send")
        minute.counts |= {"succeeded": 30, "first_try": 30}
        minute.durations.add((0.1, 0.2))
        minute.waits.add((0.5, 600.0 if ago < 20 else 2.0))
        await database.write(write_statistics, 1, [minute], {})


@pytest.mark.slow
async def test_the_waits_are_plotted_where_they_have_room(waited: None, watch: Watch) -> None:
    async with watch("reports", (200, 60)) as operator:
        await operator.sees("─ VOLUME ─", "─ RUN TIME ─", "─ WAIT ─", "   1h ┤", "   1m ┤")
        (title,) = [text for text in operator.text.splitlines() if "─ WAIT ─" in text]
        assert title.count("from p50 to p95, log scale") == 2
        assert max(len(text) for text in operator.text.splitlines()) <= 200
        await operator.press("p")
        await operator.sees_notice("Both plots are shown")
    async with watch("reports", WIDE) as operator:
        await operator.sees("─ VOLUME ─", "─ RUN TIME ─", "10s ┤")
        assert "─ WAIT ─" not in operator.text
        await operator.press("p")
        await operator.sees("─ VOLUME ─", "─ WAIT ─", "1h ┤")
        assert "─ RUN TIME ─" not in operator.text
        await operator.press("p")
        await operator.sees("─ RUN TIME ─")
    async with watch("reports", (80, 24)) as operator:
        await operator.sees("HANDLERS")
        await operator.press("p")
        await operator.sees_notice("The plots need 100 columns")


@pytest.mark.parametrize("palette", ["dark", "none"])
def test_the_plot_of_waits_is_a_band_up_to_an_hour(palette: str) -> None:
    theme.use(palette)
    at = int(NOON.timestamp() // 60)
    waited = {at - ago: (0.5, 600.0 if ago < 20 else 2.0) for ago in range(1, 60)}
    head, *rows, axis = spread(ReportData(SUMMARY, ALL, (), {}, waited), SPANS[0], UTC, 8, 68, waits=True)
    assert plain([head]).startswith("─ WAIT ─")
    assert "11:40" in plain([axis])
    early, late = (
        [row for row, text in enumerate(rows) if plain([text]).ljust(70)[column] not in " │┤"] for column in (20, 62)
    )
    assert late[0] < early[0]  # ten minutes are higher than two seconds
    assert late[-1] == early[-1]  # the median is the same
    assert late[0] > 0  # ten minutes are below the edge
    specs = [spec for row in rows for _, spec in row]
    assert any("failed@" in spec for spec in specs)
    assert any("done@" in spec for spec in specs)
    assert plain(ascii_rows(rows)).isascii()


def ascii_rows(rows: list[Row]) -> list[Row]:
    return [
        [(segment.text, "") for segment in Ascii().apply([Segment(text) for text, _ in row], BLACK)] for row in rows
    ]


@ON_ONE_DATABASE
async def test_the_plots_are_of_the_line_under_the_cursor(worked: None, watch: Watch) -> None:
    async with watch("reports") as operator:
        await operator.sees("row:all", "─ VOLUME ─", "─ RUN TIME ─")
        await operator.press("down")
        await operator.sees("row:smtp.send", "─ VOLUME smtp.send ─", "─ RUN TIME smtp.send ─")


@ON_ONE_DATABASE
async def test_span_and_lines_can_be_changed(worked: None, watch: Watch) -> None:
    async with watch("reports") as operator:
        await operator.sees("smtp.send")
        await operator.press("b")
        await operator.sees("by:queue", "mail", "bulk")
        await operator.press("s")
        await operator.sees("span:24 h", "330")
        await operator.press("s", "s")
        await operator.sees("span:30 days")


@ON_ONE_DATABASE
async def test_a_span_never_has_the_figures_of_the_one_before(worked: None, watch: Watch) -> None:
    async with watch("reports") as operator:
        await operator.sees("smtp.send")
        reading = asyncio.ensure_future(operator.screen.read())
        await asyncio.sleep(0)
        await operator.press("s")  # before its statements
        await reading
        report = await operator.screen.read()
        assert report.summary.until - report.summary.since >= timedelta(days=1)


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_line_leads_to_its_tasks(worked: None, watch: Watch) -> None:
    async with watch("reports") as operator:
        await operator.sees("smtp.send")
        await operator.press("down", "enter")
        await operator.sees("handler:smtp.send", "since:60m")


@ON_ONE_DATABASE
async def test_the_table_is_written_into_a_file(
    worked: None, watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with watch("reports") as operator:
        await operator.sees("smtp.send")
        await operator.press("x")
        await operator.sees("Export to file")
        await operator.type("mine.json")
        await operator.press("enter")
        await operator.sees_notice("Exported to")
        await operator.press("x")
        await operator.sees("Export to file")
        await operator.type("mine.json")
        await operator.press("enter")
        await operator.sees_notice("mine.json exists already")
    names = [line["name"] for line in json.loads((tmp_path / "mine.json").read_text())["lines"]]
    assert names == ["smtp.send", "report.make"]


def test_a_file_is_csv_or_json_and_nothing_else(tmp_path: Path) -> None:
    name = usual_name(SUMMARY)
    assert name == "report-by-handler-20260301-1100Z-20260301-1200Z.csv"
    assert export(SUMMARY, str(tmp_path / name)).read_text().startswith("name,submitted,")
    for wrong in ("report.xls", "report", str(tmp_path / "missing" / "x.csv"), "\0.csv"):
        with pytest.raises(InvalidInput):
            export(SUMMARY, wrong)


def test_a_course_has_a_value_for_each_step() -> None:
    flows = [MinuteFlow(NOON, Flow(succeeded=30)), MinuteFlow(NOON + timedelta(minutes=30), Flow(succeeded=15))]
    assert plot_values(flows, NOON, NOON + timedelta(minutes=40), 15, lambda flow: flow.succeeded) == [2, 0, 1.5]
    late = NOON + timedelta(minutes=30, seconds=40)  # the step that has just begun is left out
    assert plot_values(flows, NOON, late, 15, lambda flow: flow.succeeded) == [2, 0]


@ON_ONE_DATABASE
async def test_c_shows_what_the_runners_can_do(database: Database, worked: None, watch: Watch) -> None:
    await add_runner(database, handlers='["smtp.send"]', capacity=10)
    await add_live(database, "report.make", queue="bulk", run_at=ahead(-90), tenant="acme")
    await add_live(database, "report.make", queue="bulk", state="running", tenant="acme")
    await limit(database, "queue", "bulk", per_tenant="1")
    async with watch("reports") as operator:
        await operator.sees("smtp.send")
        await operator.press("c")
        await operator.sees("Capacity of the live runners", "CAN/MIN", "PER DAY", "bulk")
        await operator.sees("not now", "no runner takes", "mail")
        await operator.sees("queue bulk: 1 tenant waits at the limit of 1 running", "acme", "1 of 1")
        await operator.press("c")
        await operator.until(lambda: operator.screen.title == "Reports")


@ON_ONE_DATABASE
async def test_a_report_of_an_incident_is_written_to_a_file(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with watch(writable=False) as operator:
        await operator.command("incident 1h 2h")
        await operator.sees_notice("the end '2h' must be after the begin")
        await operator.command("incident 2h 1h")
        await operator.sees_notice("Wrote ")
    (file,) = tmp_path.glob("incident-*.md")
    assert file.read_text().startswith("# Incident on ")


@ON_ONE_DATABASE
@pytest.mark.parametrize("size", [NARROW, pytest.param(WIDE, marks=pytest.mark.slow)])
async def test_the_capacity_names_a_long_reason_once_and_indented(
    database: Database, watch: Watch, size: tuple[int, int]
) -> None:
    name = "shop.handlers.of.a.module.with.a.long.path.export_everything_that_is_there"
    await add_live(database, handler="h", queue="mail")
    await add_live(database, handler=name, queue="export")
    async with watch("overview", size) as operator:
        await operator.press("c")
        await operator.sees("DECIDED BY", "→ no runner takes")
        assert operator.text.count("no runner takes h") + operator.text.count("no runner…") <= 2
        assert "not now: no runner" not in operator.text
        rows = [row.partition("│")[2].partition("│")[0].rstrip() for row in operator.text.splitlines()]
        assert rows[[bool("→" in row and "takes" in row) for row in rows].index(True)].startswith(" " * 5)
        assert "".join(map(str.strip, rows)).count(name) == 1


@pytest.mark.parametrize("draw", list(PLOTS.values()), ids=list(PLOTS))
def test_a_plot_is_drawn_in_any_width(draw: Callable[..., list[Row]]) -> None:
    report = ReportData(SUMMARY, ALL, (), {}, {})
    assert all(len(draw(report, SPANS[0], UTC, 3, width)) == 5 for width in (1, 4, 8))
