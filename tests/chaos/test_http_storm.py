"""Storms on servers and HTTP executors: `pytest -m chaos` runs one on each database.

See test_storm.py for the environment variables.
"""

import os
from pathlib import Path

import pytest

from tests.chaos.check import check
from tests.chaos.conftest import Report
from tests.chaos.deployment import Deployment
from tests.chaos.http_fleet import HttpDeployment
from tests.chaos.http_storm import HttpStorm
from tests.chaos.proxy import Proxy
from tests.chaos.storm import PostgresFaults
from tests.chaos.test_storm import SECONDS, SEED
from tests.conftest import SqliteDatabases
from tests.postgres import Server

RATE = float(os.environ.get("CHAOS_RATE", "60"))


@pytest.mark.chaos
def test_a_storm_on_http_executors_breaks_no_promise_on_sqlite(
    sqlite: SqliteDatabases, tmp_path: Path, report: Report
) -> None:
    with HttpDeployment(sqlite.migrated(tmp_path), tmp_path) as deployment:
        run_storm(deployment, None, report)


@pytest.mark.chaos
def test_a_storm_on_http_executors_breaks_no_promise_on_postgresql(
    crashing_server: Server, crashing_url: str, tmp_path: Path, report: Report
) -> None:
    with (
        Proxy(crashing_url, SEED) as proxy,
        HttpDeployment(crashing_url, tmp_path, proxy.url) as deployment,
    ):
        run_storm(deployment, PostgresFaults(crashing_server, proxy), report)


def run_storm(deployment: Deployment, postgres: PostgresFaults | None, report: Report) -> None:
    """Run a storm, and require that no promise was broken."""
    storm = HttpStorm(deployment, SEED, RATE, postgres)
    storm.run(SECONDS)
    deployment.fleet.stop()
    dump = deployment.dump()
    faults = ", ".join(f"{name}: {count}" for name, count in sorted(storm.injected.items()))
    lost = sum(attempt.error_type == "WorkerLost" for attempt in dump.attempts)
    report("http storm", f"seed {SEED}, {len(dump.history)} tasks, {lost} lost by executors; {faults}")
    assert storm.live_at_end == 0, f"{storm.live_at_end} tasks did not end"
    assert check(deployment.fleet.history(), dump) == []
    assert dump.history
