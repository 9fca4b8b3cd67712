"""A plot of blocks, with axes: values over time in a few lines of text."""

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = len(BLOCKS) - 1
LABEL = 7
"""Cells for the numbers at the left and the axis."""


def plot(values: Sequence[float], width: int, height: int, ends: tuple[str, str]) -> list[str]:
    """Draw values from left to right.

    Args:
        values: one for each moment, zero or more; neighbours are averaged when there are more than columns.
        width: cells of each line.
        height: lines of bars; one more below holds the ends.
        ends: what stands below the first and the last value.

    Returns:
        Lines, the top first.
    """
    columns = resampled(values, max(1, width - LABEL))
    top = nice(max(columns, default=0))
    bars = [round(value / top * height * EIGHTHS) for value in columns]
    drawn = []
    for level in range(height - 1, -1, -1):
        label = top * (level + 1) / height if level in (height - 1, height // 2 - 1) else None
        cells = "".join(BLOCKS[min(max(bar - level * EIGHTHS, 0), EIGHTHS)] for bar in bars)
        drawn.append(f"{_label(label)}{'┤' if label is not None else '│'}{cells}")
    room = max(0, len(columns) - len(ends[0]) - len(ends[1]))
    return [*drawn, f"{_label(0)}┼{ends[0]}{'─' * room}{ends[1]}"]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values in one line, the highest column as high as there is room; what is not zero is seen."""
    columns = resampled(values, width)
    top = max(columns) or 1.0
    return "".join(BLOCKS[max(round(value / top * EIGHTHS), 1 if value else 0)] for value in columns)


def resampled(values: Sequence[float], columns: int) -> list[float]:
    """As many values as there are columns: repeated where there are fewer, averaged where there are more."""
    count = len(values)
    if not count:
        return [0.0] * columns
    found = []
    for column in range(columns):
        first = column * count // columns
        part = values[first : max(first + 1, (column + 1) * count // columns)]
        found.append(sum(part) / len(part))
    return found


def nice(value: float) -> float:
    """The next number that people like to read on an axis: 1, 2 or 5 with zeros."""
    step = 1.0
    while True:
        for factor in (1, 2, 5):
            if value <= factor * step:
                return factor * step
        step *= 10


def _label(value: float | None) -> str:
    text = "" if value is None else compact(value)
    return f"{text:>{LABEL - 2}} "


def compact(value: float) -> str:
    """A number in at most five cells: `0`, `2.5`, `412`, `18k`, `1.2M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
