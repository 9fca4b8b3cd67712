"""Operations on schedules: each is checked, audited and undone, and none is lost to a concurrent one."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_now
from runner.errors import (
    DuplicateScheduleId,
    InvalidEdit,
    InvalidSchedule,
    PayloadTooLarge,
    ScheduleConflict,
    ScheduleInCode,
    UnknownSchedule,
)
from runner.handlers.parameters import stored_signatures
from runner.handlers.registry import Handler
from runner.model.schedule import ScheduleSpec
from runner.operations.results import Actor
from runner.operations.schedule import (
    add_schedule,
    delete_schedule,
    edit_schedule,
    free_schedule,
    pause_schedule,
    resume_schedule,
    run_schedule,
)
from runner.operations.undo import undo
from runner.queries.audit import AuditRecord, audit
from runner.queries.schedules import ScheduleRow, recent_starts, schedule_of, schedules
from runner.queries.why.why import why
from runner.store.schedules.tick import tick
from tests.store.runners import Runner
from tests.store.table import change

BY = Actor("ana", "desk", "deploy")
SPEC = ScheduleSpec("work", "every 1h")


@pytest.fixture
async def nightly(database: Database) -> str:
    await database.write(add_schedule, "nightly", SPEC, BY)
    return "nightly"


async def row(database: Database, id: str = "nightly") -> ScheduleRow:
    (schedule,) = await database.read(schedules, [id])
    return schedule


async def log(database: Database) -> list[AuditRecord]:
    return await database.read(audit)


async def undo_last(database: Database) -> list[str]:
    (last, *_) = await log(database)
    result = await database.write(undo, [last.id], BY)
    return [skipped.why for skipped in result.skipped]


async def tick_now(database: Database) -> list[int]:
    return [task for each in await database.write(tick) for task in each.tasks]


async def make_due(database: Database) -> None:
    table = database.tables.schedule
    await change(database, sa.update(table).values(next_at=db_now()))


async def test_every_operation_is_recorded_and_undone(database: Database, nightly: str) -> None:
    before = await row(database)
    await database.write(edit_schedule, nightly, {"rule": "every 2h", "misfire": "skip"}, BY)
    edited = await row(database)
    assert (edited.spec.rule, edited.spec.misfire) == ("every 2h", "skip")
    assert await undo_last(database) == []
    assert (await row(database)).spec == before.spec
    await database.write(pause_schedule, nightly, BY)
    assert (await row(database)).pause is not None
    assert await undo_last(database) == []
    assert (await row(database)).pause is None
    await database.write(run_schedule, nightly, BY)
    assert await undo_last(database) == []
    assert await tick_now(database) == []
    await database.write(delete_schedule, nightly, BY)
    assert await database.read(schedules, [nightly]) == []
    assert await undo_last(database) == []
    assert (await row(database)).spec == before.spec
    entries = await log(database)
    assert {entry.target for entry in entries} == {"schedule nightly"}
    assert [entry.verb for entry in reversed(entries) if entry.undo_of is None] == [
        *("add", "edit", "pause", "run", "delete")
    ]
    assert all(entry.operator == "ana" and entry.reason == "deploy" for entry in entries)


async def test_a_round_is_freed_by_hand_and_held_again_by_an_undo(
    database: Database, nightly: str, runner: Runner
) -> None:
    assert await database.write(free_schedule, nightly, BY) is None
    await tick_now(database)
    await make_due(database)
    (task,) = await tick_now(database)
    assert [claimed.id for claimed in await runner.claim()] == [task]
    await database.write(run_schedule, nightly, BY)
    (requested,) = await tick_now(database)
    await make_due(database)
    assert await tick_now(database) == []
    assert await database.write(free_schedule, nightly, BY) == task
    assert await undo_last(database) == []
    await make_due(database)
    assert await tick_now(database) == []
    assert await database.write(free_schedule, nightly, BY) == task
    await make_due(database)
    (other,) = await tick_now(database)
    assert await undo_last(database) == ["the schedule has changed since"]
    verbs = [entry.verb for entry in reversed(await log(database))]
    assert (other not in (task, requested), verbs) == (True, ["add", "run", "free", "hold", "free"])


@pytest.mark.both_databases
async def test_an_undone_deletion_keeps_a_run_that_was_requested(database: Database, nightly: str) -> None:
    await tick_now(database)
    await database.write(run_schedule, nightly, BY)
    await database.write(delete_schedule, nightly, BY)
    assert await undo_last(database) == []
    assert len(await tick_now(database)) == 1


@pytest.mark.both_databases
async def test_an_undone_deletion_keeps_the_unfinished_runs_of_the_schedule(
    database: Database, nightly: str, runner: Runner
) -> None:
    await tick_now(database)
    await make_due(database)
    (task,) = await tick_now(database)
    assert [claimed.id for claimed in await runner.claim()] == [task]
    await database.write(delete_schedule, nightly, BY)
    assert await undo_last(database) == []
    await make_due(database)
    assert await tick_now(database) == []


async def test_an_undo_is_refused_when_a_later_change_would_be_lost(database: Database, nightly: str) -> None:
    await database.write(edit_schedule, nightly, {"rule": "every 2h"}, BY)
    (entry, *_) = await log(database)
    await database.write(edit_schedule, nightly, {"rule": "every 3h"}, BY)
    result = await database.write(undo, [entry.id], BY)
    assert result.reasons() == [f"change {entry.id}: the schedule has changed since"]
    assert (await row(database)).spec.rule == "every 3h"


async def test_a_run_that_was_submitted_cannot_be_withdrawn(database: Database, nightly: str) -> None:
    await tick_now(database)
    await database.write(run_schedule, nightly, BY)
    assert len(await tick_now(database)) == 1
    assert await undo_last(database) == ["its task has been submitted: terminate that instead"]


async def test_an_edit_of_an_old_version_is_refused(database: Database, nightly: str) -> None:
    version = (await row(database)).version
    await database.write(pause_schedule, nightly, BY)
    with pytest.raises(ScheduleConflict, match=f"version {version}: it is at version {version + 1}"):
        await database.write(edit_schedule, nightly, {"rule": "every 2h"}, BY, version=version)


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"rule": "61 * * * *"}, InvalidSchedule, "bad minute"),
        ({"timezone": "Mars/Olympus"}, InvalidSchedule, "no such time zone"),
        ({"payload": "[]"}, InvalidSchedule, "not a JSON object"),
        ({"payload": '{"text": "' + "x" * 100 + '"}'}, PayloadTooLarge, "limit is 50"),
    ],
)
async def test_a_wrong_value_is_refused_and_nothing_changes(
    database: Database, nightly: str, changes: dict[str, Any], error: type[Exception], why: str
) -> None:
    before = await row(database)
    with pytest.raises(error, match=why):
        await database.write(edit_schedule, nightly, changes, BY, payload_limit=50)
    assert replace(await row(database), upcoming=()) == replace(before, upcoming=())  # the next ticks pass


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ('{"fulll": true, "day": 1}', "fulll: the handler has no such argument; it has: day, full"),
        ("{}", "day: the handler requires it: a whole number"),
        ('{"day": "monday"}', "day: expected a whole number"),
    ],
)
async def test_a_payload_that_does_not_fit_the_handler_is_refused(
    database: Database, nightly: str, payload: str, why: str
) -> None:
    def work(day: int, full: bool = True) -> None: ...

    table = database.tables.handler
    signature = stored_signatures({"work": Handler("work", work)})["work"]
    await change(database, sa.insert(table).values(name="work", signature=signature))
    before = await row(database)
    with pytest.raises(InvalidSchedule, match=why) as refusal:
        await database.write(edit_schedule, nightly, {"payload": payload}, BY)
    assert payload in str(refusal.value)
    with pytest.raises(InvalidSchedule, match=why):
        await database.write(add_schedule, "other", SPEC._replace(payload=payload), BY)
    secret = '{"day": 1, "token": "t9"}'
    with pytest.raises(InvalidSchedule, match="no such argument") as refusal:
        await database.write(add_schedule, "other", SPEC._replace(payload=secret), BY)
    assert "t9" not in str(refusal.value)
    assert replace(await row(database), upcoming=()) == replace(before, upcoming=())  # the next ticks pass
    assert await database.read(schedules, ["other"]) == []
    await database.write(edit_schedule, nightly, {"payload": '{"day": 1, "full": false}'}, BY)


async def test_unknown_and_duplicate_ids_are_refused(database: Database, nightly: str) -> None:
    with pytest.raises(UnknownSchedule, match="did you mean 'nightly'"):
        await database.write(pause_schedule, "nigtly", BY)
    with pytest.raises(DuplicateScheduleId):
        await database.write(add_schedule, nightly, SPEC, BY)
    with pytest.raises(InvalidSchedule, match="1 to 200 characters"):
        await database.write(add_schedule, "", SPEC, BY)
    with pytest.raises(InvalidEdit, match="in the future"):
        await database.write(pause_schedule, nightly, BY, datetime(2000, 1, 1, tzinfo=UTC))


async def test_a_schedule_in_the_code_is_paused_instead_of_deleted(database: Database, nightly: str) -> None:
    table = database.tables.schedule
    await change(database, sa.update(table).values(module="shop.reports"))
    with pytest.raises(ScheduleInCode, match=r"shop\.reports"):
        await database.write(delete_schedule, nightly, BY)
    await change(database, sa.update(table).values(paused_at=db_now(), paused_by="runner"))
    await database.write(delete_schedule, nightly, BY)
    assert await database.read(schedules, [nightly]) == []


async def test_a_resumed_schedule_makes_up_for_nothing(database: Database, nightly: str) -> None:
    await database.write(pause_schedule, nightly, BY)
    assert await tick_now(database) == []
    assert await database.write(resume_schedule, nightly, BY)
    assert not await database.write(resume_schedule, nightly, BY)
    assert await tick_now(database) == []
    planned = (await row(database)).next_at
    assert planned is not None
    assert planned > datetime.now(UTC)


async def test_a_schedule_shows_its_runs_with_their_lateness(database: Database, nightly: str, runner: Runner) -> None:
    await make_due(database)
    (first,) = await tick_now(database)
    (task,) = await runner.claim()
    await runner.end(task)
    await make_due(database)
    (second,) = await tick_now(database)
    shown = await row(database)
    assert [run.task_id for run in shown.runs] == [second, first]
    assert [run.waits for run in shown.runs] == [True, False]
    late = shown.runs[1].late
    assert late is not None
    assert timedelta(0) <= late < timedelta(minutes=5)
    assert shown.lateness(datetime.now(UTC) + timedelta(minutes=9)) is not None
    assert len(shown.upcoming) == 10
    assert len(await database.read(recent_starts, timedelta(hours=1))) == 2


async def test_why_names_the_schedule_of_a_task_and_its_overlap(database: Database) -> None:
    await database.write(add_schedule, "queued", ScheduleSpec("work", "every 1m", overlap="queue"), BY)
    tasks: list[int] = []
    for _ in range(2):
        await make_due(database)
        tasks += await tick_now(database)
    assert len(tasks) == 2
    schedule = await database.read(schedule_of, tasks[1])
    assert schedule is not None
    assert (schedule.id, schedule.manual) == ("queued", False)
    explanation = await database.read(why, tasks[1], UTC)
    texts = list(sentences(explanation))
    assert [cause.view.command for cause in explanation.causes if cause.view][-1] == "runner schedules show queued"
    assert any(f"It depends on task {tasks[0]}" in text for text in texts)
    assert any("Schedule queued submitted it" in text and "waits for its end" in text for text in texts)


def sentences(explanation: Any) -> Iterable[str]:
    return (cause.text for cause in explanation.causes)
