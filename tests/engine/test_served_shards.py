"""A server of a profile with shards hands out the tasks of several databases."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.db.database import Database
from runner.engine.serving.service import Service
from runner.engine.shards import ShardEngines
from runner.model.task import NewTask, State
from runner.store.submit import submit
from tests.engine.harness import QUICK, at_work, until
from tests.engine.serving import LOOPBACK, TOKENS, Client
from tests.postgres import Server
from tests.shards import Sharded, write_config


class Shards:
    """The databases of a profile: a file, and a server that a test stops."""

    def __init__(self, profile: Sharded) -> None:
        self.profile = profile
        self.databases = {name: Database.open(url) for name, url in profile.urls.items()}

    async def submit(self, shard: str, number: int = 1) -> None:
        for _ in range(number):
            await self.databases[shard].write(submit, NewTask("mail.send"))

    async def succeeded(self, shard: str) -> int:
        database = self.databases[shard]
        async with database.reading() as tx:
            history = database.tables.history
            return len(await tx.rows(history.select().where(history.c.state == State.SUCCEEDED)))

    async def have_runners(self) -> bool:
        """True if each database has a runner."""
        for database in self.databases.values():
            async with database.reading() as tx:
                if not await tx.rows(database.tables.runner.select()):
                    return False
        return True

    @asynccontextmanager
    async def served(self, **settings: Any) -> AsyncIterator[Client]:
        made = self.profile.settings(**QUICK | {"serve_tokens": TOKENS, "drain_timeout": "5s"} | settings)
        ports: list[int] = []
        service = Service(made, LOOPBACK, ports.append)
        engines = ShardEngines(made, service.handlers, service.database)
        async with service.around(engines.stop_requested()), at_work(engines):
            client = Client(ports[0])
            try:
                yield client
            finally:
                engines.stop()
                await client.close()


@pytest.fixture
async def shards(tmp_path: Path, sqlite: Any, server: Server) -> AsyncIterator[Shards]:
    urls = {"eu": sqlite.migrated(tmp_path), "us": server.url()}
    made = Shards(Sharded(write_config(tmp_path / "config.toml", urls), urls))
    await made.databases["us"].migrate()
    yield made
    for database in made.databases.values():
        await database.dispose()


async def settle_all(client: Client, free: int = 4) -> list[str]:
    """Pull once, settle the tasks, and return their shards."""
    tasks = await client.pull(free=free)
    for task in tasks:
        assert (await client.settle(task))["status"] == "settled"
    return [task["shard"] for task in tasks]


@pytest.mark.slow
async def test_the_same_id_in_two_databases_is_two_tasks(shards: Shards) -> None:
    await shards.submit("eu")
    await shards.submit("us")
    async with shards.served() as client:
        tasks: list[Any] = []
        while len(tasks) < 2:
            tasks += await client.pull(free=2 - len(tasks))
        assert sorted((task["shard"], task["id"]) for task in tasks) == [("eu", 1), ("us", 1)]
        us = next(task for task in tasks if task["shard"] == "us")
        assert (await client.settle(us))["status"] == "settled"
        assert [await shards.succeeded(shard) for shard in ("eu", "us")] == [0, 1]
        eu = next(task for task in tasks if task["shard"] == "eu")
        assert (await client.heartbeat(eu, us))["lost"] == [{"shard": "us", "id": 1, "fence": us["fence"]}]
        assert (await client.settle(eu | {"shard": "asia"}))["status"] == "refused"
        assert (await client.settle(eu))["status"] == "settled"


@pytest.mark.slow
async def test_databases_with_a_backlog_have_turns(shards: Shards) -> None:
    order: list[str] = []
    async with shards.served() as client:
        await until(shards.have_runners)
        for shard in ("eu", "us"):
            await shards.submit(shard, 20)
        while len(order) < 40:
            order += await settle_all(client)
    assert sorted(order) == ["eu"] * 20 + ["us"] * 20
    assert {*order[:20]} == {"eu", "us"}, order


@pytest.mark.slow
async def test_a_stopped_database_delays_no_other(shards: Shards, server: Server) -> None:
    await shards.submit("us", 5)
    async with shards.served() as client:
        (lost,) = await client.pull(free=1)
        assert lost["shard"] == "us"
        await shards.databases["us"].dispose()
        server.stop()
        await shards.submit("eu", 40)
        done = 0
        while done < 40:
            done += (await settle_all(client)).count("eu")
        server.start()
        while await shards.succeeded("us") < 5:
            await client.settle(lost)
            await settle_all(client)
