"""FailuresScreen: failed attempts, grouped by fingerprint."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget

from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.queries.counting import Count, total_of
from runner.queries.failures import FailureChange, Failures, by_rise
from runner.queries.overview import MINUTE, per_minute
from tasktui.actions.action import ActionTarget, Targets, TaskScope
from tasktui.actions.as_command import command_line
from tasktui.data.failures import (
    LONGEST_BY_MINUTE,
    SPANS,
    FailureGroups,
    GroupDetail,
    GroupsReader,
    largest_in_queue,
    merged_detail,
    merged_groups,
)
from tasktui.panels.failure import NORMAL, SHORT_TREND, TREND, detail, group_line
from tasktui.panels.overview import failed_plot, is_unusual, marks
from tasktui.render.plot import Span, compact
from tasktui.render.render import ListColumn
from tasktui.render.rows import BLANK, Part, Row, heading, rule, silent_shards
from tasktui.screens.selection import open_why
from tasktui.session.session import Session
from tasktui.session.shard_reads import ShardReads, split
from tasktui.session.shards import ShardsSession
from tasktui.shell.actions import action_bindings
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import HELD, Table

if TYPE_CHECKING:
    from runner.queries.contrast import Contrast
    from tasktui.data.values import Copyable

LABELS = ("hour", "24 h", "7 days", "30 days")
FILTERS = ("1h", "1d", "7d", "30d")
"""The spans as people and filters write them."""

HIGH = 34
"""Rows of a screen that has room for the plot."""

COLUMNS = (
    ListColumn("LAST HOUR", TREND),
    ListColumn("COUNT", 7, right=True),
    ListColumn(" SHARE", 11, drop=4),
    ListColumn("/MIN", 5, right=True),
    ListColumn("WAS", 5, right=True, drop=3),
    ListColumn("TASKS", 6, right=True, drop=2),
    ListColumn("DIED", 6, right=True),
    ListColumn("FIRST", 8, right=True, drop=1),
    ListColumn("LAST", 7, right=True),
    ListColumn(" HANDLER AND ERROR", 40, grow=1),
)

SHARDS = (ListColumn(" SHARDS", 16, drop=3),)
"""The column with the attempts in each shard, if there are several."""


def columns_of(span: int, shards: int, *, narrow: bool) -> tuple[ListColumn, ...]:
    """The columns for a time span; a narrow screen has a short sparkline, and errors before their handlers."""
    trend = COLUMNS[0]._replace(title=f"LAST {LABELS[span].upper()}", width=SHORT_TREND if narrow else TREND)
    last = COLUMNS[-1]._replace(title=" ERROR AND HANDLER", width=33) if narrow else COLUMNS[-1]
    return (trend, *COLUMNS[1:-1], *SHARDS[:shards], last)


ORDERS: Mapping[str, Callable[[Failures, FailureChange | None], Any]] = {
    "rise": by_rise,
    "count": lambda group, _: -group.count.number,
    "rate": lambda group, _: -group.rate,
    "died": lambda group, _: -group.dead,
    "last seen": lambda group, _: -group.last.timestamp() if group.last else 0.0,
    "first seen": lambda group, _: -group.first.timestamp() if group.first else 0.0,
}
"""The orders of the groups: the largest rise above the usual rate, the largest, fastest, deadliest, latest or newest
first."""

TALL = 56
"""Rows of a tall screen."""


class FailuresScreen(LiveScreen):
    """The failure groups."""

    ABOUT = (
        "Failed attempts grouped by handler and error, with numbers, ids and quoted values masked. The group whose "
        "rate has risen most is first; o sorts by count, rate, died, last seen or first seen. /MIN is the rate per "
        "minute over the last two minutes, WAS the usual one of the span, NEW a cause of the last hour, DIED the "
        "attempts that left their task dead. One sentence compares the failures with successes of the handler. Enter "
        "lists the tasks of a group. R, T and D act on its tasks that failed in the span; ctrl+a in the dialog takes "
        "all of its tasks. H pauses its handler. :incident writes a report as Markdown, and Z on screen 8 undoes a "
        "change."
    )
    OPENS = "tasks"
    COMMANDS_SHOWN = ("incident",)
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(ActionTarget.TASKS, ActionTarget.HANDLER),
        Binding("w", "why", "Why"),
        Binding("s", "span", "Span"),
        Binding("f", "unfold", "Unfold"),
        Binding("o", "order", "Order"),
    ]

    def __init__(self) -> None:
        super().__init__(
            Targets(
                task_filter=self._task_filter,
                scope=self._scope,
                handler=self._handler,
                copyable=lambda: texts_of_group(self._group(), self.session),
                by_shard=lambda: parts_of(self._group(), self._snapshot, self.actions.targets),
            )
        )
        self._table = Table[str](COLUMNS, id="groups")
        self._span = 0
        self._groups: dict[str, Failures] = {}
        self._details: dict[str, GroupDetail] = {}
        self._contrasts: dict[str, Contrast] = {}
        self._reads = ShardReads[tuple[FailureGroups, GroupDetail | None]]()
        self._largest = ShardReads[str]()
        self._readers: dict[str, GroupsReader] = {}
        self._unfold = False
        self._order = next(iter(ORDERS))
        self._room = 0

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
        group, span, session = self._group(), SPANS[self._span], self.session
        queue, self.opened.queue = self.opened.queue, ""
        if queue:
            found = await self._largest.read(session, lambda each: each.read(largest_in_queue, queue, span), queue)
            self.opened.target = next((answer.value for answer in found.values() if answer.value), "")
        fingerprint = None if group is None else group.fingerprint

        async def of_database(each: Session) -> tuple[FailureGroups, GroupDetail | None]:
            return await self._readers.setdefault(each.name, GroupsReader()).read(each, span, fingerprint)

        # The comparison reads more, so the shares do not wait for it.
        compared = group if group is not None and group.fingerprint in self._details else None
        answers, _ = await asyncio.gather(
            self._reads.read(session, of_database, (span, fingerprint)), self._compare(compared, span)
        )
        parts, silent = split(answers)
        details = {name: part[1] for name, part in parts.items()}
        if not isinstance(session, ShardsSession):
            ((snapshot, own),) = parts.values()
        else:
            snapshot = merged_groups({name: part[0] for name, part in parts.items()}, silent)
            own = merged_detail(details)
        self._details = {} if own is None or fingerprint is None else {fingerprint: own}
        return snapshot

    async def _compare(self, group: Failures | None, span: timedelta) -> None:
        """Compare a failure group with successes of its handler, in the shard with the most of its attempts."""
        if group is not None:
            session = main_database(self.session, group, self._snapshot)
            reader = self._readers.setdefault(session.name, GroupsReader())
            self._contrasts = {group.fingerprint: await reader.compare(session, span, group)}

    def show(self, snapshot: Any) -> None:
        """Show the groups."""
        key = ORDERS[self._order]
        named = {group.fingerprint: group for group in snapshot.groups}
        changes = snapshot.changes
        ordered = sorted(named, key=lambda name: (key(named[name], changes.get(name)), name))
        self._groups = {name: named[name] for name in ordered}
        groups, width, height = self._groups, self.size.width, self.size.height
        count = sum(group.count.number for group in groups.values())
        table = self._table
        keys = table.steady(groups, self._order)
        order = f"{self._order}{HELD * (keys != tuple(groups))}"
        upper = upper_rows(snapshot, self._span, self.session.zone, width, height, order)
        upper = [*silent_shards(snapshot.silent, width), *upper]
        self.query_one("#plot", Canvas).draw(upper)
        listed = max(3, min(len(groups) + 1, height // 3))
        table.styles.height = listed
        above = (4 if width >= NORMAL else 3) + self.frame.databases_height
        self._room = height - above - len(upper) - listed
        table.columns = columns_of(self._span, len(snapshot.shards), narrow=width < NORMAL)
        render = partial(group_line, data=snapshot, total=count, narrow=width < NORMAL)
        table.show(keys, lambda key: render(groups[key]))
        target, self.opened.target = self.opened.target, ""
        of_handler = next((key for key in keys if target in (key, groups[key].handler)), None)
        if of_handler is not None:
            table.move_to(of_handler)
        self._show_example()

    def command_words(self) -> Sequence[object]:
        """Return the command that lists the same groups."""
        return ["failures", f"since:{FILTERS[self._span]}"]

    def action_why(self) -> None:
        """Explain why the tasks of the group under the cursor do not run."""
        group = self._group()
        session = self.session if group is None else main_database(self.session, group, self._snapshot)
        open_why(self, self._task_filter(), session)

    def action_span(self) -> None:
        """Switch to the next time span."""
        self._span = (self._span + 1) % len(SPANS)
        self.feed.hurry()

    def action_order(self) -> None:
        """Sort the groups by the next figure, the worst first."""
        orders = list(ORDERS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self.redraw()

    @on(Table.Selected)
    def _open_tasks(self, event: Table.Selected) -> None:
        group = self._groups[event.key]
        self.console.open_tasks(f"{filter_of_group(group)} failed:{FILTERS[self._span]}")

    def action_unfold(self) -> None:
        """Show or fold the frames of libraries."""
        self._unfold = not self._unfold
        self._show_example()

    @on(Table.CursorMoved)
    def _show_example(self) -> None:
        group, data = self._group(), self._snapshot
        rows: list[Row] = []
        if isinstance(data, FailureGroups) and not data.groups:
            none = f"  No attempt failed in the last {LABELS[self._span]}; "
            rows = [[(none, "text"), ("s", "bold accent"), (" changes the span.", "text")]]
        if group is not None and isinstance(data, FailureGroups):
            group_detail = self._details.get(group.fingerprint)
            if group_detail is None:
                self.feed.hurry()
            blank = [BLANK] if self.size.height >= HIGH else []
            for width in (self.size.width, self.size.width - 3):  # A scroll bar takes the last cells.
                room, found = self._room - len(blank), self._contrasts.get(group.fingerprint)
                rows = detail(group, group_detail, data, max(40, width), room, unfold=self._unfold, contrast=found)
                rows = [*blank, *rows]
                if len(rows) <= self._room:
                    break
        self.query_one("#example", Canvas).draw(rows)

    def _task_filter(self) -> Filter | None:
        """The tasks of the group under the cursor that failed in the span."""
        group, data = self._group(), self._snapshot
        if group is None or not isinstance(data, FailureGroups):
            return None
        return Filter((*filter_of_group(group).terms, Term("failed", Operator.GE, data.since)))

    def _scope(self) -> TaskScope | None:
        group = self._group()
        if group is None:
            return None
        return TaskScope(f"that failed in the last {LABELS[self._span]}", filter_of_group(group), "of this cause")

    def _handler(self) -> str | None:
        group = self._group()
        return group.handler if group is not None else None

    def _group(self) -> Failures | None:
        return self._groups.get(self._table.cursor or "")


def shards_of(group: Failures, data: object) -> Mapping[str, Count]:
    """The number of attempts of a group in each shard; empty for one database."""
    return data.shards.get(group.fingerprint, {}) if isinstance(data, FailureGroups) else {}


def parts_of(group: Failures | None, data: object, targets: Targets) -> Mapping[str, Targets]:
    """The targets in each shard of a group."""
    return {} if group is None else dict.fromkeys(shards_of(group, data), targets._replace(by_shard=dict))


def main_database(session: Session, group: Failures, data: object) -> Session:
    """The session with the database of a group, of several with the one that has the most attempts."""
    counts = shards_of(group, data)
    if not isinstance(session, ShardsSession) or not counts:
        return session
    return session.shard(max(counts.items(), key=lambda item: item[1].number)[0])


def texts_of_group(group: Failures | None, session: Session) -> "Copyable | None":
    """Return the texts of a failure group to copy; None without a group."""
    if group is None:
        return None
    from tasktui.data.values import of_group

    return of_group(group, command_line(["tasks", str(filter_of_group(group))], session.settings))


def filter_of_group(group: Failures) -> Filter:
    """Build the filter for the tasks of a failure group."""
    return Filter((Term("failure", Operator.EQ, group.fingerprint),))


def _failed(data: FailureGroups, length: timedelta, end: datetime) -> list[float]:
    """Failed attempts per minute over a span, in equal parts."""
    if length > LONGEST_BY_MINUTE:
        parts = [sum(numbers) for numbers in zip(*data.trends.values(), strict=True)]
        return [number * len(parts) / (length / MINUTE) for number in parts]
    step = max(1, length // timedelta(minutes=60))
    minutes = per_minute(data.flows, end, lambda flow: flow.failed, length // MINUTE)
    return [sum(minutes[place : place + step]) / step for place in range(0, len(minutes), step)]


def upper_rows(data: FailureGroups, span: int, zone: tzinfo, width: int, height: int, order: str) -> list[Row]:
    """The plot of failed attempts, where there is room, and the title of the groups."""
    count = total_of(group.count for group in data.groups)
    end = data.at.replace(second=0, microsecond=0)
    sums = _failed(data, SPANS[span], end)
    now = sum(group.rate for group in data.groups)
    bad, usual = is_unusual(now, sums)
    figure: list[Part] = [(str(count), "bold dead" if bad else "bold strong" if count.number else "muted")]
    figure += [(f" in {Count(len(data.groups), count.more).of('group')}, ", "muted")]
    more = "+" * any(group.has_rate_bound for group in data.groups)
    figure += [(f"{compact(now)}{more} / min", "dead" if bad else "text"), (f", usual {compact(usual)}", "muted")]
    title = rule([heading(f"FAILED ATTEMPTS, LAST {LABELS[span].upper()}")], width, figure)
    if width < NORMAL or height < HIGH:
        return [title]
    plot = failed_plot(
        sums,
        Span(end - SPANS[span], end, zone),
        marks(data.versions, data.paused, data.breakers),
        width,
        14 if height >= TALL else 6,
    )
    sorts: list[Part] = [(f"by {order}, same cause together, ", "muted"), ("o", "bold accent"), (" sorts", "muted")]
    return [title, *plot, BLANK, rule([heading("GROUPS")], width, sorts)]
