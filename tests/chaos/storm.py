"""Storm: random faults on runners and submitters at work. The same seed makes the same choices."""

import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

import psycopg

from runner.errors import StoreError
from tests.chaos.deployment import Deployment
from tests.chaos.fleet import Target
from tests.chaos.proxy import Proxy
from tests.chaos.submitter import HOLD
from tests.chaos.workload import plan
from tests.postgres import Server

RUNNERS = 3
SUBMITTERS = 2
INTERVAL = 0.1
"""Seconds between two chunks of one submitter."""

OPERATOR_INTERVAL = 0.2
"""Seconds between two operations of the operator."""

FROZEN_FOR = (0.3, 4.0)
"""Seconds of a freeze: some end before the lease expires, some after it."""

SILENT_FOR = (0.5, 6.0)
"""Seconds for which a server hangs, or the network swallows everything: up to four leases."""

LOCKED_FOR = (0.1, 3.0)
"""Seconds for which another program locks a SQLite file or rows, or a trigger refuses rows."""

REFUSALS = {
    "sqlite": (
        "CREATE TABLE storm_refused (id INTEGER PRIMARY KEY)",
        *(
            f"CREATE TRIGGER storm_refuses_{change} BEFORE {change} ON task"
            " WHEN EXISTS (SELECT 1 FROM storm_refused WHERE id = OLD.id)"
            " BEGIN SELECT RAISE(ABORT, 'the storm refuses this row'); END"
            for change in ("UPDATE", "DELETE")
        ),
    ),
    "postgresql": (
        "CREATE TABLE storm_refused (id bigint PRIMARY KEY)",
        """CREATE FUNCTION storm_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT FROM storm_refused WHERE id = OLD.id) THEN RAISE 'the storm refuses row %', OLD.id; END IF;
        IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
        RETURN NEW; END $$""",
        "CREATE TRIGGER storm_refuses BEFORE UPDATE OR DELETE ON task FOR EACH ROW EXECUTE FUNCTION storm_refuse()",
    ),
}
"""A trigger of a user, which refuses to change the tasks of a table."""

SOME_RUNNING = "SELECT id FROM task WHERE state = 'running' ORDER BY random() LIMIT 3"

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
        self._frozen: dict[Target, threading.Timer] = {}
        self._killers = 0
        self._next_count = 0.0

    def run(self, seconds: float) -> None:
        """Inject faults for a time, then repair everything and wait until all tasks have ended."""
        self._add_refusals()
        for _ in range(RUNNERS):
            self._fleet.start_runner()
        self._maintain()
        self._fleet.until(self._fleet.has_ended_one, timeout=END_TIMEOUT)
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

    def _add_refusals(self) -> None:
        self._execute(*REFUSALS["sqlite" if self._postgres is None else "postgresql"])

    def _faults(self) -> list[tuple[str, Fault]]:
        faults: list[tuple[str, Fault]] = [
            ("runner killed with SIGKILL", self._kill_runner),
            ("runner frozen with SIGSTOP", self._freeze_runner),
            ("submitter killed", self._kill_submitter),
            ("operator killed", self._kill_operator),
            ("task submitted that kills its runner", self._submit_killer),
            ("runner drained by SIGHUP", self._hang_up_runner),
            ("rows of running tasks refused by a trigger", self._refuse_rows),
        ]
        if self._postgres is None:
            return [*faults, ("file locked by another program", self._lock_file)]
        proxy = self._postgres.proxy
        return [
            *faults,
            ("rows of running tasks locked by a person", self._lock_rows),
            ("PostgreSQL killed with SIGKILL", self._kill_server),
            ("PostgreSQL restarted", self._restart_server),
            ("connections terminated by the server", self._terminate_connections),
            ("server hung with SIGSTOP", self._hang_server),
            ("all connections half-open", self._hold_connections),
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
            self._freeze(self._draw.choice(awake))

    def _freeze(self, victim: Target) -> None:
        """Freeze a process for some time, unless it is frozen."""
        if not self._is_frozen(victim):
            self._fleet.freeze(victim)
            # A timer, because a runner frozen in a write transaction also blocks this program on SQLite.
            timer = threading.Timer(self._draw.uniform(*FROZEN_FOR), self._fleet.thaw, [victim])
            self._frozen[victim] = timer
            timer.start()

    def _is_frozen(self, process: Target) -> bool:
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

    def _hang_up_runner(self) -> None:
        self._fleet.journal.write("outage")
        self._draw.choice(self._fleet.runners).send_signal(signal.SIGHUP)

    def _refuse_rows(self) -> None:
        self._fleet.journal.write("outage")
        with suppress(sqlite3.OperationalError, psycopg.OperationalError):
            self._execute(f"INSERT INTO storm_refused {SOME_RUNNING}")
        time.sleep(self._draw.uniform(*LOCKED_FOR))
        self._accept_rows()
        self._fleet.journal.write("outage")

    def _accept_rows(self) -> None:
        with suppress(sqlite3.OperationalError, psycopg.OperationalError):
            self._execute("DELETE FROM storm_refused")

    def _lock_rows(self) -> None:
        self._fleet.journal.write("outage")
        with suppress(psycopg.OperationalError), psycopg.connect(self._deployment.url) as connection:
            connection.execute(f"{SOME_RUNNING} FOR UPDATE SKIP LOCKED")
            time.sleep(self._draw.uniform(*LOCKED_FOR))
            connection.rollback()
        self._fleet.journal.write("outage")

    def _execute(self, *statements: str) -> None:
        if self._postgres is None:
            path = urlsplit(self._deployment.url).path
            connect: Callable[[], Any] = partial(sqlite3.connect, path, isolation_level=None, timeout=30)
        else:
            connect = partial(psycopg.connect, self._deployment.url, autocommit=True)
        with closing(connect()) as connection:
            for statement in statements:
                connection.execute(statement)

    def _kill_server(self) -> None:
        assert self._postgres is not None
        self._postgres.server.kill9()
        self._postgres.server.start()
        self._fleet.journal.write("outage")

    def _restart_server(self) -> None:
        assert self._postgres is not None
        self._postgres.server.restart(self._draw.choice(["fast", "immediate"]))
        self._fleet.journal.write("outage")

    def _hang_server(self) -> None:
        """Its kernel acknowledges everything, and nothing answers."""
        assert self._postgres is not None
        self._fleet.journal.write("outage")
        self._postgres.server.hang()
        time.sleep(self._draw.uniform(*SILENT_FOR))
        self._postgres.server.go_on()
        self._fleet.journal.write("outage")

    def _hold_connections(self) -> None:
        """The network swallows everything of both sides; for a while, that of new connections too."""
        assert self._postgres is not None
        seconds = self._draw.choice([0.0, self._draw.uniform(*SILENT_FOR)])
        self._fleet.journal.write("outage")
        self._postgres.proxy.hold_all(seconds)
        time.sleep(seconds)
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
        self._accept_rows()
        self._fleet.revive()

    def _repair(self) -> None:
        self._calm()
        self._await_end()

    def _calm(self) -> None:
        """End the submits and the changes, and all freezes."""
        for process in [*self._fleet.others, *self._fleet.operators]:
            self._fleet.kill(process)
        for timer in self._frozen.values():
            timer.join()

    def _await_end(self) -> None:
        end = time.monotonic() + END_TIMEOUT
        self.live_at_end = 1
        while self.live_at_end and time.monotonic() < end:
            self._mend()
            with suppress(StoreError):
                self.live_at_end = self._deployment.live_count()
            time.sleep(STEP)
