"""Hosts: only runners of its hosts claim a task, until any host may."""

import socket
from typing import Any

import pytest

from runner.db.database import Database
from runner.errors import InvalidTask
from runner.filter.sort import parse_sort
from runner.handlers.options import read_options
from runner.model.outcome import Release, Retry, Snooze
from runner.model.task import NewTask
from runner.operations.new_task import copy_task
from runner.operations.results import Actor, Target
from runner.operations.retry import retry_now
from runner.queries.task_list.search import find
from runner.store.claim.survey import pending
from runner.store.expire import any_overdue, unbind
from runner.store.submit import submit
from runner.text.hosts import host_list
from tests.store.rows import add_live, ahead, filtered, stored
from tests.store.runners import Runner
from tests.store.table import expire, make_due, put


async def claimed(runner: Runner) -> list[int]:
    return [task.id for task in await runner.claim()]


async def test_a_runner_claims_the_tasks_of_its_host_and_those_of_any_host(database: Database) -> None:
    for_any, for_one = await put(database), await put(database, hosts="web-1")
    for_two, other = await put(database, hosts="web-1,web-3"), await put(database, hosts="web-10")
    assert await claimed(await Runner.enter(database, host="web-3")) == [for_any, for_two]
    assert await claimed(await Runner.enter(database, host="web-1")) == [for_one]
    assert await claimed(await Runner.enter(database, host="WEB-10")) == []
    assert await claimed(await Runner.enter(database, host="web-10")) == [other]


async def test_a_plain_insert_may_have_spaces_between_hosts(database: Database) -> None:
    id = await add_live(database, handler="work", hosts="web-1, web-3")
    assert await claimed(await Runner.enter(database, host="web-9")) == []
    assert await claimed(await Runner.enter(database, host="web-3")) == [id]


async def test_a_retry_returns_to_the_same_host(database: Database) -> None:
    id = await put(database, hosts="web-1")
    owner, other = await Runner.enter(database, host="web-1"), await Runner.enter(database, host="web-2")
    (task,) = await owner.claim()
    await owner.end(task, Retry("1s"))
    await make_due(database, id)
    assert await claimed(other) == []
    assert await claimed(owner) == [id]


async def test_a_suspect_is_claimed_on_its_host_only(database: Database) -> None:
    id = await add_live(database, handler="work", hosts="web-1", rescues=2, run_at=ahead(-1))
    other = await Runner.enter(database, host="web-2")
    await put(database, queue="default")
    await other.survey()
    assert await other.claim_suspect() == []
    owner = await Runner.enter(database, host="web-1")
    await owner.survey()
    assert [task.id for task in await owner.claim_suspect()] == [id]


async def test_after_its_time_any_host_takes_a_task(database: Database) -> None:
    early, late = [await put(database, hosts="web-1", hosts_for=seconds) for seconds in (0.001, 60.0)]
    row = await stored(database, late)
    assert 59 <= (row.hosts_until - row.run_at).total_seconds() <= 61
    other = await Runner.enter(database, host="web-2")
    while not (await database.read(any_overdue)).unbound:
        assert await claimed(other) == []
    assert len(await database.write(unbind)) == 1
    assert not (await database.read(any_overdue)).unbound
    assert (await stored(database, early)).version == 1
    assert await claimed(other) == [early]


async def test_a_running_task_keeps_its_hosts(database: Database) -> None:
    id = await put(database, hosts="web-1", hosts_for=0.001)
    owner = await Runner.enter(database, host="web-1")
    assert await claimed(owner) == [id]
    assert await database.write(unbind) == []
    await expire(database, owner.id)
    other = await Runner.enter(database, host="web-2")
    await other.rescue()
    while not await database.write(unbind):
        pass
    assert await claimed(other) == [id]


async def test_a_drain_does_not_wait_for_tasks_of_other_hosts(database: Database) -> None:
    await put(database, hosts="web-1")
    assert not (await database.read(pending, 7, "web-2", ["work"])).returning
    assert (await database.read(pending, 7, "web-1", ["work"])).returning
    await claimed(await Runner.enter(database, host="web-1"))
    assert not (await database.read(pending, 7, "web-2", ["work"])).running
    assert (await database.read(pending, 7, "web-1", ["work"])).running


@pytest.mark.parametrize(
    ("hosts", "stored_as"),
    [("web-3", "web-3"), (["web-3", "web-1"], "web-1,web-3"), ("any", ""), ("same", socket.gethostname())],
)
def test_hosts_are_names_or_words(hosts: Any, stored_as: str) -> None:
    assert host_list(hosts) == stored_as
    assert read_options({"hosts": hosts, "hosts_for": "10m"})[0] == {"hosts": stored_as, "hosts_for": 600.0}


@pytest.mark.parametrize("hosts", ["", " ", [], [""]])
def test_an_empty_list_of_hosts_is_refused_because_any_is_the_word_for_all(hosts: Any) -> None:
    with pytest.raises(InvalidTask, match="any for all hosts"):
        host_list(hosts)


@pytest.mark.parametrize("hosts", ["web-1,", "web-1,any", "web 1", "\0", "h" * 201])
async def test_hosts_that_no_runner_has_are_refused(database: Database, hosts: str) -> None:
    with pytest.raises(InvalidTask, match="`hosts`"):
        await database.write(submit, NewTask("work", hosts=hosts))


async def test_a_time_without_hosts_is_refused(database: Database) -> None:
    with pytest.raises(InvalidTask, match="`hosts_for`: it needs hosts"):
        await database.write(submit, NewTask("work", hosts_for=60.0))


@pytest.mark.parametrize("order", ["id", "priority"])
async def test_a_filter_finds_the_tasks_of_hosts(database: Database, order: str) -> None:
    bound, free = await put(database, hosts="web-1,web-3"), await put(database)
    for text, ids in (("hosts:*", [bound]), ("hosts~web-3", [bound]), ("-hosts:*", [free])):
        assert (await database.read(find, filtered(text), 10, sort=parse_sort(order))).ids == ids


async def test_a_failed_task_is_retried_on_the_host_of_its_failed_attempt(database: Database) -> None:
    one, two = await Runner.enter(database, host="web-1"), await Runner.enter(database, host="web-2")
    id, free = await put(database, hosts="failed"), await put(database)
    (task, other) = await one.claim()
    assert [task.id, other.id] == [id, free], "any host may take the first attempt"
    await one.end(task, Retry(delay=0))
    await one.end(other, Retry(delay=0))
    assert (await stored(database, id)).hosts == "failed,web-1"
    assert await claimed(two) == [free]
    (again,) = await one.claim()
    await one.end(again, Retry(delay=0))
    assert (await stored(database, id)).hosts == "failed,web-1"
    assert await claimed(two) == []
    assert await claimed(one) == [id]


@pytest.mark.parametrize("outcome", [Snooze(0), Release("drained")])
async def test_an_attempt_that_did_not_fail_binds_no_host(database: Database, outcome: Any) -> None:
    runner = await Runner.enter(database, host="web-1")
    id = await put(database, hosts="failed")
    (task,) = await runner.claim()
    await runner.end(task, outcome)
    assert (await stored(database, id)).hosts == "failed"


async def test_a_dead_task_that_an_operator_retries_runs_on_its_last_host(database: Database) -> None:
    one, two = await Runner.enter(database, host="web-1"), await Runner.enter(database, host="web-2")
    id = await put(database, hosts="failed", max_attempts=1)
    (task,) = await one.claim()
    await one.end(task, Retry(delay=0))
    await database.write(retry_now, [Target(id, None)], Actor("ana", "desk", "again"))
    assert await claimed(two) == []
    assert await claimed(one) == [id]


async def test_a_copy_starts_without_the_host_of_the_failure(database: Database) -> None:
    one = await Runner.enter(database, host="web-1")
    id = await put(database, hosts="failed")
    (task,) = await one.claim()
    await one.end(task, Retry(delay=0))
    copy = await database.write(copy_task, id, {}, Actor("ana", "desk", "again"))
    assert (await stored(database, copy)).hosts == "failed"


async def test_the_host_of_a_failure_has_no_time_limit(database: Database) -> None:
    with pytest.raises(InvalidTask, match="it counts from the due time, and not from a failure"):
        await put(database, hosts="failed", hosts_for=60.0)
