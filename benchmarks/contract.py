"""The contract of a peer: one program per system, which is called with a verb.

    setup        create the tables in an empty database
    one N        submit N tasks one by one, each committed; print the seconds
    bulk N       submit N tasks the fastest way; print the seconds
    paced N HZ   submit tasks at a constant rate, in batches every 10 ms where HZ is above 100; print the seconds
    worker       execute tasks until SIGTERM; the handler calls `record` with its arguments
    left         print the number of unfinished tasks for each line of input
    steps N      run a workflow of N durable steps, each committed; print the seconds from the first to the last one
    flows N      start N workflows of one step one by one; print the seconds from the first start to the last end
    begin S      start a workflow of two steps, and work until SIGKILL; a worker whose process was killed counts as lost
                 after S seconds, 0 for the default; both steps call `arrive`, and the second one does not end
    resume S     work as `begin` does, without starting a workflow

The environment names the database: BENCH_URL, a URL of PostgreSQL or the path of a SQLite file. `record` writes the
file BENCH_FILE, which `read` reads: how often each task ran, and how long after its submit it started. `arrive` appends
to the same file in the parts of `begin` and `resume`.
"""

import asyncio
import mmap
import os
import signal
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PAD = "x" * 64
"""Makes a payload about 100 bytes long."""

CHUNK = 1_000
"""Tasks of one bulk submit."""

BATCHES = 100
"""Batches per second of a paced submit."""

TICK = 0.002
"""Seconds before the due time of a submit from which the thread sleeps: the timers of asyncio are up to a millisecond
late, and those of Node early."""

HEAD = struct.Struct("<Qdd")
"""Starts; the time of the first one in monotonic seconds; the CPU seconds of the process at that time."""


def url() -> str:
    """The database."""
    return os.environ["BENCH_URL"]


def task(number: int, submitted_at: float = 0.0) -> dict[str, Any]:
    """The arguments of a task; the time is in monotonic seconds, 0 if its latency does not matter."""
    return {"i": number, "t": submitted_at, "pad": PAD}


class Record:
    """The file of one worker: the head, a byte with the starts of each task, and its latency in seconds."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._latencies = HEAD.size + (len(self._map) - HEAD.size) // 9
        self._starts = 0
        self._first = self._cpu = 0.0

    def add(self, number: int, submitted_at: float) -> None:
        """Record the start of a task."""
        now = time.monotonic()
        if not self._starts:
            self._first, self._cpu = now, time.process_time()
        self._starts += 1
        place = HEAD.size + number
        self._map[place] = min(255, self._map[place] + 1)
        if submitted_at:
            struct.pack_into("<d", self._map, self._latencies + 8 * number, now - submitted_at)
        HEAD.pack_into(self._map, 0, self._starts, self._first, self._cpu)


_lock = threading.Lock()
_records: list[Record] = []


def record(i: int, t: float) -> None:
    """Record that task `i` runs now. Handlers call nothing else."""
    with _lock:  # some systems run handlers in threads
        if not _records:
            _records.append(Record(Path(os.environ["BENCH_FILE"])))
        _records[0].add(i, t)


def arrive(place: str) -> None:
    """Record that this process is at a place now: `ready` to work, or in a step, `first` or `second`."""
    with Path(os.environ["BENCH_FILE"]).open("a") as file:
        file.write(f"{place} {time.monotonic()}\n")


def arrivals(path: Path, place: str) -> list[float]:
    """The times of a place, in monotonic seconds."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [float(line.split()[1]) for line in lines if line.startswith(f"{place} ")]


async def first() -> str:
    """The first of the two steps of `begin`."""
    arrive("first")
    return "done"


async def second() -> None:
    """The second of the two steps of `begin`, in which the process is killed."""
    arrive("second")
    await asyncio.Event().wait()


class Reading(NamedTuple):
    """The content of a worker's file."""

    starts: int
    first: float
    cpu: float
    times: bytes
    """The starts of each task."""
    latencies: Sequence[float]
    """Seconds by task; 0 for none."""


def prepare(path: Path, tasks: int) -> None:
    """Make an empty file for this many tasks."""
    path.write_bytes(bytes(HEAD.size + 9 * tasks))


def starts(path: Path) -> int:
    """The number of started tasks, at no cost to the worker."""
    with path.open("rb") as file:
        return int(HEAD.unpack(file.read(HEAD.size))[0])


def read(path: Path) -> Reading:
    """Read the file of a worker that has ended."""
    data = path.read_bytes()
    tasks = (len(data) - HEAD.size) // 9
    latencies = array("d", data[HEAD.size + tasks :])
    count, first, cpu = HEAD.unpack_from(data)
    return Reading(count, first, cpu, data[HEAD.size : HEAD.size + tasks], latencies)


class Peer:
    """One system. Subclasses say how it submits, works and counts."""

    async def open(self) -> None:
        """Connect; not measured."""

    async def close(self) -> None:
        """Disconnect."""

    async def setup(self) -> None:
        """Create the tables."""

    async def submit(self, task: dict[str, Any]) -> None:
        """Submit one task, committed on return."""
        raise NotImplementedError

    async def submit_many(self, tasks: list[dict[str, Any]]) -> None:
        """Submit up to CHUNK tasks; one by one if the system has nothing better."""
        for each in tasks:
            await self.submit(each)

    async def work(self) -> None:
        """Execute tasks until SIGTERM."""
        raise NotImplementedError

    async def steps(self, count: int) -> float:
        """Run a workflow of durable steps that add one, and return its seconds. Most systems have none."""
        raise NotImplementedError

    async def flows(self, count: int) -> float:
        """Start workflows of one step, each committed, and run them in the same process; return the seconds."""
        raise NotImplementedError

    async def resume(self, lease: int, *, begin: bool) -> None:
        """Work until SIGKILL, with `first` and `second` as the steps of the workflow.

        Args:
            lease: seconds after which a killed process counts as lost; 0 for the default.
            begin: start the workflow.
        """
        raise NotImplementedError

    async def left(self) -> int:
        """Count the tasks that are not finished and stored as such."""
        raise NotImplementedError


def on_stop(stop: Callable[[], object]) -> None:
    """Call `stop` at SIGTERM."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)


def run(peer: Peer) -> None:
    """Execute the verb of the command line."""
    verb, *numbers = sys.argv[1:]
    asyncio.run(_run(peer, verb, [int(number) for number in numbers]))


async def _run(peer: Peer, verb: str, numbers: list[int]) -> None:  # noqa: C901, PLR0912 - one case per verb
    await peer.open()
    start = time.monotonic()
    try:
        match [verb, *numbers]:
            case ["setup"]:
                await peer.setup()
            case ["one", int(count)]:
                for number in range(count):
                    await peer.submit(task(number))
            case ["bulk", int(count)]:
                for first in range(0, count, CHUNK):
                    await peer.submit_many([task(number) for number in range(first, min(first + CHUNK, count))])
            case ["paced", int(count), int(rate)]:
                await _paced(peer, count, rate)
            case ["steps" | "flows", int(count)]:
                seconds = await (peer.steps if verb == "steps" else peer.flows)(count)
                start = time.monotonic() - seconds
            case ["begin" | "resume", int(lease)]:
                await peer.resume(lease, begin=verb == "begin")
            case ["worker"]:
                await peer.work()
            case ["left"]:
                while await asyncio.to_thread(sys.stdin.readline):
                    print(await peer.left(), flush=True)
            case _:
                raise SystemExit(f"unknown verb {verb} {numbers}")
        print(time.monotonic() - start)
    finally:
        await peer.close()


async def _paced(peer: Peer, count: int, rate: int) -> None:
    """An open loop: a late batch does not delay the due times of the next ones, from which latencies count."""
    size, start = max(1, rate // BATCHES), time.monotonic()
    for first in range(0, count, size):
        due = start + first / rate
        await asyncio.sleep(max(0.0, due - time.monotonic() - TICK))
        time.sleep(max(0.0, due - time.monotonic()))
        if size == 1:
            await peer.submit(task(first, time.monotonic()))
        else:
            await peer.submit_many([task(number, due) for number in range(first, min(first + size, count))])
