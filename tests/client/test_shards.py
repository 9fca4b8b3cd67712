"""Submits to the shards of a profile."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from runner import NewTask, TaskHandler, batch, connect, disconnect, handler, results, unfinished
from runner.client.client import get_client
from runner.client.results import ShardHandle
from runner.db.database import Database
from runner.errors import InvalidSettings, InvalidTask, ShardNotChosen, TwoShards
from runner.handlers.registry import REGISTRY
from runner.model.headers import read_headers
from runner.settings import load
from runner.settings.shards import settings_of_each, shard_settings
from tasktui.startup.arguments import parse
from tests.shards import EACH_PAIR, Sharded, write_config

EU, US = "customer-3", "customer-0"
"""Routes of each shard."""


@pytest.fixture
def profile(profile: Sharded) -> Iterator[Sharded]:
    """The profile that this process submits to."""
    connect(profile.settings())
    yield profile
    disconnect()


@pytest.fixture
def charge() -> Iterator[TaskHandler[Any, Any, Any]]:
    @handler("test.charge", route=lambda customer: customer)
    async def charge(customer: str) -> str:
        return customer

    yield charge
    REGISTRY._handlers.pop("test.charge")


async def stored(url: str) -> list[tuple[int, str | None]]:
    """Id and route of each task of a database."""
    database = Database.open(url)
    task = database.tables.task.c
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(task.id, task.headers).order_by(task.id))
    await database.dispose()
    return [(row.id, read_headers(row.headers).get("route")) for row in rows]


def tasks(profile: Sharded) -> dict[str, list[tuple[int, str | None]]]:
    return {name: asyncio.run(stored(url)) for name, url in profile.urls.items()}


@EACH_PAIR
def test_the_route_chooses_the_database_of_a_submit(profile: Sharded, charge: TaskHandler[Any, Any, Any]) -> None:
    first, second = charge.submit(EU), charge.submit(US)
    third = asyncio.run(charge.submit_async(EU))
    many = charge.submit_many([{"customer": US}, {"customer": US}])
    more = asyncio.run(charge.submit_many_async([charge.new(EU)]))
    own = charge.options(route=US).submit("anyone")
    assert tasks(profile) == {
        "eu": [(int(first), EU), (int(third), EU), (int(more[0]), EU)],
        "us": [(int(second), US), *((int(handle), US) for handle in many), (int(own), US)],
    }
    assert [str(handle) for handle in (first, own)] == [f"eu:{int(first)}", f"us:{int(own)}"]


@EACH_PAIR
def test_a_submit_joins_the_transaction_of_a_connection_to_its_shard(
    profile: Sharded, charge: TaskHandler[Any, Any, Any]
) -> None:
    with closing(open_connection(profile.urls["us"])) as connection:
        handle = charge.options(tx=connection).submit(US)
        assert tasks(profile) == {"eu": [], "us": []}
        with pytest.raises(TwoShards, match=r"the route of the task is in eu.*hold within one\s+shard"):
            charge.options(tx=connection).submit(EU)
        connection.commit()
    assert tasks(profile) == {"eu": [], "us": [(int(handle), US)]}


def open_connection(url: str) -> Any:
    file = url.removeprefix("sqlite:///")
    return psycopg.connect(url) if file == url else sqlite3.connect(file)


async def test_an_async_submit_joins_the_transaction_of_a_connection_to_its_shard(
    profile: Sharded, charge: TaskHandler[Any, Any, Any]
) -> None:
    import aiosqlite

    async with aiosqlite.connect(profile.urls["us"].removeprefix("sqlite:///")) as connection:
        handle = await charge.options(tx=connection).submit_async(US)
        with pytest.raises(TwoShards, match="leads to another database"):
            await charge.options(tx=connection).submit_async(EU)
        await connection.commit()
    assert await stored(profile.urls["us"]) == [(handle, US)]
    assert await stored(profile.urls["eu"]) == []


def test_a_submit_that_needs_two_shards_is_refused(profile: Sharded, charge: TaskHandler[Any, Any, Any]) -> None:
    first = charge.submit(EU)
    for refused in (
        lambda: charge.submit_many([{"customer": EU}, {"customer": US}]),
        lambda: batch([charge.new(EU)], callback=charge.new(US)),
        lambda: charge.options(after=first).submit(US),
    ):
        with pytest.raises(TwoShards, match=r"needs two shards: .*Unique keys, order keys, limits, dependencies"):
            refused()
    assert tasks(profile) == {"eu": [(first, EU)], "us": []}


@EACH_PAIR
def test_dependencies_and_batches_hold_within_a_shard(profile: Sharded, charge: TaskHandler[Any, Any, Any]) -> None:
    first = charge.submit(US)
    second = charge.options(after=first).submit(US)
    submitted = batch([charge.new(US), charge.new(US)], callback=charge.new(US))
    assert isinstance(second, ShardHandle)
    assert isinstance(submitted.callback, ShardHandle)
    assert len(tasks(profile)["us"]) == 5


def test_a_duplicate_is_found_within_its_shard(profile: Sharded, charge: TaskHandler[Any, Any, Any]) -> None:
    first, again = (charge.options(unique_key="once").submit(US) for _ in range(2))
    other = charge.options(unique_key="once").submit(EU)
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert (first, str(again)) == (again, str(first))
    assert len({first, other}) == 2  # the same number, of two shards


def test_a_submit_without_a_route_is_refused(profile: Sharded) -> None:
    @handler("test.anyone")
    def anyone() -> None: ...

    try:
        with pytest.raises(InvalidTask, match=r"`route`: the profile orders has the shards eu, us: set options\(route"):
            anyone.submit()
        with pytest.raises(InvalidTask, match="printable"):
            anyone.options(route="").submit()
    finally:
        REGISTRY._handlers.pop("test.anyone")
    assert tasks(profile) == {"eu": [], "us": []}


def test_without_shards_a_route_has_no_effect(migrated_url: str, charge: TaskHandler[Any, Any, Any]) -> None:
    connect(url=migrated_url)
    handle = charge.submit(EU)
    disconnect()
    assert asyncio.run(stored(migrated_url)) == [(handle, None)]


def test_results_come_from_the_shard_of_each_task(profile: Sharded, charge: TaskHandler[Any, Any, Any]) -> None:
    handles = [charge.submit(EU), charge.submit(US)]
    assert handles[0] != handles[1]
    for name, url in profile.urls.items():
        with closing(open_connection(url)) as connection:
            finish(connection, name)
    assert results([*handles, charge.task_handle(str(handles[1]))], timeout=10) == ["eu", "us", "us"]
    with pytest.raises(InvalidTask, match="unique within its shard"):
        charge.task_handle(1).result(timeout=1)


def finish(connection: sqlite3.Connection, result: str) -> None:
    connection.execute(
        "INSERT INTO task_history (id, handler, queue, state, result, finished_at, attempt)"
        f" SELECT id, handler, queue, 'succeeded', '\"{result}\"', run_at, 1 FROM task"
    )
    connection.execute("DELETE FROM task")
    connection.commit()


def test_unfinished_tasks_come_from_all_shards(profile: Sharded, charge: TaskHandler[Any, Any, Any]) -> None:
    handles = [charge.options(key="order-1").submit(route) for route in (EU, US)]
    assert [str(handle) for handle in unfinished(charge, "order-1")] == [str(handle) for handle in handles]


def test_a_shard_without_a_profile_is_an_error_of_the_settings(tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.toml", {"eu": "sqlite:///eu.db", "us": "sqlite:///us.db"})
    config.write_text(config.read_text().replace("[profiles.us]", "[profiles.ap]"))
    why = r"shards of profile orders in .*: there is no profile for the shard 'us'; .* has the profiles: ap, eu, orders"
    with pytest.raises(InvalidSettings, match=why):
        connect(load(profile="orders", config=config))


@pytest.mark.parametrize(
    ("profiles", "why"),
    [
        ('[profiles.orders]\nshards = ["eu"]\nurl = "sqlite:///x.db"\n[profiles.eu]\nurl = "sqlite:///e.db"', "both"),
        ('[profiles.orders]\nshards = ["eu"]\n[profiles.eu]\nshards = ["eu"]', "a shard cannot have shards"),
        ('[profiles.orders]\nshards = ["eu"]\n[profiles.eu]\nnotify = false', "neither a url nor a service"),
        ('[profiles.orders]\nshards = ["eu", "eu"]\n[profiles.eu]\nurl = "sqlite:///e.db"', "names a shard twice"),
        (
            '[profiles.orders]\nshards = ["a", "b"]\n[profiles]\na.url = "sqlite:///e.db"\nb.url = "sqlite:///e.db"',
            "the shards a and b are the same database",
        ),
    ],
)
def test_profiles_that_contradict_each_other_are_refused(tmp_path: Path, profiles: str, why: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(profiles)
    with pytest.raises(InvalidSettings, match=why):
        shard_settings(load(profile="orders", config=config))


def test_a_url_chooses_one_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_config(tmp_path / "config.toml", {"eu": "sqlite:///eu.db", "us": "sqlite:///us.db"})
    assert load(profile="orders", config=config, url="sqlite:///own.db").shards == ()
    assert load(profile="eu", config=config).shards == ()
    monkeypatch.setenv("TASKTUI_URL", "sqlite:///own.db")
    assert load(profile="orders", config=config).shards == ()


def test_a_shard_has_the_settings_of_the_profile_and_its_own_database(profile: Sharded) -> None:
    eu = shard_settings(profile.settings(concurrency=7))["eu"]
    assert (str(eu.url), eu.profile, eu.shard, eu.concurrency) == (str(load(url=profile.urls["eu"]).url), "eu", "eu", 7)


def test_the_console_opens_each_shard(profile: Sharded) -> None:
    arguments = parse(["--profile", "orders", "--config", str(profile.config)])
    assert [each.called for each in settings_of_each(arguments.settings())] == ["eu", "us"]
    one = parse(["--profile", "us", "--config", str(profile.config)]).settings()
    assert settings_of_each(one) == [one]


def test_work_for_one_database_needs_a_shard(profile: Sharded) -> None:
    with pytest.raises(ShardNotChosen, match=r"The profile orders is several databases.*--profile: eu, us"):
        Database.of(profile.settings())
    with pytest.raises(ShardNotChosen):
        get_client().run(None)  # type: ignore[arg-type] # never called


def test_a_task_keeps_its_route_beside_its_own_headers(profile: Sharded, charge: TaskHandler[Any, Any, Any]) -> None:
    task: NewTask = charge.options(headers={"request-id": "a1"}).new(EU)
    charge.submit_many([task])
    ((_, route),) = tasks(profile)["eu"]
    assert route == EU
