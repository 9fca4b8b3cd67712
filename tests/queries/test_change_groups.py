"""Operations: a change group counts as one."""

import sys

import pytest

from runner.db.database import Database
from runner.operations.delay import delay
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor, Target, with_change_group
from runner.operations.terminate import terminate
from runner.queries.audit import change_groups
from runner.queries.counting import Count
from tests.store.table import put, put_many

BY = Actor("ana", "web-1", "restore of db-2")


async def test_a_change_group_is_one_operation(database: Database) -> None:
    ids = await put_many(database, 3, delay=3600.0)
    by = with_change_group(BY)
    await database.write(terminate, [Target(ids[0])], by)
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), BY)
    await database.write(terminate, [Target(id) for id in ids[1:]], by)
    await database.write(delay, [Target(await put(database))], seconds=60.0, by=BY)
    groups = await database.read(change_groups)
    assert [(group.entry.verb, group.number) for group in groups] == [
        ("delay", Count(1)),
        ("terminate", Count(3)),
        ("pause", Count(1)),
    ]
    assert [group.entry.verb for group in await database.read(change_groups, 2)] == ["delay", "terminate"]
    one_by_one = await database.read(change_groups, 50, by.change_group)
    assert sorted(group.entry.task_id or 0 for group in one_by_one) == ids


async def test_what_was_done_before_is_found_behind_many_that_were_done_together(database: Database) -> None:
    ids = await put_many(database, 7, delay=3600.0)
    by, others = with_change_group(BY), with_change_group(BY)
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), BY)
    for id in ids[:5]:
        await database.write(terminate, [Target(id)], by)
    for id in ids[5:]:
        await database.write(delay, [Target(id)], seconds=60.0, by=others)
        await database.write(terminate, [Target(id)], by)
    groups = await database.read(change_groups, 3)
    assert [(group.entry.verb, group.number.number) for group in groups] == [
        ("terminate", 7),
        ("delay", 2),
        ("pause", 1),
    ]


async def test_what_is_counted_stops_and_says_so(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await put_many(database, 3, delay=3600.0)
    await database.write(terminate, [Target(id) for id in ids], with_change_group(BY))
    monkeypatch.setattr(sys.modules[change_groups.__module__], "CAP", 2)
    (group,) = await database.read(change_groups)
    assert group.number == Count(2, more=True)
