"""Batches: many calls in one transaction, and the tasks that run when all of them have finished."""

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from runner import Context, Dead, TaskHandler, batch, batch_async, disconnect, handler
from runner.errors import InvalidTask, NoResult, NoRunner, TaskFailed, TaskNotFound, WouldBlock
from runner.handlers.dependencies import BatchResult
from runner.handlers.registry import REGISTRY
from runner.model.task import BatchMember, DependsOn, NewTask, State
from runner.operations.results import Actor, Target
from runner.operations.unblock import unblock
from runner.testing import TaskStore
from tests.store.dependencies import dependencies_of

Work = TaskHandler[Any, Any, Any]


@pytest.fixture
def store(migrated_url: str) -> Iterator[TaskStore]:
    with TaskStore(migrated_url, retry="1m") as store:
        yield store


@pytest.fixture
def notes() -> list[Any]:
    """Notes of the test's handlers."""
    return []


@pytest.fixture
def work(notes: list[Any]) -> Iterator[Work]:
    @handler("test.member")
    async def work(number: int) -> Dead | None:
        notes.append(number)
        return Dead("odd") if number % 2 else None

    yield work
    REGISTRY._handlers.pop("test.member")


@pytest.fixture
def report(notes: list[Any]) -> Iterator[Work]:
    @handler("test.report")
    async def report(ctx: Context, name: str) -> None:
        notes.append((name, ctx.batch))

    yield report
    REGISTRY._handlers.pop("test.report")


def states(store: TaskStore) -> dict[int, str]:
    return {task.id: task.state for task in store.tasks()}


def test_then_runs_when_all_members_have_finished(store: TaskStore, work: Work, report: Work, notes: list[Any]) -> None:
    calls = [work.options(priority=number % 9 + 1).new(number=number) for number in range(5)]
    submitted = batch(calls, callback=report.options(priority=9).new(name="all"), on_success=report.new(name="well"))
    assert (len(submitted.members), submitted.callback is not None) == (5, True)
    store.drain()
    assert notes[:-1] == [4, 3, 2, 1, 0]
    assert notes[-1] == ("all", BatchResult(total=5, succeeded=3, dead=2, cancelled=0))
    assert notes[-1][1].failed == 2
    assert submitted.on_success is not None
    assert states(store)[submitted.on_success] == State.CANCELLED


def test_on_success_runs_when_all_members_have_succeeded(
    store: TaskStore, work: Work, report: Work, notes: list[Any]
) -> None:
    submitted = batch([work.new(number=2), work.new(number=4)], on_success=report.new(name="well"))
    store.drain()
    assert notes == [2, 4, ("well", BatchResult(2, 2, 0, 0))]
    assert (submitted.callback, [int(handle) for handle in submitted.members]) == (None, [1, 2])


def test_a_task_without_dependencies_has_no_batch(store: TaskStore, report: Work, notes: list[Any]) -> None:
    report.submit(name="alone")
    store.drain()
    assert notes == [("alone", None)]


def test_then_can_have_more_dependencies(store: TaskStore, work: Work, report: Work, notes: list[Any]) -> None:
    first = work.submit(number=6)
    batch([work.options(delay="1h").new(number=8)], callback=report.options(after=first).new(name="both"))
    store.drain()
    assert notes == [6]
    store.drain(ahead="2h")
    assert notes == [6, 8, ("both", BatchResult(2, 2, 0, 0))]


@pytest.fixture
def totals(notes: list[Any]) -> Iterator[tuple[Work, Work, Work]]:
    """A member, and a callback as a plain function and as a coroutine."""

    @handler("test.half")
    async def half(number: int) -> Decimal:
        if number < 0:
            raise ValueError("below zero")
        return Decimal(number) / 2

    @handler("test.total")
    def total(ctx: Context, lenient: bool = False) -> None:
        notes.append(ctx.batch.results(return_exceptions=lenient) if ctx.batch else None)

    @handler("test.total_async")
    async def total_async(ctx: Context, lenient: bool = False) -> None:
        notes.append(await ctx.batch.results_async(return_exceptions=lenient) if ctx.batch else None)

    yield half, total, total_async
    for one in (half, total, total_async):
        REGISTRY._handlers.pop(one.name)


@pytest.mark.parametrize("callback", [1, 2])
def test_a_callback_reads_the_results_of_its_batch(
    store: TaskStore, totals: tuple[Work, ...], notes: list[Any], callback: int
) -> None:
    half = totals[0]
    batch(
        [half.options(priority=n + 1).new(number=n) for n in range(4)],
        callback=totals[callback].options(max_attempts=1).new(),
    )
    store.drain()
    assert notes == [[Decimal(n) / 2 for n in range(4)]]


@pytest.mark.parametrize("callback", [1, 2])
def test_a_missing_result_is_an_error_or_in_its_place(
    store: TaskStore, totals: tuple[Work, ...], notes: list[Any], callback: int
) -> None:
    half = totals[0].options(max_attempts=1)
    batch([half.new(number=3), half.new(number=-1)], callback=totals[callback].new(lenient=True))
    store.drain()
    ((first, second),) = notes
    assert (first, type(second), second.message) == (Decimal("1.5"), TaskFailed, "below zero")
    batch([half.new(number=-1)], callback=totals[callback].options(max_attempts=1).new())
    assert [ran.verb for ran in store.drain()] == ["die", "die"]
    assert "TaskFailed" in str(store.tasks()[-1].error)


def test_a_child_reads_the_results_of_its_parents(store: TaskStore, totals: tuple[Work, ...], notes: list[Any]) -> None:
    half, total, _ = totals
    parent = half.submit(number=5)
    half.options(key="second").submit(number=6)
    total.options(after=[("test.half", "second"), parent]).submit()
    store.drain()
    assert notes == [[Decimal(3), Decimal("2.5")]]


def test_a_parent_that_an_operator_unblocked_has_no_result(
    store: TaskStore, totals: tuple[Work, ...], notes: list[Any]
) -> None:
    half, total, _ = totals
    waiting = half.options(delay="1h").submit(number=5)
    child = total.options(after=[waiting, ("test.half", "never")]).submit(lenient=True)
    store._door.run(lambda database: database.write(unblock, [Target(child)], Actor("ana", "here"))).result()
    store.drain()
    assert [type(error) for error in notes[0]] == [NoResult, TaskNotFound]


def test_results_need_a_runner_and_no_event_loop() -> None:
    with pytest.raises(NoRunner, match=r"so ctx\.batch\.results\(\) is not available"):
        BatchResult(1, 1, 0, 0).results()


async def test_a_blocking_read_on_an_event_loop_is_rejected() -> None:
    with pytest.raises(WouldBlock, match=r"await ctx\.batch\.results_async"):
        BatchResult(1, 1, 0, 0).results()


async def test_a_batch_can_be_submitted_on_an_event_loop(store: TaskStore, work: Work, report: Work) -> None:
    submitted = await batch_async([work.new(number=2)], callback=report.new(name="then"))
    assert submitted.callback == submitted.members[0] + 1
    with pytest.raises(WouldBlock, match=r"batch\(\) would .* await batch_async"):
        batch([work.new(number=2)])
    await asyncio.to_thread(disconnect)


def test_an_object_that_is_not_a_call_is_rejected(store: TaskStore, work: Work) -> None:
    for odd in ([work], [work.submit(number=2)], work.new(number=2)):
        with pytest.raises(InvalidTask, match=r"pass a list of calls, each made with handler\.new"):
            batch(odd)  # type: ignore[arg-type]
    with pytest.raises(InvalidTask, match="1 for `call`: "):
        batch([work.new(number=2)], callback=work.task_handle(1))  # type: ignore[arg-type]


def test_an_empty_batch_is_rejected(store: TaskStore, report: Work) -> None:
    with pytest.raises(InvalidTask, match="pass at least one call"):
        batch([], callback=report.new(name="never"))


def test_then_waits_for_a_member_that_is_a_duplicate(
    store: TaskStore, work: Work, report: Work, notes: list[Any]
) -> None:
    there = work.options(unique_key="k", unique="forever").submit(number=2)
    store.drain()
    calls = [work.options(unique_key="k", unique="forever").new(number=3), work.new(number=4)]
    submitted = batch(calls, callback=report.new(name="then"))
    assert submitted.members[0] == there
    assert submitted.members[0].duplicate
    store.drain()
    assert notes == [2, 4, ("then", BatchResult(2, 2, 0, 0))]


MEMBERS: dict[str, list[NewTask]] = {
    "itself": [NewTask("a", after=(DependsOn(BatchMember(0)),))],
    "one behind it": [NewTask("a", after=(DependsOn(BatchMember(1)),)), NewTask("a")],
    "one that is not there": [NewTask("a"), NewTask("a", after=(DependsOn(BatchMember(-1)),))],
}


@pytest.mark.parametrize("tasks", MEMBERS.values(), ids=MEMBERS)
async def test_a_sibling_must_precede_its_dependent(database: Any, tasks: list[NewTask]) -> None:
    from runner.store.submit import submit_many

    with pytest.raises(InvalidTask, match="earlier task of its batch"):
        await database.write(submit_many, tasks)


async def test_a_cycle_of_siblings_and_keys_is_rejected(database: Any) -> None:
    from runner.store.submit import submit_many

    first = NewTask("a", key="k", after=(DependsOn(("b", "k")),))
    between = NewTask("c", after=(DependsOn(BatchMember(0)),))
    last = NewTask("b", key="k", after=(DependsOn(BatchMember(1)),))
    with pytest.raises(InvalidTask, match=r"depend on itself: .* new task"):
        await database.write(submit_many, [first, between, last])
    ids = await database.write(submit_many, [first, between, last._replace(key="other")])
    assert [dependency["parent_id"] for id in ids[1:] for dependency in await dependencies_of(database, id)] == ids[:2]
