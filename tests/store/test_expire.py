"""Expiry: no attempt starts after it, and an expired task ends as cancelled."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.db.database import Database
from runner.errors import InvalidTask
from runner.model.outcome import Retry
from runner.model.task import DependsOn, NewTask, OnDuplicate, State
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.results import Actor, Target
from runner.operations.retry import requeue
from runner.queries.why.why import why
from runner.store.dependencies.resolve import open_dependencies, resolve
from runner.store.expire import EXPIRED, any_overdue, expire
from runner.store.submit import submit, submit_many
from tests.store.rows import add_live, add_runner, ahead, history_row, stored
from tests.store.runners import Runner
from tests.store.table import count
from tests.store.unique_tasks import once

pytestmark = pytest.mark.one_database

BY = Actor("ana", "web-1")
SOON = datetime(2090, 1, 1, tzinfo=UTC)


async def add(database: Database, expires: float, **values: Any) -> int:
    return await add_live(database, handler="work", expires_at=ahead(expires), **values)


async def sweep(database: Database) -> list[int]:
    return [task.id for task in await database.write(expire)]


@pytest.mark.parametrize("start", [{}, {"delay": 3_600.0}, {"run_at": SOON}], ids=["now", "delay", "run_at"])
async def test_a_length_counts_from_the_due_time(database: Database, start: dict[str, Any]) -> None:
    row = await stored(database, await database.write(submit, NewTask("work", expires=600.0, **start)))
    assert row.expires_at - row.run_at == timedelta(minutes=10)


async def test_a_moment_wins_over_a_length(database: Database) -> None:
    tasks = [NewTask("work", expires=600.0, expires_at=SOON), NewTask("work", expires=60.0), NewTask("work")]
    ids = await database.write(submit_many, tasks)
    both, length, never = [await stored(database, id) for id in ids]
    assert (both.expires_at, never.expires_at) == (SOON, None)
    assert length.expires_at - length.run_at == timedelta(minutes=1)


async def test_a_task_that_would_expire_before_its_time_is_refused(database: Database) -> None:
    with pytest.raises(InvalidTask, match="before its run_at, 2090"):
        await database.write(submit, NewTask("work", run_at=SOON, expires_at=SOON - timedelta(seconds=1)))
    assert await count(database, database.tables.task) == 0


async def test_a_runner_claims_no_expired_task(database: Database, runner: Runner) -> None:
    late, never = await add(database, -1), await add_live(database, handler="work")
    early = await add(database, 60)
    claimed = await runner.claim()
    assert [task.id for task in claimed] == [never, early]
    assert claimed[0].expires_in is None
    assert 50 < (claimed[1].expires_in or 0) <= 60
    assert (await stored(database, late)).state == State.WAITING


async def test_an_expired_task_is_cancelled_with_the_reason(database: Database) -> None:
    assert not (await database.read(any_overdue)).expired
    waiting, blocked = await add(database, -1), await add(database, -1, state="blocked", blocked_by=1)
    await add(database, 60)
    assert (await database.read(any_overdue)).expired
    assert sorted(await sweep(database)) == [waiting, blocked]
    row = await history_row(database, waiting)
    assert (row.state, row.error, row.expires_at < row.finished_at) == ("cancelled", EXPIRED, True)
    assert not (await database.read(any_overdue)).expired
    assert await sweep(database) == []


async def test_an_attempt_that_started_in_time_ends_and_is_not_retried(database: Database, runner: Runner) -> None:
    id = await add(database, 60)
    (claimed,) = await runner.claim()
    await database.write(edit, id, None, Changes(expires_at=datetime(2000, 1, 1, tzinfo=UTC)), BY)
    assert await sweep(database) == []
    await runner.end(claimed, Retry("0s", "no"))
    assert await runner.claim() == []
    assert await sweep(database) == [id]


async def test_what_depends_on_an_expired_task_follows_its_rule(database: Database) -> None:
    parent = await add(database, -1)
    rules = [DependsOn(parent, on_failure="cancel"), DependsOn(parent, on_failure="run"), DependsOn(parent)]
    doomed, goes_on, waits = await database.write(submit_many, [NewTask("work", after=(rule,)) for rule in rules])
    (task,) = await database.write(expire)
    await database.write(resolve, await database.read(open_dependencies, [task.as_parent]))
    assert (await history_row(database, doomed)).error == f"parent {parent} is cancelled"
    assert [(await stored(database, id)).state for id in (goes_on, waits)] == ["waiting", "blocked"]


async def test_an_expired_task_that_an_operator_retries_starts(database: Database, runner: Runner) -> None:
    id = await add(database, -1)
    await sweep(database)
    await database.write(requeue, [Target(id)], BY)
    assert [task.id for task in await runner.claim()] == [id]


async def test_a_replacement_gets_its_own_expiry(database: Database) -> None:
    first = once(expires=60.0, delay=100.0)
    id = await database.write(submit, first)
    newer = once(expires=600.0, delay=3_600.0, on_duplicate=OnDuplicate.REPLACE)
    assert await database.write(submit, newer) == id
    row = await stored(database, id)
    assert row.expires_at - row.run_at == timedelta(minutes=10)
    await database.write(submit, once(on_duplicate=OnDuplicate.REPLACE))
    assert (await stored(database, id)).expires_at == row.expires_at


async def test_why_names_the_expiry_and_the_change_that_lifts_it(database: Database) -> None:
    await add_runner(database, handlers='["work"]', capacity=1)
    late = await database.read(why, await add(database, -60), UTC)
    assert [cause.kind for cause in late.causes] == ["expired"]
    assert "no attempt starts any more" in late.causes[0].text
    assert [remedy.commands for remedy in late.remedies] == [f"runner edit {late.task.id} --expires-at none"]
    never_due = await database.read(why, await add(database, 60, run_at=ahead(600)), UTC)
    assert [cause.kind for cause in never_due.causes] == ["expired", "due"]
    assert "before it is due" in never_due.causes[0].text
