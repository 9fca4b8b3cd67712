"""The storm: faults at random, the same for the same seed, on runners and submitters at work."""

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg

from tests.chaos.site import Site
from tests.postgres import Server

RUNNERS = 3
SUBMITTERS = 2
FROZEN_FOR = (0.3, 4.0)
"""Seconds: some freezes are over before the lease is, some are not."""

PATIENCE = 300.0
"""Seconds for everything to end after the storm: each task that kills its runner does so until it is dead."""

REST = 0.05
"""Seconds between two submits of one submitter."""

CALM = (0.5, 4.0)
"""Seconds between two faults."""

if TYPE_CHECKING:
    from tests.programs import Program

Fault = Callable[[], None]


class Storm:
    """Faults on one site.

    Args:
        site: where.
        seed: decides which, when and on whom.
        server: of a PostgreSQL database, to be killed as well; None for SQLite.
    """

    def __init__(self, site: Site, seed: int, server: Server | None) -> None:
        self.survived: Counter[str] = Counter()
        self._site = site
        self._fleet = site.fleet
        self._draw = random.Random(seed)
        self._seed = seed
        self._server = server
        self._frozen: list[tuple[float, Program]] = []

    def rage(self, seconds: float) -> None:
        """Inject faults for a time, then heal everything and wait until all tasks have ended."""
        for _ in range(RUNNERS):
            self._fleet.start_runner()
        self._keep_up()
        self._fleet.until(lambda: self._fleet.happened("end") != [])
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            self._keep_up()
            name, fault = self._draw.choice(self._faults())
            fault()
            self.survived[name] += 1
            time.sleep(self._draw.uniform(*CALM))
        self._heal()

    def _faults(self) -> list[tuple[str, Fault]]:
        faults: list[tuple[str, Fault]] = [
            ("runner killed", self._kill_runner),
            ("runner frozen", self._freeze_runner),
            ("submitter killed", self._kill_submitter),
        ]
        if self._server is not None:
            faults += [
                ("server killed", self._kill_server),
                ("server restarted", self._restart_server),
                ("connections cut", self._cut_connections),
            ]
        return faults

    def _keep_up(self) -> None:
        """Keep the number of processes constant, and resume frozen ones after their time."""
        thawing = [process for until, process in self._frozen if until <= time.monotonic()]
        self._frozen = [(until, process) for until, process in self._frozen if process not in thawing]
        for process in thawing:
            self._fleet.thaw(process)
        self._fleet.revive()
        while len(self._fleet.others) < SUBMITTERS:
            self._fleet.start_submitter("rough", self._draw.getrandbits(40), rest=REST)

    def _kill_runner(self) -> None:
        self._fleet.kill(self._draw.choice(self._fleet.runners))
        self._fleet.start_runner()

    def _freeze_runner(self) -> None:
        awake = [process for process in self._fleet.runners if process not in [frozen for _, frozen in self._frozen]]
        if len(awake) > 1:
            victim = self._draw.choice(awake)
            self._fleet.freeze(victim)
            self._frozen.append((time.monotonic() + self._draw.uniform(*FROZEN_FOR), victim))

    def _kill_submitter(self) -> None:
        self._fleet.kill(self._draw.choice(self._fleet.others))

    def _kill_server(self) -> None:
        assert self._server is not None
        self._server.kill9()
        self._server.start()
        self._fleet.journal.write("outage")

    def _restart_server(self) -> None:
        assert self._server is not None
        self._server.restart(self._draw.choice(["fast", "immediate"]))
        self._fleet.journal.write("outage")

    def _cut_connections(self) -> None:
        self._fleet.journal.write("outage")
        with suppress(psycopg.OperationalError), psycopg.connect(self._site.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    def _heal(self) -> None:
        for process in list(self._fleet.others):
            self._fleet.kill(process)
        for _, process in self._frozen:
            self._fleet.thaw(process)
        self._frozen.clear()
        self._fleet.until(self._site.at_rest, meanwhile=self._fleet.revive, patience=PATIENCE)
