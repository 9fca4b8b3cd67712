"""Every remedy is applied with the operators' verbs and checked with real claims."""

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.db.types import EARLIEST
from runner.model.task import DependsOn, State
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, pause
from runner.operations.pause import PauseTarget as Paused
from runner.operations.results import Actor, Target
from runner.operations.resume import resume
from runner.operations.retry import retry_now
from runner.operations.unblock import unblock
from runner.policy.claim_facts import RemedyStep
from runner.policy.positions import LanePosition
from runner.queries.runners import runners
from runner.queries.task.detail import task_detail
from runner.queries.why.facts import Facts, read_facts
from runner.queries.why.remedies import remedies, sentence
from runner.queries.why.why import why
from runner.store.claim.plain import Claimant, claim
from runner.store.claim.survey import survey
from runner.store.registration import Identity, register
from tests.store.rows import add_live, add_past, add_runner, ahead
from tests.store.runners import TERMS
from tests.store.table import put, put_many

BY = Actor("ana", "web-1", "so that it starts")
NAMES = ("a", "b")


class Undone(Exception):
    """Rolls back the attempt."""


async def starts(database: Database, id: int, changes: Collection[RemedyStep], fewer: int = 0) -> bool:
    """True if the next claims of all runners take a task after these changes; all of it is rolled back."""
    ids: set[int] = set()
    try:
        async with database.writing() as tx:
            sizes = await apply(tx, id, changes, fewer)
            for runner in await runners(tx):
                ids |= await claimed(tx, runner.id, sizes)
            raise Undone
    except Undone:
        return id in ids


async def apply(tx: Transaction, id: int, changes: Collection[RemedyStep], fewer: int) -> Mapping[int, int]:
    """Make changes as an operator does; slots by runner are given, because the database does not know them."""
    sizes: dict[int, int] = {}
    for change in changes:
        words = change.command.split()
        match change.kind:
            case "unblock":
                await unblock(tx, [Target(id)], BY)
            case "attempts":
                await edit(tx, id, None, Changes(max_attempts=int(words[-1])), BY)
            case "due":
                await retry_now(tx, [Target(id)], BY)
            case "priority":
                await edit(tx, id, None, Changes(priority=int(words[-1])), BY)
            case "resume":
                await resume(tx, Paused(PauseKind.HANDLER if "--handler" in words else PauseKind.QUEUE, words[-1]), BY)
            case "slots" | "threads":
                sizes[int(words[3])] = int(words[-1]) - fewer
            case "runner":
                task = (await task_detail(tx, id)).task
                room = int(change.text.split(" with ")[1].split()[0]) if " with " in change.text else 1
                who = Identity("new", 9, "1", [task.handler], room - fewer, [task.queue])
                await register(tx, who, 60.0)
    return sizes


async def claimed(tx: Transaction, runner_id: int, sizes: Mapping[int, int]) -> set[int]:
    """The tasks that one runner claims into its free slots, by kind."""
    (runner,) = (one for one in await runners(tx) if one.id == runner_id)
    if not runner.alive or runner.command == "drain":
        return set()
    task = tx.tables.task.c
    rows = await tx.rows(sa.select(task.handler).where(task.runner_id == runner.id, task.state == "running"))
    in_threads = sum(row[0] in runner.threaded for row in rows)
    lanes = [head.lane for head in await survey(tx) if head.wait <= 0 and not head.paused]
    ids: set[int] = set()
    for threads, busy in ((False, len(rows) - in_threads), (True, in_threads)):
        size = sizes.get(runner.id, runner.threads if threads else runner.capacity - runner.threads)
        mine = {
            lane: LanePosition(tx.dialect.position(EARLIEST), 0)
            for lane in lanes
            if runner.takes(lane.queue, lane.handler) and (lane.handler in runner.threaded) is threads
        }
        if mine and size > busy:
            terms = dict.fromkeys(runner.handlers, TERMS)
            ids |= {task.id for task in await claim(tx, Claimant(runner.id, "h"), mine, terms, size - busy)}
    return ids


async def people(database: Database, dice: random.Random) -> list[int]:
    """Create an installation in which most tasks are blocked by something."""
    registered = []
    for _ in range(dice.choice((0, 1, 1, 1, 2))):
        threads = dice.choice((0, 2))
        values: dict[str, Any] = {"handlers": dice.choice(('["a"]', '["b"]', '["a", "b"]', '["a", "b"]'))}
        values |= {"capacity": dice.randint(1, 4) + threads, "threads": threads}
        values |= {"command": "drain" if dice.random() < 0.15 else None}
        values |= {"queues": dice.choice(('["p"]', "[]", "[]")), "threaded": '["b"]' if threads else "[]"}
        registered.append(await add_runner(database, **values))
        for _ in range(dice.randint(0, 4)):
            await add_live(database, dice.choice(NAMES), state=State.RUNNING.value, runner_id=registered[-1], attempt=1)
    dead = await add_past(database, 10_000 + dice.randint(1, 99), State.DEAD)
    ids = []
    for _ in range(dice.randint(5, 30)):
        values = {"queue": dice.choice(("p", "q")), "priority": dice.choice((1, 1, 2, 4))}
        if dice.random() < 0.15:
            ids.append(
                await put(
                    database, dice.choice(NAMES), after=(DependsOn(dead),), delay=dice.choice((0.0, 60.0)), **values
                )
            )
            continue
        tried = dice.choice((0, 0, 0, 3))
        values |= {"run_at": ahead(dice.choice((-60, -60, -5, -1, 600))), "attempt": tried, "max_attempts": 3}
        ids.append(await add_live(database, dice.choice(NAMES), **values))
    for kind, name in ((PauseKind.QUEUE, "p"), (PauseKind.QUEUE, "q"), (PauseKind.HANDLER, "a")):
        if dice.random() < 0.3:
            await database.write(pause, Paused(kind, name), BY)
    return ids


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 6, 7])
async def test_every_chance_works_and_needs_all_of_its_changes(database: Database, seed: int) -> None:
    dice = random.Random(seed)
    ids = await people(database, dice)
    alone = len([one for one in await database.read(runners) if one.alive]) <= 1
    for id in dice.sample(ids, min(5, len(ids))):
        task_facts = await database.read(read_facts, id)
        for remedy in remedies(task_facts):
            assert await starts(database, id, remedy.changes), (remedy.text, task_facts)
            if alone:  # where two runners serve different tasks, the remedy asks for more than necessary
                assert not await starts(database, id, remedy.changes, fewer=1) or not sized(remedy.changes), remedy.text
                for change in remedy.changes:
                    rest = [other for other in remedy.changes if other is not change]
                    assert not await starts(database, id, rest), (remedy.text, change.text, task_facts)


def sized(changes: Collection[RemedyStep]) -> bool:
    return any(change.kind in ("slots", "threads") for change in changes)


async def would(database: Database, id: int) -> str:
    return sentence(remedies(await database.read(read_facts, id)))


async def test_a_full_runner_would_need_more_slots(database: Database) -> None:
    busy = await add_runner(database, handlers='["work"]', capacity=2)
    for _ in range(2):
        await add_live(database, "work", state=State.RUNNING.value, runner_id=busy)
    await put_many(database, 3)
    id = await put(database)
    assert await would(database, id) == f"It would start now if: runner {busy} had 6 slots."
    await put_many(database, 20, priority=2)
    assert await would(database, id) == f"It would start now if: its priority were 2 and runner {busy} had 3 slots."


async def test_tasks_ahead_of_it_for_free_slots_suggest_a_priority_or_more_slots(database: Database) -> None:
    free = await add_runner(database, handlers='["work"]', capacity=2)
    await put_many(database, 2, priority=3)
    await put_many(database, 1, priority=2)
    id = await put(database)
    assert await would(database, id) == (f"It would start now if: its priority were 4, or runner {free} had 4 slots.")


async def test_a_chance_lists_all_required_changes(database: Database) -> None:
    id = await add_live(database, "work", queue="mail", attempt=3, max_attempts=3, run_at=ahead(60))
    await database.write(pause, Paused(PauseKind.QUEUE, "mail"), BY)
    (remedy,) = remedies(await database.read(read_facts, id))
    assert remedy.text == (
        "it were allowed 4 attempts and it were due now and queue mail were not paused "
        "and a runner claimed handler work from queue mail"
    )
    assert remedy.commands == (
        f"runner edit {id} --max-attempts 4 && runner retry {id} && runner resume mail && runner work -H package.module"
    )


async def test_uncertain_chances_are_left_out(database: Database) -> None:
    await add_runner(database, handlers='["work"]', capacity=9)
    free = await put(database)
    suspect = await add_live(database, "work", rescues=2, run_at=ahead(600))
    past = await add_past(database, 900, State.DEAD)
    running = await add_live(database, "work", state=State.RUNNING.value, attempt=1)
    for id in (free, suspect, past, running):
        assert not await would(database, id), id


async def test_an_unlimited_backlog_suggests_no_number_of_slots(database: Database) -> None:
    await add_runner(database, handlers='["work"]', capacity=2)
    await put_many(database, 30)
    task_facts: Facts = await database.read(read_facts, await put(database))
    assert [remedy.text for remedy in remedies(task_facts)] == ["its priority were 2"]
    counted = replace(
        task_facts, ahead=task_facts.ahead._replace(more=True), raised={2: task_facts.ahead._replace(more=True)}
    )
    assert remedies(counted) == ()


async def test_a_limit_that_starts_fewer_tasks_than_are_ahead_suggests_no_slots(database: Database) -> None:
    await add_runner(database, handlers='["work"]', capacity=9)
    await put_many(database, 3, tenant="acme")
    id = await put(database, tenant="acme")
    queue = Paused(PauseKind.QUEUE, "default")
    await database.write(set_limits, queue, LimitEdit({"concurrency": "2"}, new=True), BY)
    assert await would(database, id) == "It would start now if: its priority were 2."
    await database.write(set_limits, queue, LimitEdit({"concurrency": "none", "per-tenant": "2"}), BY)
    assert await would(database, id) == "It would start now if: its priority were 2."


async def advised(database: Database, id: int) -> tuple[str, str]:
    """The last cause of a task, and its advice."""
    *_, cause = (await database.read(why, id, UTC)).causes
    return cause.text.partition(" ahead of it")[0], cause.advice


async def test_tasks_ahead_that_free_slots_take_as_well_are_no_cause(database: Database) -> None:
    free = await add_runner(database, handlers='["work"]', capacity=3)
    await put_many(database, 2)
    id = await put(database)
    assert (await advised(database, id))[1] == ""
    assert [cause.kind for cause in (await database.read(why, id, UTC)).causes] == ["now"]
    await put_many(database, 1, priority=2)
    assert await advised(database, id) == ("3 tasks are", f"runner edit {id} --priority 2")
    assert await would(database, id) == f"It would start now if: its priority were 2, or runner {free} had 4 slots."


@pytest.mark.slow
async def test_the_advised_priority_follows_from_the_tasks_ahead(database: Database) -> None:
    await add_runner(database, handlers='["work"]', capacity=1)
    await put_many(database, 1, priority=3)
    await put_many(database, 6, priority=5)
    id = await put(database)
    assert await advised(database, id) == ("7 tasks are", f"runner edit {id} --priority 6")
    await put_many(database, 1, priority=9)
    assert await advised(database, id) == ("8 tasks are", f"runner edit {id} --priority 9")  # one is still ahead
    highest = await put(database, priority=9)
    assert await advised(database, highest) == ("1 task is", "")


async def test_a_priority_in_a_remedy_is_explained_by_a_cause(database: Database) -> None:
    await add_runner(database, handlers='["work"]', capacity=2)
    await put_many(database, 30, queue="mail")
    id = await put(database, queue="mail")
    await database.write(pause, Paused(PauseKind.QUEUE, "mail"), BY)
    assert await would(database, id) == "It would start now if: queue mail were not paused and its priority were 2."
    assert [cause.kind for cause in (await database.read(why, id, UTC)).causes] == ["paused", "behind"]
    assert await advised(database, id) == ("30 tasks would still be", f"runner edit {id} --priority 2")
    later = await put(database, delay=600.0)
    assert [cause.kind for cause in (await database.read(why, later, UTC)).causes] == ["due"]
    assert await would(database, later) == "It would start now if: it were due now."
