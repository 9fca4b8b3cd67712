"""A long run of this project at a constant rate: `python -m benchmarks.soak --url ... --seconds 3600 --rate 2000`.

It prints a row per window: the time from the due time of a submit to the start of its handler, the CPU per task, the
memory of the runner and of a console that shows the overview, and the sizes of the tables. Settings of the runner come
from the environment: with `TASKTUI_RETENTION_SUCCEEDED=10m` the history is as large after an hour as after ten minutes.
The database needs tables; `--snapshot` holds a snapshot from the start to the end.
"""

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any

import psycopg

from benchmarks import contract
from benchmarks.systems import SYSTEMS, Home
from tests.bench.console import used
from tests.tasktui.terminal import Terminal

MIB = 2**20
SIZES = """
SELECT sum(pg_table_size(relid)) FILTER (WHERE relname LIKE '%task'),
       sum(pg_indexes_size(relid)) FILTER (WHERE relname LIKE '%task'),
       sum(pg_total_relation_size(relid)) FILTER (WHERE relname NOT LIKE '%task'),
       sum(n_dead_tup) FILTER (WHERE relname LIKE '%task')
FROM pg_stat_user_tables
"""
COLUMNS = ("until, s", "p50, ms", "p99, ms", "longest, ms", "CPU, us", "runner, MiB", "console, MiB", "sizes, MiB")
WARM_UP = 2.0
"""Seconds for the start of the runner."""


def sizes(url: str) -> str:
    """The live tasks, their indexes, all other tables, and dead rows; on SQLite the file and its write-ahead log."""
    if "://" not in url:
        parts = [path.stat().st_size for path in (Path(url), Path(f"{url}-wal"))]
        return "file {:.0f}, log {:.0f}".format(*(size / MIB for size in parts))
    with psycopg.connect(url, autocommit=True) as connection:
        table, indexes, others, dead = connection.execute(SIZES).fetchone() or (0, 0, 0, 0)
    megabytes = [float(size or 0) / MIB for size in (table, indexes, others)]
    return "tasks {:.1f}, their indexes {:.1f}, others {:.0f}".format(*megabytes) + f", {dead:,} dead rows"


def memory(pid: int) -> float:
    """MiB of memory of a process, without the files that it has mapped."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1_024


@contextmanager
def snapshot(url: str) -> Iterator[None]:
    """Hold a snapshot of the database."""
    reader: Any
    if "://" in url:
        reader = psycopg.connect(url)
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1")
    else:
        reader = sqlite3.connect(url, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
    try:
        yield
    finally:
        reader.close()


@contextmanager
def console(url: str) -> Iterator[Terminal]:
    """Keep a console open, and read its output."""
    terminal = Terminal("--url", url if "://" in url else f"sqlite:///{url}", size=(120, 40))
    stopped = threading.Event()

    def read() -> None:
        with suppress(OSError):
            while not stopped.is_set() and terminal.process.poll() is None:
                terminal.drains(0.2)
                terminal.output = b""

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield terminal
    finally:
        stopped.set()
        reader.join()
        terminal.close()


def windows(url: str, rate: int, seconds: int, window: int, tenants: int, folder: Path) -> Iterator[str]:
    """Run, and yield a row of the table per window."""
    home, system, file = Home(), SYSTEMS["ours"], folder / "starts.bin"
    contract.prepare(file, rate * seconds)
    environment = os.environ | home.environment(system) | {"BENCH_URL": url, "BENCH_FILE": str(file)}
    environment["TENANTS"] = str(tenants)
    command = home.command(system)
    with console(url) as terminal, subprocess.Popen([*command, "worker"], env=environment) as runner:
        time.sleep(WARM_UP)
        submitter = subprocess.Popen(
            [*command, "paced", str(rate * seconds), str(rate)], env=environment, stdout=subprocess.DEVNULL
        )
        try:
            done, cpu = 0, used(runner.pid)
            while done < rate * seconds:
                time.sleep(window)
                ended = submitter.poll() is not None
                if (code := runner.poll()) is not None or (code := terminal.process.poll()) is not None:
                    sys.exit(f"The runner or the console ended with status {code}: see the lines above.")
                starts, now = contract.starts(file), used(runner.pid)
                times = sorted(1_000 * each for each in contract.read(file).latencies[done:starts] if each)
                ranks = quantiles(times, n=100, method="inclusive") if len(times) > 1 else [0.0] * 99
                figures = (starts / rate, ranks[49], ranks[98], times[-1] if times else 0.0)
                held = memory(runner.pid), memory(terminal.process.pid)
                processor = 1e6 * (now - cpu) / max(1, starts - done)
                row = "| {:.0f} | {:.1f} | {:.1f} | {:.0f} |".format(*figures)
                yield row + f" {processor:.0f} | {held[0]:.0f} | {held[1]:.0f} | {sizes(url)} |"
                if ended and starts == done:
                    yield f"{rate * seconds - starts:,} tasks did not start"
                    return
                done, cpu = starts, now
        finally:
            submitter.kill()
            submitter.wait()
            runner.terminate()


def main() -> None:
    """Read the options and run."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--url", required=True, help="of PostgreSQL, or the path of a SQLite file")
    options.add_argument("--rate", type=int, default=2_000, help="submits per second, in batches every 10 ms")
    options.add_argument("--seconds", type=int, default=3_600)
    options.add_argument("--window", type=int, default=600, help="seconds per row")
    options.add_argument("--tenants", type=int, default=0, help="tenants of the tasks, in turn; 0 for none")
    options.add_argument("--snapshot", action="store_true", help="hold a snapshot")
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the other processes too
    print(f"| {' | '.join(COLUMNS)} |\n{'|--:' * len(COLUMNS)}|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = windows(given.url, given.rate, given.seconds, given.window, given.tenants, Path(folder))
        if not given.snapshot:
            for row in rows:
                print(row, flush=True)
            return
        with snapshot(given.url):
            for row in rows:
                print(row, flush=True)


if __name__ == "__main__":
    main()
