"""Hostile content passes through every verb on both databases."""

import json

import psycopg
import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import RunnerError
from runner.model.outcome import Cancelled, Dead, Done, Failure, Outcome, Release, Retry, Snooze
from runner.model.text_limits import ERROR_LIMIT
from runner.store.attempts import MESSAGE_LIMIT
from runner.store.claim.survey import survey
from tests.conftest import on_postgresql
from tests.store.runners import Runner, settle_done, settlement
from tests.store.table import Row, attempts, edit, expire, live, make_due, put, put_many, row_of

pytestmark = pytest.mark.one_database

MEGABYTE = 2**20

TEXTS = {
    "NUL": "before\0after",
    "only NUL": "\0",
    "half a pair": "a\ud800b\udfff",
    "a pair in two halves": "\ud83d\ude00",
    "escape sequences": "\x1b[2J\x1b]0;owned\x07\x9b31m",
    "changes of direction": "\u202eevil\u2066\u2069\u200f",
    "line separators": "a\r\nb\u2028c\u2029d\x85e",
    "combining marks": "e" + "\u0301" * 500,
    "private and unassigned": "\ue000\U0010ffff\ufffe\uffff",
    "format signs": "%s %(id)s {0} {id} $1 :id ? %%",
    "quotes": "'; DROP TABLE task; -- \" ` \\ '' \\'",
    "JSON": '{"a": "\\u0000"} ] } null',
    "a megabyte": "x" * MEGABYTE,
    "a megabyte of four bytes each": "\U0001f600" * (MEGABYTE // 4),
    "a megabyte of NUL": "\0" * MEGABYTE,
    "empty": "",
    "blank": " \t\n",
}
every_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())

NAMES = [
    "' OR 1=1 --",
    "%s",
    ":x",
    "?",
    "a b",
    "é",
    "\U0001f600",
    "x" * 200,
    "\u4e00" * 200,
    "{}",
    "NULL",
    "0",
    "*",
    "[a]",
]


@pytest.mark.representatives(4)
@every_text
async def test_no_failure_can_keep_tasks_from_being_settled(database: Database, runner: Runner, text: str) -> None:
    failure = Failure(text, text, text)
    await put_many(database, 2)
    one, two = await runner.claim()
    settled = await runner.settle(settlement(one, Retry(failure=failure)), settlement(two, Dead(failure=failure)))
    assert settled.verbs == {one.id: "retry", two.id: "die"}
    for task in (one, two):
        row, (kept,) = await row_of(database, task.id), await attempts(database, task.id)
        assert len((row["error"] or "").encode()) <= ERROR_LIMIT
        assert len(kept["message"].encode()) <= MESSAGE_LIMIT
        assert "\0" not in f"{row['error']}{kept['error_type']}{kept['message']}{kept['traceback']}"


@pytest.mark.representatives(4)
@every_text
async def test_no_reason_can_keep_tasks_from_being_settled(database: Database, runner: Runner, text: str) -> None:
    outcomes: list[Outcome] = [Snooze("0s", text), Release(text), Retry("0s", text), Dead(text), Cancelled(text)]
    await put_many(database, len(outcomes))
    batch = [settlement(task, outcome) for task, outcome in zip(await runner.claim(), outcomes, strict=True)]
    assert set((await runner.settle(*batch)).verbs) == {item.id for item in batch}


@pytest.mark.parametrize("name", ["NUL", "half a pair", "escape sequences", "changes of direction"])
async def test_unstorable_characters_become_visible(database: Database, runner: Runner, name: str) -> None:
    await put(database)
    (task,) = await runner.claim()
    await runner.end(task, Dead(failure=Failure("E", TEXTS[name])))
    (kept,) = await attempts(database, task.id)
    expected = TEXTS[name].replace("\0", "\\x00").replace("\ud800", "\\ud800").replace("\udfff", "\\udfff")
    assert kept["message"] == expected


@pytest.mark.representatives(4)
@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:12])
async def test_any_printable_name_goes_through_every_verb(database: Database, name: str) -> None:
    runner = await Runner.enter(database, name)
    task_id = await put(database, name, queue=name, key=name, headers=json.dumps({"user": name}), submitted_by=name)
    (head,) = await database.write(survey)
    assert (head.lane.queue, head.lane.handler) == (name, name)
    (task,) = await runner.claim()
    assert (task.queue, task.handler, task.key) == (name, name, name)
    await runner.end(task, Retry("0s", failure=Failure(name, name)))
    (again,) = await runner.claim()
    await runner.end(again, Done('{"a": 1}'))
    row = await row_of(database, task_id)
    assert [row[column] for column in ("queue", "handler", "key", "state")] == [name, name, name, "succeeded"]
    assert json.loads(row["headers"]) == {"user": name}


@pytest.mark.parametrize("text", ["\x1b[2J", "\u202eevil", "e\u0301\u2028", "'; --", " ", "\U0010ffff"])
async def test_a_key_is_stored_unchanged(database: Database, runner: Runner, text: str) -> None:
    await put(database, key=text)
    (task,) = await runner.claim()
    await runner.end(task)
    assert task.key == (await row_of(database, task.id))["key"] == text


async def test_the_largest_numbers_go_through(database: Database, runner: Runner) -> None:
    task_id = await put(database, max_attempts=2**31 - 1, timeout=999_999_999.0)
    await edit(database, task_id, fence=10**18 - 10, version=2**63 - 10, attempt=10**9 - 3)
    (task,) = await runner.claim()
    assert (task.fence, task.attempt) == (10**18 - 9, 10**9 - 2)
    assert (await runner.end(task, Retry("0s"))).verbs == {task_id: "retry"}
    assert (await live(database, task_id) or {})["fence"] == 10**18 - 9


async def test_a_million_bytes_of_payload_go_through(database: Database, runner: Runner) -> None:
    payload = '{"a": "' + "é" * (MEGABYTE // 2) + '"}'
    await put(database, payload=payload)
    (task,) = await runner.claim()
    assert task.payload == payload


async def test_deep_nesting_goes_through_or_is_refused(database: Database, runner: Runner) -> None:
    payload = '{"a": ' + "[" * 900 + "]" * 900 + "}"
    await put(database, payload=payload)
    assert [task.payload for task in await runner.claim()] == [payload]
    with pytest.raises(RunnerError):
        await put(database, payload='{"a": ' + "[" * 500_000 + "]" * 500_000 + "}")


@on_postgresql
@pytest.mark.parametrize("moment", ["infinity", "-infinity", "20000-01-01", "1969-01-01"])
async def test_the_table_rejects_unreadable_due_times(database: Database, moment: str) -> None:
    task_id = await put(database)
    with pytest.raises(RunnerError):
        await edit(database, task_id, run_at=sa.literal_column(f"timestamptz '{moment}'"))


@pytest.mark.parametrize("moment", ["infinity", "20000-01-01 00:00:00", "tomorrow", "", "2026-13-01 00:00:00", "12"])
@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
async def test_sqlite_rejects_invalid_due_times(database: Database, moment: str) -> None:
    task_id = await put(database)
    with pytest.raises(RunnerError):
        await edit(database, task_id, run_at=sa.literal_column(f"'{moment}'"))


@pytest.mark.representatives(2)
@on_postgresql
@pytest.mark.parametrize("column", ["claimed_at", "deadline_at", "submitted_at"])
@pytest.mark.parametrize("moment", ["infinity", "20000-01-01"])
async def test_unreadable_times_stop_no_verb(
    database: Database, runner: Runner, other: Runner, migrated_url: str, column: str, moment: str
) -> None:
    spoilt, fine = await put(database), await put(database)
    claimed = {task.id: task for task in await runner.claim()}
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        connection.execute(f"UPDATE task SET {column} = '{moment}' WHERE id = {spoilt}")
    settled = await runner.settle(*(settlement(claimed[task_id], Retry("0s")) for task_id in (spoilt, fine)))
    assert set(settled.verbs) == {spoilt, fine}
    await make_due(database, spoilt, fine)
    again = await runner.claim()
    assert {task.id for task in again} == {spoilt, fine}
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        connection.execute(f"UPDATE task SET {column} = '{moment}' WHERE id = {spoilt}")
    await expire(database, runner.id)
    assert set(await other.rescue()) == {spoilt, fine}


async def test_results_are_stored_unchanged(database: Database, runner: Runner) -> None:
    results = ['"\u202e\x7f"', "[1e400, 1.10]", '{"b": 1, "a": 2}', "null"]
    rows: list[Row] = []
    for result in results:
        await put(database)
        (task,) = await runner.claim()
        assert await database.write(settle_done, runner.id, [settlement(task, Done(result))]) == {task.id}
        rows.append(await row_of(database, task.id))
    assert [row["result"] for row in rows] == results
