"""OverviewScreen: queues, throughput, failures and alerts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import isinf
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from runner.queries.counting import WaitingCounts
from runner.queries.queues import QueueCounts
from runner.queries.queues import waiting as read_backlog
from runner.queries.reports import Flow, MinuteFlow
from runner.text import formatting
from tasktui.actions.action import ActionTarget
from tasktui.actions.targets import Targets
from tasktui.data.alerts import alerts, workforce
from tasktui.data.complete_filter import filter_of
from tasktui.data.overview import Diagnoses, Overview, day, deepened, diagnoses, per_minute, read_overview
from tasktui.render.plot import compact, plot, sparkline
from tasktui.render.render import Cell, ListColumn, RenderedRow, content, line, lines
from tasktui.screens.actions import action_bindings
from tasktui.screens.live import LiveScreen
from tasktui.session.cache import TtlCache
from tasktui.widgets.table import Table
from tasktui.widgets.text_block import TextBlock

PLOT_HEIGHT, TALL_PLOT_HEIGHT = 4, 8
TALL = 36
"""Lines of a screen that has room for taller plots."""

SPARK = 10

TROUBLE_EVERY = 10.0
DAY_EVERY = 60.0
DEEP_EVERY = 30.0
"""Seconds to cache the results of expensive queries."""

COLUMNS = (
    ListColumn("QUEUE", 10, grow=1),
    ListColumn("READY", 7, right=True),
    ListColumn("SCHED", 7, right=True),
    ListColumn("RETRY", 7, right=True),
    ListColumn("RUN", 7, right=True),
    ListColumn("DEAD", 7, right=True),
    ListColumn("OLDEST", 6, right=True),
    ListColumn("IN/m", 5, right=True),
    ListColumn("OUT/m", 5, right=True),
    ListColumn("EMPTY", 7, right=True),
    ListColumn("LAST HOUR", SPARK, drop=1),
    ListColumn("BLOCKED", 7, right=True, drop=2),
    ListColumn("LOST", 6, right=True, drop=3),
)

SPANS = (("1 h", 60), ("24 h", 24 * 60))
"""Time spans of the plots: label and minutes."""


class OverviewScreen(LiveScreen):
    """The queues, two plots and the alerts."""

    ABOUT = (
        "Counts stop at 10,000 (10,000+). IN/m and OUT/m are the tasks submitted and finished in the last full minute. "
        "EMPTY is the time until no task is ready at that rate. LAST HOUR plots the finished tasks, each queue on its "
        "own scale. Enter lists the tasks of a queue, P pauses or resumes it, s switches the plots to a day."
    )
    BINDINGS: ClassVar[list[BindingType]] = [*action_bindings(ActionTarget.QUEUE), Binding("s", "span", "Span")]

    def __init__(self) -> None:
        super().__init__(Targets(queue=self._queue))
        self._last: Overview | None = None
        self._complete = False
        self._span = 0
        self._backlog_cache = TtlCache[Mapping[str, WaitingCounts]](DEEP_EVERY)
        self._trouble_cache = TtlCache[Diagnoses](TROUBLE_EVERY)
        self._day_cache = TtlCache[tuple[MinuteFlow, ...]](DAY_EVERY)

    def parts(self) -> Iterable[Widget]:
        """Return the queues, two plots and the alerts."""
        yield Table[str](COLUMNS, id="queues")
        yield Horizontal(TextBlock(id="done"), TextBlock(id="failed"), id="plots")
        yield TextBlock(id="alerts")

    def request(self) -> object:
        """Return the time span of the plots."""
        return self._span

    async def read(self) -> object:
        """Read the overview; the results of expensive queries are cached."""
        last = self._last
        snapshot = await (self.session.read(read_overview) if last is None else self.session.read(read_overview, last))
        self._last = snapshot
        if last is None:
            return snapshot  # Show the first data early. The expensive queries run in the second read, which follows.
        if any(queue.is_capped for queue in snapshot.queues):
            backlog = await self._backlog_cache.get(None, partial(self.session.read, read_backlog))
            snapshot = replace(snapshot, queues=deepened(snapshot.queues, backlog))
        behind = tuple(queue.queue for queue in snapshot.queues if queue.falls_behind)
        died = any(flow.flow.died for flow in snapshot.hour)
        failing = tuple(snapshot.failing)
        if behind or died or failing:
            ask = partial(self.session.read, diagnoses, behind, failing)
            details = await self._trouble_cache.get((behind, died, failing), ask)
            snapshot = replace(snapshot, diagnoses=details)
        if self._span:
            snapshot = replace(snapshot, flows=await self._day_cache.get(None, partial(self.session.read, day)))
        return snapshot

    def show(self, snapshot: Any) -> None:
        """Show the overview."""
        data: Overview = snapshot
        if not self._complete:
            self._complete = True
            self.feed.hurry()
        queues = {queue.queue: queue for queue in data.queues}
        self.session.add_names({"queue": [name for name in queues if line(name) == name]})
        self.query_one("#queues", Table).show(
            tuple(queues), lambda name: queue_line(queues[name], finished_per_minute(data, name))
        )
        self._plot("#done", "done per minute", data, lambda flow: flow.succeeded)
        self._plot("#failed", "failed attempts per minute", data, lambda flow: flow.failed)
        texts = [content((f" {workforce(data)}", "dim"))]
        texts += [content((f" {alert.sign} {alert.text}", alert.style)) for alert in alerts(data, self.session.zone)]
        self.query_one("#alerts", TextBlock).set_text(lines(texts))

    def action_span(self) -> None:
        """Switch to the next time span of the plots."""
        self._span = (self._span + 1) % len(SPANS)
        self.action_reload()

    def _queue(self) -> str | None:
        cursor: str | None = self.query_one("#queues", Table).cursor
        return cursor

    def _plot(self, id: str, title: str, data: Overview, value: Callable[[Flow], int]) -> None:
        label, minutes = SPANS[self._span]
        flows: Sequence[MinuteFlow] = data.flows if self._span else data.hour
        begin = (data.at - timedelta(minutes=minutes)).astimezone(self.session.zone)
        ends = (f"{begin:%H:%M}", f"{data.at.astimezone(self.session.zone):%H:%M}")
        values = per_minute(flows, data.at, value, minutes)
        width = max(24, self.size.width // 2 - 2)
        height = TALL_PLOT_HEIGHT if self.size.height >= TALL else PLOT_HEIGHT
        drawn = plot(values, width, height, ends)
        self.query_one(id, TextBlock).set_text(content("\n".join([f" {title}, {label}", *drawn])))

    @on(Table.Selected)
    def _open_tasks(self, event: Table.Selected) -> None:
        self.session.filter_text = filter_of(queue=event.key)
        self.app.switch_mode("tasks")


def finished_per_minute(data: Overview, queue: str) -> list[float]:
    """Return the finished tasks of a queue in each minute of the last hour."""
    return per_minute(data.pulses.get(queue, ()), data.at, lambda flow: flow.ended)


def queue_line(queue: QueueCounts, hour: Sequence[float] = ()) -> RenderedRow:
    """Render a queue as a row.

    Args:
        queue: counts of the queue.
        hour: finished tasks in each minute of the last hour.
    """
    more = "+" if queue.arrived.more else ""
    return RenderedRow(
        (
            Cell(f"{'⏸ ' if queue.paused else ''}{line(queue.queue)}", "bold" if queue.paused else ""),
            Cell(str(queue.ready)),
            Cell(str(queue.scheduled), "dim"),
            Cell(str(queue.retrying), "yellow" if queue.retrying.number else "dim"),
            Cell(str(queue.running)),
            Cell(str(queue.dead), "red" if queue.dead.number else "dim"),
            Cell(formatting.age(queue.oldest)),
            Cell(f"{compact(queue.arrived.number)}{more}"),
            Cell(compact(queue.minute.ended)),
            empty_in(queue),
            Cell(sparkline(hour, SPARK)),
            Cell(str(queue.blocked), "dim"),
            Cell(str(queue.lost), "bold red" if queue.lost.number else "dim"),
        )
    )


def empty_in(queue: QueueCounts) -> Cell:
    """Render the time until no task is ready at the present rate."""
    if queue.paused:
        return Cell("paused", "bold")
    seconds = queue.empty_in
    if seconds is not None and isinf(seconds):
        return Cell("never", "bold red" if queue.falls_behind else "")
    more = ">" if queue.ready.more and seconds is not None else ""
    return Cell(f"{more}{formatting.age(seconds)}", "" if seconds else "dim")
