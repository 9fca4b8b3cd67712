"""Plots: areas, sparklines, heat maps, gauges and their axes, drawn with block characters.

Every plot returns rows whose runs of equal style are joined, so that a line has few segments. Values are resampled to
the columns of the plot. Themes without shades get signs of different density.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import groupby
from math import log
from typing import NamedTuple

from runner.text import formatting
from tasktui.render.rows import Part, Row
from tasktui.render.theme import SHADES, current, draws_ascii

BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = len(BLOCKS) - 1
LABEL = 5
"""Cells of the labels of an axis."""

TOPS = (1, 2, 3, 4, 5, 6, 8, 10)
"""The tops of an axis, times a power of ten."""

STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 10_080)
"""Minutes between two labels of a time axis."""

DENSITY = " ░▒▓█"
Range = tuple[float, float] | None


class Mark(NamedTuple):
    """A moment in a plot.

    Args:
        text: sanitized label to the left of the line.
    """

    at: datetime
    text: str
    role: str


class Span(NamedTuple):
    """The time that a plot shows.

    Args:
        begin: time of the left edge.
        end: time of the right edge.
        zone: time zone of the labels.
    """

    begin: datetime
    end: datetime
    zone: tzinfo

    def column(self, at: datetime, width: int) -> int:
        """The column of a moment, outside 0 to `width` - 1 if the plot does not show it."""
        return int((at - self.begin) / (self.end - self.begin) * width)


def joined(cells: Sequence[Part]) -> list[Part]:
    """Join cells of equal style."""
    return [("".join(text for text, _ in run), spec) for spec, run in groupby(cells, key=lambda cell: cell[1])]


def resampled(values: Sequence[float], columns: int) -> list[float]:
    """Resample values to a number of columns, by repetition or averaging."""
    count = len(values)
    if not count:
        return [0.0] * columns
    samples = []
    for column in range(columns):
        first = column * count // columns
        part = values[first : max(first + 1, (column + 1) * count // columns)]
        samples.append(sum(part) / len(part))
    return samples


def nice(value: float) -> float:
    """The next round number for the top of an axis: 1, 2, 3, 4, 5, 6 or 8 times a power of ten."""
    step = 1.0
    while True:
        for factor in TOPS:
            if value <= factor * step:
                return factor * step
        step *= 10


def compact(value: float) -> str:
    """Format a number in at most five cells: `0`, `2.5`, `412`, `18k`, `1.2M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:  # rounded to three digits
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def area(
    values: Sequence[float],
    height: int,
    role: str | Callable[[float], str],
    behind: Sequence[float] = (),
    top: float | None = None,
) -> list[Row]:
    """Plot values as an area, one column each.

    Args:
        values: one per column, not negative.
        height: rows.
        role: gradient of the area, or a function that returns it for a value.
        behind: values on top of the first ones, drawn in amber.
        top: value of the upper edge; None for the next round number.
    """
    edge = top or nice(max((one + two for one, two in _pairs(values, behind)), default=0))
    columns = []
    for value, more in _pairs(values, behind):
        kind = role if isinstance(role, str) else role(value)
        low = min(round(value / edge * height * EIGHTHS), height * EIGHTHS)
        high = min(round((value + more) / edge * height * EIGHTHS), height * EIGHTHS)
        columns.append((kind, max(low, 1) if value else 0, max(high, low)))
    return [joined([_area_cell(row, height, *column) for column in columns]) for row in range(height - 1, -1, -1)]


def _pairs(values: Sequence[float], behind: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(values, behind or [0.0] * len(values), strict=True))


def _area_cell(row: int, height: int, role: str, low: int, high: int) -> Part:
    """One cell: the area up to `low` eighths, amber above it up to `high` eighths."""
    first = min(max(low - row * EIGHTHS, 0), EIGHTHS)
    second = min(max(high - row * EIGHTHS, 0), EIGHTHS)
    if not second:
        return (" ", "")
    lower, upper = (round((2 * row + half) / max(1, 2 * height - 1) * (SHADES - 1)) for half in (0, 1))
    if first == EIGHTHS:
        shades = (f"{role}@{lower}", f"{role}@{upper}")
        return ("█", shades[0]) if current().flat else ("▄", f"{shades[0]} on {shades[1]}")
    if second > first and second < EIGHTHS:  # One colour has room above the area: the line behind it stays in sight.
        return (BLOCKS[second], "retrying")
    if second == EIGHTHS:
        return (BLOCKS[first], f"{role}@{upper} on retrying")
    return (BLOCKS[second], f"{role}@{upper}")


def framed(rows: Sequence[Row], top: float, text: Callable[[float], str] = compact) -> list[Row]:
    """Put a vertical axis before the rows of a plot, with the values of its top and its middle."""
    height = len(rows)
    framed_rows: list[Row] = []
    for index, row in enumerate(rows):
        labelled = index == 0 or (2 * index == height and height > 1)
        value = top * (height - index) / height if labelled else None
        label = "" if value is None else text(value)
        sign = "│" if value is None else "┤"
        framed_rows.append([(f"{label:>{LABEL}} ", "faint"), (sign, "line"), *row])
    return framed_rows


def time_axis(span: Span, width: int, label: str = "0", marks: Sequence[Mark] = (), now: str = "now") -> list[Part]:
    """The horizontal axis of a plot: times in the line itself.

    Args:
        span: the time that the axis shows.
        width: cells of the plot, without the labels on the left.
        now: label of the right end.
    """
    width = max(1, width)
    cells: list[Part] = [("─", "line")] * width
    for mark in marks:
        if 0 <= (column := span.column(mark.at, width)) < width:
            cells[column] = ("┴", mark.role)
    room = width - len(now) - 1 if now else width
    for at, text in time_labels(span, width):
        begin = span.column(at, width) - len(text) // 2
        if begin - 1 >= 0 and begin + len(text) + 1 <= room:
            _write(cells, begin - 1, f" {text} ", "faint")
    if now:
        _write(cells, room, f" {now}", "muted")
    return [(f"{label:>{LABEL}} ", "faint"), ("└", "line"), *joined(cells)]


def time_labels(span: Span, width: int, room: int = 16) -> list[tuple[datetime, str]]:
    """Round times of a span, at least `room` cells apart, with their texts."""
    minutes = (span.end - span.begin) / timedelta(minutes=1)
    step = next((step for step in STEPS if width * step / minutes >= room), STEPS[-1])
    local = span.begin.astimezone(span.zone)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    passed = int((local - midnight) / timedelta(minutes=step)) + 1
    labels, at = [], midnight + passed * timedelta(minutes=step)
    while at < span.end:
        labels.append((at, formatting.day(at) if step >= STEPS[-3] else f"{at:%H:%M}"))
        at += timedelta(minutes=step)
    return labels


def with_marks(rows: Sequence[Row], span: Span, width: int, marks: Sequence[Mark]) -> list[Row]:
    """Draw a line for each mark in the empty cells of a plot; its text is to the left, one row lower each or higher."""
    grid = [[(character, spec) for text, spec in row for character in text] for row in rows]
    for index, mark in enumerate(marks):
        column = span.column(mark.at, width)
        if not 0 <= column < width:
            continue
        for cells in grid:
            if column < len(cells) and cells[column][0] == " ":
                cells[column] = ("┊", mark.role)
        begin, level = column - len(mark.text) - 1, min(index, len(grid) - 1)
        rows_in_order = [grid[level], *grid[:level], *grid[level + 1 :]]
        free = (cells for cells in rows_in_order if all(cell[0] in " ┊" for cell in cells[max(0, begin - 1) : column]))
        if begin >= 0 and (row := next(free, None)) is not None:
            _write(row, begin, mark.text, mark.role)
    return [joined(cells) for cells in grid]


def _write(cells: list[Part], begin: int, text: str, spec: str) -> None:
    cells[begin : begin + len(text)] = [(character, spec) for character in text]


def sparkline(values: Sequence[float], width: int, role: str = "spark", least: float = 0.0) -> list[Part]:
    """Plot values in one row, at most 7/8 high and scaled to their peak; zero is a line.

    Args:
        values: not negative; the last one is the latest.
        width: cells.
        role: role of its colour; `trouble` colours it by height.
        least: the lowest peak that takes the whole height.
    """
    columns, cells = resampled(values, max(1, width)), list[Part]()  # A window may be tiny for a moment.
    peak = max(*columns, least) or 1.0
    for value in columns:
        if value <= 0:
            cells.append(("▁", "line"))
            continue
        spec = f"{role}@{round(value / peak * (SHADES - 1))}" if role in ("trouble", "held") else role
        cells.append((BLOCKS[max(1, round(value / peak * (EIGHTHS - 1)))], spec))
    return joined(cells)


def gauge(parts: Sequence[tuple[float, str]], width: int) -> list[Part]:
    """A bar of segments on a track.

    Args:
        parts: share of each segment, 0 to 1, and its role.
        width: cells.
    """
    cells: list[Part] = []
    for share, role in parts:
        halves = round(min(max(share, 0.0), 1.0) * width * 2)
        halves = max(halves, 1) if share > 0 else halves
        room = width - len(cells)
        cells += ([("━", role)] * (halves // 2) + [("╸", role)] * (halves % 2))[:room]
    thin = current().flat or draws_ascii()  # Without shades, or with one sign for both, a thin line is the track.
    track: Part = ("─", "line") if thin else ("━", "raised")
    return joined([*cells, *[track] * (width - len(cells))])


def heat(columns: Sequence[Sequence[float]], height: int) -> list[Row]:
    """Plot distributions over time, two buckets in each cell.

    Args:
        columns: for each moment the weight of 2 * `height` buckets, the lowest first.
        height: rows.
    """
    peak = max((weight for column in columns for weight in column), default=0) or 1.0
    # The square root makes rare durations visible beside frequent ones.
    shades = [[round((weight / peak) ** 0.5 * (SHADES - 1)) for weight in column] for column in columns]
    rows: list[Row] = []
    for row in range(height - 1, -1, -1):
        cells: list[Part] = []
        for column in shades:
            lower, upper = column[2 * row], column[2 * row + 1]
            if current().flat:
                level = max(lower, upper)
                density = DENSITY[-(-level * (len(DENSITY) - 1) // (SHADES - 1))]
                cells.append((density, f"heat@{level}"))
            else:
                cells.append(("▀", f"heat@{upper} on heat@{lower}"))
        rows.append(joined(cells))
    return rows


LOG_FROM, LOG_TO = 0.01, 60.0
"""Seconds at the ends of a logarithmic range."""

LATE = 30.0
"""Seconds from which the upper end of a logarithmic range is amber."""


def log_range(low: float | None, high: float | None, width: int) -> list[Part]:
    """A range of durations on a logarithmic axis from 10 ms to one minute.

    Args:
        low: the median in seconds; None if unknown.
        high: the 95th percentile in seconds.
        width: cells.
    """
    cells: list[Part] = [("┄", "line")] * width
    if low is None or high is None:
        return joined(cells)
    begin, end = (_log_column(value, width) for value in (low, high))
    cells[begin : end + 1] = [("━", "spark")] * (end - begin + 1)
    cells[end] = ("◆", "retrying" if high >= LATE else "muted")
    cells[begin] = ("●", "accent")
    return joined(cells)


def _log_column(seconds: float, width: int) -> int:
    return min(round(log_share(seconds) * (width - 1)), width - 1)


def log_share(seconds: float, top: float = LOG_TO) -> float:
    """The place of a duration on a logarithmic axis from 10 ms to `top` seconds, 0 to 1."""
    return min(max(log(max(seconds, LOG_FROM) / LOG_FROM) / log(top / LOG_FROM), 0.0), 1.0)


def log_labels(height: int, top: float = LOG_TO) -> dict[int, str]:
    """Labels of the rows of a logarithmic axis from 10 ms to `top` seconds, the first row at the top."""
    labels = {"1h": 3600.0, "1m": 60.0, "10s": 10.0, "1s": 1.0, "100ms": 0.1, "10ms": 0.01}
    places = [(min(height - 1, int((1 - log_share(value, top)) * height)), label) for label, value in labels.items()]
    return {place: label for place, label in places if labels[label] <= top}


def band(ranges: Sequence[Range], height: int, late: float = 30.0, top: float = LOG_TO) -> list[Row]:
    """Plot ranges of durations on a logarithmic axis from 10 ms to `top` seconds, one column each.

    Args:
        ranges: both ends in seconds; None without one.
        height: rows.
        late: seconds of the upper end from which a column is red.
        top: seconds at the upper edge.
    """
    steps = height * EIGHTHS
    columns = []
    for each in ranges:
        low, high = (round(log_share(value, top) * steps) for value in each or (0.0, 0.0))
        role = "failed" if each is not None and each[1] >= late else "done"
        columns.append((role, min(low, steps - 1), max(high, low + 1)) if each is not None else ("", 0, 0))
    return [joined([_band_cell(row, height, *column) for column in columns]) for row in range(height - 1, -1, -1)]


def _band_cell(row: int, height: int, role: str, low: int, high: int) -> Part:
    first, last = (min(max(end - row * EIGHTHS, 0), EIGHTHS) for end in (low, high))
    if first >= last:
        return (" ", "")
    shade = f"{role}@{SHADES // 3 + round(row / height * SHADES / 2)}"
    if first == 0:
        return (BLOCKS[last], shade)
    if current().flat:  # There is no ground to draw the lower edge with.
        return ("█", shade)
    return (BLOCKS[first], f"bg on {shade}")
