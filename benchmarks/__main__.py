"""Measure this project beside other task systems, on this machine and in one run.

    uv run python -m benchmarks                                        everything: an hour
    uv run python -m benchmarks --parts drain1,latency --systems ours,graphile
    uv run python -m benchmarks --parts handlers                       handlers that take time: three minutes
    uv run python -m benchmarks --tasks 200 --reps 1                   does it work? the figures mean nothing

It installs the packages of the others in a folder of the user's cache, starts a PostgreSQL server of its own, and
prints Markdown. Tasks do nothing; their payload has 100 bytes. The exit code is 1 if a system failed, or if a task
was lost or ran twice.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import deque
from contextlib import nullcontext
from pathlib import Path

from benchmarks.parts import Sizes, parts
from benchmarks.rig import BenchmarkFailed, Rig
from benchmarks.systems import SYSTEMS, Home, System
from benchmarks.tables import Results, tables
from tests.postgres.programs import find_programs
from tests.postgres.server import Server

HANDLERS = "handlers"
"""The part that compares handlers that take time with executors of Python."""
NO_SERVER = "no initdb and postgres found; set TASKTUI_TEST_POSTGRES_BIN to their folder"

BUSY = 0.5
"""The load of the machine above which figures are worth little."""


def names(text: str, known: dict[str, object], option: str) -> list[str]:
    """Read names separated by commas; all known ones if the text is empty."""
    chosen = [name for name in text.split(",") if name] or [*known]
    if unknown := [name for name in chosen if name not in known]:
        raise SystemExit(f"{option}: unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return [name for name in known if name in chosen]


def measure(systems: list[System], chosen: list[str], sizes: Sizes, reps: int, home: Home) -> tuple[Results, list[str]]:
    """Measure all parts of all systems in turn; each repetition begins with another system, so that drift hits all."""
    results: Results = {}
    failures: list[str] = []
    needs_server = any(system.database == "postgresql" for system in systems)
    programs = find_programs() if needs_server else None
    if needs_server and programs is None:
        raise SystemExit(NO_SERVER)
    with (
        tempfile.TemporaryDirectory(prefix="tasktui-benchmarks-") as folder,
        Server(programs, fsync="on", timezone="UTC") if programs else nullcontext() as server,
    ):
        for rep in range(reps):
            for part in chosen:
                measured = deque(system for system in systems if system.has(part))
                measured.rotate(-rep)
                for system in measured:
                    own = Sizes(min(sizes.tasks, system.most), sizes.limit)
                    database = server if system.database == "postgresql" else None
                    try:
                        with Rig(system, Path(folder), database, home, part) as rig:
                            results[system.name, part, rep] = parts(own)[part](rig, own)
                    except BenchmarkFailed as error:
                        failures.append(f"{part}: {error}")
                    figures = results.get((system.name, part, rep))
                    words = "failed" if figures is None else json.dumps(figures.figures)
                    print(f"{rep + 1} of {reps}: {part}: {system.name}: {words}", file=sys.stderr)
    return results, failures


def handlers(most: int) -> int:
    """Print the table of handlers that take time."""
    from benchmarks.handlers import rows

    programs = find_programs()
    if programs is None:
        raise SystemExit(NO_SERVER)
    with (
        tempfile.TemporaryDirectory(prefix="tasktui-benchmarks-") as folder,
        Server(programs, fsync="on", timezone="UTC") as server,
    ):
        for row in rows(server, Path(folder), most):
            print(row, flush=True)
    return 0


def main() -> int:
    """Measure what the command line asks for, and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", default="", help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--parts", default="", help=f"of {', '.join(parts(Sizes(1, 1)))}; or {HANDLERS} alone")
    parser.add_argument("--tasks", type=int, default=100_000, help="in a backlog")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a backlog")
    given = parser.parse_args()
    if given.parts == HANDLERS:
        return handlers(given.tasks)
    chosen = names(given.parts, dict(parts(Sizes(1, 1))), "--parts")
    home, systems, failures = Home(), [], []
    for name in names(given.systems, dict(SYSTEMS), "--systems"):
        if why := home.install(SYSTEMS[name]):
            failures.append(f"{name} cannot take part: {why}")
        else:
            systems.append(SYSTEMS[name])
    if (load := os.getloadavg()[0]) > BUSY:
        print(f"The load of this machine is {load:.1f}: the figures are worth little.", file=sys.stderr)
    results, failed = measure(systems, chosen, Sizes(given.tasks, given.limit), given.reps, home)
    print("\n".join(tables(systems, results, given.reps)))
    for system in systems:
        if system.note:
            print(f"- {system.title}: {system.note}.")
    for failure in failures + failed:
        print(failure, file=sys.stderr)
    strays = sum(each.lost + each.repeated for each in results.values())
    return 1 if failures or failed or strays else 0


if __name__ == "__main__":
    raise SystemExit(main())
