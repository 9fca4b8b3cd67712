"""Panels about runners, failures, long runs and changes, which the overview shares with other screens."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta, tzinfo
from operator import attrgetter, itemgetter
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Literal
from zlib import crc32

from textual.geometry import Size

from runner.queries.overview import Overview
from runner.queries.runners import RunnerRow, used_slots
from runner.text import formatting
from runner.text.runner_name import process_name
from runner.text.sanitize import count_noun
from tasktui.panels.overview import AXIS, View
from tasktui.render.plot import DENSITY, Span, area, framed, gauge, joined, nice, resampled, sparkline, time_axis
from tasktui.render.render import fitted, line
from tasktui.render.rows import BLANK, Part, Row, ends, faded, fit, handler, heading, opening, rule, width_of
from tasktui.render.theme import SHADES, current

if TYPE_CHECKING:  # The first screen does not need these.
    from tasktui.data.reports import ReportData, ReportSpan
    from tasktui.data.runners import Workforce

NORMAL, TALL = 100, 56
"""Columns and rows of a screen that has room for the shares over time."""

NAMES, MOST_SHARES = 24, 12
"""Cells of the names beside the shares over time, and their largest number."""

HANDLER_COLOURS = 8
"""Colours of handlers in the bars of slots."""

BUSY_PLOT = 9
"""Rows of the plot of busy slots."""

TREND = 16
"""Cells of the trend of a failure group."""

FEW_SHARE, LEAST_SHARE, MOST_SHARE = 0.01, 0.05, 0.6
"""The shares of failed attempts with a low bar, with the palest and with the full colour of failures."""


def colours_of(slots: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    """The number of the colour of each running handler, by the hash of its name; neighbours differ if possible."""
    colours: dict[str, int] = {}
    for name in sorted({name for counts in slots.values() for name in counts}):
        place = crc32(name.encode()) % HANDLER_COLOURS
        free = [number % HANDLER_COLOURS for number in range(place, place + HANDLER_COLOURS)]
        colours[name] = next((number for number in free if number not in colours.values()), place)
    return colours


def runners(view: View, width: int, most: int) -> list[Row]:
    """One row per runner with its slots by handler; runners in trouble first if some do not fit."""
    data = view.data
    busy, capacity = (sum(getattr(runner, name) for runner in data.alive) for name in ("running_tasks", "capacity"))
    registered, alive = len(data.runners), sum(not runner.silent for runner in data.alive)
    some: list[Part] = [(f"{alive} of {registered} alive, ", "lost" if alive < registered else "muted")]
    legend = [*some, (formatting.slots(busy, capacity), "text")]
    rows: list[Row] = [rule([heading("RUNNERS")], width, legend)]
    if not registered:
        return [*rows, fit([("  none is registered; start one: ", "muted"), ("runner work", "bold strong")], width)]
    listed = list(data.runners)
    if registered > most:
        listed = sorted(listed, key=lambda runner: runner.alive and not runner.silent)[: most - 1]
    colours = colours_of(data.slots)
    rows += [_runner(runner, data, colours, width) for runner in listed]
    if len(listed) < registered:
        rows.append(
            [
                ("  ", ""),
                (f"+{registered - len(listed)} more, ", "muted"),
                ("5", "bold accent"),
                (" lists them", "muted"),
            ]
        )
    return rows


def _runner(runner: RunnerRow, data: Overview, colours: dict[str, int], width: int) -> Row:
    name = process_name(runner.host, runner.pid)
    well = runner.alive and not runner.silent
    sign, role = ("● ", "succeeded") if well else ("◌ ", "bold lost")
    age = formatting.age(runner.heartbeat_age)
    mark: Part = (f"{age} ago", "faint") if well else (f"silent {age}", "bold lost")
    name_width = min(max(13, width // 4), 26)
    bar = max(8, width - name_width - 29)
    used = f"{min(runner.running_tasks, runner.capacity)}/{runner.capacity}"
    blocks = slots(data.slots.get(runner.id, {}), runner.capacity, bar, colours)
    left: list[Part] = [(" ", ""), (sign, role), (fitted(name, name_width), "text" if well else "bold lost"), (" ", "")]
    bar_parts = blocks if well else faded(blocks)
    return fit(
        [*left, *bar_parts, (f" {used:>7}", "muted"), (fitted(f" {mark[0]}", 15, right=True), mark[1])], width - 1
    )


def legend(colours: Mapping[str, int], width: int, per_block: int = 1) -> list[Row]:
    """The colours of the handlers in the bars of slots, and the slots of a block if it shows several."""
    row: list[Part] = [(" ", "")]
    rows: list[Row] = []
    blocks = _blocks(colours, "■")
    for name, colour in colours.items():
        parts: list[Part] = [(f" {blocks[name]} ", f"handler@{colour}"), (f"{line(name, 30)} ", "muted")]
        if width_of([*row, *parts]) > width:
            rows.append(row)
            row = [(" ", "")]
        row += parts
    note: list[Part] = [(f"  a block is {per_block} slots", "faint")] if per_block > 1 else []
    if note and width_of([*row, *note]) > width:
        rows.append(row)
        row = [(" ", "")]
    row += note
    return [*rows, row] if len(row) > 1 else rows


def slots(counts: Mapping[str, int], capacity: int, width: int, colours: Mapping[str, int]) -> list[Part]:
    """The slots of a runner as a bar of a fixed width, by handler.

    Args:
        capacity: all slots, which take the whole width.
        width: cells.
    """
    cells: list[Part] = []
    used, blocks = 0, _blocks(colours, "▆")
    for name, count in counts.items():
        used += count
        end = min(width, max(len(cells) + 1, round(used * width / max(capacity, 1))))
        cells += [(blocks.get(name, "▆"), f"handler@{colours.get(name, 0)}")] * (end - len(cells))
    return joined([*cells, *[("▁", "line")] * (width - len(cells))])


def slots_per_block(capacity: int, width: int) -> int:
    """How many slots a block of `slot_row` shows, where a runner has more slots than there are cells."""
    return max(1, -(-capacity // max(width, 1)))


def slot_row(counts: Mapping[str, int], capacity: int, width: int, colours: Mapping[str, int]) -> list[Part]:
    """The slots of a runner, one block each with a blank behind it; one block for several slots if the room is short.

    Args:
        width: cells.
    """
    wide, per, blocks = 2 if capacity * 2 <= width else 1, slots_per_block(capacity, width), _blocks(colours, "■")
    cells: list[Part] = []
    for name, count in counts.items():
        cells += [(blocks.get(name, "■"), f"handler@{colours.get(name, 0)}")] * max(1, round(count / per))
    places = min(width // wide, -(-capacity // per))
    cells = [*cells, *[("·", "line")] * (places - len(cells))][:places]
    return [*joined([(text + " " * (wide - 1), spec) for text, spec in cells]), (" " * (width - places * wide), "")]


def _blocks(colours: Mapping[str, int], sign: str) -> dict[str, str]:
    """The sign of a busy slot by handler: a letter of its own if the theme has no colours, the first that is free."""
    if current().name != "none":
        return dict.fromkeys(colours, sign)
    letter_of: dict[str, str] = {}
    for name in colours:
        module, _, function = name.rpartition(".")
        letters = [letter for letter in f"{function}{module}{ascii_lowercase}".upper() if letter in ascii_uppercase]
        letter_of[name] = next((letter for letter in letters if letter not in letter_of.values()), "?")
    return letter_of


def percent(cpu: float | None) -> str:
    """The share of one processor: `142 %`."""
    return formatting.NOTHING if cpu is None else f"{cpu * 100:.0f} %"


def by_host(registered: Iterable[RunnerRow]) -> dict[str, list[RunnerRow]]:
    """The runners of each host, in order."""
    hosts: dict[str, list[RunnerRow]] = defaultdict(list)
    for runner in registered:
        hosts[runner.host].append(runner)
    return dict(hosts)


def host_figures(runners: Iterable[RunnerRow]) -> list[Part]:
    """The sums of a host over its live runners; none without figures.

    Several runners of one process share its processor time and memory, which count once.
    """
    alive = [runner for runner in runners if runner.alive]
    cpu, memory = _sum_over_processes(alive, "cpu"), _sum_over_processes(alive, "memory")
    figures: list[Part] = []
    if cpu is not None:
        figures += [("cpu ", "muted"), (f"{percent(cpu):>6}", "strong")]
    if memory is not None:
        figures += [("   memory ", "muted"), (f"{formatting.size(round(memory)):>9}", "strong")]
    return figures


def host_rows(registered: Iterable[RunnerRow], width: int, most: int) -> list[Row]:
    """The sums of each host over its live runners, the busiest hosts first; none for a single host.

    Args:
        width: cells.
        most: maximum number of hosts.
    """
    hosts = by_host(runner for runner in registered if runner.alive)
    if len(hosts) < 2:
        return []
    rows: list[tuple[float, Row]] = []
    for host, runners in hosts.items():
        busy, capacity = used_slots(runners)
        left: list[Part] = [("  ", ""), (fitted(line(host, 30), 30), "text")]
        left += [(f"{count_noun(len(runners), 'runner'):>11}", "muted"), (f"{busy:>8,}/{capacity:,} slots", "text")]
        cpu = _sum_over_processes(runners, "cpu")
        rows.append((-(cpu or 0.0), ends(left, [*host_figures(runners), (" ", "")], width)))
    rows.sort(key=itemgetter(0))
    more: list[Part] = [(f"  +{len(rows) - most} more hosts", "muted")]
    return [row for _, row in rows[:most]] + ([more] if 0 < most < len(rows) else [])


def busy_rows(data: "Workforce", zone: tzinfo, width: int) -> list[Row]:
    """The busy slots of all runners over the last hour; none until they are read."""
    if not data.hours.busy:
        return []
    alive = [runner for runner in data.runners if runner.alive]
    busy, capacity = used_slots(alive)
    room = width - AXIS - 1
    values = resampled(data.hours.busy, room)
    top = nice(max(values)) if max(values) > capacity else capacity
    note: list[Part] = [(f"{busy:,}", "bold running"), (f" of {capacity:,} now, all runners together", "muted")]
    end = data.hours.at.replace(second=0, microsecond=0)
    axis = time_axis(Span(end - timedelta(hours=1), end, zone), room)
    return [
        BLANK,
        rule([heading("BUSY SLOTS, LAST HOUR")], width, note),
        *framed(area(values, BUSY_PLOT, "done", top=top), top),
        axis,
    ]


def _sum_over_processes(runners: Iterable[RunnerRow], name: Literal["cpu", "memory"]) -> float | None:
    """The sum of a figure over the processes of a host; None if all are unknown."""
    processes: dict[int, float] = {}
    for runner in runners:
        figure = getattr(runner, name)
        if figure is not None:
            processes[runner.pid] = max(figure, processes.get(runner.pid, 0.0))
    return sum(processes.values()) if processes else None


def top_failures(view: View, width: int) -> list[Row]:
    """The largest failure groups of the last hour."""
    rows: list[Row] = [rule([heading("TOP FAILURES")], width, opening("4", "Failures"))]
    if view.slow is None or not view.slow.failures:
        unread = view.slow is None or view.slow.failures is None
        none = "reading" if unread else "no attempt failed in the last hour"
        return [*rows, fit([(f"  {none}", "muted")], width)]
    from tasktui.panels.failure import is_hot  # The first screen does not need it.

    trends = view.slow.trends
    for group in view.slow.failures:
        error = formatting.brief(f"{group.error_type}: {group.message}")
        trend = trends.get(group.fingerprint, ())
        serious = is_hot(group.rate, trend)
        count: Part = (f"{group.count!s:>7}  ", "bold dead" if serious else "text")
        plotted = sparkline(trend, TREND, "trouble" if serious else "spark") if trend else [(" " * TREND, "")]
        rows.append(ends([count, (error, "text")], [("  ", ""), *plotted], width - 1))
        last = f"last {formatting.since(group.last, view.data.at)} ago"
        rows.append(ends([(" " * 9, ""), *handler(group.handler, width - 30, "muted")], [(last, "faint")], width - 1))
    return rows


def slowest(view: View, width: int) -> list[Row]:
    """The tasks that run longest, against the 95th percentile of their handlers."""
    slow = view.slow
    if slow is None or not slow.slowest:
        return []
    rows: list[Row] = [rule([heading("SLOWEST NOW")], width, [("running longest against their p95", "muted")])]
    for task in slow.slowest:
        length = (view.data.at - task.claimed_at).total_seconds() if task.claimed_at else 0.0
        p95 = slow.p95.get(task.handler)
        share = min(length / p95, 1.0) if p95 else 0.0
        role = "retrying" if p95 and length > p95 * 0.95 else "running"
        bar = gauge([(share, role)], 20)
        name = handler(task.handler, max(10, width - 56))
        figure = f"p95 {formatting.duration(p95)}" if p95 else ""
        left = [(f"{task.id:>9}  ", "muted"), *name, ("  ", ""), *bar]
        rows.append(ends(left, [(f"{formatting.age(length):>9}", "text"), (f"{figure:>12}", "faint")], width - 1))
    return rows


def density(failed: Sequence[float], succeeded: Sequence[float]) -> list[Part]:
    """The share of failed attempts in each column: a blank has no attempts, a point less than FEW_SHARE of failures."""
    cells: list[Part] = []
    for bad, good in zip(failed, succeeded, strict=True):
        share = bad / (bad + good) if bad + good else 0.0
        if share >= LEAST_SHARE:
            step = min(SHADES - 1, round(share / MOST_SHARE * (SHADES - 1)))
            cells.append((DENSITY[1 + step * 3 // (SHADES - 1)] if current().flat else "█", f"failed@{step}"))
        else:
            cells.append(("▁", "spark") if share >= FEW_SHARE else ("·" if good or bad else " ", "line"))
    return joined(cells)


def failed_shares(report: "ReportData", span: "ReportSpan", size: Size, zone: tzinfo) -> list[Row]:
    """The share of failed attempts by handler or queue and time, where there is room."""
    if size.height < TALL or size.width < NORMAL:
        return []
    shares = {
        name: tuple(report.values(span.step, flows, attrgetter(count)) for count in ("failed", "succeeded"))
        for name, flows in report.background.pulses.items()
    }
    room = max(0, size.height - 37 - min(len(shares) + 2, size.height // 3))
    listed = [row.name for row in report.summary.lines if row.name in shares][: min(MOST_SHARES, room)]
    width = size.width - NAMES - 2
    note: list[Part] = [("0 % ", "muted"), *[("█", f"failed@{step}") for step in range(3, 32, 4)]]
    title = rule([heading("FAILED ATTEMPTS, SHARE BY TIME")], size.width, [*note, (" 60 %", "muted")])
    rows = [
        [("  ", ""), *handler(name, NAMES - 2), *density(*(resampled(part, width) for part in shares[name]))]
        for name in listed
    ]
    time = Span(report.summary.since, report.summary.until, zone)
    axis = time_axis(time, width, "")
    return [BLANK, title, *rows, [(" " * (NAMES - 7), ""), *axis]] if rows else []


def latest_changes(view: View, width: int) -> list[Row]:
    """The latest operations."""
    slow = view.slow
    if slow is None or not slow.changes:
        return []
    rows: list[Row] = [rule([heading("LATEST CHANGES")], width, opening("8", "Audit"))]
    for change in slow.changes:
        entry = change.entry
        what = line(entry.target) if entry.target else f"task {entry.task_id}"
        text = f"{formatting.verb(line(entry.verb))} " + (
            f"{change.number.of('task')}" if change.number.number > 1 else what
        )
        why = f": {line(entry.reason)}" if entry.reason else ""
        ago = formatting.since(entry.at, view.data.at)
        rows.append(
            fit(
                [(f"{ago:>7}  ", "faint"), (f"{fitted(line(entry.operator), 8)} ", "strong"), (f"{text}{why}", "text")],
                width,
            )
        )
    return rows
