"""The semaphore that coroutines and threads share."""

import asyncio
import threading

import pytest

from runner.db.thread_connections import FairSemaphore, SemaphoreRequest, granted, granted_in_thread


def enter(semaphore: FairSemaphore) -> SemaphoreRequest:
    request = SemaphoreRequest()
    semaphore.enter(request)
    return request


async def test_the_first_to_ask_is_the_first_to_enter() -> None:
    semaphore = FairSemaphore(1)
    first, second, third = enter(semaphore), enter(semaphore), enter(semaphore)
    assert (first.is_granted, second.is_granted, third.is_granted) == (True, False, False)
    semaphore.release(first)
    assert (second.is_granted, third.is_granted) == (True, False)


async def test_a_place_that_is_given_up_is_passed_over() -> None:
    semaphore = FairSemaphore(1)
    first, second, third = enter(semaphore), enter(semaphore), enter(semaphore)
    semaphore.release(second)
    semaphore.release(first)
    assert third.is_granted
    semaphore.release(third)
    assert enter(semaphore).is_granted


async def test_a_cancelled_coroutine_gives_its_place_up() -> None:
    semaphore = FairSemaphore(1)
    first = enter(semaphore)

    async def wait() -> None:
        async with semaphore.acquire():
            raise AssertionError

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    semaphore.release(first)
    assert enter(semaphore).is_granted


async def test_a_coroutine_that_is_cancelled_as_it_is_admitted_passes_the_place_on() -> None:
    semaphore = FairSemaphore(1)
    first = enter(semaphore)

    async def wait() -> None:
        async with semaphore.acquire():
            pass

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    semaphore.release(first)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert enter(semaphore).is_granted


async def test_a_coroutine_and_a_thread_hand_the_gate_to_each_other() -> None:
    semaphore = FairSemaphore(1)
    first = enter(semaphore)
    entered: list[str] = []

    def in_thread(request: SemaphoreRequest) -> None:
        assert granted_in_thread(request, 10)
        entered.append("thread")
        semaphore.release(request)

    second, third = enter(semaphore), enter(semaphore)
    thread = threading.Thread(target=in_thread, args=(second,))
    thread.start()
    semaphore.release(first)
    assert await granted(third, 10)
    entered.append("coroutine")
    thread.join()
    assert entered == ["thread", "coroutine"]


async def test_the_wait_for_a_gate_ends_with_its_time() -> None:
    semaphore = FairSemaphore(1)
    enter(semaphore)
    request = enter(semaphore)
    assert not await granted(request, 0.01)
    assert not granted_in_thread(request, 0.01)
