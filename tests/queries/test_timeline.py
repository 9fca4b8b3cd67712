"""The timeline of a task: attempts and operations in order."""

import json
from datetime import UTC, datetime, timedelta, timezone

from runner.db.database import Database
from runner.model.outcome import Done, Failure, Retry
from runner.model.task import State
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.results import Actor, Target
from runner.operations.retry import retry_now
from runner.operations.terminate import terminate
from runner.queries.audit import AuditRecord
from runner.queries.task.detail import task_detail
from runner.queries.task.timeline import format_entry, timeline
from runner.text.redact import differences
from tests.store.rows import add_attempt, add_past, ahead
from tests.store.runners import Runner
from tests.store.table import put

BY = Actor("ana", "web-1", "relay is back")
VERBS = ("edit", "retry", "terminate")


async def test_edits_are_listed_between_their_attempts(database: Database, runner: Runner) -> None:
    id = await put(database, submitted_by="shop")
    (first,) = await runner.claim()
    await database.write(edit, id, None, Changes(max_attempts=9), BY)
    await runner.end(first, Retry("1h", failure=Failure("OSError", "token=hunter22 refused", "")))
    await database.write(retry_now, [Target(id)], BY)
    (second,) = await runner.claim()
    await database.write(terminate, [Target(id)], BY)
    events = timeline(await database.read(task_detail, id))
    assert [event.kind for event in events] == ["submitted", "change", "attempt", "change", "running", "change"]
    submitted, edited, failed, retried, running, asked = events
    assert submitted.text == "submitted by shop"
    changes = (edited, retried, asked)
    assert [event.text.startswith(f"{verb} by ana@web-1") for event, verb in zip(changes, VERBS, strict=True)] == [
        True
    ] * 3
    assert all(event.text.endswith(": relay is back") for event in changes)
    assert edited.details == ("max_attempts: 3 -> 9",)
    assert failed.text.startswith("attempt 1 ended after ")
    assert failed.text.endswith(f"on runner {runner.id} (here:1): failed, retrying in 1h")
    assert failed.details == ("OSError: token=*** refused",)
    assert running.text.startswith("attempt 2 running for ")
    revealed = timeline(await database.read(task_detail, id), reveal=True)
    assert revealed[2].details == ("OSError: token=hunter22 refused",)
    there = timeline(await database.read(task_detail, id), zone=timezone(timedelta(hours=1), "CET"))
    assert [events[3].details[0].count(zone) for events, zone in ((revealed, " UTC"), (there, " CET"))] == [2, 2]
    assert there[1].details == ("max attempts: 3 -> 9",)
    await runner.end(second, Done())
    assert timeline(await database.read(task_detail, id))[-1].kind == "ended"


async def test_the_last_attempt_of_a_dead_task_took_as_long_as_its_task(database: Database) -> None:
    id = await add_past(database, 900, State.DEAD, attempt=2, duration=0.736)
    for number in (1, 2):
        at = {"started_at": ahead(20 * number - 100), "ended_at": ahead(20 * number - 98)}
        await add_attempt(database, id, number, verb="die" if number == 2 else "retry", **at)
    first, second = (each for each in timeline(await database.read(task_detail, id)) if each.kind == "attempt")
    assert first.text.startswith("attempt 1 ended after 2")
    assert second.text.startswith("attempt 2 ended after 736ms on ")


def test_a_long_value_is_cut_before_and_after() -> None:
    old, new = (json.dumps({"payload": json.dumps({"n": letter * 500})}) for letter in "ab")
    (line,) = differences(old, new, most=20)
    assert str(line) == 'payload n: "aaaaaaaaaaaaaaaaaa… -> "bbbbbbbbbbbbbbbbbb…'


def test_an_entry_shows_its_undo_login_and_group() -> None:
    at = datetime(2026, 11, 21, tzinfo=UTC) - timedelta(days=1)
    entry = AuditRecord(
        9, 4, None, 7, at, "ana", "web-1", "edit", None, None, None, change_group="b-1", login="task_ana"
    )
    assert format_entry(entry) == "edit (undoes 7) by ana@web-1 (login task_ana), group b-1"
