"""Schedules in the store: each tick happens once, with its task, whatever else happens."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now
from runner.handlers.parameters import stored_signatures
from runner.handlers.registry import Handler, Options
from runner.handlers.schedules import DeclaredSchedule
from runner.model.schedule import ScheduleSpec
from runner.model.task import State
from runner.policy.retention import Retention
from runner.store.retention import prune
from runner.store.schedules.register import Registered, has_changed, register_schedules
from runner.store.schedules.runs import MOST_KEPT, abandon_rounds, known_runs, next_tick, terminate
from runner.store.schedules.tick import Ticked, tick
from tests.conftest import on_postgresql
from tests.store.dependencies import dependencies_of, sweep
from tests.store.plans import Cost, watch
from tests.store.rows import until_locked
from tests.store.runners import Runner
from tests.store.table import change, live, past
from tests.store.test_plans import analyse, prevent_analysis

pytestmark = pytest.mark.one_database

HOUR = timedelta(hours=1)

FAR = "every 36500d"
"""A rule without a tick during the test: with a shorter one, an hour that begins would add a tick."""


async def add(database: Database, id: str = "nightly", rule: str = FAR, due: float | None = 0, **values: Any) -> None:
    """Insert a schedule with plain SQL whose next tick is the given number of seconds ago; None leaves it open."""
    table = database.tables.schedule
    next_at = {} if due is None else {"next_at": db_later(db_now(), -due)}
    await change(database, sa.insert(table).values(**{"id": id, "handler": "work", "rule": rule} | next_at | values))


async def tick_now(database: Database) -> list[Ticked]:
    return await database.write(tick)


async def tasks_of(database: Database) -> list[int]:
    return [task for each in await tick_now(database) for task in each.tasks]


async def schedule(database: Database, id: str = "nightly") -> Any:
    table = database.tables.schedule
    async with database.reading() as tx:
        return (await tx.execute(sa.select(table).where(table.c.id == id))).one()


async def history(database: Database) -> list[Any]:
    table = database.tables.tick
    async with database.reading() as tx:
        return list(await tx.rows(sa.select(table).order_by(table.c.tick, table.c.runner_id)))


async def request(database: Database) -> None:
    """Ask for a run of each schedule, as an operator does."""
    await change(database, sa.update(database.tables.schedule).values(run_requested_at=db_now()))


async def make_due(database: Database, seconds: float = 0, id: str = "nightly") -> None:
    """Let the next tick of a schedule be this long ago, as time does."""
    table = database.tables.schedule
    await change(database, sa.update(table).where(table.c.id == id).values(next_at=db_later(db_now(), -seconds)))


async def test_a_due_schedule_submits_its_task_and_plans_the_next_tick(database: Database, runner: Runner) -> None:
    await add(database, options=json.dumps({"queue": "mail", "priority": 3, "timeout": "5m"}), payload='{"n": 1}')
    (ticked,) = await tick_now(database)
    (task_id,) = ticked.tasks
    row, (run,), task = await schedule(database), await history(database), await live(database, task_id)
    assert task is not None
    assert (task["handler"], task["queue"], task["priority"], task["timeout"]) == ("work", "mail", 3, 300.0)
    assert (task["payload"], task["submitted_by"]) == ('{"n": 1}', "schedule nightly")
    assert task["key"] == run.tick.isoformat().replace("+00:00", "Z")
    assert (run.schedule, run.task_id, run.outcome, run.runner_id) == ("nightly", task_id, "submitted", 0)
    assert row.last_tick == run.tick
    assert row.last_task_id == task_id
    assert row.next_at > datetime.now(UTC)
    assert await tick_now(database) == []


async def test_runners_that_tick_together_submit_one_task(database: Database, rival: Database) -> None:
    for number in range(20):
        await add(database, f"s{number}")
    results = await asyncio.gather(*(each.write(tick) for each in (database, rival, database, rival)))
    submitted = [task for result in results for each in result for task in each.tasks]
    assert len(submitted) == len(set(submitted)) == 20
    assert len(await history(database)) == 20


async def test_a_tick_that_happened_does_not_happen_again(database: Database) -> None:
    """A step of the clock, or an edit with plain SQL, leads to the same tick again."""
    await add(database, overlap="allow")
    assert len(await tasks_of(database)) == 1
    (run,) = await history(database)
    table = database.tables.schedule
    await change(database, sa.update(table).values(next_at=run.tick))
    assert await tasks_of(database) == []
    assert len(await history(database)) == 1
    assert (await schedule(database)).next_at > run.tick


async def test_a_tick_whose_transaction_fails_is_still_due(database: Database) -> None:
    await add(database)

    async def fail(tx: Transaction) -> None:
        await tick(tx)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.write(fail)
    assert await history(database) == []
    assert len(await tasks_of(database)) == 1


async def test_a_plain_insert_is_planned_before_it_runs(database: Database) -> None:
    await add(database, rule="every 1h", due=None)
    assert (await database.read(next_tick)).due
    assert await tasks_of(database) == []
    planned = (await schedule(database)).next_at
    assert planned == planned.replace(minute=0, second=0, microsecond=0)
    tick = await database.read(next_tick)
    assert not tick.due
    assert tick.wait is not None
    assert 0 < tick.wait <= 3600


async def test_a_plain_insert_inherits_the_options_of_its_handler(database: Database, runner: Runner) -> None:
    options = Options(queue="reports", priority=7)
    signatures = stored_signatures({"work": Handler("work", lambda: None, options)})
    values = {"name": "work", "signature": signatures["work"], "last_seen_at": db_now()}
    handler = database.tables.handler
    await change(database, sa.delete(handler))
    await change(database, sa.insert(handler).values(values))
    await add(database, "plain")
    await add(database, "own", options='{"priority": 3}')
    await add(database, "round", broadcast=True)
    await add(database, "code", module="shop.reports", options='{"queue": "other"}')
    ids = {each.schedule: each.tasks[0] for each in await tick_now(database)}
    tasks = {id: await live(database, task) for id, task in ids.items()}
    assert {id: (task["queue"], task["priority"]) for id, task in tasks.items() if task} == {
        "plain": ("reports", 7),
        "own": ("reports", 3),
        "round": (f"@{runner.id}", 7),
        "code": ("other", 1),
    }


async def test_a_definition_that_is_not_valid_is_reported_and_harms_no_other(database: Database) -> None:
    await add(database, "bad", rule="61 * * * *")
    await add(database, "worse", options='{"priority": 99}')
    await add(database, "good", rule="every 30d")  # the next tick is far
    results = {each.schedule: each for each in await tick_now(database)}
    assert "bad minute" in (results["bad"].error or "")
    assert "priority" in (results["worse"].error or "")
    assert len(results["good"].tasks) == 1
    assert await tick_now(database) == []
    table = database.tables.schedule
    await change(database, sa.update(table).where(table.c.id == "bad").values(rule="every 1h", error=None))
    assert [each.schedule for each in await tick_now(database)] == ["bad"]
    assert (await schedule(database, "bad")).next_at is not None


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"id": "nightly\xa0report"}, "`id` of a schedule"),
        ({"id": "nightly\nreport"}, "`id` of a schedule"),
        ({"id": "many", "options": json.dumps({"headers": {f"h{n}": "" for n in range(32)}})}, "header `schedule`"),
        ({"id": "long", "options": json.dumps({"headers": {"h": "x" * 8_170}})}, "8192 characters"),
    ],
)
async def test_a_schedule_whose_task_could_not_be_stored_is_reported_and_harms_no_other(
    database: Database, bad: dict[str, Any], why: str
) -> None:
    await add(database, **bad)
    await add(database, "good", rule="every 30d")
    results = {each.schedule: each for each in await tick_now(database)}
    assert why in (results[bad["id"]].error or "")
    assert len(results["good"].tasks) == 1
    assert why in (await schedule(database, bad["id"])).error
    assert await tick_now(database) == []


async def test_missed_ticks_follow_the_misfire_policy(database: Database) -> None:
    outage = 10_800 + 1_800
    for id, policy in (("skipping", "skip"), ("once", "once"), ("all", "all 2")):
        await add(database, id, "every 1h", due=outage, misfire=policy, overlap="allow")
    results = {each.schedule: each for each in await tick_now(database)}
    # The last full hour may be less than a minute ago, and then it is not missed.
    assert len(results["skipping"].tasks) <= 1
    assert len(results["once"].tasks) == 1
    assert len(results["all"].tasks) == 2
    assert all(result.missed for result in results.values())
    outcomes = {(row.schedule, row.outcome) for row in await history(database)}
    assert ("skipping", "missed") in outcomes


async def test_a_run_that_is_unfinished_skips_the_next_tick(database: Database, runner: Runner) -> None:
    await add(database)
    (first,) = await tasks_of(database)
    await make_due(database)
    (ticked,) = await tick_now(database)
    assert ticked.tasks == []
    assert len(ticked.skipped) == 1
    assert [row.outcome for row in await history(database)] == ["submitted", "skipped"]
    (task,) = await runner.claim()
    await runner.end(task)
    assert await past(database, first)
    await make_due(database)
    assert len(await tasks_of(database)) == 1


async def test_queued_runs_wait_for_each_other(database: Database, runner: Runner) -> None:
    await add(database, overlap="queue")
    (first,) = await tasks_of(database)
    await make_due(database)
    (second,) = await tasks_of(database)
    row = await live(database, second)
    assert row is not None
    assert row["state"] == "blocked"
    assert [task.id for task in await runner.claim()] == [first]


async def test_a_replaced_run_ends_and_its_successor_waits_for_that(database: Database, runner: Runner) -> None:
    await add(database, overlap="replace")
    (waiting,) = await tasks_of(database)
    await make_due(database)
    (running,) = await tasks_of(database)
    cancelled = await past(database, waiting)
    assert cancelled is not None
    assert (cancelled["state"], cancelled["error"]) == ("cancelled", "replaced by the next run of schedule nightly")
    assert [task.id for task in await runner.claim()] == [running]
    await make_due(database)
    (successor,) = await tasks_of(database)
    old, new = await live(database, running), await live(database, successor)
    assert old is not None
    assert new is not None
    assert old["cancel_requested"]
    assert new["state"] == "blocked"


async def test_a_run_that_replaces_a_blocked_one_waits_for_the_running_one_too(
    database: Database, runner: Runner
) -> None:
    await add(database, overlap="replace")
    (first,) = await tasks_of(database)
    await runner.claim()
    for _ in range(2):
        await make_due(database)
        (last,) = await tasks_of(database)
    await sweep(database)
    assert (await live(database, first) or {})["state"] == "running"
    assert (await live(database, last) or {})["state"] == "blocked"
    assert await runner.claim() == []


async def test_a_queued_run_waits_for_the_running_one_if_the_one_between_was_terminated(
    database: Database, runner: Runner
) -> None:
    await add(database, overlap="queue")
    await tick_now(database)
    await runner.claim()
    await make_due(database)
    (between,) = await tasks_of(database)
    await database.write(terminate, {between: "by an operator"})
    await make_due(database)
    (last,) = await tasks_of(database)
    await sweep(database)
    assert (await live(database, last) or {})["state"] == "blocked"


@pytest.mark.parametrize("rule", [FAR, "after_end 1s"])
async def test_a_tick_sees_an_earlier_run_beside_a_requested_one_that_has_ended(
    database: Database, runner: Runner, rule: str
) -> None:
    await add(database, rule=rule)
    (long,) = await tasks_of(database)
    await runner.claim()
    await request(database)
    await tick_now(database)
    (requested,) = await runner.claim()
    await runner.end(requested)
    await make_due(database)
    (ticked,) = await tick_now(database)
    assert await live(database, long)
    assert (len(ticked.tasks), len(ticked.skipped)) == (0, 1)


async def test_a_tick_sees_a_requested_run_beside_an_earlier_one_that_has_ended(
    database: Database, runner: Runner
) -> None:
    await add(database, rule="after_end 1s")
    await tick_now(database)
    (first,) = await runner.claim()
    await request(database)
    (requested,) = await tasks_of(database)
    await runner.end(first)
    await tick_now(database)
    assert not (await database.read(next_tick)).due
    await make_due(database)
    (ticked,) = await tick_now(database)
    assert await live(database, requested)
    assert (len(ticked.tasks), len(ticked.skipped)) == (0, 1)


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
async def test_a_requested_run_leaves_the_overlap_of_a_tick_at_the_same_time(
    database: Database, runner: Runner, overlap: str
) -> None:
    await add(database, overlap=overlap)
    (long,) = await tasks_of(database)
    await runner.claim()
    await make_due(database, 1)
    await request(database)
    (ticked,) = await tick_now(database)
    ids = [task.id for task in await runner.claim()]
    requested = [run.task_id for run in await history(database) if run.outcome == "manual"]
    assert ids == requested
    assert len(ticked.tasks) == (1 if overlap == "skip" else 2)
    assert (await live(database, long) or {})["cancel_requested"] == (overlap == "replace")


async def test_a_tick_replaces_an_earlier_run_and_a_requested_one(database: Database, runner: Runner) -> None:
    await add(database, overlap="replace")
    (first,) = await tasks_of(database)
    await runner.claim()
    await request(database)
    (requested,) = await tasks_of(database)
    await runner.claim()
    await make_due(database)
    (last,) = await tasks_of(database)
    replaced = [await live(database, id) or {} for id in (first, requested)]
    assert [row["cancel_requested"] for row in replaced] == [True, True]
    assert (await live(database, last) or {})["state"] == "blocked"


@pytest.mark.parametrize("overlap", ["queue", "replace"])
async def test_a_requested_run_alone_neither_waits_nor_replaces(
    database: Database, runner: Runner, overlap: str
) -> None:
    await add(database, overlap=overlap)
    (first,) = await tasks_of(database)
    await runner.claim()
    await request(database)
    requested = await tasks_of(database)
    assert [task.id for task in await runner.claim()] == requested
    assert not (await live(database, first) or {})["cancel_requested"]


async def test_an_edit_during_a_run_leaves_the_next_tick_to_the_overlap(database: Database, runner: Runner) -> None:
    await add(database, overlap="allow")
    await tick_now(database)
    await runner.claim()
    await change(database, sa.update(database.tables.schedule).values(rule="every 2h", next_at=None))
    assert (await database.read(next_tick)).due
    await tick_now(database)
    assert (await schedule(database)).next_at is not None


async def test_many_unfinished_runs_are_kept_in_part(database: Database) -> None:
    await add(database, overlap="queue")
    runs = []
    for _ in range(MOST_KEPT + 2):
        runs += await tasks_of(database)
        await make_due(database)
    assert known_runs((await schedule(database))._mapping) == [*runs[: MOST_KEPT - 1], runs[-1]]


async def queued(database: Database, number: int) -> list[int]:
    """The unfinished runs of a schedule that an operator then edits to replace them."""
    await add(database, overlap="queue")
    runs = []
    for _ in range(number):
        runs += await tasks_of(database)
        await make_due(database)
    await change(database, sa.update(database.tables.schedule).values(overlap="replace"))
    return runs


@pytest.mark.both_databases
async def test_all_unfinished_runs_are_replaced(database: Database, runner: Runner) -> None:
    first, *others = await queued(database, MOST_KEPT + 4)
    assert [task.id for task in await runner.claim()] == [first]
    (successor,) = await tasks_of(database)
    assert [(await past(database, id) or {}).get("state") for id in others] == [State.CANCELLED] * len(others)
    assert (await live(database, first) or {})["cancel_requested"]
    assert [row["parent_id"] for row in await dependencies_of(database, successor)] == [first]


@pytest.mark.both_databases
@pytest.mark.parametrize("is_requested", [False, True], ids=["tick", "tick and run now"])
async def test_a_tick_replaces_a_part_of_many_runs_and_submits_its_own_after_the_last_part(
    database: Database, monkeypatch: pytest.MonkeyPatch, is_requested: bool
) -> None:
    monkeypatch.setattr("runner.store.schedules.runs.MOST_REPLACED", MOST_KEPT)
    runs = await queued(database, 3 * MOST_KEPT + 2)
    if is_requested:
        await request(database)
    submitted, left = list[int](), []
    while not submitted:
        assert (await database.read(next_tick)).due
        submitted = await tasks_of(database)
        left.append(sum([await live(database, id) is not None for id in runs]))
    assert left == [MOST_KEPT + 2, 2, 0]
    assert len(submitted) == 1 + is_requested


@on_postgresql
async def test_replaced_runs_are_locked_in_the_order_of_their_ids(database: Database, rival: Database) -> None:
    runs = []
    for id in ("b", "a"):
        # Its ticks are the multiples since 1970: with every minute the first schedule would tick again with the second.
        await add(database, id, overlap="replace")
        runs += await tasks_of(database)
    for id in ("b", "a"):
        await make_due(database, id=id)
    task = database.tables.task
    async with rival.writing() as tx:
        await tx.rows(sa.select(task.c.id).where(task.c.id == runs[0]).with_for_update())
        ticking = asyncio.create_task(tick_now(database))
        await until_locked(rival)
        await tx.rows(sa.select(task.c.id).where(task.c.id == runs[1]).with_for_update(nowait=True))
    assert [result.schedule for result in await ticking] == ["a", "b"]


async def test_a_fixed_delay_counts_from_the_end_of_the_run(database: Database, runner: Runner) -> None:
    await add(database, rule="after_end 1h", due=None)
    (first,) = await tasks_of(database)
    assert (await schedule(database)).next_at is None
    assert not (await database.read(next_tick)).due
    (task,) = await runner.claim()
    await runner.end(task)
    assert (await database.read(next_tick)).due
    assert await tasks_of(database) == []
    history = await past(database, first)
    assert history is not None
    assert (await schedule(database)).next_at == history["finished_at"] + HOUR


async def test_a_pause_stops_ticks_and_ends_at_its_time(database: Database) -> None:
    await add(database, paused_at=db_now(), due=None)
    assert not (await database.read(next_tick)).due
    assert await tasks_of(database) == []
    await add(database, "resting", paused_at=db_now(), paused_until=db_later(db_now(), -5), due=5)
    (ticked,) = await tick_now(database)
    row = await schedule(database, "resting")
    assert (ticked.tasks, ticked.missed, row.paused_at) == ([], None, None)
    assert row.next_at > datetime.now(UTC)


async def pause_until(database: Database, seconds: float) -> None:
    """Let a pause that an operator has set end this many seconds from now, as time does."""
    end = db_later(db_now(), seconds)
    await change(database, sa.update(database.tables.schedule).values(paused_at=db_now(), paused_until=end))


async def test_a_pause_ends_at_its_time_after_an_edit_of_the_rule(database: Database) -> None:
    """An edit, a deploy and plain SQL leave the next tick open."""
    await add(database, due=None)
    await pause_until(database, 60)
    assert not (await database.read(next_tick)).due
    assert await tick_now(database) == []
    await pause_until(database, -5)
    assert (await database.read(next_tick)).due
    await tick_now(database)
    row = await schedule(database)
    assert row.paused_at is None
    assert row.next_at > datetime.now(UTC)


async def test_a_pause_ends_at_its_time_after_a_requested_run_with_a_fixed_delay(
    database: Database, runner: Runner
) -> None:
    await add(database, rule="after_end 1s")
    await pause_until(database, 60)
    await request(database)
    await tasks_of(database)
    await pause_until(database, -5)
    assert not (await database.read(next_tick)).due
    (task,) = await runner.claim()
    await runner.end(task)
    assert (await database.read(next_tick)).due
    await tick_now(database)
    assert (await schedule(database)).paused_at is None


@pytest.mark.parametrize(
    ("after", "misfire", "outcomes"),
    [(HOUR, "once", ["submitted"]), (HOUR, "skip", ["missed"]), (0 * HOUR, "once", ["submitted"]), (-HOUR, "once", [])],
)
async def test_ticks_that_are_missed_after_the_end_of_a_pause_follow_the_misfire_policy(
    database: Database, after: timedelta, misfire: str, outcomes: list[str]
) -> None:
    end = datetime.now(UTC).replace(microsecond=0) - 3 * HOUR
    only_tick = end + after  # the second one is decades later
    pause: dict[str, Any] = {"paused_at": end - 2 * HOUR, "paused_until": end, "next_at": end}
    await add(database, rule=f"every {only_tick.timestamp():.0f}s", misfire=misfire, **pause)
    await tick_now(database)
    assert [(run.tick, run.outcome) for run in await history(database)] == [(only_tick, each) for each in outcomes]
    assert (await schedule(database)).paused_at is None


async def test_a_fixed_delay_that_ended_in_a_pause_is_not_missed(database: Database, runner: Runner) -> None:
    await add(database, rule="after_end 1s", misfire="skip")
    await tick_now(database)
    (task,) = await runner.claim()
    await runner.end(task)
    await change(database, sa.update(database.tables.history).values(finished_at=db_later(db_now(), -3_600)))
    await pause_until(database, -5)
    (ticked,) = await tick_now(database)
    assert len(ticked.tasks) == 1
    assert ticked.missed is None


async def test_a_requested_run_happens_even_during_a_pause_or_a_run(database: Database) -> None:
    await add(database, due=-600)
    table = database.tables.schedule
    request = sa.update(table).values(run_requested_at=db_now())
    await change(database, request)
    planned = (await schedule(database)).next_at
    assert len(await tasks_of(database)) == 1
    assert (await schedule(database)).next_at == planned
    await change(database, request.values(paused_at=db_now(), next_at=None))
    assert len(await tasks_of(database)) == 1
    assert [row.outcome for row in await history(database)] == ["manual", "manual"]
    assert await tick_now(database) == []


async def test_a_broadcast_has_a_task_for_each_live_runner(database: Database, runner: Runner, other: Runner) -> None:
    stranger = await Runner.enter(database, "others")
    await add(database, broadcast=True)
    tasks = await tasks_of(database)
    rows = [await live(database, task) for task in tasks]
    assert [row and row["queue"] for row in rows] == [f"@{runner.id}", f"@{other.id}"]
    assert [row.runner_id for row in await history(database)] == [runner.id, other.id]
    assert [task.queue for task in await stranger.claim()] == []
    await make_due(database, id="nightly")
    (ticked,) = await tick_now(database)
    assert (ticked.tasks, len(ticked.skipped)) == ([], 1)


async def test_a_broadcast_sees_the_unfinished_task_of_a_runner_after_a_skipped_tick(
    database: Database, runner: Runner, other: Runner
) -> None:
    await add(database, broadcast=True)
    await tick_now(database)
    mine, theirs = await runner.claim()
    await runner.end(theirs)
    for tasks in (1, 0, 0):
        await make_due(database)
        (ticked,) = await tick_now(database)
        assert (len(ticked.tasks), len(ticked.skipped)) == (tasks, 1 - tasks)
    assert [task.queue for task in (mine, *await runner.claim())] == [f"@{runner.id}", f"@{other.id}"]


async def test_a_round_of_a_runner_that_is_gone_is_freed(database: Database, runner: Runner, other: Runner) -> None:
    await add(database, broadcast=True)
    mine, theirs = await tasks_of(database)
    table = database.tables.runner
    await change(database, sa.delete(table).where(table.c.id == other.id))
    assert await database.write(abandon_rounds) == [theirs]
    history = await past(database, theirs)
    assert history is not None
    assert (history["state"], history["error"]) == ("cancelled", "its runner no longer exists")
    assert await live(database, mine)


def declare(id: str = "nightly", rule: str = "every 1h", **values: Any) -> dict[str, DeclaredSchedule]:
    spec = ScheduleSpec(**{"handler": "work", "rule": rule} | values)
    return {id: DeclaredSchedule(id, spec, "shop.reports", "shop.reports.nightly")}


async def enter(database: Database, declared: dict[str, DeclaredSchedule]) -> tuple[Runner, Registered]:
    """Start a runner with this code."""
    runner = await Runner.enter(database)
    table = database.tables.runner
    fingerprints = json.dumps({id: each.fingerprint for id, each in declared.items()})
    await change(database, sa.update(table).where(table.c.id == runner.id).values(schedules=fingerprints))
    return runner, await register(database, runner, declared)


async def register(database: Database, runner: Runner, declared: dict[str, DeclaredSchedule]) -> Registered:
    return await database.write(register_schedules, runner.id, declared, lambda id, _: id not in declared)


async def leave(database: Database, runner: Runner) -> None:
    table = database.tables.runner
    await change(database, sa.delete(table).where(table.c.id == runner.id))


async def test_a_registration_adds_a_schedule_once(database: Database) -> None:
    _, added = await enter(database, declare())
    _, again = await enter(database, declare())
    assert (added.added, again) == (["nightly"], Registered([], [], {}, []))
    assert (await schedule(database)).rule == "every 1h"


async def test_new_code_replaces_a_definition_but_keeps_the_edits_of_operators(database: Database) -> None:
    await enter(database, declare(misfire="skip"))
    table = database.tables.schedule
    await change(database, sa.update(table).values(misfire="all 3", next_at=db_later(db_now(), 60)))
    _, changed = await enter(database, declare(rule="every 2h", misfire="once"))
    row = await schedule(database)
    assert (changed.changed, changed.kept) == (["nightly"], {"nightly": ["misfire"]})
    assert (row.rule, row.misfire, row.next_at) == ("every 2h", "all 3", None)


async def test_old_code_does_not_return_while_new_code_runs(database: Database) -> None:
    old, new = declare(), declare(rule="every 2h")
    await enter(database, old)
    newest, _ = await enter(database, new)
    restarted, registered = await enter(database, old)
    assert registered.changed == []
    assert (await schedule(database)).rule == "every 2h"
    await leave(database, newest)  # a rollback: only old code is left
    assert await database.read(has_changed, restarted.id, old, lambda *_: False)
    assert (await register(database, restarted, old)).changed == ["nightly"]
    assert (await schedule(database)).rule == "every 1h"


async def test_a_rule_that_vanished_is_paused_when_the_last_runner_that_has_it_is_gone(database: Database) -> None:
    old, _ = await enter(database, declare())
    new, registered = await enter(database, {})
    assert registered.vanished == []
    await leave(database, old)
    assert await database.read(has_changed, new.id, {}, lambda *_: True)
    assert (await register(database, new, {})).vanished == ["nightly"]
    row = await schedule(database)
    assert (row.paused_by, row.paused_why) == ("runner", "it is no longer in the code")
    assert await tick_now(database) == []
    _, again = await enter(database, declare())
    assert again.changed == ["nightly"]
    assert (await schedule(database)).paused_at is None


async def test_a_schedule_of_an_operator_is_never_paused_by_a_registration(database: Database) -> None:
    await add(database)
    _, registered = await enter(database, {})
    assert registered.vanished == []
    assert (await schedule(database)).paused_at is None


async def test_old_ticks_are_pruned_except_the_last_of_each_schedule(database: Database) -> None:
    await add(database, overlap="allow")
    table = database.tables.tick
    for _ in range(2):
        await tasks_of(database)
        await make_due(database)
    await change(database, sa.update(table).values(at=db_later(db_now(), -9 * 86_400)))
    last = (await history(database))[-1].tick
    await database.write(prune, Retention({State.SUCCEEDED: timedelta(days=7)}))
    assert [row.tick for row in await history(database)] == [last]


async def fill(database: Database, number: int) -> None:
    """Add schedules with five recorded ticks each: two of a hundred are due, one of them with a live last run."""
    tables = database.tables
    n = sa.select(sa.literal_column("1").label("i")).cte("n", recursive=True)
    n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < number))
    steps = sa.select(sa.literal_column("1").label("i")).cte("steps", recursive=True)
    steps = steps.union_all(sa.select(steps.c.i + 1).where(steps.c.i < 5))
    id, work, later = sa.literal("s") + sa.cast(n.c.i, sa.Text), sa.literal("work"), db_later(db_now(), 3_600)
    next_at = sa.case((n.c.i % 100 < 2, db_later(db_now(), -1)), else_=later)
    first = 10**9  # beyond the ids of the sequence
    rule = [id, work, sa.literal("every 1h"), next_at, first + n.c.i]
    ticks = [id, db_later(db_now(), -3_600 * steps.c.i), sa.literal("submitted"), first + n.c.i]
    for table, columns, values, source in (
        (tables.schedule, ("id", "handler", "rule", "next_at", "last_task_id"), rule, n),
        (tables.tick, ("schedule", "tick", "outcome", "task_id"), ticks, n.join(steps, sa.true())),
        (tables.task, ("id", "handler", "run_at"), [first + n.c.i * 2, work, later], n),
        (tables.history, ("id", "handler", "state"), [first - 1 + n.c.i * 2, work, sa.literal("succeeded")], n),
    ):
        await change(database, sa.insert(table).from_select(columns, sa.select(*values).select_from(source)))


@pytest.mark.parametrize("statistics", ["of empty tables", pytest.param("true", marks=pytest.mark.slow)])
async def test_ten_thousand_schedules_are_never_read_completely(
    statistics: str, new_database: None, migrated_url: str
) -> None:
    costs: list[list[Cost]] = []
    prevent_analysis(migrated_url)
    for number in (1_000, 10_000):
        if statistics == "of empty tables":
            analyse(migrated_url)
        database = Database.open(migrated_url)
        await fill(database, number)
        await database.dispose()
        if statistics == "true":
            analyse(migrated_url)
        database = Database.open(migrated_url)
        looking = watch(database)
        await database.read(next_tick)  # opens the connection
        async with looking.seeing() as look:
            assert (await database.read(next_tick)).due
        async with looking.seeing() as some:
            assert len(await database.write(tick, 20)) == 20
        costs.append([look, some])
        for table in ("schedule", "tick", "task", "history"):
            await change(database, sa.delete(getattr(database.tables, table)))
        await database.dispose()
    tables = {"task", "task_history", "task_schedule", "task_tick"}
    for few, many in zip(*costs, strict=True):
        assert not many.whole & tables
        assert many.statements <= few.statements
        assert many.rows <= few.rows + 30
