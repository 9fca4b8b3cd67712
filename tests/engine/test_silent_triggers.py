"""Triggers that skip rows without an error: no task is in the live table and the history, and none is in neither."""

from contextlib import suppress
from typing import Literal

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.engine.runner import Engine
from runner.errors import DatabaseRefused
from runner.model.outcome import Dead, Done
from runner.model.stuck_row import StuckCause
from runner.model.task import NewTask, State
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor, Target
from runner.operations.retry import retry_now
from runner.operations.terminate import terminate
from runner.queries.registries import pauses
from runner.store.complete import complete_steps
from runner.store.history import FinishedTask
from runner.store.retention import SubmitWatch
from runner.store.settle import settle
from runner.store.submit import submit
from tests.engine.harness import Harness, until
from tests.store.rows import add_live, add_past
from tests.store.runners import Runner, settle_done, settlement
from tests.triggers import Event, accept, refuse

pytestmark = pytest.mark.both_databases

BY = Actor("ana", "desk", "relay is back")
Table = Literal["task", "task_history"]
triggers = pytest.mark.parametrize(("event", "table"), [("DELETE", "task"), ("INSERT", "task_history")])


async def places(database: Database, id: int) -> list[str]:
    """The tables that have a row of the task."""
    async with database.reading() as tx:
        tables = {"live": tx.tables.task, "history": tx.tables.history}
        rows = [(name, await tx.rows(sa.select(table.c.id).where(table.c.id == id))) for name, table in tables.items()]
    return [name for name, found in rows for _ in found]


async def succeeded(database: Database) -> int:
    async with database.reading() as tx:
        return await tx.scalar(sa.select(sa.func.coalesce(sa.func.sum(tx.tables.minute.c.succeeded), 0))) or 0


@pytest.mark.representatives(1)
@triggers
@pytest.mark.parametrize("retention", ["1d", "0s"])
async def test_a_skipped_success_is_refused_and_others_are_written(
    harness: Harness, event: Event, table: Table, retention: str
) -> None:
    @harness.handler("work")
    async def work() -> str:
        return "done"  # a result keeps a row in the history

    await refuse(harness.database, event, table, silently=True)
    bad = await harness.submit("work", key="bad")
    others = [await harness.submit("work") for _ in range(20)]

    async with harness.running(retention_succeeded=retention, claim_batch_size=50) as runner:
        await harness.wait_for(*others)
        await until(lambda: stuck(runner) == {bad: StuckCause.REFUSED})
        assert "trigger" in runner.stuck.rows("settle")[0].fact
        assert await places(harness.database, bad) == ["live"]
        assert await succeeded(harness.database) == 20
        await accept(harness.database, table)
        await harness.wait_for(bad)
    assert await places(harness.database, bad) == ["history"]
    assert await succeeded(harness.database) == 21


def stuck(runner: Engine) -> dict[int, StuckCause]:
    return {row.task: row.cause for row in runner.stuck.rows("settle")}


@triggers
@pytest.mark.parametrize("keep", [True, False])
async def test_a_batch_of_successes_with_a_skipped_row_changes_nothing_of_it(
    database: Database, event: Event, table: Table, keep: bool
) -> None:
    runner = await Runner.enter(database)
    ids = [await database.write(submit, NewTask("work", key=key)) for key in ("bad", None)]
    await refuse(database, event, table, silently=True)
    outcome = Done(None if event == "DELETE" else '"x"')  # a result needs a row in the history
    batch = [settlement(task, outcome) for task in await runner.claim(10)]
    accepted = set[int]()
    with suppress(DatabaseRefused):
        accepted = await database.write(settle_done, runner.id, batch, None if keep else SubmitWatch())
    assert ids[0] not in accepted
    assert await places(database, ids[0]) == ["live"]
    assert ("live" in await places(database, ids[1])) == (ids[1] not in accepted)


@triggers
@pytest.mark.parametrize("outcome", [Done(), Dead("no")], ids=str)
async def test_a_skipped_row_refuses_a_settle_with_locks(
    database: Database, event: Event, table: Table, outcome: Done | Dead
) -> None:
    runner = await Runner.enter(database)
    id = await database.write(submit, NewTask("work", key="bad"))
    (task,) = await runner.claim(10)
    await refuse(database, event, table, silently=True)
    with pytest.raises(DatabaseRefused, match="trigger"):
        await database.write(settle, runner.id, [settlement(task, outcome)])
    assert await places(database, id) == ["live"]


async def complete(tx: Transaction, holder: int, ending: FinishedTask) -> None:
    if not await tx.follow(complete_steps(tx, holder, ending)):
        raise DatabaseRefused(why="not completed, as a trigger skips the row: the caller does not commit")


@triggers
async def test_a_skipped_row_refuses_the_completion_of_an_own_transaction(
    database: Database, event: Event, table: Table
) -> None:
    runner = await Runner.enter(database)
    id = await database.write(submit, NewTask("work", key="bad"))
    (task,) = await runner.claim(10)
    await refuse(database, event, table, silently=True)
    with pytest.raises(DatabaseRefused, match="trigger"):
        await database.write(complete, runner.id, FinishedTask(id, task.fence, 0.1))
    assert await places(database, id) == ["live"]


@triggers
async def test_a_skipped_row_is_not_terminated(database: Database, event: Event, table: Table) -> None:
    id = await add_live(database, "work", key="bad")
    await refuse(database, event, table, silently=True)
    with pytest.raises(DatabaseRefused, match="trigger"):
        await database.write(terminate, [Target(id)], BY)
    assert await places(database, id) == ["live"]


@pytest.mark.parametrize(("event", "table"), [("INSERT", "task"), ("DELETE", "task_history")])
async def test_a_skipped_row_is_not_run_again(database: Database, event: Event, table: Table) -> None:
    id = await add_past(database, 7, State.DEAD, key="bad")
    await refuse(database, event, table, silently=True)
    with pytest.raises(DatabaseRefused, match="trigger"):
        await database.write(retry_now, [Target(id)], BY)
    assert await places(database, id) == ["history"]


async def priorities(database: Database, ids: list[int]) -> list[int]:
    async with database.reading() as tx:
        task = tx.tables.task.c
        return list((await tx.execute(sa.select(task.priority).where(task.id.in_(ids)).order_by(task.id))).scalars())


async def test_a_change_without_its_audit_entry_is_refused(database: Database) -> None:
    ids = [await add_live(database, key=key) for key in ("good", "bad")]
    await refuse(database, "INSERT", "task_audit", when=f"{{row}}.task_id = {ids[1]}", silently=True)
    with pytest.raises(DatabaseRefused, match="reached 0 of 1 rows of task_audit, without an error: a trigger"):
        await database.write(edit, ids[1], 0, Changes(priority=9), BY)
    with pytest.raises(DatabaseRefused, match="reached 1 of 2 rows of task_audit"):
        await database.write(terminate, [Target(id) for id in ids], BY)
    assert await priorities(database, ids) == [1, 1]
    await database.write(edit, ids[0], 0, Changes(priority=9), BY)
    assert await priorities(database, ids) == [9, 1]
    await accept(database, "task_audit")


async def test_a_pause_without_its_audit_entry_is_refused(database: Database) -> None:
    await refuse(database, "INSERT", "task_audit", when="{row}.verb = 'pause'", silently=True)
    with pytest.raises(DatabaseRefused, match="reached 0 of 1 rows of task_audit"):
        await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), BY)
    assert (await database.read(pauses)).queues == {}
