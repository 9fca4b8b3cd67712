"""Capacity and simulations from the tables: arrivals, durations, backlog, slots and bounds."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, timedelta
from random import Random

import pytest

from runner.db.database import Database
from runner.db.sql_text import Recording
from runner.db.transaction import clock
from runner.handlers.chunk import Chunk, ChunkOption
from runner.handlers.parameters import stored_signatures
from runner.handlers.registry import Handler, Options
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.policy.capacity import CapacityRow, Pool
from runner.policy.claim_order import parse_order
from runner.policy.lanes import Lane
from runner.policy.retry import Retries, parse_plan
from runner.policy.simulation import SimulatedLane, Simulation, Waiting, in_order
from runner.queries.capacity import CAPACITY_COLUMNS, MOST_TENANTS, TENANT_COLUMNS, capacity, drained_in
from runner.queries.counting import Count
from runner.queries.simulation import changed, present, read_changes
from runner.queries.task.detail import task_detail, task_fields
from runner.store.registration import Identity, register
from runner.text.columns import cells
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_live, add_runner, ahead
from tests.store.runners import Runner
from tests.store.table import put_many
from tests.store.test_limits import limit, take, tasks_of


@dataclass
class Mail:
    to: str


BY = Actor("ana", "web-1", "")


async def rows(database: Database, **options: str) -> dict[str, CapacityRow]:
    result = await database.read(capacity, **options)  # type: ignore[arg-type]
    return {row.name: row for row in result.rows}


@pytest.fixture
async def busy(database: Database) -> Database:
    """600 tasks of 3 s ended in the last 10 minutes; 20 are due, and 10 slots and 4 threads serve them."""
    at = await database.read(clock)
    for ago in range(1, 10):
        minute = Minute(at - timedelta(minutes=ago), "mail", "send")
        minute.counts |= {"submitted": 100, "succeeded": 100, "retried": 10}
        for _ in range(110):
            minute.durations.add([3.0])
        await database.write(write_statistics, 1, [minute], {})
    for _ in range(20):
        await add_live(database, "send", queue="mail", run_at=ahead(-77), submitted_at=ahead(-3600), fence=1)
    await add_live(database, "send", queue="mail", run_at=ahead(600), submitted_at=ahead(-3600), fence=1)
    await add_runner(database, handlers='["send", "make"]', threaded='["make"]', capacity=14, threads=4)
    await add_runner(database, handlers='["send"]', capacity=99, command="drain")
    await add_runner(database, lease=-9, handlers='["send"]', capacity=99)
    return database


async def test_live_slots_and_measured_durations_give_the_capacity(busy: Database) -> None:
    (row,) = (await rows(busy)).values()
    assert (row.name, row.slots, row.demand.backlog, row.bound.name) == ("mail", 10, 20, "slots")
    assert row.demand.seconds == pytest.approx(3.0)
    assert row.per_minute == pytest.approx(200.0)
    assert 77 <= row.demand.oldest < 200
    # The rates cover the time since the first statistics, so that a new installation is not underestimated.
    assert 85 < row.demand.arrivals <= 100
    assert row.demand.attempts == pytest.approx(1.1 * row.demand.arrivals)
    assert row.drained_in == pytest.approx(20 / (200 - row.demand.attempts))
    # 200 attempts a minute with 1.1 attempts per task.
    assert row.per_day == pytest.approx(1_440 * 200 / 1.1)
    assert cells(CAPACITY_COLUMNS, row)[2:4] == ["200", "261,818"]


async def test_a_chunk_takes_one_slot(busy: Database) -> None:
    async def send(chunk: Chunk[Mail]) -> None: ...

    signatures = stored_signatures({"send": Handler("send", send, Options(chunk=ChunkOption(50, 0.2)))})
    await busy.write(register, Identity("web-1", 1, "1", ["send"], 4, signatures=signatures), 60.0)
    (row,) = (await rows(busy)).values()
    assert row.demand.seconds == pytest.approx(3.0)
    assert row.demand.per_slot == 50
    detail = await busy.read(task_detail, 1)
    assert dict(task_fields(detail, UTC))["chunk"] == "up to 50 tasks, 200ms after the first one"
    await limit(busy, "queue", "mail", concurrency="20")
    assert (await rows(busy))["mail"].demand.per_slot == 20


async def test_the_latest_durations_count(busy: Database) -> None:
    at = await busy.read(clock)
    minute = Minute(at - timedelta(minutes=30), "mail", "send")
    minute.counts |= {"submitted": 900, "succeeded": 900}
    for _ in range(900):
        minute.durations.add([0.1])
    await busy.write(write_statistics, 1, [minute], {})
    (row,) = (await rows(busy)).values()
    assert row.demand.seconds == pytest.approx(3.0)


async def test_limits_pauses_and_missing_runners_decide(busy: Database) -> None:
    await limit(busy, "queue", "mail", concurrency="2")
    (row,) = (await rows(busy)).values()
    assert row.bound.name == "queue mail: at most 2 running"
    assert row.per_minute == pytest.approx(40.0)
    assert drained_in(row).startswith("not at this rate: +")
    await busy.write(pause, PauseTarget(PauseKind.HANDLER, "send"), BY)
    await add_live(busy, "unknown", queue="other", run_at=ahead(-9), submitted_at=ahead(-3600))
    by_handler = await rows(busy, by="handler")
    assert by_handler["send"].bound.name == "handler send is paused"
    assert by_handler["unknown"].bound.name == "no runner takes unknown"


async def test_a_large_backlog_is_counted_with_the_same_statements(busy: Database) -> None:
    numbers = []
    for _ in range(2):
        async with busy.reading() as tx:
            recording = Recording(tx)
            (row,) = (await capacity(recording)).rows
            numbers.append(len(recording.executed))
        await put_many(busy, 500, "send", queue="mail")
    assert row.demand.backlog == 520
    assert numbers[1] <= numbers[0] < 25


@pytest.mark.slow
async def test_the_worst_tenants_at_their_limit_are_listed(busy: Database) -> None:
    await limit(busy, "queue", "mail", per_tenant="2")
    for number, (tenant, running) in enumerate([("acme", 2), ("zeta", 3), ("calm", 1), ("idle", 2), (None, 9)]):
        for _ in range(running):
            await add_live(busy, "send", queue="mail", tenant=tenant, state="running", fence=1)
        for wait in range(0 if tenant == "idle" else 10 * (number + 1)):
            await add_live(busy, "send", queue="mail", tenant=tenant, run_at=ahead(-500 - 100 * number - wait))
        await add_live(busy, "send", queue="mail", tenant=tenant, run_at=ahead(900))
    (tenants,) = (await busy.read(capacity)).tenants
    assert str(tenants) == "queue mail: 2 tenants wait at the limit of 2 running"
    zeta, acme = tenants.rows
    assert (zeta.tenant, zeta.running, zeta.backlog, acme.backlog) == ("zeta", 3, Count(20), Count(10))
    assert 619 <= zeta.oldest < 700
    # 20 tasks of 3 s, two at a time.
    assert zeta.drained_in == pytest.approx(0.5)
    assert [cells(TENANT_COLUMNS, acme)[at] for at in (0, 1, 2, 4)] == ["acme", "2 of 2", "10", "15s"]
    await limit(busy, "queue", "mail", per_tenant="none")
    assert (await busy.read(capacity)).tenants == ()


async def test_few_of_many_tenants_at_their_limit_are_listed(busy: Database) -> None:
    await limit(busy, "handler", "send", per_tenant="1")
    for number in range(MOST_TENANTS + 2):
        await add_live(busy, "send", tenant=f"t{number}", state="running", fence=1)
        for queue in ("mail", "news"):
            await add_live(busy, "send", queue=queue, tenant=f"t{number}", run_at=ahead(-100 - number))
    (tenants,) = (await busy.read(capacity)).tenants
    assert str(tenants) == "handler send: 7 tenants wait at the limit of 1 running; the 5 with the oldest tasks"
    assert [(row.tenant, row.backlog.number) for row in tenants.rows] == [
        (f"t{number}", 2) for number in (6, 5, 4, 3, 2)
    ]
    # No attempt has ended in queue news.
    assert cells(TENANT_COLUMNS, tenants.rows[0])[-1] == "unknown"


async def test_an_empty_database_has_no_rows(database: Database) -> None:
    assert await rows(database) == {}


@pytest.mark.parametrize("text", ["strict", "aged:10s"])
async def test_the_simulated_order_is_that_of_claims(database: Database, text: str) -> None:
    random, order, at = Random(7), parse_order(text), await database.read(clock)
    lines: dict[Lane, list[tuple[float, int]]] = defaultdict(list)
    for wait in sorted((random.randint(1, 20) * 10 for _ in range(40)), reverse=True):
        lane = Lane(random.choice(["a", "b"]), "work", random.randint(1, 9))
        run_at = at - timedelta(seconds=wait)
        id = await add_live(database, "work", queue=lane.queue, priority=lane.priority, run_at=run_at)
        lines[lane].append((-wait, id))
    places = {id: (lane.priority, due) for lane, line in lines.items() for due, id in line}
    expected = []
    while heads := {lane: line[0][0] for lane, line in lines.items() if line}:
        expected.append(lines[in_order(order, heads, 0.0)[0]].pop(0)[1])
    runner = await Runner.enter(database)
    runner.who = runner.who._replace(order=order)
    runner.lanes.order = order
    claimed = [task.id for _ in range(40) for task in await runner.claim(1)]
    # Two queues may have tasks of one priority and time, which are equal.
    assert [places[id] for id in claimed] == [places[id] for id in expected]


async def test_simulated_tenants_take_turns_as_in_claims(database: Database) -> None:
    await limit(database, "queue", "mail", per_tenant="9")
    runner, line, tenants = await Runner.enter(database), SimulatedLane(has_turns=True), {}
    for number in range(12):
        tenant = "abc"[number % 3 if number < 6 else 0]
        id = await add_live(database, "work", queue="mail", tenant=tenant, run_at=ahead(number - 60))
        tenants[id] = tenant
        line.add(Waiting(number, 1, tenant))
    claimed = [tenants[id] for _ in range(12) for id in tasks_of(await take(runner, 1))]
    simulated = [item.tenant for _ in range(12) if (item := line.take(lambda _: True))]
    assert simulated == claimed
    assert claimed[:6] == list("abcabc")


async def test_a_simulation_starts_from_the_tables(busy: Database) -> None:
    await limit(busy, "queue", "mail", concurrency="5")
    today = await busy.read(present, 1.0, "30s", 5)
    work_key = ("mail", "send")
    assert today.workload.minutes in (60, 61)
    assert sum(today.workload.arrivals.values()) == 900
    assert today.workload.durations[work_key].mean == pytest.approx(3.0)
    assert today.workload.backlogs[Lane(*work_key, 1)].tasks == 20
    assert (today.runners, today.configuration.limits["queue", "mail"].running) == (1, 5)
    assert today.configuration.pools == [Pool(10, frozenset({work_key}))]
    more = changed(today, parse_order("aged"), 40, None, read_changes("limit", ["queue:mail=none"]))
    assert (str(more.order), more.pools[0].size, more.limits["queue", "mail"].running) == ("aged", 40, None)
    assert changed(today, None, None, 3, []).pools[0].size == 30
    before, after = (Simulation(today.workload, each).run()["mail"] for each in (today.configuration, more))
    assert before.tasks == after.tasks == 920
    # The 20 due tasks of 3 s start together in 40 slots, and the last of them after 9 s under the limit of 5.
    assert before.drained == pytest.approx(9.0)
    assert after.drained == pytest.approx(0.0)


async def test_failed_attempts_of_a_simulation_follow_the_stored_retry_plan(busy: Database) -> None:
    async def retries() -> Retries:
        return (await busy.read(present, 1.0, "7s", 3)).workload.retries["mail", "send"]

    # Of 110 attempts, 10 came back; no runner has stored a plan.
    assert await retries() == Retries.of(110, 10, parse_plan("7s"), 3)

    def fail() -> None: ...

    stored = stored_signatures({"send": Handler("send", fail, Options(retry="1m,5m"))}, "9s", 8)
    await busy.write(register, Identity("web-1", 1, "1", ["send"], 4, signatures=stored), 60.0)
    assert await retries() == Retries.of(110, 10, parse_plan("1m,5m"), 8)
    await busy.write(register, Identity("web-1", 1, "1", ["send"], 4, signatures={"send": '{"attempts": 7}'}), 60.0)
    assert (await retries()).plan == parse_plan("7s")
