"""Measure the console at a database, in a real terminal: `python -m tests.bench.console --url ...`.

It reports the times to the first picture and the first data, the time of a key, and the processor time and memory of
watching, while a given number of rows change every second. Read the figures beside the load average.
"""

import argparse
import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import sqlalchemy as sa

from runner.db.database import Database
from tests.tasktui.terminal import Terminal

SIZE = (120, 40)
KEYS = 150
BETWEEN = 0.2
"""Seconds between two keys."""

WARM_UP = 15.0
"""Seconds until a console has loaded its other screens and has read everything once; its memory then stays flat."""

INSTALLED = {"PYTHONDONTWRITEBYTECODE": ""}
"""The first start may keep what it compiles, as where the program is installed; it does not count."""

TICKS = os.sysconf("SC_CLK_TCK")


def changing(url: str, a_second: int, stop: threading.Event) -> None:
    """Change rows of waiting tasks, a number per second, until the event is set."""

    async def work() -> None:
        database = Database.open(url, synchronous="NORMAL")
        task, part, last = database.tables.task, max(1, a_second // 10), 0
        try:
            while not stop.is_set():
                begin = time.monotonic()
                async with database.writing() as tx:
                    newer = sa.select(task.c.id).where(task.c.id > last).order_by(task.c.id).limit(part)
                    ids = [row.id for row in await tx.rows(newer)]
                    last = ids[-1] if ids else 0
                    values = {"version": task.c.version + 1, "attempt": 1 - task.c.attempt}
                    await tx.execute(sa.update(task).where(tx.dialect.one_of(task.c.id, ids)).values(values))
                await asyncio.sleep(max(0.0, 0.1 - (time.monotonic() - begin)))
        finally:
            await database.dispose()

    asyncio.run(work())


@contextmanager
def changed(url: str, a_second: int) -> Iterator[None]:
    """Let rows change in the meantime."""
    stop = threading.Event()
    writer = threading.Thread(target=changing, args=(url, a_second, stop))
    if a_second:
        writer.start()
    yield
    stop.set()
    if a_second:
        writer.join()


def started(url: str) -> tuple[Terminal, list[float]]:
    """Start a console: milliseconds to its first picture and its first data, by the clock and of the processor."""
    begin, times = time.monotonic(), []
    console = Terminal("--url", url, size=SIZE, environment=INSTALLED)
    for text in ("tasktui is starting", "queue-0"):
        console.sees(text)
        times += [1000 * (time.monotonic() - begin), 1000 * used(console.process.pid)]
    return console, times


def answered(console: Terminal) -> list[float]:
    """Seconds from each of many keys until the cursor has moved."""
    waits = []
    for number in range(KEYS):
        console.drains(BETWEEN)
        row = _row(console)
        begin = time.monotonic()
        console.types(b"j" if number % 40 < 20 else b"k")
        while _row(console) == row:
            console.drains()
        waits.append(time.monotonic() - begin)
    return waits


def _row(console: Terminal) -> int:
    lines = console.display.text.splitlines()
    return next((place for place, line in enumerate(lines) if line.startswith("▌")), -1)


def used(pid: int) -> float:
    """Processor seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid: int) -> float:
    """MiB of memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def watched(console: Terminal, seconds: float) -> tuple[float, list[float]]:
    """Watch for a while; the share of a core that it took, and the memory held in each tenth of it."""
    begin, before = time.monotonic(), used(console.process.pid)
    sizes = [memory(console.process.pid)]
    for _ in range(10):
        console.drains(seconds / 10)
        sizes.append(memory(console.process.pid))
    return (used(console.process.pid) - before) / (time.monotonic() - begin), sizes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.console", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--changes", type=int, default=200, help="rows that change in a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="to watch each screen")
    options = parser.parse_args()
    first = []
    for _ in range(1 + options.starts):
        console, times = started(options.url)
        console.close()
        first.append(times)
    figures = [round(median(times)) for times in zip(*first[1:], strict=True)]
    print(
        f"load average {os.getloadavg()[0]:.1f}, medians of {options.starts} starts, by the clock and of the processor:"
    )
    print("first paint {} and {} ms, first data {} and {} ms".format(*figures))
    console, _ = started(options.url)
    first_memory = memory(console.process.pid)
    with changed(options.url, options.changes):
        console.drains(WARM_UP)
        print(
            f"memory: {first_memory:.0f} MiB with the first data, {memory(console.process.pid):.0f} after {WARM_UP:g} s"
        )
        for key, title in (("1", "Overview"), ("2", "Tasks")):
            console.goes(key, title)
            console.sees("queue-")
            share, sizes = watched(console, options.seconds)
            print(f"{title}: {share:.1%} of a core, {sizes[0]:.0f} to {sizes[-1]:.0f} MiB, {max(sizes):.0f} at most")
        before = used(console.process.pid)
        waits = [wait * 1000 for wait in answered(console)]
        processor = (used(console.process.pid) - before) / KEYS * 1000
        print(f"a key: {median(waits):.0f} ms, p95 {quantiles(waits, n=20)[-1]:.0f} ms, at most {max(waits):.0f} ms")
        print(f"{processor:.1f} ms of the processor for each key, with all reads in the meantime")
    console.close()


if __name__ == "__main__":
    main()
