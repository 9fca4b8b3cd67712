"""OverviewScreen: queues, throughput, failures and alerts."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from runner.db.transaction import Transaction
from runner.model.alert import Silence
from runner.model.task import is_new
from runner.queries.alerts.facts import NO_SLOW_FACTS, AlertFacts, SlowFacts
from runner.queries.alerts.thresholds import Thresholds
from runner.queries.counting import Count, WaitingCounts
from runner.queries.counts import MINUTE, SOON, QueueCounts, named_counts
from runner.queries.counts import waiting as read_backlog
from runner.queries.overview import Diagnoses, Overview, day, deepened, diagnoses, read_overview, waits
from runner.queries.reports import MinuteFlow
from runner.text import formatting
from tasktui.actions.action import ActionTarget, Targets
from tasktui.commands.syntax import filter_of
from tasktui.data.alerts import Attention, attention, unavailable_databases
from tasktui.data.queue_order import ORDERS, name_matcher, sorted_queues
from tasktui.panels import overview as panels
from tasktui.panels import side as side_panels
from tasktui.panels.overview import View
from tasktui.render.plot import compact, gauge, sparkline
from tasktui.render.render import Cell, ListColumn, RenderedRow, line
from tasktui.render.rows import BLANK, Part, Row, beside, heading, rule
from tasktui.screens.queue_filter import QueueFilter
from tasktui.screens.row_texts import texts_of_row
from tasktui.session.cache import DEEP_EVERY, SILENCE_EVERY, TROUBLE_EVERY, TtlCache
from tasktui.session.session import Session
from tasktui.shell.actions import action_bindings
from tasktui.shell.live import LiveScreen
from tasktui.widgets.canvas import Canvas
from tasktui.widgets.table import HELD, Table

WIDE, NORMAL = 180, 100
"""Columns from which a screen has a column at the right, and from which it has figures and plots."""

SIDE = 72
"""Cells of the column at the right."""

MOST_ALERTS = 3
MOST_ALERTS_TALL = 6
TALL = 56
"""Rows of a tall screen."""

LEAST_QUEUES = 8
"""Queues that are shown before the lower plots get their room."""

SPARK, GAUGE = 15, 9
"""Cells of the sparkline and the gauge of a queue."""

SHORT_WAIT, MOST_WAITS = 10.0, 100
"""Seconds of a wait that looks low in the sparkline of any queue, and queues whose waits are read."""

DAY_EVERY = 60.0
"""Seconds to cache the figures that change slowly."""

COLUMNS = (
    ListColumn("NAME", 9, grow=1, name=True),
    ListColumn("READY", 7, right=True),
    ListColumn("SCHED", 7, right=True, drop=5),
    ListColumn("RETRY", 7, right=True),
    ListColumn("BLOCKED", 7, right=True, drop=8),
    ListColumn("LOST", 6, right=True, drop=9),
    ListColumn("DEAD", 7, right=True),
    ListColumn("", GAUGE + 1, right=True, drop=7),
    ListColumn("SLOTS", 9, right=True),
    ListColumn("OLDEST", 7, right=True),
    ListColumn("IN/MIN", 6, right=True, drop=4),
    ListColumn("OUT/MIN", 7, right=True, drop=3),
    ListColumn("DRAINED", 9, right=True),
    ListColumn("WAIT, LAST HOUR", SPARK, drop=1),
)

if TYPE_CHECKING:  # The first screen does not need these.
    from runner.queries.recovery import Recovery
    from tasktui.data.background import Background
    from tasktui.data.values import Copyable

SPANS = (("1 h", 60), ("24 h", 24 * 60))
"""Time spans of the plots: label and minutes."""


class OverviewRest(NamedTuple):
    """The results of the expensive queries.

    Args:
        backlog: counts of waiting tasks that go further than those of the overview; None if it has counted all.
        named: the queues that the filter names; None if the overview lists all queues, or the filter names none.
    """

    backlog: Mapping[str, WaitingCounts] | None
    named: Sequence[QueueCounts] | None
    diagnoses: Diagnoses
    slow: "Background"
    silences: tuple[Silence, ...]
    waits: Mapping[str, Mapping[datetime, float]]
    flows: tuple[MinuteFlow, ...]
    recovery: "Recovery | None"


async def _none() -> None:
    """A step for a query that is not needed."""


class OverviewScreen(LiveScreen):
    """Problems, figures, queues and plots."""

    ABOUT = (
        "NEEDS ATTENTION lists causes before symptoms. Counts stop at 10,000 (10,000+). SLOTS are the running tasks of "
        "the queue and the slots of the live runners that claim from it, or its limit if that is lower. IN/MIN and "
        "OUT/MIN are the tasks submitted and finished in the last full minute. DRAINED is the time until no task is "
        "ready at that rate; ‖ 06:00 is the end of a pause. WAIT is the time from the due time of tasks to their "
        "start. / filters the queues: mail dead>0 oldest>5m paused -reports; o or a click on a head sorts them. Enter "
        "lists the tasks of a queue, P pauses or resumes it, M limits it, Q silences the first alert, s switches the "
        "plots to a day, i writes the report of the latest outage."
    )
    OPENS = "tasks"
    AUTO_FOCUS = "#queues"
    COMMANDS_SHOWN = ("incident",)
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings(ActionTarget.QUEUE, ActionTarget.ALERT),
        Binding("w", "why", "Why"),
        Binding("slash", "filter('edit')", "Filter", key_display="/", priority=True),
        Binding("o", "filter('order')", "Sort", show=False),
        Binding("s", "span", "Span"),
        Binding("i", "incident", "Incident report", show=False),
        Binding("c", "app.capacity", "Capacity"),
    ]

    def __init__(self) -> None:
        super().__init__(
            Targets(queue=self._queue, alert=self._alert, copyable=lambda: texts_of_queue(self.session, self._queue()))
        )
        self._filter = QueueFilter()
        self._last: Overview | None = None
        self._slow: Background | None = None
        self._alerts: tuple[Attention, ...] = ()
        self._silences: tuple[Silence, ...] = ()
        self._complete = False
        self._counted = False
        self._span = 0
        self._named_cache = TtlCache[Sequence[QueueCounts]](DEEP_EVERY, share=10)
        self._backlog_cache = TtlCache[Mapping[str, WaitingCounts]](DEEP_EVERY)
        self._trouble_cache = TtlCache[Diagnoses](TROUBLE_EVERY)
        self._slow_cache = TtlCache["Background"](TROUBLE_EVERY)
        self._facts_cache = TtlCache[SlowFacts](TROUBLE_EVERY)
        self._dead_cache = TtlCache[dict[str, Count]](0.0)
        self._silence_cache = TtlCache[tuple[Silence, ...]](SILENCE_EVERY)
        self._waits_cache = TtlCache[dict[str, dict[datetime, float]]](DAY_EVERY)
        self._recovery_cache = TtlCache["Recovery | None"](DAY_EVERY)
        self._recovery: Recovery | None = None
        self._day_cache = TtlCache[tuple[MinuteFlow, ...]](DAY_EVERY)

    def parts(self) -> Iterable[Widget]:
        """Return the panels and the queues."""
        yield Canvas(id="attention")
        left = Vertical(
            Canvas(id="figures"), self._filter, Table[str](COLUMNS, id="queues"), Canvas(id="lower"), id="left"
        )
        yield Horizontal(left, Canvas(id="side"), id="body")

    def request(self) -> object:
        """Return the time span of the plots, and the filter."""
        return self._span, self._filter.text

    async def read(self) -> object:
        """Read the overview; the results of expensive queries are cached."""
        last = self._last
        if last is None:  # Show the first data early. The expensive queries run in the second read, which follows.
            self._last = await self.session.read(read_overview)
            return self._last
        from tasktui.data.background import read_present  # not needed for the first data

        named, caches = self._filter.names if last.hides_queues else [], (self._facts_cache, self._dead_cache)
        (now, facts), rest = await asyncio.gather(
            self.session.read(read_present, last, Thresholds.of(self.session.settings), *caches, self.session.distance),
            self.session.read(self._read_rest, last, named),
        )
        rest = rest._replace(slow=replace(rest.slow, facts=facts))
        self._last, self._slow, self._silences, self._recovery = now, rest.slow, rest.silences, rest.recovery
        self._filter.named = rest.named if named == self._filter.names else None
        queues = now.queues if rest.backlog is None else deepened(now.queues, rest.backlog)
        self._counted = rest.backlog is not None or not any(queue.is_capped for queue in queues)
        return now._replace(queues=queues, diagnoses=rest.diagnoses, waits=rest.waits, flows=rest.flows)

    async def _read_rest(self, tx: Transaction, last: Overview, named: Sequence[str]) -> "OverviewRest":
        """Run the expensive queries, about the problems of the last overview and the queues that a filter names."""
        from runner.queries.alerts.records import read_silences  # none of these is needed for the first data
        from runner.queries.recovery import recovery
        from tasktui.data.background import read_background

        behind = tuple(queue.queue for queue in last.queues if queue.falls_behind)
        failing = tuple(last.failing_from(Thresholds.of(self.session.settings).failing))
        wide, is_capped = self.size.width >= WIDE, any(queue.is_capped for queue in last.queues)
        queues, is_named = sorted_queues(last, self._filter.named or ()), name_matcher(self._filter.names)
        names = tuple(sorted([queue.queue for queue in queues if is_named(queue.queue)][:MOST_WAITS]))
        ask = partial(diagnoses, tx, behind, failing)
        find = partial(named_counts, tx, name_matcher(named), named)
        plots = tx.gather(
            self._waits_cache.get(names, partial(waits, tx, names), self.session.distance),
            self._day_cache.get(None, partial(day, tx), self.session.distance) if self._span else _none(),
            self._recovery_cache.get(None, partial(recovery, tx), self.session.distance),
        )
        backlog, found, details, slow, silences, (measured, flows, outage) = await tx.gather(
            self._backlog_cache.get(None, partial(read_backlog, tx), self.session.distance) if is_capped else _none(),
            self._named_cache.get(tuple(named), find, self.session.distance) if named else _none(),
            self._trouble_cache.get((behind, failing), ask, self.session.distance) if behind or failing else _none(),
            self._slow_cache.get(wide, partial(read_background, tx, wide=wide), self.session.distance),
            self._silence_cache.get(None, partial(read_silences, tx), self.session.distance),
            plots,
        )
        return OverviewRest(backlog, found, details or Diagnoses(), slow, silences, measured, flows or (), outage)

    def show(self, snapshot: Any) -> None:
        """Show the overview."""
        data: Overview = snapshot
        if not self._complete:
            self._complete = True
            self.feed.hurry()
        self.session.add_names({"queue": [queue.queue for queue in data.queues if line(queue.queue) == queue.queue]})
        slow = self._slow.facts if self._slow is not None else NO_SLOW_FACTS
        others = unavailable_databases(self.console.databases.behind)
        problems = (
            *others,
            *attention(AlertFacts(data, slow, self.session.zone, Thresholds.of(self.session.settings)), self._silences),
        )
        self._alerts = tuple(each for each in problems if each.alert)
        self.session.add_names({"alert": [each.alert for each in self._alerts if " " not in each.alert]})
        span, writable = SPANS[self._span], self.session.writable
        view = View(data, self._slow, problems, self.session.zone, span, writable, self._recovery, self._counted)
        self._draw(view)

    def _draw(self, view: View) -> None:
        width, height = self.size
        wide, normal = width >= WIDE, width >= NORMAL
        tall = height >= TALL
        upper = panels.attention(view, width, MOST_ALERTS_TALL if tall else MOST_ALERTS)
        left = width - SIDE - 2 if wide else width
        middle = [BLANK, *panels.figures(view, left), BLANK] if normal else []
        queues = self._filter.apply(sorted_queues(view.data, self._filter.named or ()))
        table = self.query_one("#queues", Table)
        order = table.steady((queue.queue for queue in queues), self._filter.sort)
        keeps_order = order != tuple(queue.queue for queue in queues)
        middle.append(_queues_rule(view, left, self._filter, len(queues), keeps_order=keeps_order))
        above = (3 if normal else 2) + self.frame.databases_height
        room = height - above - 1 - len(upper) - len(middle)
        lower = self._lower(view, left, room, len(queues))
        table.styles.height = max(2, min(len(queues) + 1, room - len(lower)))
        if view.is_empty:
            from tasktui.dialogs.help import start_here  # not needed for the first data

            middle, lower, wide = start_here(self.session.settings, width), [], False
            table.styles.height = 0
        self.query_one("#attention", Canvas).draw(upper)
        self.query_one("#figures", Canvas).draw(middle)
        rows = {queue.queue: queue for queue in queues}
        ends = {name: view.data.pause_end(queue, view.zone) for name, queue in rows.items()}
        slots = {name: view.data.slots_of(name) for name in rows}
        waits_of = view.data.waits_of
        unclaimed = {queue for handler in view.data.unknown if handler.due >= 0 for queue in handler.queues}
        at, pulses = view.data.at, view.data.pulses
        deadly = {
            name for name, flows in pulses.items() if any(each.flow.died for each in flows if is_new(each.minute, at))
        }

        def render(name: str) -> RenderedRow:
            waits = waits_of(rows[name])
            return queue_line(
                rows[name], waits, slots[name], ends[name], name in unclaimed, died=name in deadly, counted=view.counted
            )

        table.show(order, render)
        self.query_one("#lower", Canvas).draw(lower)
        side = self.query_one("#side", Canvas)
        side.display = wide
        if wide and view.slow is not None and view.slow.failures is None:  # The screen was narrow until now.
            self.feed.hurry()
        if wide:
            side.draw(self._side(view, height - above - 1 - len(upper)))

    def _lower(self, view: View, width: int, room: int, queues: int) -> list[Row]:
        """The plots, as tall as there is room below the queues; plots without room are left out."""
        if width < NORMAL - 2:
            system = panels.system(view, width)
            return system if room - len(system) >= 4 else system[:1] + system[1 : max(1, room - 4)]
        planned = _next_schedules(view, width) if width < self.size.width else []
        spare = room - (queues + 1) - 1 - (len(planned) + 1 if planned else 0)
        first = max(4, min(16, 2 * round((spare - 5) * 6 / 11 / 2)))
        second = max(3, min(14, spare - first - 6))
        half = (width - 2) // 2
        left, right = panels.throughput(view, half, first), panels.failed_attempts(view, width - half - 2, first)
        rows: list[Row] = [BLANK, *beside(left, right, half), BLANK]
        last = panels.run_time(view, width if width < self.size.width else half, second)
        if width == self.size.width:
            last = beside(last, side_panels.runners(view, width - half - 2, second + 1), half)
        rows += last
        if planned and len(rows) + len(planned) < room - 3:
            rows += [BLANK, *planned]
        least = min(queues + 1, LEAST_QUEUES + 1)  # with the head
        if len(rows) > room - least:
            rows = rows[: first + 3]
        return rows if len(rows) <= room - min(least, 3) else []

    def _side(self, view: View, room: int) -> list[Row]:
        """The column at the right of a wide screen."""
        legend = side_panels.legend(side_panels.colours_of(view.data.slots), SIDE)
        rows: list[Row] = [BLANK, *side_panels.runners(view, SIDE, max(6, room // 4)), BLANK, *legend]
        for panel in (side_panels.top_failures, side_panels.slowest, side_panels.latest_changes):
            added = panel(view, SIDE)
            if added and len(rows) + len(added) + 1 <= room:
                rows += [BLANK, *added]
        return rows

    def action_incident(self) -> None:
        """Write the report of the latest outage that has ended."""
        if (outage := self._recovery) is None:
            self.report("No outage has ended in the last two hours; :incident 3:00 4:00 reports a period", bad=True)
        else:
            self.console.write_incident([outage.since.isoformat(), outage.until.isoformat()])

    def action_span(self) -> None:
        """Switch to the next time span of the plots."""
        self._span = (self._span + 1) % len(SPANS)
        self.action_reload()

    def action_filter(self, what: str) -> None:
        """`edit` the filter of the queues, for which the following keys are meant, or sort by the next `order`."""
        if what == "edit":
            self._filter.edit()
        else:
            self._filter.choose()

    @on(Table.HeadClicked)
    @on(QueueFilter.Applied)
    def _arrange(self, event: Table.HeadClicked | QueueFilter.Applied) -> None:
        """Sort the queues by the head of a column, which a second click reverses, or follow the filter."""
        if isinstance(event, QueueFilter.Applied):
            table = self.query_one("#queues", Table)
            self.set_focus(table)
            self.redraw()
            if table.cursor is None:  # The filter hides the row that was under the cursor.
                table.action_first()
            if self._last is not None and self._last.hides_queues and self._filter.names:
                self.action_reload()
        elif (head := event.title.lower().partition("/")[0]) in ORDERS:
            self._filter.choose(head)

    def action_why(self) -> None:
        """Explain why the tasks of the queue under the cursor are not running."""
        from tasktui.screens.selection import why_queue  # not needed for the first data

        why_queue(self, self._queue())

    def _alert(self) -> str | None:
        return self._alerts[0].alert if self._alerts else None

    def _queue(self) -> str | None:
        cursor: str | None = self.query_one("#queues", Table).cursor
        return cursor

    @on(Table.Selected)
    def _open_tasks(self, event: Table.Selected) -> None:
        self.console.open_tasks(filter_of(queue=event.key))


def _next_schedules(view: View, width: int) -> list[Row]:
    slow = view.slow
    if slow is None or not slow.schedules:
        return []
    from tasktui.panels.schedules import next_schedules  # not needed for the first data

    return next_schedules(slow.schedules, slow.at, view.zone, width)


def _queues_rule(view: View, width: int, queue_filter: QueueFilter, matching: int, *, keeps_order: bool) -> Row:
    queues = view.data.queues
    paused = sum(queue.paused is not None for queue in queues)
    count = Count(len(queues), view.data.hides_queues).of("queue")
    if queue_filter.text:
        searched = f"the {len(queues):,} listed" if view.data.hides_queues and queue_filter.named is None else count
        count = f"{matching:,} of {searched}"
    figure: list[Part] = [*queue_filter.notes(), (count, "muted")]
    figure += [(f", {paused} paused", "paused")] if paused else []
    figure += [(HELD, "accent")] if keeps_order else []
    return rule([heading("QUEUES")], width, figure)


def texts_of_queue(session: Session, queue: str | None) -> "Copyable | None":
    """Return the texts of a queue to copy; None without one."""
    name = None if queue is None else f"queue {queue}"
    return texts_of_row(session, name, ["tasks", filter_of(queue=queue or "")], {"id": queue})


def queue_line(
    queue: QueueCounts,
    hour: Sequence[float] = (),
    slots: int = 0,
    end: str = "",
    unclaimed: bool = False,
    *,
    died: bool = False,
    counted: bool = True,
) -> RenderedRow:
    """Render a queue as a row.

    Args:
        hour: seconds that tasks waited for their start, in each minute of the last hour.
        slots: slots of the live runners that claim from it.
        end: the end of its pause; empty without one.
        unclaimed: no live runner takes some of its due tasks.
        died: some of its tasks died in the last hour.
        counted: counts that stopped have gone as far as they can; else they are still being read.
    """
    more = "+" if queue.arrived.more else ""
    name = line(queue.queue)
    paused = queue.paused is not None
    trouble, finished = queue.falls_behind, queue.minute.finished
    title: tuple[Part, ...] = ((name, "muted" if paused else "strong" if trouble else "text"),)
    title += (((" ‖"), "paused"),) if paused else ()
    spark = sparkline(hour, SPARK, "paused" if paused else "trouble" if trouble else "spark", SHORT_WAIT)
    has_slots = slots > 0
    slots = min((most for most in (slots, queue.limits.running) if most), default=0)
    full = bool(slots) and queue.running.number >= slots
    share = queue.running.number / slots if slots else 0.0
    bar = gauge([(share, "retrying" if full and (queue.oldest or 0.0) > MINUTE else "running")], GAUGE)
    return RenderedRow(
        (
            Cell.of(title, "strong" if trouble else "text"),
            _waiting(queue.ready, "bold strong" if trouble else "text", counted=counted),
            _waiting(queue.scheduled, "muted", counted=counted),
            _waiting(queue.retrying, _retrying(queue), counted=counted),
            Cell(str(queue.blocked), "blocked" if queue.blocked.number else "faint"),
            Cell(str(queue.lost), "bold lost" if queue.lost.number else "faint"),
            Cell(str(queue.dead), "dead" if died else "muted" if queue.dead.number else "faint"),
            Cell.of(bar, "running"),
            Cell(f"{queue.running}/{slots}" if slots else str(queue.running), "strong" if full else "muted"),
            Cell(formatting.age(queue.oldest) if queue.oldest is not None else "0s", _oldest(queue)),
            Cell(f"{compact(queue.arrived.number)}{more}", "text" if queue.arrived.number else "faint"),
            Cell(compact(finished), "bold dead" if trouble else "text" if finished else "faint"),
            empty_in(queue, end, stopped=not has_slots, unclaimed=unclaimed, counted=counted),
            Cell.of(spark, "spark"),
        )
    )


def _waiting(count: Count, role: str, *, counted: bool) -> Cell:
    """A count of waiting tasks; empty if counting stopped before the first one."""
    if count.more and not counted:
        return Cell("reading", "faint")
    text = "" if count == Count(0, more=True) else str(count)
    return Cell(text, role if count.number else "faint")


def _retrying(queue: QueueCounts) -> str:
    return "bold retrying" if queue.retrying.number > max(queue.ready.number, 100) else "muted"


def _oldest(queue: QueueCounts) -> str:
    if queue.oldest is None:
        return "faint"
    return "bold retrying" if queue.falls_behind else "text"


def empty_in(
    queue: QueueCounts, end: str = "", *, stopped: bool = False, unclaimed: bool = False, counted: bool = True
) -> Cell:
    """Render the time until no task is ready at the present rate, the end of its pause, or that no runner takes it."""
    if queue.paused:
        return Cell(f"‖ {end}" if end else "paused", "paused")
    seconds = queue.empty_in
    if queue.ready.number and (stopped or (unclaimed and seconds == inf)):
        return Cell("no runner", "bold dead")
    stuck = not queue.minute.finished and (queue.oldest or 0.0) > MINUTE
    if seconds == inf and (stuck or queue.falls_behind):
        return Cell("never", "bold dead")
    if seconds == inf and not queue.arrived.more:
        return Cell("steady", "muted")
    if seconds is None or seconds == inf or (queue.ready.more and not counted):
        return Cell("", "faint")
    more = ">" if queue.ready.more or (queue.arrived.more and seconds > SOON) else ""
    return Cell(f"{more}{formatting.age(seconds)}", "text" if seconds else "faint")
