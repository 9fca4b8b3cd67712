"""Deadlines: attempts share a timer per length of timeout, and each is cancelled at its own deadline."""

import asyncio
import gc

import pytest

from runner.engine.executing.attempt_outcome import AttemptLimits
from runner.engine.executing.deadlines import KEPT
from runner.engine.executing.executor import Executor
from runner.model.outcome import Done, Outcome, Retry
from tests.engine.harness import WAIT_SECONDS
from tests.engine.test_executor import AT_ONCE, running_task, waiting

RESULT_LIMIT = 1000


def executor() -> Executor:
    return Executor(1, AttemptLimits(WAIT_SECONDS, RESULT_LIMIT))


def is_timeout(outcome: Outcome) -> bool:
    return isinstance(outcome, Retry) and outcome.failure is not None and outcome.failure.type == "Timeout"


async def execute(works: Executor, function: object, timeout: float) -> Outcome:
    async with asyncio.timeout(WAIT_SECONDS):
        return await works.execute(running_task(function, timeout=timeout), lambda _: None)  # type: ignore[arg-type]


async def test_each_of_many_attempts_is_cancelled_at_its_own_deadline() -> None:
    works, loop = executor(), asyncio.get_running_loop()

    async def attempt(timeout: float) -> bool:
        begun = loop.time()
        return is_timeout(await execute(works, waiting("async"), timeout)) and loop.time() - begun >= timeout

    longest = asyncio.ensure_future(execute(works, waiting("async"), 10 * WAIT_SECONDS))
    assert all(await asyncio.gather(*map(attempt, [5 * AT_ONCE, AT_ONCE, 3 * AT_ONCE, AT_ONCE])))
    assert not longest.done()
    longest.cancel()
    await asyncio.wait([longest])


async def test_a_later_attempt_with_the_same_timeout_keeps_its_own_deadline() -> None:
    works, loop = executor(), asyncio.get_running_loop()
    limit = 5 * AT_ONCE
    first = asyncio.ensure_future(execute(works, waiting("async"), limit))
    await asyncio.sleep(limit / 2)
    begun = loop.time()
    assert is_timeout(await execute(works, waiting("async"), limit))
    assert loop.time() - begun >= limit
    assert is_timeout(await first)


async def test_a_body_that_answers_its_cancellation_with_a_result_succeeds() -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "saved"
        return ""

    assert await execute(executor(), work, AT_ONCE) == Done('"saved"')


async def test_an_attempt_that_ended_before_its_deadline_is_not_cancelled_later() -> None:
    async def work() -> str:
        return "done"

    works = executor()
    assert await execute(works, work, AT_ONCE) == Done('"done"')
    await asyncio.sleep(3 * AT_ONCE)
    assert await execute(works, work, AT_ONCE) == Done('"done"')


@pytest.mark.slow
async def test_timeouts_of_many_lengths_leave_few_timers() -> None:
    async def work() -> None:
        return None

    works, loop = executor(), asyncio.get_running_loop()
    for number in range(3 * KEPT):
        await works.execute(running_task(work, timeout=900.0 + number), lambda _: None)
    found = [each for each in gc.get_objects() if type(each) is asyncio.TimerHandle and not each.cancelled()]
    timers = [each for each in found if each._loop is loop]  # type: ignore[attr-defined]  # other threads have loops
    assert KEPT <= len(timers) <= KEPT + 1
