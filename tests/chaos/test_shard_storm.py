"""A storm on runners that serve a SQLite file and a database of PostgreSQL: `pytest -m chaos` runs it.

See test_storm.py for the environment variables.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.check import check
from tests.chaos.conftest import Report
from tests.chaos.deployment import QUICK, Deployment
from tests.chaos.proxy import Proxy
from tests.chaos.shard_fleet import ShardFleet
from tests.chaos.shard_storm import ShardStorm
from tests.chaos.storm import PostgresFaults
from tests.chaos.test_storm import SECONDS, SEED, offered
from tests.conftest import SqliteDatabases
from tests.postgres import Server
from tests.programs import Program


@pytest.mark.chaos
def test_a_storm_on_two_shards_breaks_no_promise_in_either(
    sqlite: SqliteDatabases, crashing_server: Server, crashing_url: str, tmp_path: Path, report: Report
) -> None:
    direct = {"eu": sqlite.migrated(tmp_path), "us": crashing_url}
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(crashing_url, SEED))
        urls, runners = {**direct, "us": proxy.url}, list[Program]()
        fleets = {name: ShardFleet(name, urls, tmp_path / "fleets", runners, **QUICK) for name in urls}
        shards = {
            name: stack.enter_context(Deployment(direct[name], tmp_path, fleet)) for name, fleet in fleets.items()
        }
        proxy.on_fault = lambda _: fleets["us"].journal.write("outage")
        storm = ShardStorm(shards, SEED, offered(100), {"us": PostgresFaults(crashing_server, proxy)})
        storm.run(SECONDS)
        fleets["eu"].stop()
        dumps = {name: shard.dump() for name, shard in shards.items()}
        faults = ", ".join(f"{name}: {count}" for name, count in sorted(storm.injected.items()))
        tasks = ", ".join(f"{name} {len(dump.history)} tasks" for name, dump in dumps.items())
        report("storm on shards", f"seed {SEED}, {tasks}; {faults}")
        assert storm.live_at_end == 0, f"{storm.live_at_end} tasks did not end"
        assert {name: check(fleets[name].history(), dump) for name, dump in dumps.items()} == {"eu": [], "us": []}
        assert all(dump.history for dump in dumps.values())
