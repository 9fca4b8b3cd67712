"""Plots of values over time, with block characters and axes."""

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = len(BLOCKS) - 1
LABEL = 7
"""Width of the axis and its labels in cells."""


def plot(values: Sequence[float], width: int, height: int, ends: tuple[str, str]) -> list[str]:
    """Plot values from left to right.

    Args:
        values: one per moment, not negative; averaged if there are more values than columns.
        width: width in cells.
        height: height of the bars in lines; the ends take one more line.
        ends: labels below the first and the last value.

    Returns:
        Lines from top to bottom.
    """
    columns = resampled(values, max(1, width - LABEL))
    top = nice(max(columns, default=0))
    bars = [round(value / top * height * EIGHTHS) for value in columns]
    rows = []
    for level in range(height - 1, -1, -1):
        label = top * (level + 1) / height if level in (height - 1, height // 2 - 1) else None
        cells = "".join(BLOCKS[min(max(bar - level * EIGHTHS, 0), EIGHTHS)] for bar in bars)
        rows.append(f"{_label(label)}{'┤' if label is not None else '│'}{cells}")
    padding = max(0, len(columns) - len(ends[0]) - len(ends[1]))
    return [*rows, f"{_label(0)}┼{ends[0]}{'─' * padding}{ends[1]}"]


def sparkline(values: Sequence[float], width: int) -> str:
    """Plot values in one line. The highest value fills the line; values above zero are always visible."""
    columns = resampled(values, width)
    top = max(columns) or 1.0
    return "".join(BLOCKS[max(round(value / top * EIGHTHS), 1 if value else 0)] for value in columns)


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
    """The next round number for an axis: 1, 2 or 5 times a power of ten."""
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
    """Format a number in at most five cells: `0`, `2.5`, `412`, `18k`, `1.2M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
