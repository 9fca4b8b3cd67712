"""Names: warnings about queues and handlers that no task has."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from runner.db.database import Database
from runner.db.transaction import clock
from runner.filter.parse import Filter, parse_filter
from runner.operations.names import filter_warnings
from runner.queries.task_list import search
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_past


def named(text: str) -> Filter:
    return parse_filter(text, datetime.now(UTC), UTC)


async def test_a_queue_whose_tasks_are_all_finished_is_suggested(database: Database) -> None:
    await add_past(database, 1, queue="payments", handler="charge")
    at = await database.read(clock)
    minute = Minute(at - timedelta(minutes=3), "payments", "charge")
    minute.counts |= {"submitted": 1, "succeeded": 1}
    await database.write(write_statistics, 1, [minute], {})
    assert await database.read(filter_warnings, named("queue:paymnts")) == [
        "queue paymnts has never been used, did you mean 'payments'"
    ]
    assert await database.read(filter_warnings, named("handler:chrge")) == [
        "no runner ever had handler chrge, did you mean 'charge'"
    ]
    assert await database.read(filter_warnings, named("queue:payments handler:charge")) == []


async def test_a_name_that_is_not_similar_is_unknown_to_people(database: Database) -> None:
    await add_past(database, 1, queue="payments")
    ask = partial(filter_warnings, if_similar=False)
    assert await database.read(filter_warnings, named("queue:x9")) == []
    assert await database.read(ask, named("queue:x9")) == ["queue x9 has never been used"]


async def test_a_search_that_stopped_does_not_deny_older_tasks(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "find", partial(search.find, scan_limit=2))
    for id in range(1, 6):
        await add_past(database, id, queue="payments")
    ask = partial(filter_warnings, if_similar=False)
    assert await database.read(ask, named("queue:paymnts")) == ["no recent task is in queue paymnts"]
