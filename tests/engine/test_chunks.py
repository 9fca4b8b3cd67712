"""Chunk handlers: one call for many tasks, with an outcome for each."""

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Chunk, Context, Dead, Retry
from runner.errors import TransactionInChunk
from runner.handlers.chunk import ChunkOption
from runner.model.task import OrderKey
from runner.queries.why.why import why
from tests.engine.harness import WAIT_SECONDS, Harness, until, wait_for_event
from tests.engine.test_terminating import terminate

TEN = ChunkOption(10, 0.05)
LONG = ChunkOption(10, 60.0)
"""A chunk that starts when it is full: with this lease, the test ends before its wait."""

LEASE: Any = {"lease_timeout": "240s"}


@dataclass
class Mail:
    """The arguments of one task."""

    to: str = "ana"
    number: int = 0


async def submit(harness: Harness, count: int, **options: Any) -> list[int]:
    return [await harness.submit("mail", {"number": number}, **options) for number in range(count)]


async def states(harness: Harness, tasks: list[int]) -> list[str]:
    return [await harness.state(task) for task in tasks]


async def test_a_call_gets_the_tasks_of_a_handler_up_to_the_size_of_a_chunk(harness: Harness) -> None:
    sizes = list[int]()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail, int]) -> None:
        sizes.append(len(chunk))
        for task in chunk:
            task.succeed(task.payload.number * 2)

    tasks = await submit(harness, 23)
    await harness.work()
    assert sorted(sizes) == [3, 10, 10]
    assert set(await states(harness, tasks)) == {"succeeded"}
    assert (await harness.row(tasks[-1])).result == "44"


@pytest.mark.both_databases
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_each_task_has_an_outcome_of_its_own(harness: Harness, kind: str) -> None:
    def decide(chunk: Chunk[Mail, str]) -> None:
        outcomes: dict[int, Any] = {
            0: lambda task: task.succeed("sent"),
            1: lambda task: task.fail(ValueError("no such mailbox")),
            2: lambda task: task.dead("unsubscribed"),
            3: lambda task: task.retry("1h", "greylisted"),
            4: lambda task: task.snooze("1h", "quiet hours"),
            5: lambda _: None,
        }
        for task in chunk:
            outcomes[task.payload.number](task)

    if kind == "async":

        @harness.handler("mail", chunk=TEN, max_attempts=1)
        async def on_loop(chunk: Chunk[Mail, str]) -> None:
            decide(chunk)
    else:

        @harness.handler("mail", chunk=TEN, max_attempts=1)
        def in_thread(chunk: Chunk[Mail, str]) -> None:
            decide(chunk)

    sent, failed, dead, *_ = tasks = await submit(harness, 6)
    retried = await harness.submit("mail", {"number": 3}, max_attempts=5)
    async with harness.running():
        await harness.wait_for(sent, failed, dead, tasks[5])
        await until(lambda: is_waiting(harness, retried, tasks[4]))
    assert (await harness.row(sent)).result == '"sent"'
    assert (await harness.attempts(failed))[0].message == "no such mailbox"
    assert await states(harness, [failed, dead, tasks[5]]) == ["dead", "dead", "succeeded"]
    assert (await harness.row(tasks[4])).attempt == 0


async def is_waiting(harness: Harness, *tasks: int) -> bool:
    return set(await states(harness, list(tasks))) == {"waiting"}


async def test_an_exception_fails_only_the_tasks_without_an_outcome(harness: Harness) -> None:
    calls = list[list[int]]()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        calls.append([task.payload.number for task in chunk])
        if len(calls) == 1:
            for task in chunk[:2]:
                task.succeed()
            raise ConnectionError("relay is down")

    tasks = await submit(harness, 5)
    await harness.work()
    assert calls[0] == [0, 1, 2, 3, 4]
    assert sorted(number for call in calls[1:] for number in call) == [2, 3, 4]
    assert [len(await harness.attempts(task)) for task in tasks] == [0, 0, 1, 1, 1]
    assert (await harness.attempts(tasks[4]))[0].error_type == "ConnectionError"


async def test_a_raised_outcome_is_that_of_all_tasks_without_one(harness: Harness) -> None:
    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        chunk[0].succeed()
        raise Dead("relay is closed")

    tasks = await submit(harness, 3)
    await harness.work()
    assert await states(harness, tasks) == ["succeeded", "dead", "dead"]


async def test_a_rule_decides_about_each_task(harness: Harness) -> None:
    def rule(ctx: Context, error: Exception) -> Any:
        return Dead(f"task {ctx.key}") if ctx.key == "b" else None

    @harness.handler("mail", chunk=TEN, on_error=rule, max_attempts=1)
    async def mail(chunk: Chunk[Mail]) -> None:
        raise ConnectionError

    tasks = [await harness.submit("mail", key=key) for key in "ab"]
    await harness.work()
    reasons = [(await harness.attempts(task))[0].message for task in tasks]
    assert reasons == ["", "task b"]


@pytest.mark.both_databases
async def test_attempts_are_those_of_each_task(harness: Harness) -> None:
    attempts = list[list[tuple[int, int]]]()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        attempts.append([(task.payload.number, task.ctx.attempt) for task in chunk])
        raise ConnectionError

    once = await harness.submit("mail", {"number": 1}, max_attempts=1)
    twice = await harness.run("mail", {"number": 2}, max_attempts=2)
    assert attempts == [[(1, 1), (2, 1)], [(2, 2)]]
    assert await states(harness, [once, twice]) == ["dead", "dead"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_timeout_fails_only_the_tasks_without_an_outcome(harness: Harness, kind: str) -> None:
    ends = threading.Event()
    if kind == "async":

        @harness.handler("mail", chunk=TEN, timeout=0.2, max_attempts=1)
        async def on_loop(chunk: Chunk[Mail]) -> None:
            chunk[0].succeed()
            await asyncio.Event().wait()
    else:

        @harness.handler("mail", chunk=TEN, timeout=0.2, max_attempts=1)
        def in_thread(chunk: Chunk[Mail]) -> None:
            chunk[0].succeed()
            ends.wait(WAIT_SECONDS)
            chunk[1].succeed()  # too late

    tasks = await submit(harness, 3)
    async with harness.running():
        await harness.wait_for(*tasks)
        ends.set()
    assert await states(harness, tasks) == ["succeeded", "dead", "dead"]
    assert (await harness.attempts(tasks[1]))[0].error_type == "Timeout"


async def test_a_terminate_request_concerns_one_task(harness: Harness) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    @harness.handler("mail", chunk=TEN)
    def mail(chunk: Chunk[Mail]) -> None:
        begun.set()
        chunk[1].ctx.stop.wait(WAIT_SECONDS)
        assert [task.ctx.cancelled for task in chunk] == [False, True, False]
        goes_on.set()

    tasks = await submit(harness, 3)
    async with harness.running():
        assert await asyncio.to_thread(begun.wait, WAIT_SECONDS)
        await terminate(harness, tasks[1])
        await harness.wait_for(*tasks)
    assert goes_on.is_set()
    assert await states(harness, tasks) == ["succeeded", "cancelled", "succeeded"]


async def test_the_call_ends_when_all_of_its_tasks_are_terminated(harness: Harness) -> None:
    begun, events = asyncio.Event(), []

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    tasks = await submit(harness, 2)
    async with harness.running():
        await wait_for_event(begun)
        for task in tasks:
            await terminate(harness, task)
        await harness.wait_for(*tasks)
    assert events == ["cancelled"]
    assert await states(harness, tasks) == ["cancelled", "cancelled"]


async def test_a_task_that_is_terminated_while_its_chunk_forms_never_starts(harness: Harness) -> None:
    calls = list[list[int]]()

    @harness.handler("mail", chunk=ChunkOption(3, 60.0))
    async def mail(chunk: Chunk[Mail]) -> None:
        calls.append([task.payload.number for task in chunk])

    first, second = await submit(harness, 2)
    async with harness.running(**LEASE) as runner:
        await until(lambda: len(runner.worker.in_flight.tasks) == 2)
        await terminate(harness, first)
        await until(lambda: runner.worker.in_flight.tasks[first].cancel_requested)
        last = await harness.submit("mail", {"number": 2})
        await harness.wait_for(first, second, last)
    assert calls == [[1, 2]]
    assert await states(harness, [first, second, last]) == ["cancelled", "succeeded", "succeeded"]


async def test_a_chunk_has_tasks_of_one_tenant(harness: Harness) -> None:
    chunks = list[list[str]]()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        chunks.append([task.payload.to for task in chunk])

    for number in range(12):
        tenant = "ab"[number % 2]
        await harness.submit("mail", {"to": tenant}, tenant=tenant)
    await harness.work()
    assert sorted(chunks) == [["a"] * 6, ["b"] * 6]


async def test_a_chunk_takes_one_slot_and_leaves_the_others(harness: Harness) -> None:
    begun, ends, others = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        begun.set()
        await ends.wait()

    @harness.handler("other")
    async def other() -> None:
        others.set()

    tasks = await submit(harness, 10)
    async with harness.running(concurrency=2):
        await wait_for_event(begun)
        await harness.submit("other")
        await wait_for_event(others)
        ends.set()
        await harness.wait_for(*tasks)


async def test_a_chunk_that_forms_holds_no_slot(harness: Harness) -> None:
    others = asyncio.Event()

    @harness.handler("mail", chunk=LONG)
    async def mail(chunk: Chunk[Mail]) -> None:
        """Never starts: the chunk does not fill."""

    @harness.handler("other")
    async def other() -> None:
        others.set()

    first = await harness.submit("mail")
    async with harness.running(concurrency=1, **LEASE) as runner:
        await until(lambda: len(runner.worker.in_flight.tasks) == 1)
        await harness.submit("other")
        await wait_for_event(others)
    assert await harness.state(first) == "waiting"


async def test_a_runner_that_drains_hands_back_the_tasks_of_a_chunk_that_forms(harness: Harness) -> None:
    @harness.handler("mail", chunk=LONG)
    async def mail(chunk: Chunk[Mail]) -> None:
        """Never starts: the chunk does not fill."""

    tasks = await submit(harness, 3)
    async with harness.running(**LEASE) as runner:
        await until(lambda: len(runner.worker.in_flight.tasks) == 3)
    assert await states(harness, tasks) == ["waiting"] * 3
    assert [(await harness.row(task)).attempt for task in tasks] == [0, 0, 0]


async def test_a_runner_that_drains_waits_for_a_chunk_that_runs(harness: Harness) -> None:
    begun, ends = asyncio.Event(), asyncio.Event()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        begun.set()
        await ends.wait()

    tasks = await submit(harness, 3)
    async with harness.running(drain_timeout="60s") as runner:
        await wait_for_event(begun)
        runner.stop()
        ends.set()
    assert await states(harness, tasks) == ["succeeded"] * 3


async def test_a_chunk_that_does_not_end_in_time_is_interrupted(harness: Harness) -> None:
    begun = asyncio.Event()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        chunk[0].succeed()
        begun.set()
        await asyncio.Event().wait()

    tasks = await submit(harness, 3)
    async with harness.running(drain_timeout="100ms"):
        await wait_for_event(begun)
    assert await states(harness, tasks) == ["succeeded", "waiting", "waiting"]


async def test_limits_count_tasks(harness: Harness) -> None:
    sizes = list[int]()

    @harness.handler("mail", chunk=TEN, limit_per_runner=4)
    async def mail(chunk: Chunk[Mail]) -> None:
        sizes.append(len(chunk))

    await submit(harness, 10)
    await harness.work()
    assert max(sizes) == 4
    assert sum(sizes) == 10


@pytest.mark.both_databases
async def test_a_limit_over_all_runners_counts_tasks(harness: Harness) -> None:
    sizes = list[int]()

    @harness.handler("mail", chunk=TEN, limits={"max_running": 3})
    async def mail(chunk: Chunk[Mail]) -> None:
        sizes.append(len(chunk))

    await submit(harness, 9)
    await harness.work()
    assert max(sizes) == 3
    assert sum(sizes) == 9


async def test_a_payload_that_does_not_fit_kills_its_task_alone(harness: Harness) -> None:
    numbers = list[int]()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        numbers.extend(task.payload.number for task in chunk)

    good = await harness.submit("mail", {"number": 1})
    bad = await harness.run("mail", {"number": "one"})
    assert numbers == [1]
    assert await states(harness, [good, bad]) == ["succeeded", "dead"]


@pytest.mark.both_databases
async def test_checkpoints_and_progress_are_those_of_each_task(harness: Harness) -> None:
    seen = list[tuple[int, Any]]()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        for task in chunk:
            seen.append((task.payload.number, task.ctx.state))
            await task.ctx.checkpoint(task.payload.number + 10)
            task.ctx.progress(1, 2, "lines")
        if len(seen) == 2:
            raise ConnectionError

    await submit(harness, 2)
    await harness.work()
    assert seen[:2] == [(0, None), (1, None)]
    assert sorted(seen[2:]) == [(0, 10), (1, 11)]


async def test_a_plain_function_stores_a_checkpoint_of_each_task(harness: Harness) -> None:
    seen = list[Any]()

    @harness.handler("mail", chunk=TEN)
    def mail(chunk: Chunk[Mail]) -> None:
        seen.extend(task.ctx.state for task in chunk)
        for task in chunk:
            task.ctx.checkpoint(task.payload.number + 10)
        if len(seen) == 2:
            raise ConnectionError

    await submit(harness, 2)
    await harness.work()
    assert seen[:2] == [None, None]
    assert sorted(seen[2:]) == [10, 11]


async def test_a_chunk_has_no_transaction_of_its_own(harness: Harness) -> None:
    errors = list[type[Exception]]()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        try:
            async with chunk[0].ctx.transaction():
                pass
        except TransactionInChunk as error:
            errors.append(type(error))

    await submit(harness, 1)
    await harness.work()
    assert errors == [TransactionInChunk]


async def test_secrets_of_all_tasks_are_masked_in_a_failure(harness: Harness) -> None:
    @dataclass
    class Login:
        password: str

    @harness.handler("login", chunk=TEN, max_attempts=1)
    async def login(chunk: Chunk[Login]) -> None:
        raise ConnectionError(f"refused: {chunk[1].payload.password}")

    tasks = [await harness.submit("login", {"password": word}) for word in ("apple-tree-1", "plum-tree-2")]
    await harness.work()
    for task in tasks:
        assert "plum-tree-2" not in (await harness.attempts(task))[0].message


async def test_an_outcome_may_be_replaced_before_the_function_ends(harness: Harness) -> None:
    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        chunk[0].fail(Retry("1h"))
        chunk[0].succeed()

    tasks = await submit(harness, 1)
    await harness.work()
    assert await states(harness, tasks) == ["succeeded"]
    assert await harness.attempts(tasks[0]) == []


async def test_a_declared_result_that_is_missing_is_an_unexpected_result(harness: Harness) -> None:
    @harness.handler("mail", chunk=TEN, on_none="dead")
    async def mail(chunk: Chunk[Mail, int]) -> None:
        chunk[0].succeed(1)

    tasks = await submit(harness, 2)
    await harness.work()
    assert await states(harness, tasks) == ["succeeded", "dead"]


async def test_a_full_chunk_starts_before_its_wait_ends(harness: Harness) -> None:
    @harness.handler("mail", chunk=LONG)
    async def mail(chunk: Chunk[Mail]) -> None:
        """Succeed."""

    await submit(harness, 7)
    async with harness.running(**LEASE) as runner:
        await until(lambda: len(runner.worker.in_flight.tasks) == 7)
        more = await submit(harness, 3)
        await harness.wait_for(*more)
    assert await harness.count(harness.database.tables.history, sa.true()) == 10


async def test_a_chunk_waits_no_longer_than_half_of_a_lease(harness: Harness) -> None:
    """Its tasks have their deadlines from the claim on, and other runners rescue them one lease after these."""

    @harness.handler("mail", chunk=LONG, timeout=0.1)
    async def mail(chunk: Chunk[Mail]) -> None:
        """Succeed."""

    task = await harness.submit("mail")
    async with harness.running(lease_timeout="1s"):
        await harness.wait_for(task)
    assert (await harness.row(task)).fence == 1


async def test_why_names_the_chunk_that_a_task_waits_for(harness: Harness) -> None:
    @harness.handler("mail", chunk=LONG)
    async def mail(chunk: Chunk[Mail]) -> None:
        """Never starts: the chunk does not fill."""

    async def sentence() -> str:
        return (await harness.database.read(why, task, UTC)).causes[0].text

    async def is_named() -> bool:
        return "waits there for a slot or for more tasks of its chunk, up to 10" in await sentence()

    task = await harness.submit("mail")
    async with harness.running(**LEASE) as runner:
        await until(lambda: len(runner.worker.in_flight.tasks) == 1)
        await until(is_named)


async def test_a_suspect_is_alone_in_its_chunk(harness: Harness) -> None:
    chunks = list[list[int]]()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        chunks.append([task.payload.number for task in chunk])

    tasks = await submit(harness, 4)
    table = harness.database.tables.task
    await harness.change(sa.update(table).where(table.c.id.in_(tasks[:2])).values(rescues=2, attempt=2))
    await harness.work()
    assert sorted(chunks) == [[0], [1], [2, 3]]


@pytest.mark.both_databases
async def test_order_keys_and_unique_keys_hold_in_a_chunk(harness: Harness) -> None:
    chunks = list[list[int]]()

    @harness.handler("mail", chunk=TEN)
    async def mail(chunk: Chunk[Mail]) -> None:
        chunks.append([task.payload.number for task in chunk])

    for number in range(4):
        await harness.submit("mail", {"number": number}, order_key=OrderKey("ab"[number % 2]))
    await harness.work()
    assert chunks == [[0, 1], [2, 3]]


async def test_a_higher_priority_comes_first(harness: Harness) -> None:
    chunks = list[list[int]]()

    @harness.handler("mail", chunk=ChunkOption(3, 0.05))
    async def mail(chunk: Chunk[Mail]) -> None:
        chunks.append([task.payload.number for task in chunk])

    await submit(harness, 4)
    await harness.submit("mail", {"number": 9}, priority=9)
    await harness.work(concurrency=1)
    assert chunks == [[9, 0, 1], [2, 3]]
