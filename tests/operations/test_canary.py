"""Retries in stages of 1, 10, 100 and the rest, and the fate of their tasks."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import InvalidInput
from runner.filter.parse import Filter
from runner.model.task import Shown, State
from runner.operations import canary as module
from runner.operations.bulk import BulkOptions
from runner.operations.canary import canary, check_canary
from runner.operations.results import Actor, Target, with_change_group
from runner.operations.retry import retry_now
from runner.operations.undo.kinds import RESULT
from runner.operations.undo.undo import preview_undo, undo, undo_all
from runner.queries import fate as fate_module
from runner.queries.audit import CANARY, audit, undoable
from runner.queries.fate import fate
from tests.store.rows import add_attempt, add_past, ahead, filtered, history_row, stored

ANA = with_change_group(Actor("ana", "desk-1", "the relay is back"))
GROUP = ANA.change_group or ""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.01)
    monkeypatch.setattr(module, "STAGES", (1, 3))


async def dead(database: Database, number: int) -> list[int]:
    """Tasks that died of one error."""
    ids = list(range(101, 101 + number))
    for id in ids:
        await add_past(database, id, State.DEAD, attempt=1, max_attempts=1, fence=1)
        await add_attempt(database, id, ended_at=ahead(-60))
    return ids


@asynccontextmanager
async def ending(database: Database, end: Callable[[int], str | None]) -> AsyncIterator[None]:
    """End waiting tasks as a runner does: with a fingerprint, or successfully."""

    leaves = asyncio.Event()

    async def work() -> None:
        while not leaves.is_set():
            async with database.reading() as tx:
                task = tx.tables.task
                waiting = sa.select(task.c.id).where(task.c.state == "waiting").order_by(task.c.id)
                ids = [row.id for row in await tx.rows(waiting)]
            for id in ids:
                fingerprint = end(id)
                if fingerprint is not None:
                    await add_attempt(database, id, fence=id, fingerprint=fingerprint, message="again")
                async with database.writing() as tx:
                    await tx.execute(sa.delete(tx.tables.task).where(tx.tables.task.c.id == id))
                await add_past(database, id, State.SUCCEEDED if fingerprint is None else State.DEAD)
            await asyncio.sleep(0.01)

    running = asyncio.create_task(work())
    try:
        yield
    finally:
        leaves.set()
        await running


def run(database: Database, **options: Any) -> Any:
    matching = filtered("state:dead failure:f1")
    return canary(database, partial(retry_now, by=ANA), ANA, matching, BulkOptions(**options))


async def recorded(database: Database) -> tuple[int | None, str]:
    """The task and the result of the only canary in the audit, which is outside its group and cannot be undone."""
    (entry,) = [each for each in await database.read(audit) if each.verb == CANARY]
    assert (entry.target, entry.change_group, entry.operator, entry.reason) == (
        f"group {GROUP}",
        None,
        "ana",
        ANA.reason,
    )
    assert (await database.read(preview_undo, [entry.id])).skipped == {RESULT: 1}
    assert undoable([entry]) is None
    return entry.task_id, json.loads(entry.after or "")["result"]


async def test_all_stages_run_while_no_task_fails_again(database: Database) -> None:
    ids = await dead(database, 9)
    totals: list[int] = []
    async with ending(database, lambda _: None):
        result = await run(database, on_progress=lambda so_far: totals.append(len(so_far.changed)))
    assert (result.failure, result.stages, totals) == ("", 3, [1, 4, 9])
    assert sorted(result.result.changed) == ids
    assert result.result.changed[0] == ids[-1]
    assert await recorded(database) == (None, "changed 9 tasks; no stage failed")


async def test_a_failure_stops_the_canary_and_the_rest_is_never_touched(database: Database) -> None:
    ids = await dead(database, 9)
    async with ending(database, lambda id: "f1" if id == ids[-3] else None):
        result = await run(database)
    assert (result.stages, len(result.result.changed)) == (2, 4)
    assert result.failure == f"stopped after 4: task {ids[-3]} failed again with the same error, ValueError: again"
    assert [(await history_row(database, id)).state for id in ids[:5]] == [State.DEAD] * 5
    assert await recorded(database) == (ids[-3], result.failure)
    now = await database.read(fate, GROUP)
    assert (now.total.number, now.states[Shown.DEAD]) == (4, 1)
    assert [(cause.fingerprint, cause.tasks, cause.repeated) for cause in now.causes] == [("f1", 1, True)]
    assert str(now).startswith("4 tasks: ")
    assert str(now).endswith("; 1 failed since the change")


async def test_the_fate_of_more_tasks_than_are_counted_has_lower_bounds(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fate_module, "CAP", 3)
    ids = await dead(database, 5)
    await database.write(retry_now, [Target(id) for id in ids], ANA)
    assert str(await database.read(fate, GROUP)) == "3+ tasks: 3+ ready"


async def test_another_error_stops_it_too_and_is_named_as_such(database: Database) -> None:
    await dead(database, 5)
    async with ending(database, lambda _: "f2"):
        result = await run(database)
    assert (result.stages, "with another error" in result.failure) == (1, True)


async def test_tasks_that_have_died_of_another_cause_since_come_last(database: Database) -> None:
    ids = await dead(database, 6)
    for id in (ids[-1], ids[-2], ids[0]):
        await add_attempt(database, id, fence=2, fingerprint="f2", message="disk full", ended_at=ahead(-30))
    async with ending(database, lambda _: None):
        result = await run(database)
    assert (result.failure, result.stages) == ("", 3)
    assert result.result.changed[0] == ids[3]
    assert set(result.result.changed[:3]) == set(ids[1:4])
    assert sorted(result.result.changed) == ids


async def test_a_stage_without_a_task_of_the_cause_takes_the_others(database: Database) -> None:
    ids = await dead(database, 2)
    for id in ids:
        await add_attempt(database, id, fence=2, fingerprint="f2", message="disk full", ended_at=ahead(-30))
    async with ending(database, lambda id: "f2" if id == ids[1] else None):
        result = await run(database)
    assert (result.stages, result.result.changed) == (1, [ids[1]])


async def test_a_stop_ends_the_wait_and_undo_returns_what_has_not_started(database: Database) -> None:
    ids = await dead(database, 5)
    waits: list[Any] = []
    result = await canary(
        database,
        partial(retry_now, by=ANA),
        ANA,
        filtered("state:dead failure:f1"),
        BulkOptions(stop=lambda: bool(waits)),
        waits.append,
    )
    assert (result.result.changed, result.failure, waits[0].pending) == ([ids[-1]], "", (ids[-1],))
    assert (await stored(database, ids[-1])).state == State.WAITING
    assert await recorded(database) == (None, "stopped by the operator after 1 task")
    assert (await undo_all(database, partial(undo, by=ANA), GROUP)).changed == [ids[-1]]
    assert (await history_row(database, ids[-1])).state == State.DEAD


def test_a_canary_needs_a_filter_and_no_spread() -> None:
    with pytest.raises(InvalidInput, match="goes through the tasks of a filter"):
        check_canary([1, 2], 0.0)
    with pytest.raises(InvalidInput, match="cannot spread"):
        check_canary(Filter(), 60.0)
