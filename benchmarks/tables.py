"""The tables of a run, in Markdown: medians with their ranges, and ratios within the repetitions."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.parts import LOADS, Measurement
from benchmarks.systems import System


class Column(NamedTuple):
    """A figure of a part."""

    title: str
    part: str
    figure: str
    decimals: int = 0


COLUMNS = (
    Column("one by one /s", "one", "rate"),
    Column("bulk /s", "bulk", "rate"),
    Column("one runner /s", "drain1", "rate"),
    Column("two /s", "drain2", "rate"),
    Column("four /s", "drain4", "rate"),
    Column("latency p50, ms", "latency", "p50", 1),
    Column("p99, ms", "latency", "p99", 1),
    *(
        column
        for rate in LOADS
        for column in (
            Column(f"{rate:,}/s p50, ms", f"load{rate}", "p50", 1),
            Column("p99, ms", f"load{rate}", "p99", 1),
            Column("CPU, us", f"load{rate}", "cpu"),
            Column("server, us", f"load{rate}", "server"),
        )
    ),
    Column("8,000/s reached", "load8000", "reached", 2),
    Column("steps /s", "steps", "rate"),
    Column("workflows /s", "flows", "rate"),
    Column("resumed by a restart, s", "restart", "seconds", 1),
    Column("lease of 2 s", "restart2", "seconds", 1),
    Column("resumed by another process, s", "takeover", "seconds", 1),
    Column("lease of 2 s", "takeover2", "seconds", 1),
    Column("old snapshot /s", "pinned", "rate"),
    Column("CPU per task, us", "drain1", "cpu", 1),
    Column("memory, MiB", "drain1", "memory"),
)

Results = dict[tuple[str, str, int], Measurement]
"""By system, part and repetition."""


def tables(systems: Sequence[System], results: Results, reps: int) -> Iterator[str]:
    """The lines of a table per database: a row per system, then the ratios of this project to each other one."""
    for database in dict.fromkeys(system.database for system in systems):
        rows = [system for system in systems if system.database == database]
        measured = {(part, figure) for (_, part, _), each in results.items() for figure in each.figures}
        columns = [column for column in COLUMNS if (column.part, column.figure) in measured]
        yield f"| {database} | {' | '.join(column.title for column in columns)} | lost, repeated |"
        yield f"|---|{'---:|' * (len(columns) + 1)}"
        for system in rows:
            cells = [_cell(_values(results, system, column, reps).values(), column.decimals) for column in columns]
            yield f"| {system.title} | {' | '.join(cells)} | {_strays(results, system)} |"
        ours = next((system for system in rows if system.name.startswith("ours")), None)
        for system in rows:
            if ours is not None and system is not ours:
                pairs = [
                    (_values(results, ours, column, reps), _values(results, system, column, reps)) for column in columns
                ]
                ratios = [_cell([own[rep] / other[rep] for rep in own if other.get(rep)], 2) for own, other in pairs]
                yield f"| to {system.title} | {' | '.join(ratios)} | |"
        yield ""


def _values(results: Results, system: System, column: Column, reps: int) -> dict[int, float]:
    keys = {rep: (system.name, column.part, rep) for rep in range(reps)}
    figures = {rep: results[key].figures for rep, key in keys.items() if key in results}
    return {rep: values[column.figure] for rep, values in figures.items() if column.figure in values}


def _cell(values: Iterable[float], decimals: int) -> str:
    numbers = [*values]
    if not numbers:
        return "-"
    middle, low, high = (f"{value:,.{decimals}f}" for value in (median(numbers), min(numbers), max(numbers)))
    return middle if low == high else f"{middle} ({low}-{high})"


def _strays(results: Results, system: System) -> str:
    own = [each for (name, _, _), each in results.items() if name == system.name]
    return f"{sum(each.lost for each in own):,}, {sum(each.repeated for each in own):,}"
