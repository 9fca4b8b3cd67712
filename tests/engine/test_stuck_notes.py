"""Rows of running tasks that are locked or refused: checkpoints, notes, starts and completions of the others go on."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from runner import Context
from runner.model.stuck_row import StuckCause
from tests.engine.harness import Harness, until, wait_for_event

on_postgresql = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)


@contextmanager
def locking(url: str, task: int) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, application_name="psql") as session:
        session.execute("SELECT FROM task WHERE id = %s FOR UPDATE", (task,))
        yield session
        session.rollback()


@on_postgresql
async def test_a_locked_row_delays_its_own_checkpoint_and_no_other(harness: Harness) -> None:
    begun, go_on, done = asyncio.Event(), asyncio.Event(), list[int]()

    @harness.handler("work")
    async def work(ctx: Context) -> None:
        if ctx.id == 1:
            begun.set()
        await go_on.wait()
        await ctx.checkpoint({"line": 1})
        done.append(ctx.id)

    held, *others = [await harness.submit("work") for _ in range(3)]
    async with harness.running() as runner:
        await wait_for_event(begun)
        with locking(harness.url, held):
            go_on.set()
            await until(lambda: sorted(done) == others)
            await until(lambda: [row.verb for row in runner.stuck.rows()] == ["checkpoint"])
            assert runner.stuck.rows()[0].task == held
        await harness.wait_for(held, *others)
        assert held in done
        await until(lambda: not len(runner.stuck))


@on_postgresql
async def test_a_locked_row_delays_its_own_completion_and_is_named(harness: Harness) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @harness.handler("pay")
    async def pay(ctx: Context) -> None:
        async with ctx.transaction():
            begun.set()
            await go_on.wait()

    held = await harness.submit("pay")
    async with harness.running() as runner:
        await wait_for_event(begun)
        with locking(harness.url, held) as session:
            go_on.set()
            await until(lambda: [row.verb for row in runner.stuck.rows()] == ["complete"])
            (row,) = runner.stuck.rows()
            assert row.blocker is not None
            assert (row.task, row.blocker.pid) == (held, session.info.backend_pid)
        await harness.wait_for(held)
        await until(lambda: not len(runner.stuck))
    assert await harness.state(held) == "succeeded"


@on_postgresql
async def test_a_locked_row_is_the_only_one_whose_start_is_not_marked(harness: Harness) -> None:
    begun, go_on = harness.held_handler("work")
    tasks = [await harness.submit("work") for _ in range(3)]
    task = harness.database.tables.task

    async def is_started(*expected: int) -> bool:
        rows = await harness.rows(sa.select(task.c.id).where(task.c.started_at.is_not(None)))
        return {row.id for row in rows} == set(expected)

    async with harness.running() as runner:
        await wait_for_event(begun)
        await until(lambda: len(runner.worker.in_flight.started()) == 3)
        await harness.change(sa.update(task).values(started_at=None))
        with locking(harness.url, tasks[0]):
            for each in runner.worker.in_flight.started():
                each.prefetched = True  # as if they had been claimed before a slot was free
            runner.worker._starts.expect()
            await until(lambda: runner.stuck.tasks("start") == {tasks[0]})
            await until(lambda: is_started(*tasks[1:]))
        await until(lambda: not len(runner.stuck))
        assert await is_started(*tasks)
        go_on.set()
        await harness.wait_for(*tasks)


REFUSALS = {
    "sqlite": [
        (
            "CREATE TRIGGER own BEFORE INSERT ON task_progress WHEN NEW.unit = 'bad' "
            "BEGIN SELECT RAISE(ABORT, 'audit says no'); END"
        )
    ],
    "postgresql": [
        "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'audit says no'; END $$",
        (
            "CREATE TRIGGER own BEFORE INSERT ON task_progress FOR EACH ROW WHEN (new.unit = 'bad') "
            "EXECUTE FUNCTION audit()"
        ),
    ],
}


@pytest.mark.both_databases
async def test_refused_notes_of_one_task_delay_no_other(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner.engine.executing import notes

    monkeypatch.setattr(notes.NotesWriter, "every", 0.05)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @harness.handler("work")
    async def work(ctx: Context) -> None:
        ctx.progress(1, 2, "bad" if ctx.id == 1 else "good")
        ctx.logger.info("a line")
        begun.set()
        await go_on.wait()

    for statement in REFUSALS[harness.database.dialect.name]:
        await harness.change(sa.text(statement))
    tasks = [await harness.submit("work") for _ in range(3)]
    progress, lines = harness.database.tables.progress, harness.database.tables.log

    async def written() -> Any:
        units = await harness.rows(sa.select(progress.c.task_id))
        return {row.task_id for row in units} == set(tasks[1:]) and await harness.count(lines) == 2

    async with harness.running() as runner:
        await wait_for_event(begun)
        await until(written)
        await until(lambda: [row.verb for row in runner.stuck.rows()] == ["note"])
        (row,) = runner.stuck.rows()
        assert (row.task, row.cause) == (tasks[0], StuckCause.REFUSED)
        assert "audit says no" in row.fact
        go_on.set()
        await harness.wait_for(*tasks)
