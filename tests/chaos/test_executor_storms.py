"""Storms on HTTP executors and on a Dask cluster: `pytest -m chaos` runs each of them on each database.

See test_storm.py for the environment variables.
"""

from pathlib import Path

import pytest

from tests.chaos.check import check
from tests.chaos.conftest import Report
from tests.chaos.dask_fleet import DaskDeployment
from tests.chaos.dask_storm import DaskStorm
from tests.chaos.deployment import Deployment
from tests.chaos.http_fleet import HttpDeployment
from tests.chaos.http_storm import HttpStorm
from tests.chaos.proxy import Proxy
from tests.chaos.storm import PostgresFaults, Storm
from tests.chaos.test_storm import SECONDS, SEED, offered
from tests.conftest import SqliteDatabases
from tests.postgres import Server

each_kind = pytest.mark.parametrize(
    ("deploy", "kind", "rate"), [(HttpDeployment, HttpStorm, 60), (DaskDeployment, DaskStorm, 20)], ids=["http", "dask"]
)


@pytest.mark.chaos
@each_kind
def test_a_storm_on_executors_breaks_no_promise_on_sqlite(
    deploy: type[Deployment], kind: type[Storm], rate: int, sqlite: SqliteDatabases, tmp_path: Path, report: Report
) -> None:
    with deploy(sqlite.migrated(tmp_path), tmp_path) as deployment:
        run_storm(kind(deployment, SEED, offered(rate), None), deployment, report)


@pytest.mark.chaos
@each_kind
def test_a_storm_on_executors_breaks_no_promise_on_postgresql(
    deploy: type[Deployment],
    kind: type[Storm],
    rate: int,
    crashing_server: Server,
    crashing_url: str,
    tmp_path: Path,
    report: Report,
) -> None:
    with Proxy(crashing_url, SEED) as proxy, deploy(crashing_url, tmp_path, proxy.url) as deployment:
        postgres = PostgresFaults(crashing_server, proxy)
        run_storm(kind(deployment, SEED, offered(rate), postgres), deployment, report)


def run_storm(storm: Storm, deployment: Deployment, report: Report) -> None:
    """Run a storm, and require that no promise was broken."""
    storm.run(SECONDS)
    deployment.fleet.stop()
    dump = deployment.dump()
    faults = ", ".join(f"{name}: {count}" for name, count in sorted(storm.injected.items()))
    lost = sum(attempt.error_type == "WorkerLost" for attempt in dump.attempts)
    report("storm", f"seed {SEED}, {len(dump.history)} tasks, {lost} lost by executors; {faults}")
    assert storm.live_at_end == 0, f"{storm.live_at_end} tasks did not end"
    assert check(deployment.fleet.history(), dump) == []
    assert dump.history
