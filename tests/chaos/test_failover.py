"""Failovers: a primary hangs, its standby is promoted, and the old primary is fenced and becomes the next standby.

Environment variables: see tests.chaos.test_storm.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.chaos.conftest import Report
from tests.chaos.deployment import Deployment
from tests.chaos.storm import RUNNERS, SUBMITTERS
from tests.chaos.test_storm import SECONDS
from tests.databases import migrate
from tests.postgres import Server, Standby, create_database, find_programs

SETTINGS = {"lease_timeout": "4s", "heartbeat_interval": "800ms"}
LONGEST_PAUSE = 4.0 + 0.2 + 1.0
"""Seconds from a promotion to the next end of a task: lease, scan and a second."""

HANGS = 6.0
"""Seconds that the primary hangs before its standby is promoted: longer than a lease."""


class Pair:
    """A primary and its synchronous standby: an acknowledged commit survives the primary."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self.primary: Server = Server(programs).__enter__()
        self.database = create_database(self.primary).rpartition("/")[2]
        self.standby = self._follow(None)
        ports = (self.primary.port, self.standby.port)
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.url = f"postgresql://postgres@{hosts}/{self.database}"

    def _follow(self, port: int | None) -> Standby:
        standby = Standby(self.primary, self._programs, port)
        standby.__enter__()
        return standby

    def synchronize(self) -> None:
        """Let each commit wait for the standby from now on."""
        with psycopg.connect(self.primary.url(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            while connection.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone() is None:
                time.sleep(0.05)

    def promote(self) -> None:
        """Promote the standby while the primary hangs, and fence the primary: it must not accept writes again."""
        self.standby.promote()
        old, self.primary = self.primary, self.standby
        old.kill_all()
        old.close()
        self._port = old.port

    def rebuild(self) -> None:
        """Make the host of the old primary the standby of the new one."""
        self.standby = self._follow(self._port)

    def close(self) -> None:
        """Stop both servers."""
        self.standby.close()
        self.primary.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    if (programs := find_programs()) is None:
        pytest.skip("needs the programs of a server")
    pair = Pair(programs)
    try:
        migrate(pair.url)
        yield pair
    finally:
        pair.close()


@pytest.mark.chaos
def test_promotions_while_the_primary_hangs_break_no_promise(pair: Pair, tmp_path: Path, report: Report) -> None:
    pauses: list[float] = []
    with Deployment(pair.url, tmp_path, **SETTINGS) as deployment:
        fleet = deployment.fleet
        for _ in range(RUNNERS):
            fleet.start_runner()
        for seed in range(SUBMITTERS):
            fleet.start_submitter("gentle", seed, interval=0.1, size=5)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or not pauses:
            pair.synchronize()
            before = len(fleet.happened("end"))
            fleet.until(lambda: len(fleet.happened("end")) > before + 20, between=fleet.revive)  # noqa: B023 - called immediately
            fleet.journal.write("outage")
            pair.primary.hang()
            time.sleep(HANGS)
            pair.promote()
            promoted = time.time()
            fleet.journal.write("outage")
            fleet.until(lambda: any(event.at > promoted for event in fleet.happened("end")), between=fleet.revive)  # noqa: B023
            pauses.append(min(event.at for event in fleet.happened("end") if event.at > promoted) - promoted)
            pair.rebuild()
        for process in list(fleet.others):
            fleet.kill(process)
        fleet.until(deployment.at_rest, between=fleet.revive, timeout=240.0)
        report("seconds from each promotion to the next end of a task:", [round(pause, 2) for pause in pauses])
        assert deployment.violations() == []
        assert max(pauses) < LONGEST_PAUSE
