"""What happened to a task, in the order of time: attempts and what operators did, as people are told it."""

import json
from datetime import UTC, datetime, timedelta, timezone

from runner.outcome import Done, Failure, Retry
from runner.people.redaction import differences
from runner.store.database import Database
from runner.store.intervene import By, Changes, Target, edit, retry_now, terminate
from runner.store.observe import Audited, story
from runner.store.observe.timeline import entry_told, timeline
from tests.store.runners import Runner
from tests.store.table import put

BY = By("ana", "web-1", "relay is back")
VERBS = ("edit", "retry", "terminate")


async def test_edits_stand_between_the_attempts_that_they_were_made_between(database: Database, runner: Runner) -> None:
    id = await put(database, submitted_by="shop")
    (first,) = await runner.claim()
    await database.write(edit, id, None, Changes(max_attempts=9), BY)
    await runner.end(first, Retry("1h", failure=Failure("OSError", "token=hunter22 refused", "")))
    await database.write(retry_now, [Target(id)], BY)
    (second,) = await runner.claim()
    await database.write(terminate, [Target(id)], BY)
    told = timeline(await database.read(story, id))
    assert [event.kind for event in told] == ["submitted", "change", "attempt", "change", "running", "change"]
    submitted, edited, failed, retried, running, asked = told
    assert submitted.text == "submitted by shop"
    changes = (edited, retried, asked)
    assert [event.text.startswith(f"{verb} by ana@web-1") for event, verb in zip(changes, VERBS, strict=True)] == [
        True
    ] * 3
    assert all(event.text.endswith(": relay is back") for event in changes)
    assert edited.details == ("max_attempts: 3 -> 9",)
    assert failed.text.startswith("attempt 1 in hand for ")
    assert failed.text.endswith(f"runner {runner.id} on here, led to retry, next in 1h")
    assert failed.details == ("OSError: token=*** refused",)
    assert running.text.startswith("attempt 2 under way for ")
    revealed = timeline(await database.read(story, id), reveal=True)
    assert revealed[2].details == ("OSError: token=hunter22 refused",)
    there = timeline(await database.read(story, id), zone=timezone(timedelta(hours=1), "CET"))
    assert [told[3].details[0].count(zone) for told, zone in ((revealed, " UTC"), (there, " CET"))] == [2, 2]
    await runner.end(second, Done())
    assert timeline(await database.read(story, id))[-1].kind == "ended"


def test_a_long_value_is_told_in_short_on_both_sides() -> None:
    old, new = (json.dumps({"payload": json.dumps({"n": letter * 500})}) for letter in "ab")
    (told,) = differences(old, new, most=20)
    assert told == 'payload: {"n": "aaaaaaaaaaaa… -> {"n": "bbbbbbbbbbbb…'


def test_an_entry_is_told_with_what_it_took_back_and_with_whom() -> None:
    at = datetime(2026, 11, 21, tzinfo=UTC) - timedelta(days=1)
    entry = Audited(9, 4, None, 7, at, "ana", "web-1", "edit", None, None, None, batch="b-1", login="task_ana")
    assert entry_told(entry) == "edit (takes back 7) by ana@web-1 (login task_ana), together with others as b-1"
