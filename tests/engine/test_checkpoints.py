"""Checkpoints, progress and logs of attempts."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Context
from runner.db.transaction import Transaction
from runner.engine.executing import notes
from runner.errors import DatabaseUnavailable, FencedOut, InvalidCheckpoint, InvalidProgress
from runner.operations.results import Actor, Result, Target
from runner.operations.rewind import rewind
from runner.operations.undo.undo import undo
from runner.queries.task.detail import task_detail
from runner.store.notes import KEPT_CHECKPOINTS, last_checkpoints
from runner.urls import parse_url
from tests.conftest import on_sqlite
from tests.engine.harness import Harness, until, wait_for_event
from tests.engine.lost_replies import losing_commits
from tests.store.table import make_due

ANA = Actor("ana", "desk", "line 3 is wrong")


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_next_attempt_continues_from_the_last_checkpoint(harness: Harness, kind: str) -> None:
    states: list[Any] = []

    def step(ctx: Context) -> dict[str, int]:
        states.append(ctx.state)
        return {"line": (ctx.state or {"line": 0})["line"] + 100}

    @harness.handler("async")
    async def coroutine(ctx: Context) -> None:
        await ctx.checkpoint(step(ctx))
        if ctx.attempt < 3:
            raise ConnectionError

    @harness.handler("plain")
    def plain(ctx: Context) -> None:
        ctx.checkpoint(step(ctx))
        if ctx.attempt < 3:
            raise ConnectionError

    task = await harness.run(kind)
    assert states == [None, {"line": 100}, {"line": 200}]
    detail = await harness.database.read(task_detail, task)
    assert [(row.number, row.attempt, row.state) for row in detail.checkpoints] == [
        (n, n, f'{{"line":{100 * n}}}') for n in (1, 2, 3)
    ]


async def test_attempts_that_resume_together_read_their_checkpoints_with_one_statement(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, reads = dict[int, Any](), list[list[int]]()

    async def read(tx: Transaction, task_ids: Sequence[int]) -> dict[int, tuple[int, str]]:
        reads.append(sorted(task_ids))
        return await last_checkpoints(tx, task_ids)

    @harness.handler("work", retry="1h")
    async def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            for number in range(ctx.id % 3):
                await ctx.checkpoint([ctx.id, number])
            raise ConnectionError
        states[ctx.id] = ctx.state

    monkeypatch.setattr(notes, "last_checkpoints", read)
    tasks = [await harness.submit("work") for _ in range(6)]
    async with harness.running(concurrency=len(tasks)):

        async def failed() -> bool:
            return len(await harness.rows(sa.select(harness.database.tables.attempt.c.task_id))) == len(tasks)

        await until(failed)
        await make_due(harness.database, *tasks)
        await until(lambda: len(states) == len(tasks))
    assert states == {task: [task, task % 3 - 1] if task % 3 else None for task in tasks}
    assert reads == [tasks]


async def test_a_fenced_attempt_stores_no_checkpoint(harness: Harness) -> None:
    begun, go_on, errors = asyncio.Event(), asyncio.Event(), list[BaseException]()

    @harness.handler("work", max_attempts=1)
    async def work(ctx: Context) -> None:
        await ctx.checkpoint(1)
        begun.set()
        await go_on.wait()
        try:
            await ctx.checkpoint(2)
        except FencedOut as error:
            errors.append(error)
            raise

    task = await harness.submit("work")
    table = harness.database.tables.task
    async with harness.running(heartbeat_interval="2s"):
        await wait_for_event(begun)
        await harness.change(sa.update(table).where(table.c.id == task).values(fence=table.c.fence + 1))
        go_on.set()
        await until(lambda: bool(errors))
    rows = await harness.rows(sa.select(harness.database.tables.checkpoint.c.state))
    assert [str(row.state) for row in rows] == ["1"]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_checkpoint_whose_commit_is_not_answered_is_stored_again(
    harness: Harness, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[Any] = []
    async with losing_commits(harness.url, monkeypatch) as commits:

        @harness.handler("async")
        async def coroutine(ctx: Context) -> None:
            await ctx.checkpoint(1)
            commits.lose("INSERT INTO task_checkpoint")
            with pytest.raises(DatabaseUnavailable):
                await ctx.checkpoint(2)
            states.append(ctx.state)
            await ctx.checkpoint(3)
            states.append(ctx.state)

        @harness.handler("plain")
        def plain(ctx: Context) -> None:
            ctx.checkpoint(1)
            commits.lose("INSERT INTO task_checkpoint")
            with pytest.raises(DatabaseUnavailable):
                ctx.checkpoint(2)
            states.append(ctx.state)
            ctx.checkpoint(3)
            states.append(ctx.state)

        task = await harness.submit(kind)
        await harness.work(url=parse_url(commits.url), notify=False)
    assert commits.lost == 1
    assert states == [1, 3]
    assert await harness.state(task) == "succeeded"
    detail = await harness.database.read(task_detail, task)
    assert [(row.number, row.state) for row in detail.checkpoints] == [(1, "1"), (2, "3")]


async def test_a_kept_state_is_stored_on_interruption_and_resets_the_count(harness: Harness) -> None:
    begun = asyncio.Event()

    @harness.handler("endless")
    async def endless(ctx: Context) -> None:
        ctx.keep((ctx.state or 0) + 1)
        begun.set()
        await asyncio.Event().wait()

    task = await harness.submit("endless")
    for number in range(1, 4):
        begun.clear()
        async with harness.running(drain_timeout="10ms", max_interruptions=1):
            await wait_for_event(begun)
        row = await harness.row(task)
        assert (row.state, row.attempt, row.interruptions) == ("waiting", 0, 1)
        detail = await harness.database.read(task_detail, task)
        assert [row.state for row in detail.checkpoints] == [str(n) for n in range(1, number + 1)]


@on_sqlite
async def test_a_kept_state_is_stored_at_the_interval(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes.NotesWriter, "every", 0.02)
    go_on = asyncio.Event()

    @harness.handler("work")
    async def work(ctx: Context) -> None:
        ctx.keep("a")
        await go_on.wait()

    await harness.submit("work")
    table = harness.database.tables.checkpoint
    async with harness.running(checkpoint_interval="10ms"):
        await until(lambda: _has_rows(harness, table))
        go_on.set()


async def _has_rows(harness: Harness, table: sa.Table) -> bool:
    return bool(await harness.count(table))


@on_sqlite
async def test_a_state_that_cannot_be_stored_is_refused_and_the_last_one_stays(harness: Harness) -> None:
    refusals: list[str] = []

    @harness.handler("work")
    async def work(ctx: Context) -> None:
        await ctx.checkpoint({"page": 7})
        for state in (object(), "x" * 200, float("nan"), "\0"):
            with pytest.raises(InvalidCheckpoint) as refusal:
                await ctx.checkpoint(state)
            refusals.append(str(refusal.value))
            with pytest.raises(InvalidCheckpoint):
                ctx.keep(state)
        assert ctx.state == {"page": 7}

    task = await harness.submit("work")
    await harness.work(checkpoint_limit="100")
    assert await harness.state(task) == "succeeded"
    assert len(refusals) == 4
    reason = "it contains an object of type object, which cannot be serialized as JSON"
    assert refusals[0] == f"Task {task} cannot store a checkpoint of type object: {reason}."
    assert "202 bytes exceed the checkpoint_limit of 100" in refusals[1]


@on_sqlite
async def test_a_task_keeps_its_last_checkpoints(harness: Harness) -> None:
    @harness.handler("work")
    async def work(ctx: Context) -> None:
        for n in range(KEPT_CHECKPOINTS + 5):
            await ctx.checkpoint(n)

    task = await harness.run("work")
    detail = await harness.database.read(task_detail, task)
    assert [row.number for row in detail.checkpoints] == list(range(6, KEPT_CHECKPOINTS + 6))


async def test_the_last_progress_is_kept(harness: Harness) -> None:
    @harness.handler("work")
    async def work(ctx: Context) -> None:
        ctx.progress(105, 105, "files")

    task = await harness.run("work")
    detail = await harness.database.read(task_detail, task)
    assert detail.progress is not None
    assert detail.progress.done == 105


async def test_progress_and_log_lines_are_written_while_it_runs(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes.NotesWriter, "every", 0.02)
    monkeypatch.setattr(notes, "RATE_AFTER", -1.0)
    monkeypatch.setattr(notes, "MOST_LINES", 3)
    go_on = asyncio.Event()

    @harness.handler("work")
    async def work(ctx: Context, password: str) -> None:
        ctx.progress(0, 105, "files")
        ctx.progress(42, 105, "files")
        ctx.logger.info("login with %s", password)
        for n in range(5):
            ctx.logger.warning("file %d\x1b[31m", n)
        with pytest.raises(InvalidProgress, match="finite and not negative"):
            ctx.progress(-1)
        await go_on.wait()

    task = await harness.submit("work", {"password": "hunter2-secret"})
    async with harness.running():
        await until(lambda: _has_rows(harness, harness.database.tables.progress))
        await until(lambda: _has_rows(harness, harness.database.tables.log))
        detail = await harness.database.read(task_detail, task)
        go_on.set()
        await harness.wait_for(task)
    assert detail.progress is not None
    assert detail.progress.describe(detail.at).startswith("42 of 105 files (40 %), ")
    assert (detail.progress.rate or 0) > 0
    assert detail.progress.remaining is not None
    lines = [(row.number, row.attempt, row.level, row.line) for row in detail.log]
    assert lines[0] == (1, 1, "info", "login with ***")
    assert [line[2] for line in lines] == ["info", "warning", "warning", "warning"]
    assert lines[-1][3] == "further lines are not kept: an attempt has at most 3"


async def test_an_operator_goes_back_to_an_earlier_checkpoint(harness: Harness) -> None:
    states: list[Any] = []

    @harness.handler("work", retry="1h")
    async def work(ctx: Context) -> None:
        states.append(ctx.state)
        if ctx.state is None:
            for line in (1, 2, 3):
                await ctx.checkpoint(line)
            raise ValueError("line 3 is wrong")

    task = await harness.submit("work")
    async with harness.running() as runner:
        await until(lambda: runner.metrics.verbs["retry"] == 1)
    missing = await harness.database.write(rewind, [Target(task)], 9, ANA)
    assert [item.why for item in missing.skipped] == ["it has no checkpoint 9; its checkpoints: 1, 2, 3"]
    assert (await harness.database.write(rewind, [Target(task)], 1, ANA)).changed == [task]
    detail = await harness.database.read(task_detail, task)
    assert [row.state for row in detail.checkpoints] == ["1", "2", "3", "1"]
    assert [(entry.verb, entry.operator, entry.reason) for entry in detail.audit] == [
        ("rewind", "ana", "line 3 is wrong")
    ]
    assert await undo_last(harness, task) == Result([task])
    assert (await harness.database.write(rewind, [Target(task)], 1, ANA)).changed == [task]
    await harness.change(sa.update(harness.database.tables.task).values(run_at=sa.text("'2020-01-01 00:00:00.000'")))
    await harness.work()
    assert states == [None, 1]


async def test_the_undo_of_a_rewind_never_discards_a_newer_checkpoint(harness: Harness) -> None:
    task = await harness.submit("work")
    table = harness.database.tables.checkpoint
    row = {"task_id": task, "fence": 1, "attempt": 1}
    for number in (1, 2):
        await harness.change(sa.insert(table).values(**row, number=number, state=str(number)))
    await harness.database.write(rewind, [Target(task)], 1, ANA)
    await harness.change(sa.insert(table).values(**row, number=4, state="4"))
    assert [item.why for item in (await undo_last(harness, task)).skipped] == ["it has stored checkpoint 4 since"]
    assert (await harness.database.read(task_detail, task)).checkpoints[-1].number == 4


async def undo_last(harness: Harness, task: int) -> Result:
    """Undo the last change of a task."""
    last = (await harness.database.read(task_detail, task)).audit[-1]
    return await harness.database.write(undo, [last.id], ANA)
