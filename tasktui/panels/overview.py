"""The panels of the overview: attention, figures and plots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import cached_property
from operator import attrgetter
from statistics import median
from typing import TYPE_CHECKING

from rich.cells import cell_len

from runner.queries.breakers import BreakerRow
from runner.queries.counting import Count, total_of
from runner.queries.overview import MINUTE, Overview, per_minute
from runner.queries.registries import Pause
from runner.text import formatting
from runner.text.sanitize import count_noun
from tasktui.data.alerts import SIGNS, Attention
from tasktui.render.plot import (
    Mark,
    Span,
    area,
    compact,
    framed,
    gauge,
    heat,
    log_labels,
    nice,
    resampled,
    sparkline,
    time_axis,
    with_marks,
)
from tasktui.render.render import fitted, line
from tasktui.render.rows import CLAUSE, Part, Row, cap, collapsed, ends, fit, heading, rule, width_of
from tasktui.render.theme import draws_ascii

if TYPE_CHECKING:  # The first screen does not need these.
    from runner.queries.recovery import Recovery
    from tasktui.data.background import Background

UNUSUAL = 3.0
"""Failed attempts above this multiple of the usual rate are red."""

MOST_PER_CENT = 300  # Beyond it, the usual figure is shown.

FIGURES = 6
"""Figures of a screen that has room for them."""

SHORTEST_NAME = 16
"""Cells that a name in the title of an alert keeps, even if its figures have no room then."""

AXIS = 7
"""Cells before a plot."""


@dataclass(frozen=True)  # without slots: it keeps what several panels draw
class View:
    """The data of the panels.

    Args:
        slow: the slow figures; None until they are read.
        alerts: problems, causes first.
        zone: time zone of displayed times.
        span: label and minutes of the plots.
        writable: True if changes are allowed.
        recovery: the latest outage that has ended; None without one.
        counted: counts of waiting tasks that stopped have gone as far as they can; else they are still being read.
    """

    data: Overview
    slow: "Background | None"
    alerts: tuple[Attention, ...]
    zone: tzinfo
    span: tuple[str, int]
    writable: bool
    recovery: "Recovery | None" = None
    counted: bool = True

    @property
    def is_empty(self) -> bool:
        """True if no task, runner or schedule exists; False until the schedules are read."""
        return self.slow is not None and not (self.data.queues or self.data.runners or self.slow.schedules)

    @cached_property
    def _end(self) -> datetime:
        return self.data.last_minute(self.span[1])

    @cached_property
    def _minutes(self) -> dict[str, list[float]]:
        return {}

    def minutes(self, name: str) -> list[float]:
        """A count per minute over the span, up to the last minute of the plots."""
        if name not in self._minutes:
            flows, count = self.data.flows or self.data.hour, attrgetter(name)
            self._minutes[name] = per_minute(flows, self._end, count, self.span[1])
        return self._minutes[name]

    @property
    def behind(self) -> list[float]:
        """Tasks per minute that arrived but did not end, in the queues that fall behind; zero before the last hour."""
        backlog = [0.0] * self.span[1]
        for name in (queue.queue for queue in self.data.queues if queue.falls_behind):
            flows, end = self.data.pulses.get(name, ()), self.data.at - MINUTE
            for ago, more in enumerate(reversed(per_minute(flows, end, lambda flow: flow.submitted - flow.finished))):
                backlog[-1 - ago] += max(0.0, more)
        return backlog

    def last(self, name: str) -> int:
        """A count of the last full minute, over all queues; of this minute while no full one has data."""
        if self.data.hides_queues:
            return int(self.minutes(name)[-1])
        return sum(getattr(queue.minute, name) for queue in self.data.queues) or int(self.minutes(name)[-1])

    def total(self, name: str) -> Count:
        """The sum of a count over the listed queues: a lower bound if there may be other ones."""
        counts = [getattr(queue, name) for queue in self.data.queues]
        more = self.data.hides_queues or any(count.more for count in counts)
        return Count(sum(count.number for count in counts), more)

    @property
    def time(self) -> Span:
        """The time of the plots."""
        end = self._end.replace(second=0, microsecond=0) + MINUTE
        return Span(end - self.span[1] * MINUTE, end, self.zone)


def attention(view: View, width: int, most: int) -> list[Row]:
    """The alerts, at most a number of rows; or a line that there are none."""
    alerts = view.alerts
    title: list[Part] = [heading("NEEDS ATTENTION")]
    if not alerts:
        return [rule(title, width), *_quiet(view, width), *_recovered(view, width)]
    title += alert_count(alerts, complete=view.slow is not None)
    hidden = alerts[most:]
    names = ", ".join(alert.title for alert in hidden)
    text = fitted(f"+{len(hidden)} more: {names}", min(width // 2, 60)).rstrip()
    more: list[Part] = [(text, "muted"), ("  ", "")] if hidden else []
    rows: list[Row] = [rule(title, width, [*more, *cap("!", "all")])]
    rows += [alert_row(alert, width, view.writable, first=not index) for index, alert in enumerate(alerts[:most])]
    return [*rows, *_recovered(view, width)]


def alert_count(alerts: Sequence[Attention], *, complete: bool) -> list[Part]:
    """The number of problems; a lower bound while some figures are being read."""
    role = alerts[0].role if alerts[0].role != "paused" else "retrying"
    number: Part = (f" {Count(len(alerts), not complete)}", f"bold {role}")
    return [number] if complete else [number, (" reading", "faint")]


def _recovered(view: View, width: int) -> list[Row]:
    """The end of the latest outage, with the fate of its tasks and the key that writes the report."""
    outage = view.recovery
    if outage is None:
        return []
    end = formatting.clock(outage.until, view.data.at, view.zone)
    clear = all(alert.role not in ("dead", "lost") for alert in view.alerts)
    longer = "more than " * outage.longer
    fate = f"{outage.tasks} waited, {outage.died} died, {outage.done} done since."
    text = f" was down {longer}{formatting.age(outage.length)}: {fate}"
    title = f"All clear since {end}. " if clear else f"Works again since {end}: "
    right = [(" ", ""), *cap("i", "incident" if width >= 100 else "")]
    left: list[Part] = [("  ✓ ", "bold succeeded"), (title, "bold strong"), (line(outage.handler, 40), "text")]
    room = width - width_of([*left, *right]) - 1
    return [ends([*left, (collapsed(text, room), "muted")], right, width)]


def alert_row(alert: Attention, width: int, writable: bool, *, first: bool) -> Row:
    """Render an alert as one line.

    Args:
        first: it is the first one, which is stronger.
    """
    title_role = alert.role if first or alert.role == "lost" else "strong"
    bar = "|" if draws_ascii() else "▌"  # In ASCII, the half block is the sign of the cursor.
    left: list[Part] = [(bar, alert.role), (f" {SIGNS[alert.role]} ", f"bold {alert.role}")]
    label = f"{alert.label:<8}" if width >= 100 else ""
    locked = alert.key.isupper() and not writable
    right = [(" ", ""), *cap(alert.key, label, locked=locked)] if alert.key else []
    room = width - width_of([*left, *right]) - 2
    title = alert.title
    figures = CLAUSE.split(alert.summary, 1)[0]
    if alert.name and (over := cell_len(title) + cell_len(figures) + 1 - room) > 0:
        title = fitted(alert.name, max(SHORTEST_NAME, cell_len(alert.name) - over)).rstrip() + title[len(alert.name) :]
    text = collapsed(alert.summary, room - cell_len(title))
    left += [(title, f"bold {title_role}"), (f"  {text}", "text" if first else "muted")]
    return ends(left, right, width)


def _quiet(view: View, width: int) -> list[Row]:
    data = view.data
    if view.is_empty:
        text = "No queue has a task, and no runner is registered."
        return [fit([("  ○ ", "muted"), ("Nothing yet. ", "bold strong"), (text, "text")], width)]
    if view.slow is None:  # The tasks that died, stuck tasks and failing runners are not read yet.
        return [fit([("  reading", "faint")], width)]
    alive = count_noun(len(data.alive), "runner")
    text = f"{alive} alive, no queue falls behind, no task died in 1 h."
    rows: list[Row] = [fit([("  ✓ ", "bold succeeded"), ("Nothing. ", "bold strong"), (text, "text")], width)]
    if outlook := _outlook(view.slow, data.at):
        rows.append(fit([(f"    {outlook}", "muted")], width))
    return rows


def _outlook(slow: "Background", at: datetime) -> str:
    """The next schedule and the last change in words; empty without both."""
    from runner.queries.audit import UNCHANGED  # not needed for the first data

    due = ((line(each.id, 40), each.next_at) for each in slow.schedules if each.next_at and each.next_at > at)
    planned = next((f"Next schedule: {name} {formatting.distance(next_at, at)}." for name, next_at in due), "")
    entries = (change.entry for change in slow.changes if change.entry.verb not in UNCHANGED)
    changed = next(
        (f"Last change: {line(each.operator, 20)}, {formatting.distance(each.at, at)}." for each in entries), ""
    )
    return f"{planned} {changed}".strip()


def figures(view: View, width: int) -> list[Row]:
    """Six figures with comparisons, in two rows."""
    each = width // FIGURES
    columns = _figures(view, each)
    above: list[Part] = []
    below: list[Part] = []
    for index, (label, parts) in enumerate(columns):
        room = each if index < len(columns) - 1 else width - each * index
        border: list[Part] = [("│ " if index else "  ", "line")]
        above += fit([*border, (label, "muted")], room)
        compared = [*border, *parts]
        below += fit(compared if width_of(compared) < room else [*border, parts[0]], room)
    return [above, below]


def _figures(view: View, width: int) -> list[tuple[str, list[Part]]]:
    data = view.data
    done, failed = view.minutes("succeeded"), view.minutes("failed")
    capacity, busy = (sum(getattr(runner, name) for runner in data.alive) for name in ("capacity", "running_tasks"))
    ready, dead = view.total("ready"), view.total("dead")
    known = view.counted or not ready.more or data.hides_queues
    oldest = max(
        (queue for queue in data.queues if queue.oldest is not None), key=lambda q: q.oldest or 0, default=None
    )
    bad, usual = is_unusual(view.last("failed"), failed)
    failed_role = "dead" if bad else "muted"
    died = total_of(view.slow.facts.dead.values()) if view.slow else None
    late = oldest is not None and any(queue.falls_behind for queue in data.queues)
    slots = " slots" if width >= 18 else ""
    in_slots = f"  of {capacity:,}{slots}" if busy <= capacity else f"  {busy - capacity:,} prefetched"
    change = sum(queue.arrived.number - queue.minute.finished for queue in data.queues)
    in_and_out = f"  {'▲' if change > 0 else '▼'} {abs(change):,} / min" if change else "  steady"
    in_and_out = "" if data.hides_queues or not ready.number else in_and_out
    return [
        ("READY", [(str(ready), "bold strong") if known else ("reading", "faint"), (in_and_out, "muted")]),
        ("RUNNING", [(f"{busy:,}", "bold running"), (in_slots, "muted")]),
        ("DONE / MIN", [(f"{view.last('succeeded'):,}", "bold strong"), *_compared(view.last("succeeded"), done)]),
        (
            "FAILED / MIN",
            [
                (f"{view.last('failed'):,}", f"bold {'dead' if bad else 'strong'}"),
                (f"  {'▲ from' if bad else 'usual'} {usual:,.0f}", failed_role),
            ],
        ),
        (
            "DEAD",
            [
                (str(dead), f"bold {'dead' if died and died.number else 'strong'}"),
                *_died(died, width - cell_len(str(dead)) - 3),
            ],
        ),
        (
            "OLDEST READY",
            [
                (
                    f"{formatting.age(oldest.oldest) if oldest else '0s'}{'+' * data.hides_queues}",
                    f"bold {'retrying' if late else 'strong'}",
                ),
                (f"  {line(oldest.queue)}" if oldest else "", "retrying" if late else "muted"),
            ],
        ),
    ]


def _died(died: Count | None, room: int) -> list[Part]:
    """The tasks that died in the last hour and are still dead; nothing while they are not read."""
    if died is None:
        return []
    text = f"  +{died} in 1 h" if died.number else "  none in 1 h"
    if cell_len(text) > room:
        text = f"  +{compact(died.number)}{'+' * died.more} / h"
    return [(text, "dead" if died.number else "muted")]


def _compared(now: float, values: Sequence[float]) -> list[Part]:
    """A figure against the mean of the span."""
    usual = sum(values) / len(values) if values else 0.0
    if usual < 1:
        return []
    change = round((now / usual - 1) * 100)
    if change > MOST_PER_CENT:
        return [(f"  usual {usual:,.0f}", "muted")]
    return [(f"  {'▲' if change > 0 else '▼'} {abs(change)} %" if change else "  as usual", "muted")]


def throughput(view: View, width: int, height: int) -> list[Row]:
    """Finished tasks per minute, and above them in amber the arrivals that the queues which fall behind left."""
    room = width - AXIS - 1
    values, above = resampled(view.minutes("succeeded"), room), resampled(view.behind, room)
    top = nice(max((one + two for one, two in zip(values, above, strict=True)), default=0))
    legend: list[Part] = [("█ ", "done@24"), (f"done {view.last('succeeded'):,} / min", "muted")]
    late = sum(queue.arrived.number - queue.minute.finished for queue in view.data.queues if queue.falls_behind)
    if late > 0:
        legend += [("  █ ", "retrying"), (f"behind {late:,} / min", "muted")]
    rows = framed(area(values, height, "done", above, top), top)
    return [rule([heading("THROUGHPUT")], width, legend), *rows, time_axis(view.time, room)]


def failed_attempts(view: View, width: int, height: int) -> list[Row]:
    """Failed attempts per minute, with marks of deploys, pauses and open breakers; red above the usual rate."""
    minutes, now = view.minutes("failed"), view.last("failed")
    bad, usual = is_unusual(now, minutes)
    legend: list[Part] = [(f"{now:,} / min", "dead" if bad else "muted"), (f", usual {usual:,.0f}", "muted")]
    data = view.data
    paused = {queue.queue: queue.paused for queue in data.queues if queue.paused}
    events = marks(data.deploys, paused, data.breakers)
    return [rule([heading("FAILED ATTEMPTS")], width, legend), *failed_plot(minutes, view.time, events, width, height)]


def is_unusual(now: float, minutes: Sequence[float]) -> tuple[bool, float]:
    """True if a rate per minute is far above the usual one of a period, and the usual one."""
    usual = median(minutes) if minutes else 0.0
    return now > max(UNUSUAL * usual, 1.0), usual


def failed_plot(minutes: Sequence[float], span: Span, events: Sequence[Mark], width: int, height: int) -> list[Row]:
    """Failed attempts over a period with marks and both axes; red above the usual rate."""
    room = width - AXIS - 1  # The right edge ends below the figure of the title.
    values = resampled(minutes, room)
    top = nice(max([*values, 5]))
    limit = max(UNUSUAL * (median(minutes) if minutes else 0.0), 1.0)
    plotted = area(values, height, lambda value: "failed" if value > limit else "spark", top=top)
    return [*framed(with_marks(plotted, span, room, events), top), time_axis(span, room, marks=events)]


def marks(deploys: Mapping[str, datetime], paused: Mapping[str, Pause], breakers: Sequence[BreakerRow]) -> list[Mark]:
    """Moments to mark in plots: the start of each newer version, pauses, and open breakers.

    Args:
        deploys: start of the first runner of each version, the oldest version first.
    """
    events = [Mark(at, f"deploy {line(name, 20)}", "accent") for name, at in list(deploys.items())[1:]]
    events += [Mark(each.since, f"{line(name, 20)} paused", "paused") for name, each in paused.items() if each.since]
    opened = [(each.handler, each.state.opened_at) for each in breakers if each.state is not None]
    for handler, at in opened:
        name = "breaker opens" if len(opened) == 1 else f"{line(handler, 20)} breaker"
        events += [Mark(at, name, "retrying")] if at is not None else []
    return sorted(events, key=lambda mark: (mark.role == "paused", mark.at))  # The others have the first rows.


def run_time(view: View, width: int, height: int) -> list[Row]:
    """A heat map of the run times of the last hour."""
    title = [heading("RUN TIME")]
    if view.slow is None or not view.slow.times:
        began = any(minute.flow.finished or minute.flow.failed for minute in view.data.hour)
        none = "shown after a full minute" if began else "no attempt ended in the last hour"
        return [rule(title, width), fit([(f"  {none if view.slow else 'reading'}", "faint")], width)]
    from tasktui.data.background import heat_columns  # The first screen does not need it.

    room = width - AXIS - 1
    p50, p95, before = view.slow.latest
    legend: list[Part] = []
    if p50 is not None and p95 is not None:
        slower = view.slow.is_slower
        legend = [("p50 ", "muted"), (formatting.duration(p50), "text"), ("  p95 ", "muted")]
        now, earlier = formatting.duration(p95), formatting.duration(before) if before is not None else ""
        legend += [(now, "bold dead" if slower else "bold strong")]
        legend += [(f" was {earlier}", "muted")] if view.slow.has_changed else []
    labels = log_labels(height)
    rows = [
        [(f"{labels.get(index, ''):>5} ", "faint"), ("┤" if index in labels else "│", "line"), *row]
        for index, row in enumerate(heat(heat_columns(view.slow.times, view.slow.at, room, height), height))
    ]
    end = view.data.at.replace(second=0, microsecond=0)
    return [rule(title, width, legend), *rows, time_axis(Span(end - 60 * MINUTE, end, view.zone), room, "")]


def system(view: View, width: int) -> list[Row]:
    """Five rows for a narrow screen: label, figure, sparkline, comparison."""
    bar = width - 26 - 18
    done, failed = view.minutes("succeeded"), view.minutes("failed")
    bad, usual = is_unusual(view.last("failed"), failed)
    alive, busy = view.data.alive, sum(runner.running_tasks for runner in view.data.alive)
    capacity = sum(runner.capacity for runner in alive)
    rows: list[Row] = [rule([heading("SYSTEM")], width, [(f"last {view.span[0]}", "muted")])]
    peak = f"peak {max(done, default=0):,.0f}"
    rows.append(_system("done / min", f"{view.last('succeeded'):,}", "strong", sparkline(done, bar, "spark"), peak))
    plotted = sparkline(failed, bar, "trouble" if bad else "spark")
    role = "dead" if bad else "strong"
    rows.append(_system("failed / min", f"{view.last('failed'):,}", role, plotted, f"usual {usual:,.0f}"))
    if view.slow is not None and (p95 := view.slow.latest[1]) is not None:
        before = view.slow.latest[2]
        slower = view.slow.is_slower
        minutes = [view.slow.percentile(0.95, at, at + MINUTE) or 0.0 for at in _minutes(view)]
        plotted = sparkline(minutes, bar, "trouble" if slower else "spark")
        was = f"was {formatting.duration(before)}" if before is not None and view.slow.has_changed else ""
        rows.append(_system("run time p95", formatting.duration(p95), "dead" if slower else "strong", plotted, was))
    share = busy / capacity if capacity else 0.0
    full = gauge([(share, "retrying" if share >= 1 else "running")], bar)
    rows.append(_system("slots", f"{busy}/{capacity}", "strong", full, f"{round(share * 100)} % busy"))
    states = [runner.alive and not runner.silent for runner in view.data.runners]
    dots: list[Part] = [("● ", "succeeded") if is_alive else ("◌ ", "lost") for is_alive in states]
    silent = states.count(False)
    note = f"{silent} silent" if silent else ""
    figure = f"{len(states) - silent} of {len(states)}"
    rows.append(_system("runners", figure, "lost" if silent else "strong", fit(dots, bar), note))
    return rows


def _minutes(view: View) -> list[datetime]:
    end = view.data.at.replace(second=0, microsecond=0)
    return [end - timedelta(minutes=ago) for ago in range(60, 0, -1)]


def _system(label: str, figure: str, role: str, plotted: Sequence[Part], note: str) -> Row:
    return [
        *[("  ", ""), (f"{label:<13}", "muted"), (f"{figure:>9}", f"bold {role}"), ("  ", "")],
        *[*plotted, ("  ", ""), (note, "faint")],
    ]
