"""Many calls in one transaction, and what is done when all of them have ended."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from runner import Context, Dead, TaskHandler, disconnect, handler, together, together_async
from runner.errors import InvalidTask, WouldBlock
from runner.handlers import REGISTRY
from runner.rules.batch import Batch
from runner.task import After, NewTask, Sibling, State
from runner.testing import TaskStore
from tests.store.family import edges

Work = TaskHandler[Any, Any, Any]


@pytest.fixture
def store(migrated_url: str) -> Iterator[TaskStore]:
    with TaskStore(migrated_url, retry="1m") as store:
        yield store


@pytest.fixture
def said() -> list[Any]:
    """What the handlers of the test have noted."""
    return []


@pytest.fixture
def work(said: list[Any]) -> Iterator[Work]:
    @handler("test.member")
    async def work(number: int) -> Dead | None:
        said.append(number)
        return Dead("odd") if number % 2 else None

    yield work
    REGISTRY._handlers.pop("test.member")


@pytest.fixture
def report(said: list[Any]) -> Iterator[Work]:
    @handler("test.report")
    async def report(ctx: Context, name: str) -> None:
        said.append((name, ctx.batch))

    yield report
    REGISTRY._handlers.pop("test.report")


def states(store: TaskStore) -> dict[int, str]:
    return {task.id: task.state for task in store.tasks()}


def test_what_comes_then_runs_when_all_have_ended(store: TaskStore, work: Work, report: Work, said: list[Any]) -> None:
    calls = [work.options(priority=number % 9 + 1).call(number=number) for number in range(5)]
    batch = together(calls, then=report.options(priority=9).call(name="all"), on_success=report.call(name="well"))
    assert (len(batch.members), batch.then is not None) == (5, True)
    store.drain()
    assert said[:-1] == [4, 3, 2, 1, 0]
    assert said[-1] == ("all", Batch(total=5, succeeded=3, dead=2, cancelled=0))
    assert said[-1][1].failed == 2
    assert batch.on_success is not None
    assert states(store)[batch.on_success] == State.CANCELLED


def test_what_needs_success_runs_when_all_have_succeeded(
    store: TaskStore, work: Work, report: Work, said: list[Any]
) -> None:
    batch = together([work.call(number=2), work.call(number=4)], on_success=report.call(name="well"))
    store.drain()
    assert said == [2, 4, ("well", Batch(2, 2, 0, 0))]
    assert (batch.then, [int(ticket) for ticket in batch.members]) == (None, [1, 2])


def test_a_task_that_waited_for_nothing_has_no_batch(store: TaskStore, report: Work, said: list[Any]) -> None:
    report.submit(name="alone")
    store.drain()
    assert said == [("alone", None)]


def test_what_comes_then_may_wait_for_more(store: TaskStore, work: Work, report: Work, said: list[Any]) -> None:
    first = work.submit(number=6)
    together([work.options(delay="1h").call(number=8)], then=report.options(after=first).call(name="both"))
    store.drain()
    assert said == [6]
    store.drain(ahead="2h")
    assert said == [6, 8, ("both", Batch(2, 2, 0, 0))]


async def test_it_can_be_awaited(store: TaskStore, work: Work, report: Work) -> None:
    batch = await together_async([work.call(number=2)], then=report.call(name="then"))
    assert batch.then == batch.members[0] + 1
    with pytest.raises(WouldBlock, match=r"together\(\) would .* await together_async"):
        together([work.call(number=2)])
    await asyncio.to_thread(disconnect)


def test_what_is_no_call_is_refused(store: TaskStore, work: Work) -> None:
    for odd in ([work], [work.submit(number=2)], work.call(number=2)):
        with pytest.raises(InvalidTask, match=r"takes calls in a list, each made with handler\.call"):
            together(odd)  # type: ignore[arg-type]
    with pytest.raises(InvalidTask, match="call may not be 1: "):
        together([work.call(number=2)], then=work.ticket(1))  # type: ignore[arg-type]


def test_without_a_call_there_is_nothing_to_wait_for(store: TaskStore, report: Work) -> None:
    with pytest.raises(InvalidTask, match="no call to wait for"):
        together([], then=report.call(name="never"))


def test_a_member_that_was_there_already_is_waited_for_too(
    store: TaskStore, work: Work, report: Work, said: list[Any]
) -> None:
    there = work.options(unique_key="k", unique="forever").submit(number=2)
    store.drain()
    calls = [work.options(unique_key="k", unique="forever").call(number=3), work.call(number=4)]
    batch = together(calls, then=report.call(name="then"))
    assert batch.members[0] == there
    assert batch.members[0].duplicate
    store.drain()
    assert said == [2, 4, ("then", Batch(2, 2, 0, 0))]


SIBLINGS: dict[str, list[NewTask]] = {
    "itself": [NewTask("a", after=(After(Sibling(0)),))],
    "one behind it": [NewTask("a", after=(After(Sibling(1)),)), NewTask("a")],
    "one that is not there": [NewTask("a"), NewTask("a", after=(After(Sibling(-1)),))],
}


@pytest.mark.parametrize("tasks", SIBLINGS.values(), ids=SIBLINGS)
async def test_a_sibling_stands_before_the_one_that_waits(database: Any, tasks: list[NewTask]) -> None:
    from runner.store.submit import submit_many

    with pytest.raises(InvalidTask, match="stands before it"):
        await database.write(submit_many, tasks)


async def test_siblings_and_keys_that_make_a_circle_are_refused(database: Any) -> None:
    from runner.store.submit import submit_many

    first = NewTask("a", key="k", after=(After(("b", "k")),))
    between = NewTask("c", after=(After(Sibling(0)),))
    last = NewTask("b", key="k", after=(After(Sibling(1)),))
    with pytest.raises(InvalidTask, match=r"wait for itself: .* the new task at place"):
        await database.write(submit_many, [first, between, last])
    ids = await database.write(submit_many, [first, between, last._replace(key="other")])
    assert [edge["parent_id"] for id in ids[1:] for edge in await edges(database, id)] == ids[:2]
