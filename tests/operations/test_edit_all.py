"""Edits of many tasks: previewed with their values, changed as one group, and undone."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from runner.db.database import Database
from runner.errors import InvalidEdit
from runner.model.task import State
from runner.operations.bulk import BulkOptions, to_all, to_each
from runner.operations.edit import edit_all
from runner.operations.edit_values import FIELDS, SAME, Changes, check_bulk
from runner.operations.preview import Outline, preview
from runner.operations.results import Actor, Conflict, Skipped, Target, with_change_group
from runner.operations.undo.undo import undo, undo_all
from runner.queries.audit import audit
from runner.queries.past.reconstruction import EDITABLE
from runner.queries.task_list.row import TaskRow
from tests.store.rows import add_live, add_past, filtered, stored

ANA = with_change_group(Actor("ana", "desk-1", "relay is back"))
RUNNING = "the task is running; its retry plan determines when it runs again"


def test_previews_and_past_times_know_each_value_that_an_edit_sets() -> None:
    """A preview compares the values of many tasks, of which payload and key are none; a past time shows a row."""
    assert set(Outline._fields) >= FIELDS - {"payload", "key"}
    assert {*EDITABLE, "run_at"} == FIELDS & {*TaskRow._fields}


async def test_the_same_values_are_set_on_all_that_match_and_undone_together(database: Database) -> None:
    ids = [await add_live(database, queue="mail", priority=priority, timeout=9.0) for priority in (1, 2, 2)]
    other = await add_live(database)
    changes = Changes(priority=8, max_attempts=6, timeout=None)
    result = await to_all(database, partial(edit_all, changes=changes, by=ANA), filtered("queue:mail"), BulkOptions(2))
    assert sorted(result.changed) == ids
    tasks = [await stored(database, id) for id in ids]
    assert {(task.priority, task.max_attempts, task.timeout, task.version) for task in tasks} == {(8, 6, None, 1)}
    assert (await stored(database, other)).version == 0
    group = ANA.change_group or ""
    undone = await undo_all(database, partial(undo, by=ANA), group)
    assert sorted(undone.changed) == ids
    tasks = [await stored(database, id) for id in ids]
    assert [(task.priority, task.max_attempts, task.timeout) for task in tasks] == [
        (1, None, 9.0),
        (2, None, 9.0),
        (2, None, 9.0),
    ]


async def test_the_preview_of_an_edit_counts_as_the_edit_does(database: Database) -> None:
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=10)
    changes = Changes(run_at=when, max_attempts=2)
    values = check_bulk(changes)
    plain = await add_live(database, queue="mail")
    running = await add_live(database, queue="mail", state=State.RUNNING, attempt=1, fence=1)
    tired = await add_live(database, queue="mail", attempt=2, max_attempts=5)
    same = await add_live(database, queue="mail", run_at=when, max_attempts=2)
    await add_past(database, 900, queue="mail")
    plan = await database.read(preview, filtered("queue:mail"), "edit", values=values)
    assert (plan.eligible, [task.id for task in plan.samples]) == (1, [plain])
    result = await to_all(database, partial(edit_all, changes=changes, by=ANA), filtered("queue:mail"))
    assert result.changed == [plain]
    assert dict(plan.skipped) == {skipped.why: 1 for skipped in result.skipped}
    reasons = {skipped.id: skipped.why for skipped in result.skipped}
    assert (reasons[running], reasons[same]) == (RUNNING, SAME)
    assert "has used 2 attempts" in reasons[tired]


async def test_due_times_are_spread_and_audited_as_stored(database: Database) -> None:
    ids = [await add_live(database, priority=3) for _ in range(20)]
    when = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    changes = Changes(run_at=when, priority=4)
    operation = partial(edit_all, changes=changes, by=ANA, spread=600.0)
    result = await to_each(database, operation, [Target(id) for id in ids])
    assert result.changed == ids
    times: list[Any] = [(await stored(database, id)).run_at for id in ids]
    assert len(set(times)) > 10
    assert all(timedelta(seconds=-1) <= time - when <= timedelta(seconds=601) for time in times)
    entries = {entry.task_id: entry for entry in await database.read(audit)}
    assert [times[0].isoformat() in str(entries[ids[0]].after), '"priority": 4' in str(entries[ids[0]].after)] == [
        True,
        True,
    ]


async def test_changed_and_missing_tasks_are_not_edited(database: Database) -> None:
    id = await add_live(database, version=3)
    result = await database.write(edit_all, [Target(id, 2), Target(77)], Changes(priority=9), ANA)
    assert (result.changed, result.conflicts) == ([], [Conflict(id, State.WAITING, 3)])
    assert result.skipped == [Skipped(77, "it does not exist; it may have been pruned")]


@pytest.mark.parametrize(
    ("changes", "spread", "why"),
    [
        (Changes(payload="{}"), 0.0, "it belongs to one task"),
        (Changes(key="k"), 0.0, "it belongs to one task"),
        (Changes(priority=11), 0.0, "priority"),
        (Changes(priority=4), 60.0, "it needs a due time"),
    ],
)
async def test_values_of_one_task_are_refused_before_any_change(
    database: Database, changes: Changes, spread: float, why: str
) -> None:
    id = await add_live(database)
    with pytest.raises(InvalidEdit, match=why):
        await database.write(edit_all, [Target(id)], changes, ANA, spread=spread)
    assert (await stored(database, id)).version == 0
