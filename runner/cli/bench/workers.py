"""The runner processes of one measurement, and its context."""

import asyncio
import contextlib
import json
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from runner.cli.bench.exchange import Counter, WorkerConfig, WorkerReport
from runner.cli.bench.load import Load
from runner.cli.bench.plan import BenchPlan
from runner.cli.bench.sandbox import Sandbox
from runner.errors import BenchFailed
from runner.text.sanitize import clean

if TYPE_CHECKING:
    from runner.handlers.registry import Options

COMMAND = ("-P", "-m", "runner.cli.bench.worker")
POLL_INTERVAL = 0.002
"""Seconds between two reads of the shared counters, which cost nothing."""
STALL = 30.0
"""Seconds without a started task after which the measurement fails."""
STOP_TIMEOUT = 60.0
"""Seconds for a runner to exit."""
MAX_ERROR_TEXT = 1_000
MARK = b"."

Show = Callable[[str], None]
"""Shows a progress line."""


@dataclass(frozen=True, slots=True)
class BenchContext:
    """The context of a part."""

    sandbox: Sandbox
    plan: BenchPlan
    show: Show

    @asynccontextmanager
    async def create_load(self) -> AsyncIterator[Load]:
        """Create empty tables and a load for them; removes both after the block."""
        async with self.sandbox.empty() as database:
            yield Load(database, notify=self.sandbox.settings.notify)


class Workers:
    """Runner processes that live as long as the block.

    Args:
        count: number of processes.
        settings: settings of each process that differ; None for none.
        options: options of the handler; None for none.
        is_plain: True if the handler is a plain function.
        command: arguments of Python that start a process.
    """

    def __init__(
        self,
        context: BenchContext,
        count: int = 1,
        *,
        settings: Sequence[Mapping[str, Any]] | None = None,
        options: "Options | None" = None,
        is_plain: bool = False,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._sandbox, self._show = context.sandbox, context.show
        self._options, self._is_plain, self._command = options, is_plain, command
        self._settings = settings or [{}] * count
        self._files = [self._sandbox.folder / f"runner{index}" for index in range(count)]
        for file in self._files:
            file.unlink(missing_ok=True)
        self._counters = [Counter(file) for file in self._files]
        self._processes: list[Process] = []

    async def __aenter__(self) -> Self:
        try:
            for file, settings in zip(self._files, self._settings, strict=True):
                self._processes.append(await self._start(file, settings))
            for index, process in enumerate(self._processes):
                if not await _output(process).readline():
                    raise BenchFailed(why=self._error_text(index))
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
        """Started tasks."""
        return sum(counter.hits for counter in self._counters)

    @property
    def first(self) -> float:
        """Time of the first start, in monotonic seconds."""
        return min(counter.first for counter in self._counters if counter.hits)

    def mark(self) -> None:
        """Make each runner record the time and its CPU usage; the first mark also starts it."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.write(MARK)

    async def wait_for_starts(self, tasks: int) -> None:
        """Wait until this many tasks have started.

        Raises:
            BenchFailed: a runner exited, or no task starts any more.
        """
        clock = asyncio.get_running_loop().time
        hits, changed_at = 0, clock()
        while (now := self.hits) < tasks:
            if now != hits:
                hits, changed_at = now, clock()
                self._show(f"{hits:,} of {tasks:,}")
            self._check()
            if clock() - changed_at > STALL:
                raise BenchFailed(why=f"{hits:,} of {tasks:,} tasks started, then none for {STALL:.0f} s")
            await asyncio.sleep(POLL_INTERVAL)

    async def stop(self) -> list[WorkerReport]:
        """Stop the runners gracefully.

        Raises:
            BenchFailed: a runner does not exit, or exits with an error.
        """
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                return [await self._report(index) for index in range(len(self._processes))]
        except TimeoutError:
            raise BenchFailed(why=f"a runner did not exit within {STOP_TIMEOUT:.0f} s") from None

    async def _start(self, file: Path, settings: Mapping[str, Any]) -> Process:
        own = self._sandbox.settings.model_copy(update=dict(settings))
        config = WorkerConfig(own, file, self._options, self._is_plain)
        with _log_file(file).open("wb") as log:
            # A session of its own, so that ctrl-c reaches only the bench, which then stops its runners.
            process = await asyncio.create_subprocess_exec(
                sys.executable, *self._command, stdin=PIPE, stdout=PIPE, stderr=log, start_new_session=True
            )
        if process.stdin is not None:
            process.stdin.write(pickle.dumps(config))
        return process

    async def _report(self, index: int) -> WorkerReport:
        process = self._processes[index]
        text = await _output(process).read()
        if await process.wait() != 0:
            raise BenchFailed(why=self._error_text(index))
        return WorkerReport(**json.loads(text))

    def _check(self) -> None:
        for index, process in enumerate(self._processes):
            if process.returncode is not None:
                raise BenchFailed(why=self._error_text(index))

    def _error_text(self, index: int) -> str:
        text = _log_file(self._files[index]).read_text(errors="replace").strip()
        return f"a runner exited: {clean(text[-MAX_ERROR_TEXT:]) or 'no error message'}"

    async def _kill(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        for process in self._processes:
            await process.wait()


def _log_file(file: Path) -> Path:
    """The log of a runner's standard error."""
    return file.with_suffix(".log")


def _output(process: Process) -> asyncio.StreamReader:
    if process.stdout is None:
        raise AssertionError("the runner process has no stdout pipe")
    return process.stdout
