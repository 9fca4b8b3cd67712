"""The bench laboratory: parts that explain figures of `runner bench`, for developers.

    python -m tests.bench.laboratory --parts profile,growth --url postgresql://app@db.example.org/app

It works like `runner bench`, in a sandbox on the same kind of database, and measures one backlog of `--tasks` a part:
where the time of a task goes, whether it grows with the rows beside it, and the cost of each strategy.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from runner.cli.bench.plan import UNITS, BenchPlan, BenchReport, Unit
from runner.cli.bench.verb import BenchPart, document, exit_code, interruptible_bench, print_report, read_parts
from runner.cli.output import print_json, print_line, print_table, print_title
from runner.settings import load
from runner.text.columns import Column, figure
from runner.text.formatting import NOTHING
from tests.bench.checkpoint import checkpoint
from tests.bench.drains import ProfiledMeasurement, pinned, profile
from tests.bench.growth import GROWTH, growth
from tests.bench.idle import idle, schedules, ticks
from tests.bench.sleepers import sleepers
from tests.bench.statements import Cost
from tests.bench.strategies import STRATEGIES, TRACES, markdown, strategy

PLAIN = {
    "pinned": BenchPart("as drain, while an old transaction keeps dead rows", pinned),
    "idle": BenchPart("cost of an idle runner", idle),
    "schedules": BenchPart("cost of an idle runner beside 10,000 schedules", schedules),
    "ticks": BenchPart("lateness of schedules beside a backlog", ticks),
    "checkpoint": BenchPart("store checkpoints one by one, each committed", checkpoint),
    "profile": BenchPart("time per step of a task", profile),
}
GROUPS = {"growth": tuple(GROWTH), "strategies": tuple(STRATEGIES)}

HISTORY_WORK = {
    "page": "page of the list",
    "by_state": "page of dead tasks",
    "report": "report of a day",
    "failures": "list of failures",
    "prune": "pruned task",
}
"""The work that the part `history` measures besides the tasks."""

LAB_UNITS = UNITS | {
    "ratio": Unit("of the rate of the plain drain", 2),
    "save_ms": Unit("ms per checkpoint, median", 2),
    "per_update": Unit("of a plain UPDATE", 2),
    "cpu_share": Unit("% of a core", 2),
    "idle_few": Unit("% of a core, idle beside few", 2),
    "idle_many": Unit("% of a core, idle beside many", 2),
    "wake_few_ms": Unit("ms to the end of 100 woken tasks, beside few", 0),
    "wake_many_ms": Unit("ms to the end of 100 woken tasks, beside many", 0),
    "cpu_ratio": Unit("of the CPU per task beside few", 2),
    "once_us": Unit("us per task", 1),
    "twice_us": Unit("us per task, twice the rows", 1),
    "growth": Unit("of the time per task", 2),
    **{
        f"{name}_{figure}": Unit(f"{unit} {words}{twice}", decimals)
        for name, words in HISTORY_WORK.items()
        for figure, unit, twice, decimals in (
            ("once_us", "us per", "", 0),
            ("twice_us", "us per", ", twice the rows", 0),
            ("growth", "of the time per", "", 2),
        )
    },
    "ratio_1": Unit("of a plain drain, 1 runner", 2),
    "ratio_2": Unit("of a plain drain, 2 runners", 2),
}
"""The unit of every figure, in display order."""


def _microseconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.1f}"


COSTS: tuple[Column[Cost], ...] = (
    Column("STEP", lambda cost: cost.what, fixed=True),
    figure("CPU us", lambda cost: cost.cpu_us, _microseconds),
    figure("WALL us", lambda cost: cost.took_us, _microseconds),
    figure("CALLS", lambda cost: f"{cost.calls:,}" if cost.calls else NOTHING),
    Column("DESCRIPTION", lambda cost: cost.words),
)


def parts(scale: float) -> Mapping[str, BenchPart]:
    """Every part, in the order of execution; the growth parts have this share of their rows."""
    return (
        PLAIN
        | {"sleepers": BenchPart("beside 100 and 1,000,000 sleeping tasks", partial(sleepers, scale=scale))}
        | {name: BenchPart(each.words, partial(growth, part=name, scale=scale)) for name, each in GROWTH.items()}
        | {
            name: BenchPart(f"with: {each.words}", partial(strategy, part=name))
            for name, each in (STRATEGIES | TRACES).items()
        }
    )


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.laboratory", description=__doc__)
    parser.add_argument("--url", help="the database whose kind is measured; without it, a SQLite file")
    parser.add_argument("--parts", default="profile", help=f"{', '.join([*parts(1.0), *GROUPS])}; default: profile")
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--runners", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="idle, schedules and ticks take a third of it")
    parser.add_argument("--reps", type=int, default=1)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the rows of the growth parts and of sleepers"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


async def main(words: Sequence[str] | None = None) -> int:
    """Measure the parts of a command line, and return its exit code."""
    given = arguments(words)
    measured = parts(given.scale)
    names = read_parts(given.parts, measured, GROUPS)
    plan = BenchPlan(given.tasks, names, given.runners, given.seconds, given.reps)
    report = await interruptible_bench(load(url=given.url) if given.url else load(), plan, measured)
    if isinstance(report, int):
        return report
    report = replace(report, units=LAB_UNITS)
    if given.json:
        print_json(document(report))
    else:
        print_report(report)
        print_profiles(report)
        for line in markdown(report):
            print_line(line)
    return exit_code(report)


def print_profiles(report: BenchReport) -> None:
    """Print the time per step of each `profile`."""
    for measurement in report.measurements:
        if isinstance(measurement, ProfiledMeasurement):
            print_title(f"profile {measurement.repetition}: microseconds per task; measuring slows the runner down")
            print_table(COSTS, measurement.costs)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
