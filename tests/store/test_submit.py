import asyncio
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from runner.db.database import Database
from runner.db.dialects.postgresql import channel
from runner.errors import InvalidTask, RunnerError
from runner.model.task import NewTask
from runner.store.submit import CHUNK, submit, submit_many
from runner.store.validation import check
from tests.conftest import on_postgresql
from tests.store.runners import Runner
from tests.store.table import count, live, put

LONE_SURROGATE = "\ud800"

UNSTORABLE: dict[str, dict[str, Any]] = {
    "NUL in the handler": {"handler": "wo\0rk"},
    "NUL in the queue": {"queue": "a\0b"},
    "NUL in the key": {"key": "a\0b"},
    "NUL in the tags": {"tags": '["\0"]'},
    "NUL in the headers": {"headers": '{"a": "\0"}'},
    "NUL in the submitter": {"submitted_by": "\0"},
    "NUL in the payload": {"payload": '{"a": "\0"}'},
    "NUL as an escape": {"payload": '{"a": ["\\u0000"]}'},
    "NUL as an escaped name": {"payload": '{"a": {"\\u0000": 1}}'},
    "half a pair in the handler": {"handler": LONE_SURROGATE},
    "half a pair in the key": {"key": LONE_SURROGATE},
    "half a pair in the payload": {"payload": f'{{"a": "{LONE_SURROGATE}"}}'},
    "half a pair as an escape": {"payload": '{"a": "\\ud800"}'},
    "a control character in the handler": {"handler": "wo\x1brk"},
    "a change of direction in the queue": {"queue": "abc\u202ecba"},
    "no handler": {"handler": ""},
    "a long handler": {"handler": "x" * 201},
    "a key beyond what an index holds": {"key": "".join(chr(0x4E00 + 37 * i % 20_000) for i in range(2_000))},
    "priority 99": {"priority": 99},
    "priority 0": {"priority": 0},
    "no attempts": {"max_attempts": 0},
    "a huge number of attempts": {"max_attempts": 2**31},
    "a time without a zone": {"run_at": datetime(2026, 1, 1)},  # noqa: DTZ001 - this is what is refused
    "a time before 1970": {"run_at": datetime(1969, 12, 31, tzinfo=UTC)},
    "the year 9999": {"run_at": datetime(9999, 1, 1, tzinfo=UTC)},
    "a time and a delay": {"run_at": datetime(2026, 1, 1, tzinfo=UTC), "delay": 1.0},
    "a negative delay": {"delay": -1.0},
    "a delay that is no number": {"delay": math.nan},
    "an endless delay": {"delay": math.inf},
    "a delay beyond all times": {"delay": 1e18},
    "a time-out that is no number": {"timeout": math.nan},
    "no time at all": {"timeout": 0.0},
    "an unknown retry plan": {"retry": "sometimes"},
    "NaN in the payload": {"payload": '{"a": NaN}'},
    "no JSON": {"payload": "{'a': 1}"},
    "no JSON, with an escape": {"payload": '{"a": "\\u00"}'},
    "nesting too deep to read, with an escape": {"payload": '{"\\u00e9": ' + "[" * 50_000 + "]" * 50_000 + "}"},
    "a payload that is no object": {"payload": "[1]"},
    "tags that are no JSON": {"tags": "red, green"},
    "tags that are no array": {"tags": '{"red": 1}'},
    "tags with NUL as an escape": {"tags": '["\\u0000"]'},
    "headers that are no JSON": {"headers": "traceparent"},
    "headers that are no object": {"headers": '["a"]'},
    "a header that is no text": {"headers": '{"a": 1}'},
    "a header without a name": {"headers": '{"": "a"}'},
    "a header with two lines": {"headers": '{"a": "1\\n2"}'},
    "headers with NUL as an escape": {"headers": '{"a": "\\u0000"}'},
}

LETTERS = [
    '{"b": 1,  "a": 2, "a": 3}',
    '{"big": 123456789012345678901234567890, "small": 1e-400, "exact": 1.10}',
    f'{{"longer than Python reads, and an escape \\u00e9": {"9" * 5_000}}}',
    '{"text": "\\u00e9 é \\ud83d\\ude00 😀 \\\\u0000 \\" \u202e \x7f"}',
    '{"": {"": [[], {}, null, true]}}',
]


@pytest.fixture
def notices(migrated_url: str) -> Iterator["psycopg.Connection[Any]"]:
    """A connection that listens as a runner does."""
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        connection.execute("LISTEN task")
        yield connection


def wait_for_event(connection: "psycopg.Connection[Any]") -> int:
    """The number of notifications up to our own marker."""
    connection.execute("NOTIFY task, 'marker'")
    number = 0
    for notice in connection.notifies(timeout=90):
        if notice.payload == "marker":
            break
        number += 1
    return number


@pytest.mark.parametrize("moment", ["2026-01-01T00:00:00", "1969-12-31T00:00:00+00:00"])
def test_a_time_that_is_refused_is_shown_as_people_write_it(moment: str) -> None:
    with pytest.raises(InvalidTask, match=re.escape(repr(moment))):
        check(NewTask("work", run_at=datetime.fromisoformat(moment)))


async def test_ids_come_back_in_the_order_of_the_tasks(database: Database) -> None:
    tasks = [NewTask("work", key=f"k{7 * number % 100}") for number in range(100)]
    ids = await database.write(submit_many, tasks)
    rows = [await live(database, task_id) for task_id in ids[::9]]
    assert [row and row["key"] for row in rows] == [task.key for task in tasks[::9]]


async def test_five_thousand_tasks_take_several_statements_and_keep_their_order(database: Database) -> None:
    assert CHUNK < 5_000
    ids = await database.write(submit_many, [NewTask("work", key=str(number)) for number in range(5_000)])
    assert len(set(ids)) == await count(database, database.tables.task) == 5_000
    for number in (0, CHUNK - 1, CHUNK, 4_999):
        row = await live(database, ids[number])
        assert row is not None
        assert row["key"] == str(number)


async def test_an_empty_submit_returns_no_ids(database: Database) -> None:
    assert await database.write(submit_many, []) == []


async def test_tasks_of_one_batch_may_leave_different_things_to_the_defaults(database: Database) -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    full = NewTask(
        "a", '{"x": 1}', "slow", "k", 9, moment, None, None, None, 7, "1m", 2.5, '["red"]', '{"a": "1"}', "me"
    )
    ids = await database.write(submit_many, [NewTask("b"), full, NewTask("c", delay=60)])
    bare, complete, later = [await live(database, task_id) or {} for task_id in ids]
    for name in ("payload", "queue", "key", "priority", "max_attempts", "retry", "timeout", "tags", "headers"):
        assert complete[name] == getattr(full, name), name
    assert (complete["run_at"], complete["submitted_by"]) == (moment, "me")
    assert (bare["payload"], bare["queue"], bare["priority"], bare["key"]) == ("{}", "default", 1, None)
    assert bare["run_at"] == bare["submitted_at"]
    assert later["run_at"] - later["submitted_at"] == timedelta(seconds=60)


async def test_a_time_keeps_its_moment_in_any_zone(database: Database) -> None:
    nepal = datetime.fromisoformat("2030-05-01T12:00:00.123+05:45")
    row = await live(database, await put(database, run_at=nepal))
    assert row is not None
    assert row["run_at"] == nepal


async def test_tasks_share_the_fate_of_the_callers_transaction(database: Database) -> None:
    async def undone() -> None:
        async with database.writing() as tx:
            await submit_many(tx, [NewTask("work")] * 3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await undone()
    assert await count(database, database.tables.task) == 0
    async with database.writing() as tx:
        await submit_many(tx, [NewTask("work")] * 3)
    assert await count(database, database.tables.task) == 3


@pytest.mark.representatives(16)
@pytest.mark.parametrize("options", UNSTORABLE.values(), ids=UNSTORABLE.keys())
async def test_unstorable_values_are_rejected_and_nothing_is_written(
    database: Database, options: dict[str, Any]
) -> None:
    bad = NewTask(**{"handler": "work"} | options)
    with pytest.raises(RunnerError):
        await database.write(submit_many, [NewTask("work"), bad])
    assert await count(database, database.tables.task) == 0


async def test_a_rejection_keeps_the_callers_transaction_usable(database: Database) -> None:
    async with database.writing() as tx:
        await submit(tx, NewTask("before"))
        for payload in ('{"a": "\\ud800"}', '{"a": NaN}', '{"a": "\\u00"}', '{"a": "\0"}'):
            with pytest.raises(InvalidTask):
                await submit(tx, NewTask("work", payload))
        await submit(tx, NewTask("after"))
    assert await count(database, database.tables.task) == 2


@pytest.mark.parametrize("payload", LETTERS)
async def test_the_payload_is_claimed_unchanged(database: Database, runner: Runner, payload: str) -> None:
    await put(database, payload=payload)
    assert [task.payload for task in await runner.claim()] == [payload]


async def test_programs_submit_at_the_same_time_without_losing_any(database: Database, rival: Database) -> None:
    ids = await asyncio.gather(*(put(one) for one in (database, rival) for _ in range(20)))
    assert len(set(ids)) == await count(database, database.tables.task) == 40


@on_postgresql
async def test_a_batch_wakes_listening_runners_once(database: Database, notices: "psycopg.Connection[Any]") -> None:
    assert channel(database.tables) == "task"
    await database.write(submit_many, [NewTask("work")] * 100)
    assert await asyncio.to_thread(wait_for_event, notices) == 1


@on_postgresql
async def test_future_and_unannounced_tasks_wake_no_runner(
    database: Database, notices: "psycopg.Connection[Any]"
) -> None:
    await put(database, delay=60)
    await put(database, run_at=datetime(2030, 1, 1, tzinfo=UTC))
    await database.write(submit, NewTask("work"), notify=False)
    assert await asyncio.to_thread(wait_for_event, notices) == 0
