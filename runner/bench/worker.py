"""A runner as a process of its own, for the bench: `python -P -m runner.bench.worker`.

It reads its orders from standard input, prints a line when it is ready, and begins at the first byte that follows. Each
further byte is a mark. The end of the input tells it to stop: also when the bench was killed. It prints its account
last.
"""

import asyncio
import json
import os
import pickle
import sys
import time
from dataclasses import asdict

from runner.bench.orders import HANDLER, Account, Orders
from runner.bench.probe import Probe
from runner.bench.stopwatch import Stopwatch
from runner.engine.process import Runner
from runner.engine.work import collect_seldom
from runner.handlers import Handler

READY = "ready"
INPUT = 0
"""The descriptor of standard input."""


class Worker:
    """One runner, its probe, and what it accounts for.

    Args:
        orders: of the bench.
    """

    def __init__(self, orders: Orders) -> None:
        self._probe = Probe(orders.probe)
        self._watch = Stopwatch() if orders.watched else None
        if self._watch is not None:
            self._watch.attach()
        self._latencies: list[float] = []
        self._marks: list[tuple[float, float]] = []
        self._hits = 0
        self._first = (0.0, 0.0)
        self._runner = Runner(orders.settings, {HANDLER: Handler(HANDLER, self.noop)})

    async def noop(self, i: int, t: float, pad: str) -> None:  # noqa: ARG002 - what a payload of some size looks like
        """What every task does: nothing, but it is seen."""
        now = time.monotonic()
        if not self._hits:
            self._first = (time.process_time(), time.thread_time())
        if t:
            self._latencies.append(now - t)
        self._hits += 1
        self._probe.hit(now)

    async def work(self) -> Account:
        """Run tasks from the first byte on until the input ends."""
        loop = asyncio.get_running_loop()
        go = asyncio.Event()
        stopped: list[Account] = []

        def hear() -> None:
            if os.read(INPUT, 1):
                go.set()
                self._marks.append((time.monotonic(), time.process_time()))
                return
            loop.remove_reader(INPUT)
            stopped.append(self._account())
            go.set()
            self._runner.stop()

        loop.add_reader(INPUT, hear)
        print(READY, flush=True)
        await go.wait()
        collect_seldom()
        await self._runner.run()
        return stopped[0] if stopped else self._account()

    def _account(self) -> Account:
        self._marks.append((time.monotonic(), time.process_time()))
        cpu, loop_cpu = (self._watch and self._watch.began) or self._first
        return Account(
            hits=self._hits,
            cpu=time.process_time() - cpu,
            loop_cpu=time.thread_time() - loop_cpu,
            latencies=self._latencies,
            marks=self._marks,
            steps=dict(self._watch.steps) if self._watch else {},
        )


def main() -> None:
    """Read the orders, work, and print the account."""
    # Reading ahead takes nothing away: the first byte follows only when this process has said that it is ready.
    orders = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the bench that started this process
    account = asyncio.run(Worker(orders).work())
    json.dump(asdict(account), sys.stdout)


if __name__ == "__main__":
    main()
