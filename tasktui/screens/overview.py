"""Overview: the queues at a glance, what was done lately, and what is in trouble."""

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

from runner.people import cells
from runner.store import observe
from runner.store.intervene import Kind, Place
from runner.store.observe import Flow, MinuteFlow, QueueCounts, Waiting
from tasktui.act.actions import Subject
from tasktui.draw.columns import Column
from tasktui.draw.plot import compact, plot, sparkline
from tasktui.draw.render import Cell, Line, content, line, lines
from tasktui.look.alerts import alerts, workforce
from tasktui.look.glance import Glance, Trouble, day, deepened, glance, per_minute, trouble
from tasktui.operator.recall import Recall
from tasktui.screens.acting import ActingScreen
from tasktui.screens.asking import acts
from tasktui.typed.query import filter_of
from tasktui.widgets.said import Said
from tasktui.widgets.table import Table

PLOT_HEIGHT, TALL_PLOT_HEIGHT = 4, 8
TALL = 36
"""Lines of a screen with room for taller plots."""

SPARK = 10

TROUBLE_EVERY = 10.0
DAY_EVERY = 60.0
DEEP_EVERY = 30.0
"""Seconds for which an answer that costs more is kept."""

COLUMNS = (
    Column("QUEUE", 10, grow=1),
    Column("READY", 7, right=True),
    Column("SCHED", 7, right=True),
    Column("RETRY", 7, right=True),
    Column("RUN/LIM", 7, right=True),
    Column("DEAD", 7, right=True),
    Column("OLDEST", 6, right=True),
    Column("IN/m", 5, right=True),
    Column("OUT/m", 5, right=True),
    Column("DRAINED", 7, right=True),
    Column("LAST HOUR", SPARK, drop=1),
    Column("BLOCKED", 7, right=True, drop=2),
    Column("LOST", 6, right=True, drop=3),
)

SPANS = (("1 h", 60), ("24 h", 24 * 60))
"""What the plots show: words and minutes."""


class OverviewScreen(ActingScreen):
    """The queues at a glance."""

    ABOUT = (
        "Counts stop at 10,000 (10,000+). IN/m and OUT/m are the tasks submitted and ended in the last full minute, "
        "DRAINED is when nothing is ready any more if that goes on, LAST HOUR is what ended, each queue on its own "
        "scale. Enter lists the tasks of a queue; P pauses or resumes it; s shows the plots over a day."
    )
    BINDINGS: ClassVar[list[BindingType]] = [*acts(Subject.QUEUE), Binding("s", "span", "Span")]

    def __init__(self) -> None:
        super().__init__()
        self._last: Glance | None = None
        self._whole = False
        self._span = 0
        self._deep = Recall[Mapping[str, Waiting]](DEEP_EVERY)
        self._wrong = Recall[Trouble](TROUBLE_EVERY)
        self._day = Recall[tuple[MinuteFlow, ...]](DAY_EVERY)

    def parts(self) -> Iterable[Widget]:
        """The queues, two plots, and what is in trouble."""
        yield Table[str](COLUMNS, id="queues")
        yield Horizontal(Said(id="done"), Said(id="failed"), id="plots")
        yield Said(id="alerts")

    def question(self) -> object:
        """The span of the plots."""
        return self._span

    async def look(self) -> object:
        """Read everything of one moment; what costs more is kept for a while."""
        last = self._last
        seen = await (self.session.read(glance) if last is None else self.session.read(glance, last))
        self._last = seen
        if last is None:
            return seen  # somebody waits for it; what costs more comes with the next look, which follows at once
        if any(queue.cut for queue in seen.queues):
            deep = await self._deep.get(None, partial(self.session.read, observe.backlog))
            seen = replace(seen, queues=deepened(seen.queues, deep))
        behind = tuple(queue.queue for queue in seen.queues if queue.falls_behind)
        died = any(flow.flow.died for flow in seen.hour)
        failing = tuple(seen.failing)
        if behind or died or failing:
            asked = partial(self.session.read, trouble, behind, failing)
            wrong = await self._wrong.get((behind, died, failing), asked)
            seen = replace(seen, trouble=wrong)
        if self._span:
            seen = replace(seen, flows=await self._day.get(None, partial(self.session.read, day)))
        return seen

    def show(self, snapshot: Any) -> None:
        """Show what was read."""
        seen: Glance = snapshot
        if not self._whole:
            self._whole = True
            self.feed.hurry()
        queues = {queue.queue: queue for queue in seen.queues}
        self.session.learn({"queue": [name for name in queues if line(name) == name]})
        self.query_one("#queues", Table).show(tuple(queues), lambda name: queue_line(queues[name], ended(seen, name)))
        self._plot("#done", "done a minute", seen, lambda flow: flow.succeeded)
        self._plot("#failed", "failed attempts a minute", seen, lambda flow: flow.failed)
        told = [content((f" {workforce(seen)}", "dim"))]
        told += [content((f" {alert.sign} {alert.text}", alert.style)) for alert in alerts(seen, self.session.zone)]
        self.query_one("#alerts", Said).say(lines(told))

    def place(self, kind: Kind) -> Place | None:
        """The queue under the cursor."""
        cursor: str | None = self.query_one("#queues", Table).cursor
        return Place(kind, cursor) if cursor is not None and kind is Kind.QUEUE else None

    def action_span(self) -> None:
        """Plot another span of time."""
        self._span = (self._span + 1) % len(SPANS)
        self.action_reload()

    def _plot(self, id: str, title: str, seen: Glance, number: Callable[[Flow], int]) -> None:
        words, minutes = SPANS[self._span]
        flows: Sequence[MinuteFlow] = seen.flows if self._span else seen.hour
        begin = (seen.at - timedelta(minutes=minutes)).astimezone(self.session.zone)
        ends = (f"{begin:%H:%M}", f"{seen.at.astimezone(self.session.zone):%H:%M}")
        values = per_minute(flows, seen.at, number, minutes)
        width = max(24, self.size.width // 2 - 2)
        height = TALL_PLOT_HEIGHT if self.size.height >= TALL else PLOT_HEIGHT
        drawn = plot(values, width, height, ends)
        self.query_one(id, Said).say(content("\n".join([f" {title}, {words}", *drawn])))

    @on(Table.Chosen)
    def _chosen(self, event: Table.Chosen) -> None:
        self.session.wanted = filter_of(queue=event.key)
        self.app.switch_mode("tasks")


def ended(seen: Glance, queue: str) -> list[float]:
    """What ended in a queue, minute by minute."""
    return per_minute(seen.pulses.get(queue, ()), seen.at, lambda flow: flow.ended)


def queue_line(queue: QueueCounts, hour: Sequence[float] = ()) -> Line:
    """A queue in the table.

    Args:
        queue: its counts.
        hour: what ended in each minute of the last hour.
    """
    limit = f"/{queue.limit}" if queue.limit else ""
    more = "+" if queue.arrived.more else ""
    return Line(
        (
            Cell(f"{'⏸ ' if queue.paused else ''}{line(queue.queue)}", "bold" if queue.paused else ""),
            Cell(str(queue.ready)),
            Cell(str(queue.scheduled), "dim"),
            Cell(str(queue.retrying), "yellow" if queue.retrying.number else "dim"),
            Cell(f"{queue.running}{limit}"),
            Cell(str(queue.dead), "red" if queue.dead.number else "dim"),
            Cell(cells.age(queue.oldest)),
            Cell(f"{compact(queue.arrived.number)}{more}"),
            Cell(compact(queue.minute.ended)),
            drained(queue),
            Cell(sparkline(hour, SPARK)),
            Cell(str(queue.blocked), "dim"),
            Cell(str(queue.lost), "bold red" if queue.lost.number else "dim"),
        )
    )


def drained(queue: QueueCounts) -> Cell:
    """When nothing is ready any more."""
    if queue.paused:
        return Cell("paused", "bold")
    seconds = queue.empty_in
    if seconds is not None and isinf(seconds):
        return Cell("never", "bold red" if queue.falls_behind else "")
    more = ">" if queue.ready.more and seconds is not None else ""
    return Cell(f"{more}{cells.age(seconds)}", "" if seconds else "dim")
