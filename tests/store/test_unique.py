"""Unique keys: their holders, their scopes, and duplicates."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import DuplicateTask, InvalidTask
from runner.model.outcome import Dead, Release, Retry, Snooze
from runner.model.task import DependsOn, NewTask, OnDuplicate, Scope, State, SubmitResult, UniqueKey
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.policy.retention import Retention
from runner.store.retention import forget_expired, prune
from runner.store.submit import CHUNK, submit, submit_with_result
from tests.conftest import on_postgresql
from tests.store.runners import Runner
from tests.store.table import change, count, live, row_of
from tests.store.unique_tasks import begin, key_row, let_time_pass, once, put

pytestmark = pytest.mark.one_database

SKIP, REPLACE, ERROR = OnDuplicate
FOREVER, _, UNTIL_FINISHED, FOR_A_TIME = Scope
BY = Actor("ana", "desk")

HOSTILE = {
    "quotes": "a'b\"c",
    "a statement": "'; DROP TABLE task; --",
    "signs of a pattern": "100%_*?[a]",
    "placeholders": "%s %(new)s :new ? $1 {0}",
    "JSON": '["a", {"b": null}]\\u0041',
    "blanks": " \t\n ",
    "letters of the world": "Łódź-東京-😀-\u202e",
    "other case": "USER",
    "combining": "e\u0301",
    "null in words": "NULL",
}
LONGEST = {
    "letters": "k" * 400,
    "letters of four bytes": "".join(chr(0x20000 + 37 * number % 40_000) for number in range(400)),
}


async def test_a_second_task_of_a_key_is_the_first_one(database: Database) -> None:
    first = await put(database, once())
    assert first.duplicates == frozenset()
    assert await put(database, once(payload='{"a": 1}')) == SubmitResult(first.ids, frozenset({0}))
    row = await row_of(database, first.ids[0])
    assert (row["unique_key"], row["payload"]) == ("k", "{}")
    assert await count(database, database.tables.task) == 1


async def test_a_key_belongs_to_a_handler(database: Database) -> None:
    one, other = [await put(database, once(handler=handler)) for handler in ("a", "b")]
    assert one.ids != other.ids


async def test_a_batch_mixes_all_kinds(database: Database) -> None:
    (there,) = (await put(database, once("there"))).ids
    batch = [NewTask("work"), once("new"), once("there"), once("new"), NewTask("work"), once("there"), once("b")]
    got = await put(database, *batch)
    assert got.duplicates == {2, 3, 5}
    assert [got.ids[2], got.ids[3], got.ids[5]] == [there, got.ids[1], there]
    made = [got.ids[place] for place in (0, 1, 4, 6)]
    assert made == sorted(made)
    assert await count(database, database.tables.task) == 5
    assert [(await row_of(database, id))["unique_key"] for id in made] == [None, "new", None, "b"]


@pytest.mark.parametrize("outcome", [None, Dead()], ids=["succeeded", "dead"])
async def test_until_finished_ends_with_the_task(database: Database, runner: Runner, outcome: Any) -> None:
    first = await put(database, once())
    (claimed,) = await runner.claim()
    assert (await put(database, once())).ids == first.ids
    await runner.end(claimed, outcome)
    second = await put(database, once())
    assert second.duplicates == frozenset()
    assert second.ids != first.ids


async def test_the_unique_key_of_a_terminated_task_is_free(database: Database) -> None:
    first = await put(database, once())
    await database.write(terminate, [Target(first.ids[0])], BY)
    assert (await put(database, once())).ids != first.ids


@pytest.mark.parametrize("outcome", [Retry("0s"), Snooze("0s"), Release()], ids=["retry", "snooze", "release"])
async def test_a_task_that_comes_back_keeps_its_key(database: Database, runner: Runner, outcome: Any) -> None:
    first = await put(database, once())
    (claimed,) = await runner.claim()
    await runner.end(claimed, outcome)
    assert (await put(database, once())).ids == first.ids


async def test_forever_outlasts_the_task(database: Database, runner: Runner) -> None:
    first = await put(database, once(scope=FOREVER))
    await runner.end((await runner.claim())[0])
    assert (await put(database, once(scope=UNTIL_FINISHED))).ids == first.ids


async def test_a_timed_key_outlasts_the_task_by_the_databases_clock(database: Database, runner: Runner) -> None:
    hour = once(scope=FOR_A_TIME, seconds=3_600.0)
    first = await put(database, hour)
    row = await key_row(database)
    task = await row_of(database, first.ids[0])
    assert abs((row.expires_at - task["submitted_at"]).total_seconds() - 3_600) < 1
    await runner.end((await runner.claim())[0])
    assert (await put(database, hour)).ids == first.ids
    await let_time_pass(database)
    second = await put(database, hour)
    assert second.duplicates == frozenset()
    await let_time_pass(database)
    assert (await put(database, hour)).ids != second.ids, "the time ends whether the task has ended or not"


async def test_duplicates_are_counted_for_the_task_that_holds_the_key(database: Database, runner: Runner) -> None:
    await put(database, once(), once())
    await put(database, once())
    row = await key_row(database)
    assert (row.duplicates, row.duplicate_at is not None) == (2, True)
    await runner.end((await runner.claim())[0])
    await put(database, once())
    row = await key_row(database)
    assert (row.duplicates, row.duplicate_at) == (0, None)


async def test_replace_gives_a_waiting_task_the_new_values(database: Database) -> None:
    first = await put(
        database,
        once(payload='{"a": 1}', delay=60, key="old", priority=5, tags='["red"]', headers='{"a": "1"}', bucket=3),
    )
    before = await row_of(database, first.ids[0])
    got = await put(database, once(payload='{"a": 2}', delay=600, key="new", on_duplicate=REPLACE))
    assert got == SubmitResult(first.ids, frozenset({0}), frozenset({0}))
    row = await row_of(database, first.ids[0])
    assert (row["payload"], row["key"], row["priority"], row["tags"], row["bucket"]) == (
        '{"a": 2}',
        "new",
        5,
        '["red"]',
        3,
    )
    assert 500 < (row["run_at"] - before["run_at"]).total_seconds() < 600
    assert (row["version"], row["submitted_at"]) == (before["version"] + 1, before["submitted_at"])
    assert await count(database, database.tables.audit) == 0


async def test_replace_without_a_time_means_now(database: Database, runner: Runner) -> None:
    await put(database, once(delay=3_600))
    assert await runner.claim() == []
    await put(database, once(on_duplicate=REPLACE))
    assert len(await runner.claim()) == 1


async def test_replace_leaves_a_task_that_has_begun_or_ended_as_it_is(database: Database, runner: Runner) -> None:
    newer = once(payload='{"a": 2}', on_duplicate=REPLACE)
    first = await put(database, once(scope=FOREVER))
    (claimed,) = await runner.claim()
    assert await put(database, newer) == SubmitResult(first.ids, frozenset({0}))
    await runner.end(claimed)
    assert await put(database, newer) == SubmitResult(first.ids, frozenset({0}))
    assert (await row_of(database, first.ids[0]))["payload"] == "{}"


@pytest.mark.both_databases
@pytest.mark.parametrize("record", ["step", "checkpoint"])
async def test_replace_leaves_a_task_that_continues_from_a_step_or_a_checkpoint_as_it_is(
    database: Database, runner: Runner, record: str
) -> None:
    first = await put(database, once())
    await begin(runner, record)
    before = await row_of(database, first.ids[0])
    newer = once(payload='{"a": 2}', on_duplicate=REPLACE)
    assert await put(database, newer) == SubmitResult(first.ids, frozenset({0}))
    assert await row_of(database, first.ids[0]) == before


async def test_replace_and_parents_are_refused_together(database: Database) -> None:
    """A task that exists cannot wait for other parents."""
    parent = await put(database, NewTask("other"))
    newer = once(on_duplicate=REPLACE, after=(DependsOn(parent.ids[0]),))
    with pytest.raises(InvalidTask, match=r"`after`.*on_duplicate is 'replace'.*a replaced task keeps its parents"):
        await put(database, newer)
    assert await count(database, database.tables.unique) == 0


async def test_replace_keeps_the_attempts(database: Database, runner: Runner) -> None:
    first = await put(database, once())
    await runner.end((await runner.claim())[0], Retry("1h"))
    await put(database, once(on_duplicate=REPLACE))
    assert (await row_of(database, first.ids[0]))["attempt"] == 1


async def test_replace_leaves_an_attempt_to_a_task_that_was_tried_before(database: Database, runner: Runner) -> None:
    first = await put(database, once(max_attempts=2))
    await runner.end((await runner.claim())[0], Retry("1h"))
    await put(database, once(max_attempts=1, on_duplicate=REPLACE))
    (task,) = await runner.claim()
    assert (task.id, task.attempt, task.max_attempts) == (first.ids[0], 2, 2)


async def test_of_several_replacements_in_a_batch_the_last_counts(database: Database) -> None:
    (there,) = (await put(database, once("there"))).ids
    batch = [
        once(key, payload=f'{{"a": {number}}}', on_duplicate=REPLACE) for number in range(3) for key in ("b", "there")
    ]
    got = await put(database, *batch)
    assert got.replaced == got.duplicates == {1, 2, 3, 4, 5}
    assert [(await row_of(database, id))["payload"] for id in (there, got.ids[0])] == ['{"a": 2}'] * 2


async def test_an_error_names_the_key_and_the_task_and_leaves_nothing_written(database: Database) -> None:
    first = await put(database, once())
    batch = [NewTask("work"), once("other"), once(on_duplicate=ERROR)]
    async with database.writing() as tx:
        with pytest.raises(DuplicateTask, match=rf"'k'.*'work'.*task {first.ids[0]}\b") as caught:
            await submit_with_result(tx, batch)
        after = await submit(tx, NewTask("after"))  # the caller's transaction is still usable
    assert caught.value.id == first.ids[0]
    assert await count(database, database.tables.task) == 2
    assert await count(database, database.tables.unique) == 1
    assert (await live(database, after)) is not None
    assert (await key_row(database)).duplicates == 0


async def test_two_equal_keys_in_a_batch_are_duplicates_of_each_other(database: Database) -> None:
    with pytest.raises(DuplicateTask, match="another task of the same submit") as caught:
        await put(database, once(), once(on_duplicate=ERROR))
    assert caught.value.id is None
    assert await count(database, database.tables.task) == await count(database, database.tables.unique) == 0


async def test_a_rolled_back_submit_holds_no_key(database: Database) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        async with database.writing() as tx:
            await submit_with_result(tx, [once()])
            raise KeyboardInterrupt
    assert (await put(database, once())).duplicates == frozenset()


async def test_a_batch_may_need_several_statements(database: Database) -> None:
    keys = [str(number) for number in range(CHUNK + 500)]
    first = await put(database, *(once(key) for key in reversed(keys)))
    again = await put(database, *(once(key, on_duplicate=REPLACE) for key in keys))
    assert again.ids == list(reversed(first.ids))
    assert len(again.replaced) == len(keys) == await count(database, database.tables.task)


@pytest.mark.parametrize("key", (HOSTILE | LONGEST).values(), ids=(HOSTILE | LONGEST).keys())
async def test_a_key_is_any_text(database: Database, key: str) -> None:
    handler = LONGEST["letters of four bytes"][:200] if key in LONGEST.values() else "work"
    first = await put(database, once("user", handler=handler), once(key, handler=handler))
    assert first.duplicates == frozenset()
    again = await put(database, once(key, handler=handler, on_duplicate=REPLACE), once("user", handler=handler))
    assert again.ids == [first.ids[1], first.ids[0]]
    assert (await row_of(database, first.ids[1]))["unique_key"] == key


@pytest.mark.parametrize(
    "unique",
    [
        UniqueKey(""),
        UniqueKey("k" * 401),
        UniqueKey("a\0b"),
        UniqueKey("\ud800"),
        UniqueKey("k", FOR_A_TIME),
        UniqueKey("k", FOR_A_TIME, 0.0),
        UniqueKey("k", FOR_A_TIME, float("nan")),
        UniqueKey("k", FOR_A_TIME, float("inf")),
    ],
)
async def test_an_invalid_key_is_rejected_and_nothing_is_written(database: Database, unique: UniqueKey) -> None:
    with pytest.raises(InvalidTask):
        await put(database, once("good"), NewTask("work", unique_key=unique))
    assert await count(database, database.tables.unique) == 0


@pytest.mark.parametrize(
    "row",
    [
        {"scope": "sometimes"},
        {"scope": "for a time"},
        {"scope": "forever", "expires_at": "2030-01-01 00:00:00.000"},
    ],
    ids=["an unknown scope", "a time without an end", "an end without a time"],
)
async def test_a_row_with_nonsense_values_is_rejected(database: Database, row: dict[str, str]) -> None:
    names = ", ".join(("handler", "unique_key", *row))
    values = ", ".join(f"'{value}'" for value in ("h", "k", *row.values()))
    with pytest.raises(Exception, match=r"task_unique_(scope|expires_at)"):
        await change(database, sa.text(f"INSERT INTO task_unique ({names}) VALUES ({values})"))


@on_postgresql
async def test_a_producer_that_locks_a_key_delays_no_runner(database: Database, runner: Runner) -> None:
    (task_id,) = (await put(database, once())).ids
    async with database.writing() as producer:
        await producer.rows(sa.select(producer.tables.unique).with_for_update())
        async with asyncio.timeout(90):
            (task,) = await runner.claim()
            assert (await runner.end(task)).verbs == {task_id: "succeed"}
            assert await database.write(forget_expired, 10) == 0
            await database.write(prune, Retention({State.SUCCEEDED: timedelta(0)}))
