"""A runner process of the bench: `python -P -m runner.cli.bench.worker`.

It reads its configuration from standard input and prints a line when it is ready. The next byte of input starts it, and
each further byte is a mark. The end of the input stops it, even if the bench was killed. At the end it prints its
report.
"""

import asyncio
import json
import os
import pickle
import sys
import threading
import time
from dataclasses import asdict

from runner.cli.bench.exchange import HANDLER, Counter, WorkerConfig, WorkerReport
from runner.engine.main import tune_interpreter
from runner.engine.runner import Engine
from runner.handlers.registry import Handler, Options

READY = "ready"
INPUT = 0
"""The descriptor of standard input."""


class BenchWorker:
    """One runner with its counter and its report.

    Args:
        config: the configuration from the bench.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._probe = Counter(config.probe)
        self._latencies: list[float] = []
        self._marks: list[tuple[float, float]] = []
        self._hits = 0
        self.first = (0.0, 0.0)
        """CPU seconds of the process and of the event loop's thread at the first task."""
        self._lock = threading.Lock()
        function = self.plain_noop if config.is_plain else self.noop
        self._runner = Engine(config.settings, {HANDLER: Handler(HANDLER, function, config.options or Options())})

    async def noop(self, i: int, t: float, pad: str) -> None:  # noqa: ARG002 - gives the payload its size
        """The handler: only counts."""
        now = time.monotonic()
        if not self._hits:
            self.first = (time.process_time(), time.thread_time())
        if t:
            self._latencies.append(now - t)
        self._hits += 1
        self._probe.hit(now)

    def plain_noop(self, i: int, t: float, pad: str) -> None:  # noqa: ARG002 - gives the payload its size
        """The handler as a plain function, which several threads call."""
        with self._lock:
            self._hits += 1
            self._probe.hit(time.monotonic())

    async def work(self) -> WorkerReport:
        """Run tasks from the first byte of input until its end."""
        loop = asyncio.get_running_loop()
        started = asyncio.Event()
        reports: list[WorkerReport] = []

        def read_input() -> None:
            if os.read(INPUT, 1):
                started.set()
                self._marks.append((time.monotonic(), time.process_time()))
                return
            loop.remove_reader(INPUT)
            reports.append(self.report())
            started.set()
            self._runner.stop()

        loop.add_reader(INPUT, read_input)
        print(READY, flush=True)
        await started.wait()
        tune_interpreter(self._runner.settings)
        await self._runner.run()
        return reports[0] if reports else self.report()

    def report(self) -> WorkerReport:
        """The report of this moment."""
        self._marks.append((time.monotonic(), time.process_time()))
        cpu, loop_cpu = self.first
        return WorkerReport(
            hits=self._hits,
            cpu=time.process_time() - cpu,
            loop_cpu=time.thread_time() - loop_cpu,
            latencies=self._latencies,
            marks=self._marks,
        )


def main() -> None:
    """Read the configuration, run, and print the report."""
    # The buffered read takes nothing from the event loop: the first byte follows only after the ready line.

    config = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the bench that started this process
    report = asyncio.run(BenchWorker(config).work())
    json.dump(asdict(report), sys.stdout)


if __name__ == "__main__":
    main()
