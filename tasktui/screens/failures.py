"""FailuresScreen: failed attempts, grouped by fingerprint."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from statistics import median
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from runner.db.transaction import Transaction, clock
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.queries.failures import Failures, Shares, failures, shares, trends
from runner.queries.reports import MinuteFlow
from runner.queries.reports import per_minute as read_per_minute
from runner.text import formatting
from tasktui.actions.action import ActionTarget, Targets
from tasktui.data.overview import MINUTE, per_minute
from tasktui.render.code import error_rows
from tasktui.render.plot import Span, area, compact, framed, gauge, nice, resampled, sparkline, time_axis
from tasktui.render.render import Cell, ListColumn, RenderedRow, brief, fitted, handler_cell, line
from tasktui.render.rows import BLANK, Part, Row, beside, fit, heading, rule
from tasktui.screens.actions import action_bindings
from tasktui.screens.live import LiveScreen
from tasktui.screens.selection import open_why
from tasktui.session.cache import TtlCache
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import Table

SPANS = (timedelta(hours=1), timedelta(days=1), timedelta(days=7), timedelta(days=30))

LABELS = ("hour", "24 h", "7 days", "30 days")
FILTERS = ("1h", "1d", "7d", "30d")
"""The spans as people and filters write them."""

LONGEST_BY_MINUTE = timedelta(days=1)
"""The longest span whose plot reads the counts per minute."""

HIGH = 34
"""Rows of a screen that has room for the plot."""

TREND = 14
"""Cells of the sparkline of a group."""

COLUMNS = (
    ListColumn("TREND", TREND),
    ListColumn("COUNT", 7, right=True),
    ListColumn("SHARE", 10, drop=4),
    ListColumn("/MIN", 5, right=True),
    ListColumn("TASKS", 6, right=True, drop=2),
    ListColumn("DEAD", 6, right=True),
    ListColumn("FIRST", 7, right=True, drop=1),
    ListColumn("LAST", 7, right=True),
    ListColumn("HANDLER AND ERROR", 24, grow=1),
)

SHARES_EVERY = 5.0
"""Seconds to cache the shares of a group."""


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """The failure groups at one moment.

    Args:
        at: the database's time.
        groups: the groups, largest first.
        trends: attempts of each group over the span.
        flows: counts per minute over the span; empty for a longer one than LONGEST_BY_MINUTE.
    """

    at: datetime
    groups: tuple[Failures, ...]
    trends: Mapping[str, Sequence[int]]
    flows: tuple[MinuteFlow, ...]


class FailuresScreen(LiveScreen):
    """The failure groups."""

    ABOUT = (
        "Failed attempts grouped by handler and error, with numbers, ids and quoted values masked. The most frequent "
        "group is first. /MIN is the rate per minute over the last two minutes, DEAD the attempts that left their "
        "task dead. Enter lists the tasks of a group. R, T and D act on all its tasks, H pauses its handler."
    )
    OPENS = "tasks"
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(ActionTarget.TASKS, ActionTarget.HANDLER),
        Binding("w", "why", "Why"),
        Binding("s", "span", "Span"),
        Binding("f", "unfold", "Unfold"),
    ]

    def __init__(self) -> None:
        super().__init__(Targets(task_filter=self._task_filter, handler=self._handler))
        self._table = Table[str](COLUMNS, id="groups")
        self._span = 0
        self._groups: dict[str, Failures] = {}
        self._shares: dict[str, Shares] = {}
        self._share_cache = TtlCache[Shares](SHARES_EVERY)
        self._unfold = False

    def parts(self) -> Iterable[Widget]:
        """Return a plot, the groups, and the group under the cursor."""
        yield Canvas(id="plot")
        yield self._table
        yield VerticalScroll(Canvas(id="example"), id="trace")

    def request(self) -> object:
        """Return the time span."""
        return self._span

    async def read(self) -> object:
        """Read the groups, and the shares of the one under the cursor."""
        snapshot = await self.session.read(_groups, self._span)
        group = self._group()
        if group is not None:
            ask = partial(self.session.read, shares, group.fingerprint, snapshot.at - SPANS[self._span])
            found = await self._share_cache.get((group.fingerprint, self._span), ask)
            self._shares = {group.fingerprint: found}
        return snapshot

    def show(self, snapshot: Any) -> None:
        """Show the groups."""
        self._groups = {group.fingerprint: group for group in snapshot.groups}
        groups, width, height = self._groups, self.size.width, self.size.height
        count = sum(group.count.number for group in groups.values())
        self.query_one("#plot", Canvas).draw(_upper(snapshot, self._span, self.session.zone, width, height))
        table = self._table
        table.styles.height = max(3, min(len(groups) + 1, height // 3))
        render = partial(group_line, at=snapshot.at, trends=snapshot.trends, total=count)
        table.show(tuple(groups), lambda key: render(groups[key]))
        self._show_example()

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same groups."""
        return ["failures", f"since:{FILTERS[self._span]}"]

    def action_why(self) -> None:
        """Explain why the tasks of the group under the cursor do not run."""
        open_why(self, self._task_filter())

    def action_span(self) -> None:
        """Switch to the next time span."""
        self._span = (self._span + 1) % len(SPANS)
        self.feed.hurry()

    @on(Table.Selected)
    def _open_tasks(self, event: Table.Selected) -> None:
        group = self._groups[event.key]
        self.session.filter_text = str(filter_of_group(group))
        self.app.switch_mode("tasks")

    def action_unfold(self) -> None:
        """Show or fold the frames of libraries."""
        self._unfold = not self._unfold
        self._show_example()

    @on(Table.CursorMoved)
    def _show_example(self) -> None:
        group = self._group()
        rows: list[Row] = []
        if group is not None:
            found = self._shares.get(group.fingerprint)
            if found is None:
                self.feed.hurry()
            at = self._snapshot.at if isinstance(self._snapshot, FailureGroups) else datetime.now(UTC)
            rows = detail(group, found, at, max(40, self.size.width - 3), unfold=self._unfold)
            rows = [BLANK, *rows] if self.size.height >= HIGH else rows
        self.query_one("#example", Canvas).draw(rows)

    def _task_filter(self) -> Filter | None:
        group = self._group()
        return filter_of_group(group) if group is not None else None

    def _handler(self) -> str | None:
        group = self._group()
        return group.handler if group is not None else None

    def _group(self) -> Failures | None:
        return self._groups.get(self._table.cursor or "")


def filter_of_group(group: Failures) -> Filter:
    """Build the filter for the tasks of a failure group."""
    return Filter((Term("failure", Operator.EQ, group.fingerprint),))


def group_line(group: Failures, at: datetime, trends: Mapping[str, Sequence[int]], total: int) -> RenderedRow:
    """Render a failure group as a row.

    Args:
        group: the group.
        at: the database's time.
        trends: attempts over the span by fingerprint.
        total: attempts of all groups.
    """
    hot = group.rate >= 1
    trend = sparkline(trends.get(group.fingerprint, (0,)), TREND, "trouble" if hot else "spark")
    share = group.count.number / total if total else 0.0
    bar = gauge([(share, "dead" if hot else "spark")], 9)
    error = brief(f"{group.error_type}: {group.message}")
    kind, colon, rest = error.partition(": ")
    name = handler_cell(line(group.handler))
    named = name.parts or ((name.text, "text"),)
    cause: tuple[Part, ...] = (*named, ("  ", ""), (kind, "strong" if hot else "text"), (f"{colon}{rest}", "muted"))
    return RenderedRow(
        (
            Cell("".join(text for text, _ in trend), "spark", tuple(trend)),
            Cell(str(group.count), "bold strong" if hot else "text"),
            Cell("".join(text for text, _ in bar), "spark", tuple(bar)),
            Cell(compact(group.rate), "bold dead" if hot else "muted" if group.rate else "faint"),
            Cell(f"{group.tasks:,}", "text"),
            Cell(f"{group.dead:,}", "dead" if group.dead else "faint"),
            Cell(formatting.since(group.first, at), "muted"),
            Cell(formatting.since(group.last, at), "muted"),
            Cell("".join(text for text, _ in cause), "text", cause),
        )
    )


def finding(group: Failures, found: Shares | None, at: datetime) -> list[Part]:
    """A group in one sentence: since when, and what its attempts have in common."""
    since = formatting.since(group.first, at)
    parts: list[Part] = [(f"{group.count.of('attempt')} of {group.tasks:,} tasks in {since}. ", "bold strong")]
    if found is None:
        return parts
    for counts, word in ((found.versions, "version"), (found.hosts, "host")):
        if len(counts) == 1:
            parts.append((f"Only {word} {line(next(iter(counts)), 40)}. ", "text"))
        elif counts:
            name, number = max(counts.items(), key=lambda item: item[1])
            share = number / sum(counts.values())
            text = f"{round(share * 100)} % on {line(name, 40)}. " if share >= 0.8 else f"On {len(counts)} {word}s. "
            parts.append((text, "muted"))
    return parts


def detail(group: Failures, found: Shares | None, at: datetime, width: int, *, unfold: bool) -> list[Row]:
    """The group under the cursor: the finding, shares, and one traceback."""
    title: list[Part] = [(f"{brief(f'{group.error_type}: {group.message}')}", "bold strong")]
    note: list[Part] = [("fingerprint ", "muted"), (line(group.fingerprint, 12), "text")]
    rows: list[Row] = [rule(title, width, note), fit([(" ", ""), *finding(group, found, at)], width), BLANK]
    shared: list[Row] = []
    left = 46
    for word, counts in (
        (("version", found.versions), ("host", found.hosts), ("attempt", found.numbers)) if found else ()
    ):
        total = sum(counts.values())
        for index, (name, number) in enumerate(sorted(counts.items(), key=lambda item: -item[1])[:3]):
            share = number / total
            label = fitted(word if not index else "", 9)
            bar = gauge([(share, "dead" if share >= 0.9 and len(counts) > 1 else "spark")], 16)
            figure = (f"{round(share * 100):>4} %", "text")
            shared.append([(f" {label}", "muted"), (fitted(line(name), 12), "text"), (" ", ""), *bar, figure])
    latest: list[Part] = [("latest: task ", "muted"), (str(group.task_id), "text")]
    trace_width = width - left - 3 if width >= 100 else width
    trace = error_rows(group.error_type, group.message, group.traceback, trace_width, reveal=False, unfold=unfold)
    trace = [*trace, BLANK, latest]
    if width < 100:
        return [*rows, *shared, *([BLANK] if shared else []), *trace]
    bordered: list[Row] = [[("│ ", "line"), *row] for row in trace]
    return [*rows, *beside(shared, bordered, left, 1)]


def _failed(data: FailureGroups, length: timedelta, end: datetime) -> list[float]:
    """Failed attempts per minute over a span, in equal parts."""
    if length > LONGEST_BY_MINUTE:
        parts = [sum(numbers) for numbers in zip(*data.trends.values(), strict=True)]
        return [number * len(parts) / (length / MINUTE) for number in parts]
    step = max(1, length // timedelta(minutes=60))
    minutes = per_minute(data.flows, end, lambda flow: flow.failed, length // MINUTE)
    return [sum(minutes[place : place + step]) / step for place in range(0, len(minutes), step)]


def _upper(data: FailureGroups, span: int, zone: tzinfo, width: int, height: int) -> list[Row]:
    """The plot of failed attempts, where there is room, and the title of the groups."""
    count = sum(group.count.number for group in data.groups)
    groups = f"{len(data.groups)} group{'' if len(data.groups) == 1 else 's'}"
    figure: list[Part] = [(f"{count:,}", "bold dead" if count else "muted"), (f" in {groups}", "muted")]
    title = rule([heading(f"FAILED ATTEMPTS, LAST {LABELS[span].upper()}")], width, figure)
    if width < 100 or height < HIGH:
        return [title]
    room = width - 7
    end = data.at.replace(second=0, microsecond=0)
    sums = _failed(data, SPANS[span], end)
    values = resampled(sums, room)
    usual, top = median(sums) if sums else 0.0, nice(max([*values, 5]))
    rows = framed(area(values, 6, lambda value: "failed" if value > max(3 * usual, 1) else "spark", top=top), top)
    axis = time_axis(Span(end - SPANS[span], end, zone), room)
    order: list[Part] = [("by count, same cause together", "muted")]
    return [title, *rows, axis, BLANK, rule([heading("GROUPS")], width, order)]


async def _groups(tx: Transaction, span: int) -> FailureGroups:
    at = await clock(tx)
    since = at - SPANS[span]
    groups = tuple(await failures(tx, since=since))
    flows = tuple(await read_per_minute(tx, since, at + MINUTE)) if SPANS[span] <= LONGEST_BY_MINUTE else ()
    return FailureGroups(at, groups, await trends(tx, since, at) if groups else {}, flows)
