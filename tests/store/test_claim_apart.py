"""Claims that leave rows out, or take only some rows: how a runner claims around a row that the database refuses."""

from collections.abc import Sequence

import pytest

from runner.db.database import Database
from runner.operations.limit import parse_edit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from runner.policy.selection import TaskSelection, listed
from runner.store.claim.plain import claim, first_due
from tests.store.runners import Runner
from tests.store.table import edit, live, put, put_many


def selecting(runner: Runner, without: Sequence[int] = (), only: Sequence[int] = ()) -> None:
    runner.who = runner.who._replace(selection=TaskSelection(without=listed(without), only=listed(only)))


@pytest.mark.parametrize("queues", [("default",), ("default", "mail")], ids=["lane", "lanes"])
async def test_a_claim_leaves_out_the_listed_tasks(database: Database, runner: Runner, queues: tuple[str, ...]) -> None:
    ids = [await put(database, queue=queue) for _ in range(3) for queue in queues]
    selecting(runner, without=ids[:2])
    assert {task.id for task in await runner.claim()} == set(ids[2:])
    assert await runner.claim() == []
    selecting(runner)
    assert {task.id for task in await runner.claim()} == set(ids[:2])


@pytest.mark.parametrize("queues", [("default",), ("default", "mail")], ids=["lane", "lanes"])
async def test_a_claim_takes_only_the_listed_tasks(database: Database, runner: Runner, queues: tuple[str, ...]) -> None:
    ids = [await put(database, queue=queue) for _ in range(3) for queue in queues]
    selecting(runner, only=ids[1:3], without=ids[2:])
    assert [task.id for task in await runner.claim()] == [ids[1]]


async def test_a_claim_of_suspects_leaves_out_the_listed_ones(database: Database, runner: Runner) -> None:
    first, second = await put_many(database, 2)
    for id in (first, second):
        await edit(database, id, rescues=2)
    selecting(runner, without=[first])
    assert [task.id for task in await runner.claim_suspect()] == [second]
    assert await runner.claim_suspect() == []


async def test_the_first_due_tasks_are_those_that_a_claim_takes(database: Database, runner: Runner) -> None:
    low, high = [await put(database, priority=priority) for priority in (1, 9)]
    mail = await put(database, queue="mail", priority=9)
    suspect = await put(database, queue="mail", priority=9)
    await edit(database, suspect, rescues=2)
    lanes = await runner.survey()
    due = await database.read(first_due, runner.who, lanes, 10)
    assert [task.id for task in due] == [high, mail, low]
    assert [task.lane.queue for task in due] == ["default", "mail", "default"]
    assert [task.id for task in await database.read(first_due, runner.who, lanes, 1)] == [high]
    assert [task.id for task in await database.read(first_due, runner.who, lanes, 9, suspects=True)] == [suspect]
    assert (await live(database, high) or {})["state"] == "waiting"
    assert [task.id for task in await runner.claim()] == [high, mail, low]


async def test_a_lane_that_got_a_limit_after_the_survey_has_no_due_task_for_a_plain_claim(
    database: Database, runner: Runner
) -> None:
    id = await put(database, queue="mail")
    lanes = dict(await runner.survey())
    one = parse_edit("concurrency=1")
    await database.write(set_limits, PauseTarget(PauseKind.QUEUE, "mail"), one, Actor("ana", "desk"))
    assert await database.write(claim, runner.who, lanes, runner.terms, 10) == []
    assert await database.read(first_due, runner.who, lanes, 10, is_held=lambda _: False) == []
    assert [task.id for task in await database.read(first_due, runner.who, lanes, 10)] == [id]
