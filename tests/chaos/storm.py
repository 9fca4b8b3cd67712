"""Storm: random faults on runners and submitters at work. The same seed makes the same choices."""

import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from typing import ClassVar, NamedTuple
from urllib.parse import urlsplit

import psycopg

from runner.errors import StoreError
from tests.chaos.deployment import Deployment
from tests.chaos.proxy import Proxy
from tests.chaos.submitter import HOLD
from tests.chaos.workload import plan
from tests.postgres import Server
from tests.programs import Program

RUNNERS = 3
SUBMITTERS = 2
INTERVAL = 0.1
"""Seconds between two chunks of one submitter."""

OPERATOR_INTERVAL = 0.2
"""Seconds between two operations of the operator."""

FROZEN_FOR = (0.3, 4.0)
"""Seconds of a freeze: some end before the lease expires, some after it."""

LOCKED_FOR = (0.1, 3.0)
"""Seconds for which another program locks a SQLite file."""

PAUSE = (0.5, 4.0)
"""Seconds between two faults."""

HOLD_SECONDS = 10.0
"""Submitters wait while more tasks are live than they submit in this time."""

COUNT_INTERVAL = 0.5
"""Seconds between two counts of the live tasks."""

STEP = 0.1
"""Seconds between two checks of the processes."""

END_TIMEOUT = 300.0
"""Seconds for all tasks to end after the last fault: each task that kills its runner does so until it is dead."""

Fault = Callable[[], None]


class PostgresFaults(NamedTuple):
    """A PostgreSQL server to crash, and the proxy through which all processes connect to it."""

    server: Server
    proxy: Proxy


class Storm:
    """Faults on one deployment.

    Args:
        deployment: the database and the processes.
        seed: decides which fault happens, when, and to which process.
        rate: tasks per second that the submitters offer together.
        postgres: the faults of PostgreSQL; None for SQLite.
    """

    mix: ClassVar[str] = "storm"
    """The mix of tasks that submitters submit."""

    pause: ClassVar[tuple[float, float]] = PAUSE
    """Seconds between two faults."""

    def __init__(self, deployment: Deployment, seed: int, rate: float, postgres: PostgresFaults | None) -> None:
        self.injected: Counter[str] = Counter()
        self.live_at_end = 0
        """Tasks that had not ended END_TIMEOUT seconds after the last fault."""
        self._deployment = deployment
        self._fleet = deployment.fleet
        self._draw = random.Random(seed)
        self._chunk = max(1, round(rate * INTERVAL / SUBMITTERS))
        self._backlog = max(50, round(rate * HOLD_SECONDS))
        self._postgres = postgres
        self._frozen: dict[Program, threading.Timer] = {}
        self._killers = 0
        self._next_count = 0.0

    def run(self, seconds: float) -> None:
        """Inject faults for a time, then repair everything and wait until all tasks have ended."""
        for _ in range(RUNNERS):
            self._fleet.start_runner()
        self._maintain()
        self._fleet.until(self._fleet.has_ended_one)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name, fault = self._draw.choice(self._faults())
            fault()
            self.injected[name] += 1
            next_fault = time.monotonic() + self._draw.uniform(*self.pause)
            while time.monotonic() < min(next_fault, end):
                self._maintain()
                time.sleep(STEP)
        self._repair()

    def _faults(self) -> list[tuple[str, Fault]]:
        faults: list[tuple[str, Fault]] = [
            ("runner killed with SIGKILL", self._kill_runner),
            ("runner frozen with SIGSTOP", self._freeze_runner),
            ("submitter killed", self._kill_submitter),
            ("operator killed", self._kill_operator),
            ("task submitted that kills its runner", self._submit_killer),
        ]
        if self._postgres is None:
            return [*faults, ("file locked by another program", self._lock_file)]
        proxy = self._postgres.proxy
        return [
            *faults,
            ("PostgreSQL killed with SIGKILL", self._kill_server),
            ("PostgreSQL restarted", self._restart_server),
            ("connections terminated by the server", self._terminate_connections),
            ("all connections reset", self._network(proxy.cut_all)),
            ("all answers swallowed, then reset", self._network(proxy.swallow_all)),
            ("connections armed to fail at random offsets", self._network(proxy.arm_some)),
            ("connections armed to fail at random offsets", self._network(proxy.arm_some)),
        ]

    def _maintain(self) -> None:
        """Keep the number of processes constant, and limit the backlog."""
        self._fleet.revive()
        while len(self._fleet.others) < SUBMITTERS:
            seed = self._draw.getrandbits(40)
            self._fleet.start_submitter(self.mix, seed, interval=INTERVAL, size=self._chunk)
        self._operate()
        if time.monotonic() >= self._next_count:
            self._limit_backlog()

    def _limit_backlog(self) -> None:
        self._next_count = time.monotonic() + COUNT_INTERVAL
        hold = self._fleet.home / HOLD
        with suppress(StoreError):  # a frozen runner may have locked the file
            if self._deployment.live_count() > self._backlog:
                hold.touch()
            else:
                hold.unlink(missing_ok=True)

    def _operate(self) -> None:
        """Keep an operator at work."""
        if not self._fleet.operators:
            self._fleet.start_operator(self._draw.getrandbits(40), OPERATOR_INTERVAL)

    def _kill_runner(self) -> None:
        victim = self._draw.choice(self._fleet.runners)
        if victim in self._frozen:
            self._frozen[victim].cancel()
        self._fleet.kill(victim)
        self._fleet.start_runner()

    def _freeze_runner(self) -> None:
        awake = [process for process in self._fleet.runners if not self._is_frozen(process)]
        if len(awake) > 1:
            victim = self._draw.choice(awake)
            self._fleet.freeze(victim)
            # A timer, because a runner frozen in a write transaction also blocks this program on SQLite.
            timer = threading.Timer(self._draw.uniform(*FROZEN_FOR), self._fleet.thaw, [victim])
            self._frozen[victim] = timer
            timer.start()

    def _is_frozen(self, process: Program) -> bool:
        return process in self._frozen and self._frozen[process].is_alive()

    def _kill_submitter(self) -> None:
        self._fleet.kill(self._draw.choice(self._fleet.others))

    def _kill_operator(self) -> None:
        self._fleet.kill(self._draw.choice(self._fleet.operators))

    def _submit_killer(self) -> None:
        self._killers += 1
        with suppress(StoreError):
            self._deployment.submit(plan("kill", f"killer-{self._killers}"))

    def _lock_file(self) -> None:
        with closing(sqlite3.connect(urlsplit(self._deployment.url).path, isolation_level=None, timeout=30)) as file:
            file.execute("BEGIN IMMEDIATE")
            self._fleet.journal.write("outage")
            time.sleep(self._draw.uniform(*LOCKED_FOR))
            file.execute("ROLLBACK")
        self._fleet.journal.write("outage")

    def _kill_server(self) -> None:
        assert self._postgres is not None
        self._postgres.server.kill9()
        self._postgres.server.start()
        self._fleet.journal.write("outage")

    def _restart_server(self) -> None:
        assert self._postgres is not None
        self._postgres.server.restart(self._draw.choice(["fast", "immediate"]))
        self._fleet.journal.write("outage")

    def _terminate_connections(self) -> None:
        self._fleet.journal.write("outage")
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(self._deployment.url, autocommit=True) as connection,
        ):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    def _network(self, fault: Fault) -> Fault:
        def inject() -> None:
            self._fleet.journal.write("outage")
            fault()

        return inject

    def _mend(self) -> None:
        """Let the remaining tasks end."""
        self._fleet.revive()

    def _repair(self) -> None:
        for process in [*self._fleet.others, *self._fleet.operators]:
            self._fleet.kill(process)
        for timer in self._frozen.values():
            timer.join()
        end = time.monotonic() + END_TIMEOUT
        self.live_at_end = 1
        while self.live_at_end and time.monotonic() < end:
            self._mend()
            with suppress(StoreError):
                self.live_at_end = self._deployment.live_count()
            time.sleep(STEP)
