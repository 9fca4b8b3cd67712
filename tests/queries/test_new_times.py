"""The times of a period have a bounded number of names, and all further ones count together."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.policy import work_keys
from runner.policy.work_keys import OTHERS, WorkKeys
from runner.queries.gauges import new_times
from tests.store.minutes import Minute, write_statistics

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


async def work(database: Database, ahead: int, queue: str, handler: str = "send", runs: int = 1) -> None:
    minute = Minute(NOON + timedelta(minutes=ahead), queue, handler)
    minute.durations.add([0.4] * runs)
    minute.waits.add([2.0])
    await database.write(write_statistics, 1, [minute], {})


async def numbers(database: Database, names: WorkKeys, since: int, until: int) -> dict[tuple[str, str], int]:
    first, end = NOON + timedelta(minutes=since), NOON + timedelta(minutes=until)
    result = await database.read(new_times, first, end, names)
    return {work_key: times.runs.number for work_key, times in result.items()}


async def test_each_minute_counts_in_one_period(database: Database) -> None:
    for ahead, runs in ((-1, 1), (0, 2), (1, 4), (2, 8), (3, 16)):
        await work(database, ahead, "mail", runs=runs)
    names = WorkKeys()
    assert await numbers(database, names, 0, 2) == {("mail", "send"): 6}
    assert await numbers(database, names, 2, 3) == {("mail", "send"): 8}
    assert await numbers(database, names, 4, 9) == {}


async def test_names_beyond_the_bound_count_together_and_a_listed_name_keeps_its_own(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_keys, "MOST_LISTED", 2)
    names = WorkKeys()
    await work(database, 0, "b")
    assert await numbers(database, names, 0, 1) == {("b", "send"): 1}
    for queue, runs in (("a", 2), ("b", 4), ("c", 8), ("d", 16)):
        await work(database, 1, queue, runs=runs)
    await work(database, 1, "a", "print", runs=32)
    assert await numbers(database, names, 1, 2) == {("a", "print"): 32, ("b", "send"): 4, OTHERS: 26}
    assert names.left_out == 3
    await work(database, 2, "d", runs=64)
    assert await numbers(database, names, 2, 3) == {OTHERS: 64}


async def test_10000_queues_get_100_names_and_a_count_of_the_others(database: Database) -> None:
    bin_ms, minute = 500, database.tables.minute
    rows = [
        {"minute": NOON, "queue": f"queue{number}", "handler": "send", "runner_id": 1, "bin_ms": bin_ms, "runs": 1}
        for number in range(10_000)
    ]
    async with database.writing() as tx:
        await tx.execute(sa.insert(minute), rows)
    names = WorkKeys()
    found = await numbers(database, names, 0, 1)
    assert (len(found), found[OTHERS], names.left_out) == (101, 9_900, 9_900)
