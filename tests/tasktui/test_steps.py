"""Steps and signals of a task on its screen."""

from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.model.task import State
from tests.store.rows import add_live, add_past, ahead
from tests.store.table import put
from tests.tasktui.conftest import ON_ONE_DATABASE, Watch
from tests.tasktui.test_actions import audited, confirm


async def waiting(database: Database) -> int:
    """A task that has run one step, and waits for a signal."""
    task = await put(database, handler="order", delay=600)
    shared: dict[str, Any] = {"task_id": task, "fence": 1, "attempt": 1}
    async with database.writing() as tx:
        due, table = db_later(db_now(), 600), tx.tables.step
        charged = {"name": "cha\x1b[31mrge", "kind": "function", "number": 1, "result": '{"token": "hunter2-secret"}'}
        await tx.execute(sa.insert(table).values(**shared, **charged, duration=0.1, done_at=db_now()))
        wait = {"name": "approved", "kind": "wait", "number": 2, "signal": "approved"}
        await tx.execute(sa.insert(table).values(**shared, **wait, due_at=due))
        await tx.execute(sa.insert(tx.tables.signal).values(task_id=task, name="other", payload="5", actor="ana"))
    return task


async def test_a_signal_is_sent_on_the_task_screen(database: Database, watch: Watch) -> None:
    task = await waiting(database)
    async with watch("task", task_id=task) as operator:
        await operator.sees(
            "Waits for signal approved, 9m",
            "I ends the wait",
            "1 of 2 done",
            "done in 0.1s",
            "signal other  sent",
            "by ana, not received yet: 5",
        )
        assert "\x1b" not in operator.text
        assert "hunter2" not in operator.text
        assert "ERROR" not in operator.text
        await operator.press("E")
        await operator.sees("Run at")
        await operator.press("n", "o", "w")
        await operator.sees("left, also in an earlier run: I ends the wait")
        await operator.press("escape", "I")
        await operator.sees("Signal 1 task?", "✓ ends the wait")
        operator.screen.query_one("#answer").value = "paid"
        await operator.sees("! they wait for approved")
        operator.screen.query_one("#answer").value = 'approved {"by": "ana"}'
        await confirm(operator, reason="agreed by phone")
        await operator.sees("signal by", "approved  sent", "Due for")
    async with database.reading() as tx:
        (signal,) = await tx.rows(sa.select(tx.tables.signal).where(tx.tables.signal.c.name == "approved"))
        (row,) = await tx.rows(sa.select(tx.tables.task.c.run_at <= db_now()).where(tx.tables.task.c.id == task))
    assert (signal.task_id, signal.payload, row[0]) == (task, '{"by": "ana"}', True)


async def test_a_rewind_counts_the_steps_that_run_again(database: Database, watch: Watch) -> None:
    task = await waiting(database)
    async with database.writing() as tx:
        values = {"task_id": task, "name": "reserve", "kind": "function", "number": 1, "fence": 1, "attempt": 1}
        await tx.execute(sa.insert(tx.tables.step).values(**values, at=db_later(db_now(), -60)))
    async with watch("task", task_id=task) as operator:
        await operator.press("W")
        await operator.sees("Continue from", "! runs 1 step again; no undo")
        assert operator.screen.query_one("#answer").value == "approved"
        operator.screen.query_one("#answer").value = "ship"
        await operator.sees("✗ it has no such step")
        operator.screen.query_one("#answer").value = "reserve"
        await operator.sees("! runs 3 steps again; no undo")
        await confirm(operator, reason="wrong warehouse")
        await operator.sees_notice("Rewind: 1 changed")
        assert "undoes" not in operator.text
    (entry,) = await audited(database)
    async with database.reading() as tx:
        assert not await tx.rows(sa.select(tx.tables.step.c.name))
    assert (entry.verb, entry.reason, entry.task_id) == ("forget_steps", "wrong warehouse", task)


@ON_ONE_DATABASE
async def test_a_step_whose_name_is_a_number_is_named_with_a_prefix(database: Database, watch: Watch) -> None:
    task = await put(database, handler="order", delay=600)
    async with database.writing() as tx:
        values = {"task_id": task, "name": "7", "kind": "function", "number": 1, "fence": 1, "attempt": 1}
        await tx.execute(sa.insert(tx.tables.step).values(**values, done_at=db_now()))
    async with watch("task", task_id=task) as operator:
        await operator.press("W")
        await operator.sees("Continue from", "! runs 1 step again; no undo")
        assert operator.screen.query_one("#answer").value == "step:7"
        operator.screen.query_one("#answer").value = "7"
        await operator.sees("✗ no checkpoint 7; step:7 is a step")
        operator.screen.query_one("#answer").value = "step:7"
        await operator.sees("! runs 1 step again; no undo")
        await confirm(operator)
        await operator.sees_notice("Rewind: 1 changed")
    async with database.reading() as tx:
        assert not await tx.rows(sa.select(tx.tables.step.c.name))


async def test_the_reason_of_a_wait_that_has_ended_is_no_error(database: Database, watch: Watch) -> None:
    await add_past(database, 7, State.SUCCEEDED, handler="order", attempt=1, error="waits for signal approved")
    due = await add_live(database, handler="ship", run_at=ahead(-5), error="waits for signal approved")
    async with watch("task", task_id=due) as operator:
        await operator.sees("Due for")
        assert "ERROR" not in operator.text
    async with watch("task", task_id=7) as operator:
        await operator.sees("Succeeded")
        assert "waits for signal" not in operator.text
        await operator.command("tasks handler:order")
        await operator.sees("REASON", "succeeded")
        assert "waits for signal" not in operator.text


@ON_ONE_DATABASE
async def test_the_steps_count_a_failed_call_and_a_failing_function_as_failed(database: Database, watch: Watch) -> None:
    task = await put(database, handler="order", delay=600)
    shared: dict[str, Any] = {"task_id": task, "fence": 1, "attempt": 1, "at": db_now()}
    steps: tuple[dict[str, Any], ...] = (
        {"name": "reserve", "kind": "function", "duration": 0.1, "done_at": db_now()},
        {"name": "ship", "kind": "call", "failures": 1, "error": "no stock", "done_at": db_now()},
        {"name": "charge", "kind": "function", "failures": 2, "error": "no answer"},
        {"name": "approved", "kind": "wait", "signal": "approved"},
    )
    async with database.writing() as tx:
        for number, step in enumerate(steps, 1):
            await tx.execute(sa.insert(tx.tables.step).values(**shared, **step, number=number))
    async with watch("task", task_id=task) as operator:
        await operator.sees("1 of 4 done, 2 failed", "✓ reserve", "✗ ship", "↻ charge", "◔ approved")
