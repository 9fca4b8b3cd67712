"""One process runs the tasks of several shards, with one set of slots."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runner import Context, Dead, Runner, TaskHandler, connect, disconnect, injected, resource, schedule, schedules
from runner.db.database import Database
from runner.db.types import db_now
from runner.engine import shared_slots
from runner.engine.events import AttemptsEnded, TasksClaimed
from runner.engine.lease import lease
from runner.engine.runner import Engine
from runner.engine.shards import ShardEngines
from runner.engine.shared_slots import ShardSlots
from runner.errors import InvalidSettings, StoreError, TwoShards
from runner.handlers.registry import Handler, Options
from runner.handlers.resources import RESOURCES
from runner.handlers.schedules import SCHEDULES
from runner.logs import TaskFilter
from runner.model.headers import read_headers
from runner.model.task import NewTask
from runner.operations.results import Actor
from runner.operations.runner_command import send_command
from runner.policy.runner_command import RunnerCommand
from runner.policy.shard_rule import by_hash
from runner.settings import load
from runner.store.claim.survey import Pending
from runner.store.submit import submit
from tests.engine.harness import QUICK, WAIT_SECONDS, at_work, until
from tests.postgres import Server
from tests.shards import EACH_PAIR, Sharded, write_config
from tests.store.rows import add_live, stored

EU, US = "customer-3", "customer-0"
"""Routes of each shard."""


class Shards:
    """The databases of a profile, and handlers of a test."""

    def __init__(self, profile: Sharded) -> None:
        self.profile = profile
        self.databases = {name: Database.open(url) for name, url in profile.urls.items()}
        self.handlers: dict[str, Handler] = {}

    def handler(self, name: str, function: Callable[..., Any], **options: Any) -> None:
        self.handlers[name] = Handler(name, function, Options(**options))

    async def submit(self, own: str, handler: str, number: int = 1, **payload: Any) -> None:
        for _ in range(number):
            await self.databases[own].write(submit, NewTask(handler, json.dumps(payload)))

    def engines(self, **settings: Any) -> ShardEngines:
        return ShardEngines(self.profile.settings(**QUICK | settings), self.handlers)

    async def work(self, **settings: Any) -> ShardEngines:
        """Run until there is nothing left to do in any shard."""
        engines = self.engines(**settings)
        async with asyncio.timeout(WAIT_SECONDS):
            assert await engines.run(until_idle=True)
        return engines

    @asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[ShardEngines]:
        engines = self.engines(**settings)
        run = asyncio.ensure_future(engines.run())
        try:
            yield engines
        finally:
            engines.stop()
            async with asyncio.timeout(WAIT_SECONDS):
                await run

    async def finished(self, shard: str) -> int:
        return len(await self._rows(shard, "history"))

    async def live(self, shard: str) -> int:
        return len(await self._rows(shard, "task"))

    async def _rows(self, shard: str, table: str) -> list[Any]:
        async with self.databases[shard].reading() as tx:
            return list(await tx.rows(getattr(tx.tables, table).select()))


@pytest.fixture
async def shards(profile: Sharded) -> AsyncIterator[Shards]:
    made = Shards(profile)
    yield made
    for database in made.databases.values():
        await database.dispose()


def _wants(engines: ShardEngines, shard: str) -> bool:
    """True if a shard has a due task without a slot."""
    slots = engines.by_shard[shard].worker.in_flight.on_loop
    return isinstance(slots, ShardSlots) and slots.use.wants


def _note(ran: list[str], shard: str) -> None:
    ran.append(shard)


class Gate:
    """A handler whose tasks run until they may end."""

    def __init__(self) -> None:
        self.running: dict[str, list[asyncio.Event]] = {"eu": [], "us": []}
        self.most = 0

    async def work(self, shard: str) -> None:
        mine = asyncio.Event()
        self.running[shard].append(mine)
        self.most = max(self.most, sum(map(len, self.running.values())))
        await mine.wait()

    def end(self, shard: str) -> None:
        self.running[shard].pop(0).set()

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.running["eu"]), len(self.running["us"])


@pytest.mark.representatives(1)
@EACH_PAIR
async def test_a_runner_runs_the_tasks_of_all_shards(shards: Shards) -> None:
    ran: list[str] = []
    shards.handler("note", lambda shard: _note(ran, shard))
    for shard in ("eu", "us"):
        await shards.submit(shard, "note", 5, shard=shard)
    await shards.work()
    assert sorted(ran) == ["eu"] * 5 + ["us"] * 5
    assert [await shards.finished(shard) for shard in ("eu", "us")] == [5, 5]


@pytest.mark.representatives(1)
@EACH_PAIR
async def test_a_claim_without_a_task_does_not_keep_the_shards_from_their_end(shards: Shards) -> None:
    engines = shards.engines()
    eu, us = (engines.by_shard[name] for name in ("eu", "us"))
    pending = us.completion._pending

    async def claim_none_during_the_look() -> Pending:
        eu.events.publish(TasksClaimed(eu.worker.in_flight.on_loop, [], True))
        return await pending()

    us.completion._pending = claim_none_during_the_look
    async with asyncio.timeout(WAIT_SECONDS):
        assert await engines.run(until_idle=True)


@pytest.mark.representatives(1)
@EACH_PAIR
async def test_the_shards_look_again_after_the_end_of_a_task_which_may_have_submitted_to_another(
    shards: Shards,
) -> None:
    engines = shards.engines()
    us, looks = engines.by_shard["us"], 0
    pending = us.completion._pending

    async def end_a_task_during_the_first_look() -> Pending:
        nonlocal looks
        looks += 1
        if looks == 1:
            await until(lambda: "eu" in engines._idle_since)
            us.events.publish(AttemptsEnded("succeed", [], {}, us.lease.id))
        return await pending()

    us.completion._pending = end_a_task_during_the_first_look
    async with asyncio.timeout(WAIT_SECONDS):
        assert await engines.run(until_idle=True)
    assert looks > 1


@pytest.mark.representatives(1)
@EACH_PAIR
async def test_the_shards_divide_the_slots_and_none_starves(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_slots, "PATIENCE", WAIT_SECONDS)  # a claim may take long on a busy machine
    gate = Gate()
    shards.handler("work", gate.work)
    await shards.submit("eu", "work", 12, shard="eu")
    async with shards.running(concurrency=4) as engines:
        await until(lambda: gate.counts == (4, 0))
        await shards.submit("us", "work", 12, shard="us")
        await until(lambda: _wants(engines, "us"))
        for eu, us in ((3, 1), (2, 2)):
            gate.end("eu")
            await until(lambda eu=eu, us=us: gate.counts == (eu, us))  # type: ignore[misc]
        for shard in ("eu", "us", "us"):
            gate.end(shard)
            await until(lambda: gate.counts == (2, 2))
        assert gate.most == 4
        while await shards.live("eu") + await shards.live("us"):
            for shard in ("eu", "us"):
                while gate.running[shard]:
                    gate.end(shard)
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_single_slot_serves_the_shards_in_turn(shards: Shards) -> None:
    order: list[str] = []

    async def note(shard: str) -> None:
        order.append(shard)
        await asyncio.sleep(0.02)

    shards.handler("note", note)
    for shard in ("eu", "us"):
        await shards.submit(shard, "note", 20, shard=shard)
    await shards.work(concurrency=1, prefetch=0)
    assert sorted(order) == ["eu"] * 20 + ["us"] * 20
    assert sum(one != other for one, other in pairwise(order)) > 5, order


async def test_a_slot_that_one_shard_does_not_want_goes_to_the_other(shards: Shards) -> None:
    gate = Gate()
    shards.handler("work", gate.work)
    await shards.submit("eu", "work", 2, shard="eu")
    await shards.submit("us", "work", 1, shard="us")
    async with shards.running(concurrency=4):
        await until(lambda: gate.counts == (2, 1))
        await shards.submit("eu", "work", 3, shard="eu")
        await until(lambda: gate.counts == (3, 1))
        gate.end("us")
        await until(lambda: gate.counts == (4, 0))
        gate.end("eu")
        await until(lambda: gate.counts == (4, 0))
        for _ in range(4):
            gate.end("eu")


async def test_an_idle_shard_keeps_a_slot_for_its_next_task(shards: Shards) -> None:
    gate = Gate()
    shards.handler("work", gate.work)
    await shards.submit("eu", "work", 25, shard="eu")
    async with shards.running(concurrency=20):
        await until(lambda: gate.counts == (19, 0))
        await shards.submit("us", "work", 1, shard="us")
        await until(lambda: gate.counts == (19, 1))
        gate.end("us")
        while await shards.live("eu"):
            while gate.running["eu"]:
                gate.end("eu")
            await asyncio.sleep(0.01)


@pytest.fixture
async def with_server(tmp_path: Path, sqlite: Any, server: Server) -> AsyncIterator[Shards]:
    """A shard in a file, and one on a server that the test stops."""
    made = Shards(two_kinds(tmp_path, sqlite, server))
    await made.databases["us"].migrate()
    yield made
    for database in made.databases.values():
        await database.dispose()


def two_kinds(directory: Path, sqlite: Any, server: Server) -> Sharded:
    urls = {"eu": sqlite.migrated(directory), "us": server.url()}
    return Sharded(write_config(directory / "config.toml", urls), urls)


@pytest.mark.slow
async def test_a_shard_that_is_away_at_the_start_delays_no_other(with_server: Shards, server: Server) -> None:
    shards, ran = with_server, list[str]()
    shards.handler("note", lambda shard: _note(ran, shard))
    await shards.submit("eu", "note", 5, shard="eu")
    await shards.submit("us", "note", 5, shard="us")
    await add_live(shards.databases["eu"], "note", payload='{"shard": "eu"}', rescues=4, max_attempts=20)
    await shards.databases["us"].dispose()
    server.stop()
    async with shards.running(concurrency=1, threads=1):
        await until(lambda: len(ran) == 6)
        server.start()
        await until(lambda: len(ran) == 11)
    assert ran == ["eu"] * 6 + ["us"] * 5


@pytest.mark.slow
async def test_a_shard_that_hangs_delays_no_other(with_server: Shards, server: Server) -> None:
    shards, ran = with_server, list[str]()
    shards.handler("note", lambda shard: _note(ran, shard))
    await shards.submit("us", "note", 1, shard="us")
    async with shards.running(concurrency=1, threads=1):
        await until(lambda: len(ran) == 1)
        await shards.submit("us", "note", 3, shard="us")
        server.hang()
        try:
            before = len(ran)
            await shards.submit("eu", "note", 50, shard="eu")
            await until(lambda: ran[before:].count("eu") == 50)
        finally:
            server.go_on()
        await until(lambda: ran.count("us") == 4)


async def test_a_shard_whose_database_refuses_the_runner_delays_no_other(
    tmp_path: Path, sqlite: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.db"
    broken.write_text("no database " * 1_000)
    urls = {"eu": sqlite.migrated(tmp_path), "us": f"sqlite:///{broken}"}
    shards, ran = Shards(Sharded(write_config(tmp_path / "config.toml", urls), urls)), list[str]()
    shards.handler("note", lambda shard: _note(ran, shard))
    await shards.submit("eu", "note", 5, shard="eu")
    async with shards.running():
        await until(lambda: len(ran) == 5)
    assert "shard us: " in caplog.text
    assert "its runner starts again in 30 s, the others go on" in caplog.text
    for database in shards.databases.values():
        await database.dispose()


async def test_a_process_ends_when_all_databases_refuse_it(tmp_path: Path) -> None:
    urls = {}
    for name in ("eu", "us"):
        (tmp_path / name).write_text("no database " * 1_000)
        urls[name] = f"sqlite:///{tmp_path / name}"
    config = write_config(tmp_path / "config.toml", urls)
    engines = ShardEngines(load(profile="orders", config=config), {"work": Handler("work", lambda: None)})
    with pytest.raises(StoreError):
        async with asyncio.timeout(WAIT_SECONDS):
            await engines.run()


@pytest.mark.representatives(1)
@EACH_PAIR
async def test_a_suspect_waits_until_each_shard_has_rescued_the_tasks_of_lost_runners(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "NEGLECT", WAIT_SECONDS)  # on a busy machine two such leases pass between two heartbeats
    rescued: list[bool] = []

    async def suspect() -> None:
        row = await stored(shards.databases["eu"], lost)
        rescued.append(row is None or row.fence > 1)  # the task may run again

    shards.handler("suspect", suspect)
    shards.handler("work", lambda: None)
    values = {"runner_id": 10**6, "fence": 1, "attempt": 1, "started_at": db_now()}
    lost = await add_live(shards.databases["eu"], "work", state="running", **values)
    await add_live(shards.databases["us"], "suspect", rescues=4, max_attempts=20)
    async with shards.running(lease_timeout="500ms", heartbeat_interval="100ms"):
        await until(lambda: bool(rescued))
    assert rescued == [True], "it may kill the process, which would prevent the rescue again"


@pytest.fixture
def connected(shards: Shards) -> Iterator[None]:
    connect(shards.profile.settings())
    yield
    disconnect()


@pytest.mark.usefixtures("connected")
async def test_a_submit_inside_a_handler_goes_to_the_shard_of_its_task(shards: Shards) -> None:
    routes: list[tuple[str, str | None]] = []
    second: TaskHandler[Any, Any, Any] = TaskHandler("second", lambda: None)

    async def first(ctx: Context) -> None:
        routes.append((str(await second.submit_async()), ctx.headers.get("route")))

    shards.handler("first", first)
    first_handler: TaskHandler[Any, Any, Any] = TaskHandler("first", first)
    for route in (EU, US):
        await first_handler.options(route=route).submit_async()
    await shards.work()
    assert sorted(routes) == [("eu:2", EU), ("us:2", US)]
    headers = {shard: [row.headers for row in await shards._rows(shard, "task")] for shard in ("eu", "us")}
    assert {shard: read_headers(rows[0]) for shard, rows in headers.items()} == {
        "eu": {"route": EU},
        "us": {"route": US},
    }


async def test_a_child_runs_in_the_shard_of_its_caller_alone(shards: Shards) -> None:
    ends: list[str] = []

    async def parent(ctx: Context, route: str | None) -> str:
        try:
            return str(await ctx.call("child", NewTask("child", route=route)))
        except TwoShards as error:
            ends.append(str(error))
            raise Dead("another shard") from None

    shards.handler("parent", parent)
    shards.handler("child", lambda ctx: ctx.headers.get("route"))
    for shard, own in (("eu", EU), ("us", US)):
        for route in (EU, US, None):
            payload = json.dumps({"route": route})
            task = NewTask("parent", payload, headers=json.dumps({"route": own}))
            await shards.databases[shard].write(submit, task)
    await shards.work()
    for shard, own in (("eu", EU), ("us", US)):
        children = [row for row in await shards._rows(shard, "history") if row.handler == "child"]
        assert [row.result for row in children] == [f'"{own}"'] * 2
    assert sorted(ends) == [
        f"This submit needs two shards: route '{route}' is in {other}, and task {id}, which calls its task, in {own}. "
        "Unique keys, order keys, limits, dependencies and transactions hold within one shard; nothing was submitted."
        for route, other, id, own in ((US, "us", 2, "eu"), (EU, "eu", 1, "us"))
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("connected")
async def test_a_runner_until_idle_waits_for_the_shards_that_the_last_task_submits_to(shards: Shards) -> None:
    ran: list[str] = []

    async def hop(ctx: Context, left: int) -> None:
        ran.append(ctx.headers["route"])
        if left:
            await asyncio.sleep(0.3)
            route = US if ctx.headers["route"] == EU else EU
            await hopper.options(route=route).submit_async(left=left - 1)

    shards.handler("hop", hop)
    hopper: TaskHandler[Any, Any, Any] = TaskHandler("hop", hop)
    await hopper.options(route=EU).submit_async(left=3)
    await shards.work()
    assert ran == [EU, US, EU, US]


async def test_resources_are_opened_once_for_all_shards(shards: Shards) -> None:
    opened: list[int] = []

    @resource
    async def number_of_test() -> AsyncIterator[int]:
        opened.append(1)
        yield len(opened)
        opened.append(-1)

    used: list[int] = []

    async def use(number_of_test=injected) -> None:  # type: ignore[no-untyped-def] # by its name
        used.append(number_of_test)

    try:
        shards.handler("use", use)
        for shard in ("eu", "us"):
            await shards.submit(shard, "use", 3)
        await shards.work()
    finally:
        RESOURCES.remove("number_of_test")
    assert (opened, used) == ([1, -1], [1] * 6)


async def test_a_drain_of_the_runner_of_one_shard_ends_the_process(shards: Shards) -> None:
    shards.handler("note", lambda: None)
    engines = shards.engines()
    run = asyncio.ensure_future(engines.run())
    await until(lambda: all(part.lease.id for part in engines.parts))
    await shards.databases["us"].write(
        send_command, engines.by_shard["us"].lease.id, str(RunnerCommand(drain=True)), Actor("ana", "desk", "")
    )
    async with asyncio.timeout(WAIT_SECONDS):
        assert await run


async def test_each_shard_registers_the_slots_of_the_process(shards: Shards) -> None:
    shards.handler("note", lambda: None)
    async with shards.running(concurrency=7, threads=3) as engines:
        await until(lambda: all(part.lease.id for part in engines.parts))
        capacities = [row.capacity for shard in ("eu", "us") for row in await shards._rows(shard, "runner")]
    assert capacities == [10, 10]


def test_external_executors_do_not_serve_shards(tmp_path: Path) -> None:
    config = write_config(tmp_path / "config.toml", {"eu": "sqlite:///eu.db", "us": "sqlite:///us.db"})
    settings = load(profile="orders", config=config, executors=["cpu=concurrent.futures:ThreadPoolExecutor"])
    handlers = {"work": Handler("work", lambda: None, Options(executor="cpu"))}
    with pytest.raises(InvalidSettings, match="external executors do not serve a profile with shards"):
        ShardEngines(settings, handlers)


async def test_a_started_event_names_the_shard(shards: Shards, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(TaskFilter())
    caplog.set_level("INFO", "runner")
    shards.handler("note", lambda: None)
    await shards.work()
    started = [record for record in caplog.records if getattr(record, "event", "") == "started"]
    assert sorted(getattr(record, "shard", "") for record in started) == ["eu", "us"]


@pytest.mark.usefixtures("connected")
async def test_one_shard_owns_each_schedule(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SCHEDULES, "_schedules", {})
    ids, names = [f"report.{number}" for number in range(6)], ("eu", "us")

    def report() -> None: ...

    shards.handler("report", report)
    for id in ids:
        schedule(every="1h", id=id)(TaskHandler("report", report))
    async with shards.running() as engines:
        await until(lambda: all(part.claimer.open for part in engines.parts))
        await schedules.add_async("report.own", "report", every="1h")
        rows = {name: [row.id for row in await shards._rows(name, "schedule")] for name in names}
        assert sorted(row.id for row in await schedules.all_async()) == [*ids, "report.own"]
    assert {name: sorted(rows[name]) for name in names} == {
        name: [id for id in [*ids, "report.own"] if by_hash(id, names) == name] for name in names
    }
    assert min(map(len, rows.values())) > 0


@pytest.mark.usefixtures("connected")
async def test_a_schedule_that_a_new_shard_owns_is_paused_in_the_other(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SCHEDULES, "_schedules", {})

    def report() -> None: ...

    id = next(id for id in (f"report.{number}" for number in range(20)) if by_hash(id, ("eu", "us")) == "us")
    shards.handler("report", report)
    schedule(every="1h", id=id)(TaskHandler("report", report))
    alone = Engine(load(profile="eu", config=shards.profile.config, **QUICK), shards.handlers)
    async with at_work(alone):
        await until(lambda: alone.claimer.open)
    async with shards.running() as engines:
        await until(lambda: all(part.claimer.open for part in engines.parts))
    (eu,), (us,) = [await shards._rows(name, "schedule") for name in ("eu", "us")]
    assert (eu.paused_by, us.paused_by) == ("runner", None)
    assert f"schedule {id} belongs to the shard us: it is paused here" in caplog.text


@EACH_PAIR
async def test_a_runner_in_a_program_runs_the_tasks_of_all_shards(shards: Shards) -> None:
    ran: list[str] = []

    def note(shard: str) -> None:
        ran.append(shard)

    shards.handler("note", note)
    for shard in ("eu", "us"):
        await shards.submit(shard, "note", 2, shard=shard)
    async with Runner(shards.handlers.values(), settings=shards.profile.settings(**QUICK), concurrency=3) as runner:
        await until(lambda: len(ran) == 4)
        assert runner.id > 0
    assert sorted(ran) == ["eu", "eu", "us", "us"]
    assert [await shards.finished(shard) for shard in ("eu", "us")] == [2, 2]


def test_a_runner_in_a_program_names_a_profile_with_shards(profile: Sharded) -> None:
    ran: list[str] = []

    def note(shard: str) -> None:
        ran.append(shard)

    async def submit_to(shard: str) -> None:
        database = Database.open(profile.urls[shard])
        await database.write(submit, NewTask("note", json.dumps({"shard": shard})))
        await database.dispose()

    for shard in ("eu", "us"):
        asyncio.run(submit_to(shard))
    runner = Runner([Handler("note", note, Options())], profile="orders", config=str(profile.config))
    assert asyncio.run(runner.run(until_idle=True))
    assert sorted(ran) == ["eu", "us"]
