"""FailuresScreen: failed attempts, grouped by fingerprint."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import Shown
from runner.queries.failures import Failures, GroupTasks, LatestTask, Shares
from runner.text import formatting
from runner.text.sanitize import SIGNS, count_noun
from tasktui.actions.action import ActionTarget, Targets
from tasktui.data.background import (
    LONGEST_BY_MINUTE,
    MOST_LATEST,
    SPANS,
    FailureGroups,
    GroupDetail,
    failure_groups,
    group_detail,
)
from tasktui.data.overview import MINUTE, per_minute
from tasktui.render.code import error_rows
from tasktui.render.plot import Span, compact, gauge, sparkline
from tasktui.render.render import Cell, ListColumn, RenderedRow, brief, fitted, handler_cell, line
from tasktui.render.rows import BLANK, Part, Row, beside, fit, heading, rule, state, width_of
from tasktui.screens.actions import action_bindings
from tasktui.screens.live import LiveScreen
from tasktui.screens.overview_panels import failed_plot, is_unusual, marks
from tasktui.screens.selection import open_why
from tasktui.screens.side_panels import is_hot
from tasktui.session.cache import TtlCache
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import Table

LABELS = ("hour", "24 h", "7 days", "30 days")
FILTERS = ("1h", "1d", "7d", "30d")
"""The spans as people and filters write them."""

HIGH = 34
"""Rows of a screen that has room for the plot."""

TREND = 14
"""Cells of the sparkline of a group."""

COLUMNS = (
    ListColumn("LAST HOUR", TREND),
    ListColumn("COUNT", 7, right=True),
    ListColumn("SHARE", 10, drop=4),
    ListColumn("/MIN", 5, right=True),
    ListColumn("TASKS", 6, right=True, drop=2),
    ListColumn("DEAD", 6, right=True),
    ListColumn("FIRST", 7, right=True, drop=1),
    ListColumn("LAST", 7, right=True),
    ListColumn("HANDLER AND ERROR", 24, grow=1),
)

DETAIL_EVERY = 5.0
"""Seconds to cache the shares and the tasks of a group."""

FEW_LATEST = 3
"""Latest tasks of a group on a screen that is not tall."""

TALL = 56
"""Rows of a tall screen."""


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
        self._details: dict[str, GroupDetail] = {}
        self._detail_cache = TtlCache[GroupDetail](DETAIL_EVERY)
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
        """Read the groups, and the shares and tasks of the one under the cursor."""
        snapshot = await self.session.read(failure_groups, SPANS[self._span])
        group = self._group()
        if group is not None:
            ask = partial(self.session.read, group_detail, group.fingerprint, snapshot.at - SPANS[self._span])
            found = await self._detail_cache.get((group.fingerprint, self._span), ask)
            self._details = {group.fingerprint: found}
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
        group, data = self._group(), self._snapshot
        rows: list[Row] = []
        if group is not None and isinstance(data, FailureGroups):
            found = self._details.get(group.fingerprint)
            if found is None:
                self.feed.hurry()
            width, height = self.size
            latest = MOST_LATEST if height >= TALL else FEW_LATEST
            rows = detail(group, found, data, max(40, width - 3), latest, unfold=self._unfold)
            rows = [BLANK, *rows] if height >= HIGH else rows
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
    numbers = trends.get(group.fingerprint, (0,))
    hot = is_hot(group.rate, numbers)
    trend = sparkline(numbers, TREND, "trouble" if hot else "spark")
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


def finding(group: Failures, found: Shares | None, data: FailureGroups) -> list[Part]:
    """A group in one sentence: what its attempts have in common, and since when."""
    parts: list[Part] = []
    for counts, word in ((found.versions, "version"), (found.hosts, "host")) if found is not None else ():
        name, number = max(counts.items(), key=lambda item: item[1], default=("", 0))
        named, share = line(name, 40), number / max(1, sum(counts.values()))
        if len(counts) == 1:
            after = _after_deploy(group, name, data) if word == "version" else ""
            parts.append((f"Only {word} {named}{after}. ", "bold strong" if after else "text"))
        elif counts:
            text = f"{round(share * 100)} % on {named}. " if share >= 0.8 else f"On {len(counts)} {word}s. "
            parts.append((text, "text"))
    since = formatting.since(group.first, data.at)
    return [*parts, (f"{group.count.of('attempt')} of {count_noun(group.tasks, 'task')} in {since}.", "muted")]


def _after_deploy(group: Failures, version: str, data: FailureGroups) -> str:
    """How long after the start of a newer version the first attempt failed; empty if that was not in this span."""
    started = data.versions.get(version)
    if started is None or group.first is None or version == next(iter(data.versions)):
        return ""
    return f", first {formatting.since(started, group.first)} after its deploy" if started >= data.since else ""


def detail(
    group: Failures, found: GroupDetail | None, data: FailureGroups, width: int, latest: int, *, unfold: bool
) -> list[Row]:
    """The group under the cursor: the finding, shares, one traceback, and the latest tasks."""
    error = brief(f"{group.error_type}: {group.message}")
    kind, _, message = error.partition(": ")
    note: list[Part] = [("fingerprint ", "muted"), (line(group.fingerprint, 12), "text")]
    title: list[Part] = [(kind, "bold strong"), (f" {message}", "muted")]
    room = width - width_of(note) - 8
    rows: list[Row] = [rule(title if width_of(title) < room else fit(title, room), width, note)]
    rows += [fit([(" ", ""), *finding(group, found.shares if found else None, data)], width), BLANK]
    left, right = 46, width - 49 if width >= 100 else width
    trace = error_rows(group.error_type, group.message, group.traceback, right, reveal=False, unfold=unfold)
    if found is None:
        return [*rows, *trace]
    shared = [*_shared(found.shares, data.versions), BLANK, *_now(group, found.tasks, data)]
    trace = [*trace, *_latest(group, found.tasks.latest[:latest], data.at, right)]
    if width < 100:
        return [*rows, *shared, BLANK, *trace]
    bordered: list[Row] = [[("│ ", "line"), *row] for row in trace]
    return [*rows, *beside(shared, bordered, left, 1)]


def _shared(found: Shares, versions: Iterable[str]) -> list[Row]:
    """The attempts of a group by version, host and number; a version without any shows that it is not the cause."""
    rows: list[Row] = []
    others = dict.fromkeys(list(versions)[-2:], 0) if found.versions else {}
    ordered = {name: found.numbers[name] for name in ("first", "second", "later") if name in found.numbers}
    for word, counts in (("version", others | found.versions), ("host", found.hosts), ("attempt", ordered)):
        total = sum(counts.values())
        listed = list(counts.items()) if word == "attempt" else sorted(counts.items(), key=lambda item: -item[1])
        for index, (name, number) in enumerate(listed[:3]):
            share = number / total
            alone = share >= 0.9 and len(counts) > 1 and word != "attempt"
            bar = gauge([(share, "dead" if alone else "spark")], 16)
            label = fitted(word if not index else "", 9)
            figure = (f"{round(share * 100):>4} %", "text" if number else "faint")
            rows.append([(f" {label}", "muted"), (fitted(line(name), 12), "text"), (" ", ""), *bar, figure])
    return rows


def _now(group: Failures, tasks: GroupTasks, data: FailureGroups) -> list[Row]:
    """The tasks of a group as they are now, and when they run again."""
    shown: list[Part] = [(" now      ", "muted")]
    more = "+" if tasks.more else ""
    counts = {Shown(name): number for name, number in tasks.states.items()}
    for shown_state, number in sorted(counts.items(), key=lambda item: -item[1])[:2]:
        shown += [(f"{SIGNS[shown_state]} ", str(shown_state)), (f"{number:,}{more}  ", "text")]
    shown += [("✗ ", "dead"), (f"{group.dead:,}  ", "text")] if group.dead else []
    shown += [("breaker open", "retrying")] if any(each.handler == group.handler for each in data.breakers) else []
    waits = sum(counts.get(each, 0) for each in (Shown.RETRYING, Shown.READY, Shown.SCHEDULED))
    if len(shown) == 1:
        shown.append(("all have ended", "text"))
    next_runs = (f"{tasks.soon:,}{more} within 10 min" if tasks.soon else "none within 10 min", "text")
    return [shown, *([[(" next     ", "muted"), next_runs]] if waits else [])]


def _latest(group: Failures, latest: Sequence[LatestTask], at: datetime, width: int) -> list[Row]:
    """The tasks of a group that failed last, as they are now."""
    if not latest:
        return []
    note: Part = (f"of {count_noun(group.tasks, 'task')}", "muted")
    rows: list[Row] = [BLANK, rule([heading("LATEST")], width, [note])]
    for each in latest:
        task, failed_at, host = each.task, each.failed_at, each.host
        sign, role = state(task.shown)
        tried = formatting.attempts(task.attempt, task.max_attempts)
        ago = f"{formatting.since(failed_at, at)} ago"
        row: list[Part] = [(f"{task.id}  ", "text"), (fitted(sign, 12), role), (" ", "")]
        row += [(fitted(line(task.key) if task.key else "", 15), "text"), (f"{tried:>5}{ago:>12}", "muted")]
        rows.append(fit([*row, (f"  on {line(host, 30)}" if host else "", "muted")], width))
    return rows


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
    end = data.at.replace(second=0, microsecond=0)
    sums = _failed(data, SPANS[span], end)
    now = sum(group.rate for group in data.groups)
    bad, usual = is_unusual(now, sums)
    figure: list[Part] = [(f"{count:,}", "bold dead" if bad else "bold strong" if count else "muted")]
    figure += [(f" in {count_noun(len(data.groups), 'group')}, ", "muted")]
    figure += [(f"{compact(now)} / min", "dead" if bad else "text"), (f", usual {compact(usual)}", "muted")]
    title = rule([heading(f"FAILED ATTEMPTS, LAST {LABELS[span].upper()}")], width, figure)
    if width < 100 or height < HIGH:
        return [title]
    plot = failed_plot(
        sums,
        Span(end - SPANS[span], end, zone),
        marks(data.versions, data.paused, data.breakers),
        width,
        14 if height >= TALL else 6,
    )
    order: list[Part] = [("by count, same cause together", "muted")]
    return [title, *plot, BLANK, rule([heading("GROUPS")], width, order)]
