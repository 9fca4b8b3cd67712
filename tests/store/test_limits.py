"""Limits of queues, handlers and tenants hold for every claim, and cost nothing without them."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.loop_statements import LoopStatements
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now, epoch_seconds
from runner.errors import DatabaseRefused
from runner.model.outcome import Release
from runner.model.task import Claimed, NewTask, State
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from runner.policy.lanes import Lane, LimitName
from runner.policy.positions import LanePosition, TenantPositions, Visit
from runner.policy.suspicion import Ask
from runner.store.claim import running_count
from runner.store.claim.ledger import charge, hold
from runner.store.claim.limited import BUSY, LimitedClaim, LimitedLanes, claim_limited, claim_limited_suspect
from runner.store.claim.plain import claim
from runner.store.claim.running_count import LastCount, RunningCount
from runner.store.claim.tenants import BEYOND, visit
from runner.store.ended_runners import end_runners
from runner.store.submit import submit, submit_many
from tests.conftest import on_postgresql
from tests.store.rows import until_locked
from tests.store.runners import Runner
from tests.store.table import change, edit, expire, put, put_many

pytestmark = pytest.mark.one_database

ANA = Actor("ana", "desk-1", "relay is back")


async def limit(database: Database, kind: str, name: str, **values: str) -> None:
    """Limit a queue or a handler, e.g. `concurrency="5"`."""
    words = {option.replace("_", "-"): value for option, value in values.items()}
    await database.write(set_limits, PauseTarget(PauseKind(kind), name), LimitEdit(words, new=True), ANA)


async def epoch(tx: Transaction) -> float:
    """The time of the database in seconds since 1970."""
    return float(await tx.scalar(sa.select(epoch_seconds())))


async def _age(database: Database, seconds: int) -> None:
    """Let the running tasks have been claimed some seconds earlier."""
    task = database.tables.task
    running = task.c.state == State.RUNNING.value
    await change(database, sa.update(task).where(running).values(claimed_at=db_later(db_now(), -seconds)))


async def count_running(tx: Transaction, lane: Lane, last: Mapping[LimitName, LastCount] | None) -> list[Any]:
    """The rows of the count of a claim from a lane."""
    names = tx.dialect.parameters("queues", {"name": [lane.queue]})
    names |= tx.dialect.parameters("handlers", {"name": [lane.handler]})
    return list(await tx.run(*RunningCount(tx, names, [lane], last).step))


def settled(last: Mapping[LimitName, LastCount]) -> dict[LimitName, LastCount]:
    """Some counts as if they had begun a minute earlier, so that the next one continues from them."""
    return {key: each._replace(begun_at=each.begun_at - 60) for key, each in last.items()}


async def take(
    runner: Runner,
    number: int = 100,
    walks: Mapping[Lane, int] = {},
    last: Mapping[LimitName, LastCount] | None = None,
) -> LimitedClaim:
    """Claim from the limited lanes after a new survey."""
    await runner.survey()
    cursors = dict(runner.lanes.limited.cursors)
    lanes = LimitedLanes(list(runner.lanes.limited.due), runner.start, cursors, walks=walks, last=last)
    result = await runner.database.write(claim_limited, runner.who, lanes, runner.terms, number)
    runner.lanes.limited.record(lanes.lanes, result.waits, result.empty, result.cursors, 0.0)
    return result


def tasks_of(result: LimitedClaim) -> list[int]:
    return [task.id for task in result.claimed]


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the round trips of statements that have no cursor of psycopg, without those that prepare one."""
    counter = Counter[str]()
    answered, prepared = LoopStatements._answered, LoopStatements._prepared

    def counted(statements: LoopStatements) -> "asyncio.Future[Any]":
        counter["all"] += 1
        return answered(statements)

    async def uncounted(statements: LoopStatements, *statement: Any) -> bytes | None:
        before = counter["all"]
        name = await prepared(statements, *statement)
        counter["all"] = before
        return name

    monkeypatch.setattr(LoopStatements, "_answered", counted)
    monkeypatch.setattr(LoopStatements, "_prepared", uncounted)
    return counter


@on_postgresql
@pytest.mark.parametrize(
    ("limits", "trips", "tasks"),
    [
        ({"concurrency": "3"}, 2, 1),
        ({"concurrency": "3", "rate": "5/s"}, 3, 1),
        ({"per_tenant": "1"}, 2, 2),
        ({"per_tenant": "1", "rate": "5/s"}, 3, 2),
    ],
    ids=["concurrency", "rate", "tenants", "tenants and rate"],
)
async def test_the_last_statement_of_a_claim_commits_it(
    database: Database, runner: Runner, round_trips: Counter[str], limits: dict[str, str], trips: int, tasks: int
) -> None:
    await TestTenants.put(database, "acme", "bolt", tasks=1)
    await limit(database, "queue", "mail", **limits)
    first = await take(runner, 10)
    await TestTenants.put(database, "cube", "dodo", tasks=1)
    await runner.survey()
    lanes = LimitedLanes(
        list(runner.lanes.limited.due),
        runner.start,
        dict(runner.lanes.limited.cursors),
        with_tenants=first.others,
        walks=first.walks,
    )
    round_trips.clear()
    second = await database.write(claim_limited, runner.who, lanes, runner.terms, 10)
    assert (len(first.claimed), len(second.claimed), round_trips["all"]) == (2, tasks, trips)
    running = sa.select(sa.func.count()).where(database.tables.task.c.state == State.RUNNING.value)
    async with database.reading() as tx:
        assert await tx.scalar(running) == 2 + tasks


@on_postgresql
async def test_the_charges_of_a_claim_from_two_lanes_are_in_its_transaction(
    database: Database, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("mail", "sms"):
        await put_many(database, 2, queue=queue)
    await limit(database, "queue", "mail", concurrency="3")
    await limit(database, "queue", "sms", rate="5/s")

    async def refuse(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("runner.store.claim.limited.charge", refuse)
    with pytest.raises(ZeroDivisionError):
        await take(runner)
    running = sa.select(sa.func.count()).where(database.tables.task.c.state == State.RUNNING.value)
    async with database.reading() as tx:
        assert await tx.scalar(running) == 0


class TestConcurrency:
    """At most n tasks of a queue or of a handler run at the same time."""

    async def test_a_queue_runs_no_more_tasks_than_its_limit(self, database: Database, runner: Runner) -> None:
        first, *_ = await put_many(database, 10, queue="mail")
        await limit(database, "queue", "mail", concurrency="3")
        result = await take(runner)
        assert tasks_of(result) == [first, first + 1, first + 2]
        assert set(result.waits.values()) == {inf}
        assert tasks_of(await take(runner)) == []
        await runner.end(result.claimed[0])
        assert tasks_of(await take(runner)) == [first + 3]

    @pytest.mark.both_databases
    async def test_a_limit_holds_although_the_last_claim_counted_nothing(
        self, database: Database, runner: Runner
    ) -> None:
        await put_many(database, 10, queue="mail")
        await limit(database, "queue", "mail", rate="100/s")
        lanes = LimitedLanes([Lane("mail", "work", 1)], runner.start)
        first = await database.write(claim_limited, runner.who, lanes, runner.terms, 2)
        assert (len(first.claimed), first.counts) == (2, False)
        await limit(database, "queue", "mail", concurrency="3")
        uncounted = lanes._replace(counts=first.counts)
        second = await database.write(claim_limited, runner.who, uncounted, runner.terms, 10)
        assert (len(second.claimed), second.counts) == (1, True)

    @pytest.mark.both_databases
    @pytest.mark.parametrize("age", [0, 60], ids=["claimed just now", "claimed long ago"])
    async def test_a_limit_holds_if_a_count_continues_from_the_last_one(
        self, database: Database, runner: Runner, age: int
    ) -> None:
        await put_many(database, 10, queue="mail")
        await limit(database, "queue", "mail", concurrency="4")
        first = await take(runner, 2, last={})
        await _age(database, age)
        second = await take(runner, 1, last={})
        assert set(second.last) == {("queue", "mail")}
        assert len(second.last["queue", "mail"].older or ()) == (2 if age else 0)
        other = await Runner.enter(database, host="other")
        assert len((await take(other, 10, last=settled(second.last))).claimed) == 1
        full = await take(runner, 10, last=settled(second.last))
        assert full.claimed == []
        await runner.end(first.claimed[0])
        await runner.end(second.claimed[0])
        assert len((await take(runner, 10, last=settled(full.last))).claimed) == 2

    @pytest.mark.both_databases
    async def test_a_count_has_the_tasks_of_a_runner_that_was_lost_since(
        self, database: Database, runner: Runner
    ) -> None:
        await put_many(database, 10, queue="mail")
        await limit(database, "queue", "mail", concurrency="4")
        last = settled((await take(runner, 1, last={})).last)
        lost = await Runner.enter(database, host="lost")
        assert len((await take(lost, 2)).claimed) == 2
        await database.write(end_runners, [lost.id], lost=True)
        assert len((await take(runner, 10, last=last)).claimed) == 1

    @pytest.mark.both_databases
    async def test_too_many_running_tasks_are_counted_in_one_round_trip(
        self, database: Database, runner: Runner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(running_count, "MOST_OLDER", 1)
        await put_many(database, 10, queue="mail")
        await limit(database, "queue", "mail", concurrency="4")
        assert len((await take(runner, 2, last={})).claimed) == 2
        await _age(database, 60)
        second = await take(runner, 1, last={})
        assert [each.older for each in second.last.values()] == [None]
        third = await take(runner, 10, last=settled(second.last))
        assert (len(third.claimed), [each.older for each in third.last.values()]) == (1, [None])

    @pytest.mark.both_databases
    async def test_a_limit_that_the_last_count_did_not_know_counts_all_tasks(
        self, database: Database, runner: Runner
    ) -> None:
        await put_many(database, 2, queue="news")
        await put_many(database, 10, queue="mail")
        await limit(database, "queue", "mail", concurrency="9")
        await limit(database, "queue", "news", concurrency="9")
        assert len((await take(runner, 2, last={})).claimed) == 2
        await _age(database, 60)
        last = settled({("queue", "mail"): (await take(runner, 1, last={})).last["queue", "mail"]})
        await limit(database, "handler", "work", concurrency="4")
        assert len((await take(runner, 10, last=last)).claimed) == 1

    @pytest.mark.both_databases
    @pytest.mark.parametrize("later", [0, 8], ids=["now", "seconds later"])
    async def test_a_clock_that_was_set_back_lets_a_count_read_all_tasks(
        self, database: Database, runner: Runner, later: int
    ) -> None:
        await put_many(database, 10, queue="mail")
        await limit(database, "queue", "mail", concurrency="4")
        last = settled((await take(runner, 1, last={})).last)
        await take(await Runner.enter(database, host="other"), 2)
        await _age(database, 9)
        # As if the clock had gone back by nine seconds before the second claim, and this one came some seconds later.
        moved = {
            key: each._replace(locked_at=each.locked_at + 9 - later, taken_at=each.taken_at - later)
            for key, each in last.items()
        }
        assert len((await take(runner, 10, last=moved)).claimed) == 1

    @pytest.mark.both_databases
    async def test_a_claim_starts_at_its_old_position(self, database: Database, runner: Runner) -> None:
        first, *_ = await put_many(database, 4, queue="mail")
        await limit(database, "queue", "mail", concurrency="9")
        lane = Lane("mail", "work", 1)
        lanes = LimitedLanes([lane], runner.start)
        result = await database.write(claim_limited, runner.who, lanes, runner.terms, 2)
        (released, last) = result.claimed
        await runner.end(released, Release())
        after = lanes._replace(passed={lane: LanePosition(last.run_at, last.id)})
        assert tasks_of(await database.write(claim_limited, runner.who, after, runner.terms, 1)) == [first + 2]
        await limit(database, "queue", "mail", per_tenant="5")  # for tasks without a tenant
        assert tasks_of(await database.write(claim_limited, runner.who, after, runner.terms, 1)) == [first + 3]

    async def test_a_plain_claim_never_takes_from_a_limited_lane(self, database: Database, runner: Runner) -> None:
        await put_many(database, 3, queue="mail")
        await runner.survey()
        await limit(database, "queue", "mail", concurrency="1")  # after the survey
        assert await runner.claim_on() == []
        await runner.survey()
        assert not runner.lanes.positions
        assert len(runner.lanes.limited.due) == 1

    async def test_both_limits_of_a_lane_hold(self, database: Database) -> None:
        runner = await Runner.enter(database, "a", "b")
        tasks = [NewTask(handler, queue=queue) for queue in ("q1", "q2") for handler in ("a", "b") for _ in range(6)]
        await database.write(submit_many, tasks)
        await limit(database, "queue", "q1", concurrency="5")
        await limit(database, "handler", "a", concurrency="4")
        claimed: list[Claimed] = []
        while result := (await take(runner)).claimed:
            claimed += result
        assert Counter(task.queue for task in claimed)["q1"] == 5
        assert Counter(task.handler for task in claimed)["a"] == 4

    async def test_a_limit_holds_over_the_tasks_of_all_hosts(self, database: Database) -> None:
        tasks = [NewTask("work", queue="mail", hosts=hosts, tenant="acme") for hosts in ("", "web-1", "web-2") * 3]
        await database.write(submit_many, tasks)
        await limit(database, "queue", "mail", concurrency="4")
        one, two = [await Runner.enter(database, host=f"web-{number}") for number in (1, 2)]
        claimed = (await take(one)).claimed
        assert {task.hosts for task in claimed} == {"", "web-1"}
        assert len(claimed) == 4
        assert (await take(two)).claimed == []
        await one.end(claimed[0])
        assert len((await take(two)).claimed) == 1

    async def test_tasks_are_claimed_in_the_order_of_their_lanes(self, database: Database) -> None:
        runner = await Runner.enter(database, "a", "b")
        order = [("a", 1), ("b", 9), ("b", 1), ("a", 1), ("b", 1)]
        ids = await database.write(submit_many, [NewTask(name, queue="q", priority=high) for name, high in order])
        await limit(database, "queue", "q", concurrency="4")
        assert tasks_of(await take(runner)) == [ids[1], ids[0], ids[2], ids[3]]

    async def test_a_rescued_task_makes_room(self, database: Database, runner: Runner) -> None:
        await put_many(database, 4, queue="mail")
        await limit(database, "queue", "mail", concurrency="2")
        lost = await Runner.enter(database, host="lost")
        assert len((await take(lost)).claimed) == 2
        assert tasks_of(await take(runner)) == []
        await expire(database, lost.id)
        await runner.rescue()
        assert len((await take(runner)).claimed) == 2

    async def test_concurrent_claims_share_one_limit(self, database: Database, rival: Database) -> None:
        await put_many(database, 60, queue="mail")
        await limit(database, "queue", "mail", concurrency="7")
        runners = [await Runner.enter(base, host=str(number)) for base in (database, rival) for number in range(3)]
        claims = await asyncio.gather(*(take(runner, 5) for runner in runners for _ in range(3)))
        assert 5 <= sum(len(result.claimed) for result in claims) <= 7
        assert len((await take(runners[0])).claimed) <= 2

    @on_postgresql
    async def test_a_claim_does_not_wait_for_another_one(self, database: Database, rival: Database) -> None:
        await put_many(database, 4, queue="mail")
        await limit(database, "queue", "mail", concurrency="2")
        runner = await Runner.enter(database)
        async with rival.writing() as tx:
            queue = tx.tables.queue
            await tx.rows(sa.select(queue.c.name).with_for_update())
            result = await take(runner)
        assert (tasks_of(result), set(result.waits.values())) == ([], {0.01})
        assert len((await take(runner)).claimed) == 2

    async def test_a_suspect_counts_too(self, database: Database, runner: Runner) -> None:
        suspect, _ = await put_many(database, 2, queue="mail")
        await edit(database, suspect, rescues=2)
        await limit(database, "queue", "mail", concurrency="1")
        assert await runner.claim_suspect() == []
        lanes = LimitedLanes(list(runner.lanes.limited.due), runner.start)
        claimed = (await database.write(claim_limited_suspect, runner.who, lanes, runner.terms, Ask(1, 1))).claimed
        assert [task.id for task in claimed] == [suspect]
        assert tasks_of(await take(runner)) == []

    async def test_removing_a_limit_returns_its_lanes_to_plain_claims(self, database: Database, runner: Runner) -> None:
        await put_many(database, 3, queue="mail")
        await limit(database, "queue", "mail", concurrency="1")
        await limit(database, "queue", "mail", concurrency="none")
        assert len(await runner.claim()) == 3


class TestTenants:
    """At most n tasks of each tenant run at the same time; the others of the lane go on."""

    @staticmethod
    async def put(database: Database, *tenants: str | None, tasks: int = 5) -> dict[int, str | None]:
        new = [NewTask("work", queue="mail", tenant=tenant) for tenant in tenants for _ in range(tasks)]
        ids = await database.write(submit_many, new)
        return {id: task.tenant for id, task in zip(ids, new, strict=True)}

    async def test_a_full_tenant_does_not_stop_the_others(self, database: Database, runner: Runner) -> None:
        tenants = await self.put(database, "acme", "bolt", "cube")
        await limit(database, "queue", "mail", per_tenant="2")
        result = await take(runner)
        assert Counter(tenants[id] for id in tasks_of(result)) == {"acme": 2, "bolt": 2, "cube": 2}
        assert tasks_of(await take(runner)) == []
        await runner.end(next(task for task in result.claimed if tenants[task.id] == "bolt"))
        assert [tenants[id] for id in tasks_of(await take(runner))] == ["bolt"]

    @pytest.mark.both_databases
    async def test_suspects_share_the_limit_of_their_tenant(self, database: Database, runner: Runner) -> None:
        tenants = await self.put(database, "acme", "bolt", tasks=3)
        for id in tenants:
            await edit(database, id, rescues=2)
        await limit(database, "queue", "mail", per_tenant="2")
        await runner.survey()
        lanes = LimitedLanes(list(runner.lanes.limited.due), runner.start)

        async def claim_suspects() -> list[str | None]:
            request = (runner.who, lanes, runner.terms, Ask(16, 1))
            result = await database.write(claim_limited_suspect, *request)
            return [tenants[task.id] for task in result.claimed]

        turns = [await claim_suspects() for _ in range(6)]
        assert turns == [["acme"], ["acme"], ["bolt"], ["bolt"], [], []]

    async def test_tenants_take_turns(self, database: Database, runner: Runner) -> None:
        tenants = await self.put(database, "acme", "bolt", "cube")
        await limit(database, "queue", "mail", per_tenant="5")
        turns = [[tenants[id] for id in tasks_of(await take(runner, 2))] for _ in range(4)]
        assert Counter(tenant for turn in turns for tenant in turn) in (
            {"acme": 3, "bolt": 3, "cube": 2},
            {"acme": 3, "bolt": 2, "cube": 3},
            {"acme": 2, "bolt": 3, "cube": 3},
        )

    @pytest.mark.both_databases
    @pytest.mark.parametrize("visits", [0, 1, 2, 100], ids="{} visits with the locks".format)
    async def test_a_walk_that_travels_with_the_locks_claims_the_same(
        self, database: Database, runner: Runner, visits: int
    ) -> None:
        tenants = await self.put(database, "acme", "bolt", "cube")
        await limit(database, "queue", "mail", per_tenant="1")
        await runner.survey()
        (lane,) = runner.lanes.limited.due
        lanes = LimitedLanes([lane], runner.start, {lane: "acme"}, walks={lane: visits})
        first = await database.write(claim_limited, runner.who, lanes, runner.terms, 2)
        rest = await database.write(claim_limited, runner.who, lanes, runner.terms, 10)
        assert [[tenants[id] for id in tasks_of(each)] for each in (first, rest)] == [["bolt", "cube"], ["acme"]]

    @pytest.mark.both_databases
    @pytest.mark.parametrize("most", [1, 2, 100], ids="{} visits".format)
    async def test_a_walk_from_positions_finds_the_same_tenants(
        self, database: Database, runner: Runner, most: int
    ) -> None:
        """Those of known tenants from their positions on, and those of all others."""
        await self.put(database, "b", "d", "f", "h", tasks=1)
        lane = Lane("mail", "work", 1)
        positions = TenantPositions(runner.start)
        tour = await database.read(visit, lane, "", 100)
        positions.meet([*tour.visits, Visit("c", True, tour.visits[0].first)], 0.0)
        await limit(database, "queue", "mail", per_tenant="1")
        for _ in range(2):
            await take(runner, 2)
        new = await self.put(database, "a", "e", "h", "i", "j", tasks=2)

        async def met(after: str) -> list[str]:
            met_tenants = list[str]()
            while len(met_tenants) < 5:
                tour = await database.read(visit, lane, after, most, None, positions)
                met_tenants += [each.tenant for each in tour.visits]
                positions.meet(tour.visits, 0.0)
                assert all(each.first.id in new for each in tour.visits)
                after = met_tenants[-1]
            return met_tenants[:5]

        assert await met("") == ["a", "e", "h", "i", "j"]
        assert await met("e") == ["h", "i", "j", "a", "e"]
        tour = await database.read(visit, lane, "e", 100, None, positions)
        assert ([each.tenant for each in tour.visits], tour.complete) == (["h", "i", "j", "a", "e"], True)

    @pytest.mark.both_databases
    async def test_a_walk_visits_all_tenants_between_known_ones(self, database: Database, runner: Runner) -> None:
        await self.put(database, "b", "f", tasks=1)
        lane, positions = Lane("mail", "work", 1), TenantPositions(runner.start)
        positions.meet((await database.read(visit, lane, "", 9)).visits, 0.0)
        await self.put(database, "c", "d", "e", tasks=1)
        for after, found in (("", "bcdef"), ("d", "efbcd")):
            tour = await database.read(visit, lane, after, 9, None, positions)
            assert ("".join(each.tenant for each in tour.visits), tour.complete) == (found, True)

    @pytest.mark.both_databases
    async def test_a_scheduled_task_hides_no_task_of_its_tenant(self, database: Database, runner: Runner) -> None:
        await database.write(submit, NewTask("work", queue="mail", tenant="acme", delay=3600))
        await limit(database, "queue", "mail", per_tenant="1")
        lane, positions = Lane("mail", "work", 1), TenantPositions(runner.start)
        tour = await database.read(visit, lane, "", 9)
        assert [each.due for each in tour.visits] == [False]
        positions.meet(tour.visits, 0.0)
        assert positions.following("", 9, 99.0)[0].old > runner.start
        (task,) = await self.put(database, "acme", tasks=1)
        lanes = LimitedLanes([lane], runner.start, tenants={lane: positions})
        assert tasks_of(await database.write(claim_limited, runner.who, lanes, runner.terms, 9)) == [task]

    @on_postgresql
    async def test_a_walk_past_known_tenants_without_tasks_takes_few_statements(
        self, database: Database, runner: Runner, round_trips: Counter[str]
    ) -> None:
        await self.put(database, "a", "z", tasks=1)
        lane, positions = Lane("mail", "work", 1), TenantPositions(runner.start)
        first = (await database.read(visit, lane, "", 1)).visits[0].first
        positions.meet([Visit(f"b{number:03}", True, first) for number in range(500)], 0.0)
        round_trips.clear()
        tour = await database.read(visit, lane, "b", 50, None, positions)
        assert ([each.tenant for each in tour.visits], tour.complete) == (["z", "a"], True)
        assert round_trips["all"] == 5 + 1, "100 known tenants each, and the first ones"

    @pytest.mark.both_databases
    async def test_a_claim_starts_at_the_position_of_each_tenant(self, database: Database, runner: Runner) -> None:
        first, second, other = await self.put(database, "acme", "acme", "bolt", tasks=1)
        await limit(database, "queue", "mail", per_tenant="1")
        lane, positions = Lane("mail", "work", 1), TenantPositions(runner.start)
        lanes = LimitedLanes([lane], runner.start, tenants={lane: positions})
        result = await database.write(claim_limited, runner.who, lanes, runner.terms, 9)
        assert tasks_of(result) == [first, other]
        positions.meet(result.visits[lane], 0.0)
        positions.advance("acme", LanePosition(result.claimed[0].run_at, first), 9.0)
        positions.following("", 9, 19.0)
        for task in result.claimed:
            await runner.end(task, Release())
        result = await database.write(claim_limited, runner.who, lanes, runner.terms, 9)
        assert tasks_of(result) == [second, other], "the task before the position waits for a survey"

    async def test_tasks_of_a_tenant_run_in_order(self, database: Database, runner: Runner) -> None:
        tenants = await self.put(database, "acme", "bolt")
        await limit(database, "queue", "mail", per_tenant="3")
        tasks = tasks_of(await take(runner))
        for tenant in ("acme", "bolt"):
            ids = sorted(id for id, name in tenants.items() if name == tenant)
            assert [id for id in tasks if tenants[id] == tenant] == ids[:3]

    async def test_tasks_without_a_tenant_are_not_limited_by_tenant(self, database: Database, runner: Runner) -> None:
        tenants = await self.put(database, "acme", None)
        await limit(database, "queue", "mail", per_tenant="1")
        numbers: Counter[str | None] = Counter()
        for _ in range(8):
            numbers.update(tenants[id] for id in tasks_of(await take(runner, 4)))
        assert numbers == {"acme": 1, None: 5}

    async def test_tasks_without_a_tenant_have_a_turn_in_each_round(self, database: Database, runner: Runner) -> None:
        tenants = await self.put(database, "acme", "bolt", None)
        await limit(database, "queue", "mail", per_tenant="5")
        turns = [tenants[id] for _ in range(9) for id in tasks_of(await take(runner, 1))]
        assert turns == [None, "acme", "bolt"] * 3

    async def test_a_lane_that_had_no_task_without_a_tenant_looks_for_them_last(
        self, database: Database, runner: Runner
    ) -> None:
        tenants = await self.put(database, "acme")
        await limit(database, "queue", "mail", per_tenant="1")
        first = await take(runner, 1)
        assert [tenants[id] for id in tasks_of(first)] == ["acme"]
        (lane,) = first.others
        none = await put(database, queue="mail")
        lanes = LimitedLanes([lane], runner.start, with_tenants=first.others)
        second = await database.write(claim_limited, runner.who, lanes, runner.terms, 10)
        assert (tasks_of(second), second.others) == ([none], {}), "the tenant is full"
        third = await database.write(claim_limited, runner.who, lanes, runner.terms, 10)
        assert (tasks_of(third), third.others) == ([], {lane: None})

    @pytest.mark.both_databases
    async def test_a_tenant_whose_task_no_claim_takes_does_not_stop_the_others(
        self, database: Database, runner: Runner
    ) -> None:
        suspect, other = await self.put(database, "acme", "bolt", tasks=1)
        await edit(database, suspect, rescues=2)
        await limit(database, "queue", "mail", per_tenant="5")
        turns = [tasks_of(await take(runner, 1)) for _ in range(3)]
        assert [other] in turns

    @pytest.mark.both_databases
    async def test_a_claim_of_one_task_alone_that_takes_nothing_has_room(
        self, database: Database, runner: Runner
    ) -> None:
        (suspect,) = await self.put(database, "acme", tasks=1)
        await edit(database, suspect, rescues=2)
        await limit(database, "queue", "mail", per_tenant="5")
        await runner.survey()
        lanes = LimitedLanes(list(runner.lanes.limited.due), runner.start)
        alone = runner.who._replace(selection=runner.who.selection._replace(only=str(suspect)))
        result = await database.write(claim_limited, alone, lanes, runner.terms, 1)
        assert (result.claimed, result.waits) == ([], {})

    @pytest.mark.both_databases
    async def test_a_suspect_starts_while_its_tenant_is_full_in_another_queue(
        self, database: Database, runner: Runner
    ) -> None:
        await self.put(database, "acme", tasks=2)
        suspect = await database.write(submit, NewTask("work", queue="report", tenant="acme"))
        await edit(database, suspect, rescues=2)
        for queue, most in (("mail", "1"), ("report", "5")):
            await limit(database, "queue", queue, per_tenant=most)
        assert len((await take(runner)).claimed) == 1
        await runner.survey()
        lanes = LimitedLanes(list(runner.lanes.limited.due), runner.start)
        result = await database.write(claim_limited_suspect, runner.who, lanes, runner.terms, Ask(16, 1))
        assert ({lane.queue for lane in lanes.lanes}, tasks_of(result)) == ({"mail", "report"}, [suspect])

    @pytest.mark.both_databases
    async def test_a_task_without_a_tenant_starts_behind_many_of_a_full_tenant(
        self, database: Database, runner: Runner
    ) -> None:
        await self.put(database, "acme", tasks=2 * BEYOND + 500)
        alone = await put(database, queue="mail")
        await limit(database, "queue", "mail", per_tenant="1")
        await take(runner, 1)
        (lane,), others = runner.lanes.limited.due, dict[Lane, LanePosition]()
        found: list[tuple[list[int], dict[Lane, float], bool]] = []
        for _ in range(4):
            lanes = LimitedLanes([lane], runner.start, others=others)
            result = await database.write(claim_limited, runner.who, lanes, runner.terms, 4)
            others |= {each: at for each, at in result.others.items() if at is not None}
            found.append((tasks_of(result), result.waits, None in result.others.values()))
        assert [ids for ids, _, _ in found] == [[], [], [alone], []]
        assert {str(waits) for _, waits, _ in found} == {str({lane: inf})}
        assert [is_end for _, _, is_end in found] == [False, False, True, True]

    async def test_the_lanes_of_one_claim_share_the_limit_of_a_tenant(self, database: Database, runner: Runner) -> None:
        new = [NewTask("work", queue="mail", tenant="acme", priority=level) for level in (1, 9) for _ in range(3)]
        ids = await database.write(submit_many, new)
        await limit(database, "queue", "mail", per_tenant="2")
        first = await take(runner)
        assert tasks_of(first) == ids[3:5]
        assert tasks_of(await take(runner)) == []
        for task in first.claimed:
            await runner.end(task)
        assert tasks_of(await take(runner)) == [ids[5], ids[0]]

    async def test_the_limits_of_queue_and_handler_hold_too(self, database: Database, runner: Runner) -> None:
        tenants = await self.put(database, "acme", "bolt", "cube", "dash")
        await limit(database, "queue", "mail", per_tenant="3", concurrency="5")
        await limit(database, "handler", "work", per_tenant="2")
        numbers: Counter[str | None] = Counter()
        for _ in range(5):
            numbers.update(tenants[id] for id in tasks_of(await take(runner)))
        assert sum(numbers.values()) == 5
        assert max(numbers.values()) <= 2


class TestRates:
    """At most n tasks start per period, over all runners."""

    async def test_a_bucket_empties_and_fills_again(self, database: Database, runner: Runner) -> None:
        await put_many(database, 20, queue="mail")
        await limit(database, "queue", "mail", rate="5/h")
        first = await take(runner)
        assert len(first.claimed) == 5
        assert 600 < max(first.waits.values()) <= 720
        await runner.settle(*(()))
        assert tasks_of(await take(runner)) == []
        await pass_time(database, 1_500)
        assert len((await take(runner)).claimed) == 2
        await pass_time(database, 360_000)
        assert len((await take(runner)).claimed) == 5

    async def test_all_runners_take_from_one_bucket(self, database: Database, runner: Runner, other: Runner) -> None:
        await put_many(database, 20, queue="mail")
        await limit(database, "handler", "work", rate="5/h")
        assert len((await take(runner, 3)).claimed) == 3
        assert len((await take(other)).claimed) == 2

    @pytest.mark.both_databases
    async def test_a_change_of_another_limit_does_not_fill_the_bucket(self, database: Database, runner: Runner) -> None:
        await put_many(database, 20, queue="mail")
        await limit(database, "queue", "mail", rate="5/h")
        assert len((await take(runner)).claimed) == 5
        await limit(database, "queue", "mail", concurrency="50")
        await limit(database, "queue", "mail", rate="5/h")
        assert tasks_of(await take(runner)) == []
        await limit(database, "queue", "mail", rate="6/h")
        assert len((await take(runner)).claimed) == 6

    @pytest.mark.both_databases
    async def test_the_tokens_of_a_slow_claim_come_back_from_its_end_on(
        self, database: Database, runner: Runner
    ) -> None:
        await put_many(database, 1, queue="mail")
        await limit(database, "queue", "mail", rate="5/s")
        await runner.survey()
        lanes = list(runner.lanes.limited.due)
        async with database.writing() as tx:
            ledger, _ = await hold(tx, lanes)
            ledger.starts["queue", "mail"] = 5
            await asyncio.sleep(0.05)
            end = await epoch(tx)
            await charge(tx, ledger)
            spent = await tx.scalar(sa.select(tx.tables.queue.c.rate_spent).where(tx.tables.queue.c.name == "mail"))
        assert spent >= end + 1.0 - 0.002

    async def test_a_clock_that_was_set_back_stops_a_queue_for_one_period(
        self, database: Database, runner: Runner
    ) -> None:
        await put_many(database, 5, queue="mail")
        await limit(database, "queue", "mail", rate="5/min")
        await pass_time(database, -86_400)
        assert tasks_of(await take(runner)) == []
        await pass_time(database, 60)
        assert len((await take(runner)).claimed) == 5


async def pass_time(database: Database, seconds: float) -> None:
    """Move the state of every bucket, as time does."""
    queue = database.tables.queue
    start = sa.func.coalesce(queue.c.rate_spent, sa.literal(0.0))
    now = await database.read(epoch)
    await change(
        database, sa.update(queue).values(rate_spent=sa.case((start > 0, start - seconds), else_=now - seconds))
    )


@on_postgresql  # SQLite has one writer at a time
@pytest.mark.parametrize("kind", ["queue", "handler"])
async def test_a_first_limit_counts_the_tasks_of_a_plain_claim_in_flight(
    database: Database, rival: Database, runner: Runner, kind: str
) -> None:
    await put_many(database, 10, queue="mail")
    lanes = dict(await runner.survey())
    name = {"queue": "mail", "handler": "work"}[kind]
    async with database.writing() as tx:
        assert len(await claim(tx, runner.who, lanes, runner.terms, 4)) == 4
        limiting = asyncio.create_task(limit(rival, kind, name, concurrency="5"))
        await until_locked(rival)
    await limiting
    assert await runner.claim_on() == []
    assert len(tasks_of(await take(runner))) == 1


@on_postgresql
async def test_a_long_transaction_does_not_prevent_a_first_limit(
    database: Database, rival: Database, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_many(database, 10, queue="mail")
    monkeypatch.setattr("runner.operations.limit.CLAIMS_END", 0.05)
    async with database.reading() as tx:
        await tx.rows(sa.select(tx.tables.queue))
        await limit(rival, "queue", "mail", concurrency="5")
    assert len(tasks_of(await take(runner))) == 5


@on_postgresql
@pytest.mark.parametrize("room", ["3", "1"])
async def test_a_patient_claim_follows_the_one_that_holds_its_limit(
    database: Database, rival: Database, runner: Runner, monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    monkeypatch.setattr("runner.store.claim.ledger.LIMITS_TIMEOUT", "20s")
    await put_many(database, 10, queue="mail")
    await limit(database, "queue", "mail", concurrency=room)
    await runner.survey()
    lanes = LimitedLanes(list(runner.lanes.limited.due), runner.start, patient=True)
    other = await Runner.enter(rival)
    async with database.writing() as tx:
        first = await claim_limited(tx, runner.who, lanes, runner.terms, 1)
        waiting = asyncio.create_task(rival.write(claim_limited, other.who, lanes, other.terms, 10))
        await until_locked(database)
    second = await waiting
    assert (len(first.claimed), len(second.claimed)) == (1, int(room) - 1)
    assert set(second.waits.values()) == {inf}


@on_postgresql
async def test_a_patient_claim_visits_the_tenants_after_its_wait(
    database: Database, runner: Runner, rival: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.store.claim.ledger.LIMITS_TIMEOUT", "20s")
    tenants = await TestTenants.put(database, "acme", "bolt", tasks=1)
    await limit(database, "queue", "mail", per_tenant="3")
    await runner.survey()
    (lane,) = runner.lanes.limited.due
    lanes = LimitedLanes([lane], runner.start, patient=True, walks={lane: 100}, with_tenants={lane})
    other = await Runner.enter(rival)
    async with database.writing() as tx:
        first = await claim_limited(tx, runner.who, lanes, runner.terms, 1)
        waiting = asyncio.create_task(rival.write(claim_limited, other.who, lanes, other.terms, 1))
        await until_locked(database)
    second = await waiting
    assert [tenants[id] for each in (first, second) for id in tasks_of(each)] == ["acme", "bolt"]


@on_postgresql
async def test_a_patient_claim_gives_up_on_a_limit_that_is_held_for_long(
    database: Database, rival: Database, runner: Runner
) -> None:
    await put_many(database, 2, queue="mail")
    await limit(database, "queue", "mail", concurrency="5")
    await runner.survey()
    lanes = LimitedLanes(list(runner.lanes.limited.due), runner.start, patient=True)
    other = await Runner.enter(rival)
    async with database.writing() as tx:
        await hold(tx, lanes.lanes)
        late = await rival.write(claim_limited, other.who, lanes, other.terms, 10)
    assert (late.claimed, set(late.waits.values())) == ([], {BUSY})


async def test_a_lane_is_limited_by_its_queue_or_its_handler(database: Database, runner: Runner) -> None:
    await put(database, queue="free")
    await put(database, queue="mail")
    await limit(database, "queue", "mail", concurrency="1")
    await runner.survey()
    assert list(runner.lanes.positions) == [Lane("free", "work", 1)]
    assert list(runner.lanes.limited.due) == [Lane("mail", "work", 1)]
    await limit(database, "handler", "work", rate="1/s")
    await runner.survey()
    assert not runner.lanes.positions


@pytest.mark.parametrize("column", ["max_running", "max_per_tenant", "rate_limit"])
async def test_the_table_refuses_a_limit_of_zero(database: Database, column: str) -> None:
    with pytest.raises(DatabaseRefused):
        await change(database, sa.insert(database.tables.queue).values(name="mail", rate_period=1.0, **{column: 0}))
