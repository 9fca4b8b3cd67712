"""chart: values over time as an SVG picture within a page."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 960, 220
LEFT, BOTTOM, TOP = 64, 24, 12
"""Size of a chart, and its margins for the labels, in units of the picture."""

LABELS = 6
"""Maximum number of labels of the time axis."""

INTERVALS = (4, 5)
"""Numbers of intervals of the axis of bars, the first of which has whole numbers; 1 or 2 have one for each."""

SMALLEST = 0.001
"""The least value of a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one kind, one for each step; None for a step without one.

    Args:
        name: its name in the legend.
        color: the class of its colour in a page.
    """

    name: str
    color: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """Values over time, as stacked bars, or as lines with a logarithmic axis.

    Args:
        title: the values, with their unit.
        steps: the label of each step.
        text: the text of a value.
        lines: True for lines.
    """

    title: str
    steps: Sequence[str]
    series: Sequence[Series]
    text: Callable[[float], str]
    lines: bool = False

    def html(self) -> str:
        """The picture with a legend, and with the values of each step as its tooltip."""
        marks = self._lines() if self.lines else self._bars()
        legend = "".join(
            f'<span><i class="{escape(each.color)}"></i>{escape(each.name)}</span>' for each in self.series
        )
        picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">'
        body = f"{self._axis()}{marks}{self._times()}{self._tips()}</svg>"
        return f"<figure tabindex=0><figcaption>{escape(self.title)} {legend}</figcaption>{picture}{body}</figure>"

    def _known(self) -> list[float]:
        return [value for each in self.series for value in each.values if value is not None]

    @property
    def _top(self) -> float:
        """The end of the value axis."""
        if self.lines:
            return 10.0 ** math.ceil(math.log10(max([*self._known(), SMALLEST * 10])))
        sums = [sum(each.values[step] or 0 for each in self.series) for step in range(len(self.steps))]
        most = max([*sums, 1])
        unit = 10.0 ** math.floor(math.log10(most))
        return next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= most)

    @property
    def _low(self) -> float:
        """The begin of a logarithmic axis."""
        least = min((value for value in self._known() if value > 0), default=SMALLEST)
        return min(10.0 ** math.floor(math.log10(max(least, SMALLEST))), self._top / 10)

    def _y(self, value: float) -> float:
        height = HEIGHT - BOTTOM - TOP
        if self.lines:
            share = math.log10(max(value, self._low) / self._low) / math.log10(self._top / self._low)
        else:
            share = value / self._top
        return HEIGHT - BOTTOM - height * share

    @property
    def _pitch(self) -> float:
        return (WIDTH - LEFT) / max(len(self.steps), 1)

    def _axis(self) -> str:
        """The lines of the value axis with their labels."""
        if self.lines:
            decades = round(math.log10(self._top / self._low))
            values = [self._low * 10.0**power for power in range(decades + 1)]
        else:
            count = next((count for count in INTERVALS if self._top % count == 0), int(self._top))
            values = [self._top * number / count for number in range(count + 1)]
        parts = []
        for value in values:
            y = self._y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(self.text(value))}</text>')
        return "".join(parts)

    def _times(self) -> str:
        """The labels of the time axis."""
        every = max(math.ceil(len(self.steps) / LABELS), 1)
        labels = []
        for step in range(0, len(self.steps), every):
            x = LEFT + step * self._pitch
            labels.append(f'<text x="{x:.1f}" y="{HEIGHT - 6}">{escape(self.steps[step])}</text>')
        return "".join(labels)

    def _bars(self) -> str:
        parts, width = [], max(self._pitch * 0.8, 0.5)
        for step in range(len(self.steps)):
            base, x = 0.0, LEFT + step * self._pitch
            for each in self.series:
                if value := each.values[step]:
                    y, end = self._y(base + value), self._y(base)
                    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(end - y, 0.8):.1f}"'
                    parts.append(f'<rect class="{escape(each.color)}" {box}/>')
                    base += value
        return "".join(parts)

    def _lines(self) -> str:
        """One line per series, with a gap at each step without a value, and a dot where both neighbours have none."""
        parts = []
        for each in self.series:
            runs: list[list[str]] = [[]]
            for step, value in enumerate(each.values):
                if value is None:
                    runs.append([])
                else:
                    runs[-1].append(f"{LEFT + (step + 0.5) * self._pitch:.1f},{self._y(value):.1f}")
            for points in filter(None, runs):
                # A line to the same point is drawn as a dot, because its ends are round.
                drawn = points * 2 if len(points) == 1 else points
                parts.append(f'<polyline class="{escape(each.color)}" points="{" ".join(drawn)}"/>')
        return "".join(parts)

    def _tips(self) -> str:
        """An invisible column per step, whose tooltip has the values."""
        parts = []
        for step, label in enumerate(self.steps):
            values = ((each.name, each.values[step]) for each in self.series)
            shown = ", ".join(f"{name} {self.text(value)}" for name, value in values if value is not None)
            if shown:
                box = f'x="{LEFT + step * self._pitch:.1f}" y="0" width="{self._pitch:.1f}" height="{HEIGHT - BOTTOM}"'
                parts.append(f'<rect class="tip" {box}><title>{escape(f"{label}: {shown}")}</title></rect>')
        return "".join(parts)
