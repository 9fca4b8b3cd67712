"""Crew: the runner processes of one measurement, as the bench sees them."""

import asyncio
import contextlib
import json
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from runner.bench.orders import Account, Orders, Step
from runner.bench.place import Place
from runner.bench.probe import Probe
from runner.errors import BenchFailed
from runner.people.terminal import clean

COMMAND = ("-P", "-m", "runner.bench.worker")
LOOK = 0.002
"""Seconds between two looks at the probes, which cost nothing."""
STALL = 30.0
"""Seconds without a start after which something is wrong."""
FAREWELL = 60.0
"""Seconds that a runner is given to end."""
LONGEST_COMPLAINT = 1_000
MARK = b"."

Show = Callable[[str], None]
"""Shows how far something is, where somebody looks."""


class Crew:
    """Runner processes, from the beginning of a block to its end.

    Args:
        place: whose database they work on.
        size: how many there are.
        show: told how far they are.
        watched: measure what each step of a task costs.
    """

    def __init__(self, place: Place, size: int, show: Show, *, watched: bool = False) -> None:
        self._place = place
        self._show = show
        self._watched = watched
        self._files = [place.folder / f"runner{number}" for number in range(size)]
        for file in self._files:
            file.unlink(missing_ok=True)
        self._probes = [Probe(file) for file in self._files]
        self._processes: list[Process] = []

    async def __aenter__(self) -> Self:
        try:
            for file in self._files:
                self._processes.append(await self._start(file))
            for number, process in enumerate(self._processes):
                if not await _output(process).readline():
                    raise BenchFailed(why=self._complaint(number))
            self.mark()
        except BaseException:
            await self._kill()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._kill()

    @property
    def hits(self) -> int:
        """Tasks that have started."""
        return sum(probe.hits for probe in self._probes)

    @property
    def first(self) -> float:
        """When the first task started, in monotonic seconds."""
        return min(probe.first for probe in self._probes if probe.hits)

    def mark(self) -> None:
        """Let each runner note the time, and the CPU that it has used so far; the first mark lets it begin."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.write(MARK)

    async def started(self, tasks: int) -> None:
        """Wait until so many tasks have started.

        Raises:
            BenchFailed: when a runner ends, or nothing happens any more.
        """
        clock = asyncio.get_running_loop().time
        hits, changed = 0, clock()
        while (now := self.hits) < tasks:
            if now != hits:
                hits, changed = now, clock()
                self._show(f"{hits:,} of {tasks:,}")
            self._check()
            if clock() - changed > STALL:
                raise BenchFailed(why=f"{hits:,} of {tasks:,} tasks have started, and for {STALL:.0f} s none has")
            await asyncio.sleep(LOOK)

    async def stop(self) -> list[Account]:
        """Let the runners end in order.

        Returns:
            What each of them reports.

        Raises:
            BenchFailed: when one does not end, or not well.
        """
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        try:
            async with asyncio.timeout(FAREWELL):
                return [await self._report(number) for number in range(len(self._processes))]
        except TimeoutError:
            raise BenchFailed(why=f"a runner did not end within {FAREWELL:.0f} s") from None

    async def _start(self, file: Path) -> Process:
        orders = Orders(self._place.settings, file, self._watched)
        with _words(file).open("wb") as words:
            # A session of its own: Ctrl-C is meant for the bench, which then ends its runners.
            process = await asyncio.create_subprocess_exec(
                sys.executable, *COMMAND, stdin=PIPE, stdout=PIPE, stderr=words, start_new_session=True
            )
        if process.stdin is not None:
            process.stdin.write(pickle.dumps(orders))
        return process

    async def _report(self, number: int) -> Account:
        process = self._processes[number]
        text = await _output(process).read()
        if await process.wait() != 0:
            raise BenchFailed(why=self._complaint(number))
        account = json.loads(text)
        steps = {name: Step(**step) for name, step in account.pop("steps").items()}
        return Account(**account, steps=steps)

    def _check(self) -> None:
        for number, process in enumerate(self._processes):
            if process.returncode is not None:
                raise BenchFailed(why=self._complaint(number))

    def _complaint(self, number: int) -> str:
        said = _words(self._files[number]).read_text(errors="replace").strip()
        return f"a runner ended: {clean(said[-LONGEST_COMPLAINT:]) or 'it said nothing'}"

    async def _kill(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        for process in self._processes:
            await process.wait()


def _words(file: Path) -> Path:
    """Where a runner's standard error goes."""
    return file.with_suffix(".log")


def _output(process: Process) -> asyncio.StreamReader:
    if process.stdout is None:
        raise AssertionError("a runner was started without a pipe")
    return process.stdout
