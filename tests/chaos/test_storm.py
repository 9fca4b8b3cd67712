"""Storms of a minute and more: `pytest -m chaos`.

The environment variables CHAOS_SECONDS and CHAOS_SEED say how long, and repeat the choices of an earlier storm.
"""

import os
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.check import duplicates
from tests.chaos.site import Site
from tests.chaos.storm import Storm
from tests.conftest import SqliteDatabases
from tests.postgres import Server

pytestmark = pytest.mark.chaos

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().getrandbits(32)))

Report = Callable[[str, object], None]


def test_a_storm_on_sqlite_breaks_no_promise(sqlite: SqliteDatabases, tmp_path: Path, report: Report) -> None:
    with Site(sqlite.migrated(tmp_path), tmp_path) as site:
        weather(site, None, report)


def test_a_storm_on_postgresql_breaks_no_promise(
    crashing_server: Server, crashing_url: str, tmp_path: Path, report: Report
) -> None:
    with Site(crashing_url, tmp_path) as site:
        weather(site, crashing_server, report)


def weather(site: Site, server: Server | None, report: Report) -> None:
    """Let a storm go over a site, tell what it did, and judge."""
    report("command", f"CHAOS_SEED={SEED} CHAOS_SECONDS={SECONDS:g} pytest -m chaos tests/chaos")
    storm = Storm(site, SEED, server)
    storm.rage(SECONDS)
    violations = site.violations()
    ended, took = site.dump().ended, site.recoveries()
    report("faults survived", dict(storm.survived))
    report("tasks run", len(ended))
    report("lost", sum(violation.promise == 1 for violation in violations))
    report("violations", len(violations))
    report("effects that happened again", duplicates(site.fleet.history()))
    report("runs taken back", len(took))
    if len(took) > 1:
        cuts = statistics.quantiles(took, n=100)
        report("recovery in seconds, p50 / p99", f"{cuts[49]:.2f} / {cuts[98]:.2f}")
    assert violations == []
    assert len(ended) > 0
