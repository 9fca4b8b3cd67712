"""Cancellations of an attempt: only a request of its runner interrupts it; any other one is the handler's failure."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from runner.engine.executing.attempt_outcome import AttemptLimits
from runner.engine.executing.executor import Executor
from runner.engine.executing.jobs import AttemptJob
from runner.engine.running import Running
from runner.model.outcome import Cancelled, Done, Interrupted, Outcome, Retry
from runner.model.task import CURRENT_TASK
from tests.engine.harness import WAIT_SECONDS, Harness, until
from tests.engine.test_executor import running_task

SHORT = 0.05


@pytest.fixture
async def executor() -> AsyncIterator[Executor]:
    executor = Executor(1, AttemptLimits(None, 1000))
    yield executor
    await executor.close()


FENCES = itertools.count(1)


def start(executor: Executor, function: Callable[..., Any], timeout: float | None = None) -> tuple[Running, Any]:
    """Start an attempt as a runner does."""
    running = running_task(function, timeout=timeout)
    running.task = running.task._replace(fence=next(FENCES))
    job = running.job = AttemptJob(executor.execute(running, lambda _: None), loop=asyncio.get_running_loop())
    job.owner, running.started = running.task, 1.0
    return running, job


async def outcome_of(job: Any) -> Outcome:
    async with asyncio.timeout(WAIT_SECONDS):
        outcome: Outcome = await job
    return outcome


def current() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


def failure_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Retry)
    assert outcome.failure is not None
    return outcome.failure.reason


async def test_a_cancellation_that_the_handler_swallowed_changes_no_later_timeout(executor: Executor) -> None:
    async def work() -> None:
        current().cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
        await asyncio.Event().wait()

    _, job = start(executor, work, timeout=SHORT)
    assert failure_of(await outcome_of(job)).startswith("Timeout: ")


@pytest.mark.parametrize(("request_end", "expected"), [("interrupt", Interrupted()), ("cancel", Cancelled())])
@pytest.mark.parametrize("first", ["handler", "runner"])
async def test_a_request_of_the_runner_counts_beside_a_cancellation_by_the_handler(
    executor: Executor, request_end: str, expected: Outcome, first: str
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go_on.wait()
        if first == "runner":
            getattr(running, request_end)()
        current().cancel()
        if first == "handler":
            getattr(running, request_end)()
        await asyncio.sleep(1)

    running, job = start(executor, work)
    await begun.wait()
    go_on.set()
    assert await outcome_of(job) == expected


async def test_a_timeout_inside_the_handler_is_its_own(executor: Executor) -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "in time"
        return ""

    _, job = start(executor, work)
    assert await outcome_of(job) == Done('"in time"')


async def test_a_timeout_that_leaks_its_cancellation_is_a_failure(executor: Executor) -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_later(0.01, current().cancel)  # as a library does that never uncancels
        await asyncio.Event().wait()

    _, job = start(executor, work)
    assert failure_of(await outcome_of(job)) == (
        "asyncio.exceptions.CancelledError: the handler's task was cancelled from inside, not by the runner"
    )


async def test_a_cancel_scope_of_anyio_ends_its_block_only(executor: Executor) -> None:
    async def work() -> str:
        with anyio.move_on_after(0.01):
            await asyncio.Event().wait()
        async with anyio.create_task_group() as group:
            group.start_soon(asyncio.Event().wait)
            await asyncio.sleep(0)
            group.cancel_scope.cancel()
        return "done"

    _, job = start(executor, work)
    assert await outcome_of(job) == Done('"done"')


async def test_a_cancel_scope_of_anyio_that_leaks_is_a_failure(executor: Executor) -> None:
    scopes: list[anyio.CancelScope] = []

    async def work() -> None:
        scope = anyio.CancelScope()
        scope.__enter__()
        scopes.append(scope)
        scope.cancel()
        await asyncio.Event().wait()

    _, job = start(executor, work)
    reason = failure_of(await outcome_of(job))
    assert "CancelledError" in reason
    assert reason.endswith("the handler's task was cancelled from inside, not by the runner")


async def test_a_cancellation_in_the_last_step_loses_no_outcome(executor: Executor) -> None:
    async def work() -> str:
        current().cancel()
        return "done"

    running, job = start(executor, work)
    job.add_done_callback(lambda _: None)
    await asyncio.wait([job])
    assert job.cancelled()  # by its own request, after the outcome

    outcomes: list[Outcome] = []

    async def settle() -> None:
        outcomes.append(await executor.execute(running, lambda _: None))

    await asyncio.wait([asyncio.ensure_future(settle())])
    assert outcomes == [Done('"done"')]


async def test_a_thread_ignores_a_cancellation_that_the_runner_did_not_ask_for(executor: Executor) -> None:
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> str:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(WAIT_SECONDS)
        return "done"

    _, job = start(executor, work)
    await begun.wait()
    job.cancel()
    await asyncio.sleep(0)
    go_on.set()
    assert await outcome_of(job) == Done('"done"')


async def test_an_attempt_cannot_cancel_another(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def waits() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    async def cancels() -> bool:
        return bool(job.cancel())

    _, job = start(executor, waits)
    await begun.wait()
    _, other = start(executor, cancels)
    assert await outcome_of(other) == Done("false")
    assert "task 7 (work) tried to cancel other attempts: ignored, they continue" in caplog.text
    go_on.set()
    assert await outcome_of(job) == Done('"done"')


async def test_the_runner_cancels_an_attempt_from_the_context_of_another(executor: Executor) -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    running, job = start(executor, waits)
    await asyncio.sleep(0)
    token = CURRENT_TASK.set(running_task(waits).task)
    running.interrupt()
    CURRENT_TASK.reset(token)
    assert await outcome_of(job) == Interrupted()


async def test_a_handler_that_cancels_itself_runs_once(harness: Harness) -> None:
    runs: list[int] = []

    @harness.handler("work", max_attempts=1)
    async def work() -> None:
        runs.append(1)
        current().cancel()
        await asyncio.sleep(1)

    task = await harness.run("work")
    row = await harness.row(task)
    assert (row.state, row.attempt, runs) == ("dead", 1, [1])
    assert "the handler's task was cancelled from inside, not by the runner" in row.error
    (attempt,) = await harness.attempts(task)
    assert "in work" in attempt.traceback


async def test_a_runner_on_a_loop_of_the_application_survives_that_its_coroutines_are_cancelled(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """An application's loop shows all asyncio tasks: those of the runner start again."""
    own, submitted = asyncio.all_tasks(), asyncio.Event()

    @harness.handler("hostile", max_attempts=1)
    async def hostile() -> None:
        await submitted.wait()  # the submit of the test, and each read, has asyncio tasks too
        for task in asyncio.all_tasks() - own - {run}:
            task.cancel()
        await asyncio.sleep(1)

    @harness.handler("plain", max_attempts=1)
    async def plain() -> None: ...

    runner = harness.runner()
    run = asyncio.ensure_future(runner.run())
    try:
        task = await harness.submit("hostile")
        submitted.set()
        await until(lambda: runner.metrics.verbs["die"] == 1)
        assert (await harness.row(task)).state == "dead"
        others = [await harness.submit("plain") for _ in range(3)]
        await harness.wait_for(*others)
        await until(lambda: runner.metrics.verbs["succeed"] == 3)
        assert not runner.stopping
    finally:
        runner.stop()
        async with asyncio.timeout(WAIT_SECONDS):
            await run
    assert "cancelled by code outside of the runner: starting it again" in caplog.text
