"""The semaphore that coroutines and threads share."""

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from runner.db.thread_connections import FairSemaphore, granted, granted_in_thread

if TYPE_CHECKING:
    from concurrent.futures import Future


async def test_the_first_to_ask_is_the_first_to_enter() -> None:
    semaphore = FairSemaphore(1)
    first, second, third = semaphore.request(), semaphore.request(), semaphore.request()
    assert (first.done(), second.done(), third.done()) == (True, False, False)
    semaphore.release(first)
    assert (second.done(), third.done()) == (True, False)


async def test_a_place_that_is_given_up_is_passed_over() -> None:
    semaphore = FairSemaphore(1)
    first, second, third = semaphore.request(), semaphore.request(), semaphore.request()
    semaphore.release(second)
    semaphore.release(first)
    assert third.done()
    semaphore.release(third)
    assert semaphore.request().done()


async def test_a_cancelled_coroutine_gives_its_place_up() -> None:
    semaphore = FairSemaphore(1)
    first = semaphore.request()

    async def enter() -> None:
        async with semaphore.acquire():
            raise AssertionError

    waiting = asyncio.ensure_future(enter())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    semaphore.release(first)
    assert semaphore.request().done()


async def test_a_coroutine_that_is_cancelled_as_it_is_admitted_passes_the_place_on() -> None:
    semaphore = FairSemaphore(1)
    first = semaphore.request()

    async def enter() -> None:
        async with semaphore.acquire():
            pass

    waiting = asyncio.ensure_future(enter())
    await asyncio.sleep(0)
    semaphore.release(first)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert semaphore.request().done()


async def test_a_coroutine_and_a_thread_hand_the_gate_to_each_other() -> None:
    semaphore = FairSemaphore(1)
    first = semaphore.request()
    entered: list[str] = []

    def in_thread(request: "Future[None]") -> None:
        assert granted_in_thread(request, 10)
        entered.append("thread")
        semaphore.release(request)

    second, third = semaphore.request(), semaphore.request()
    thread = threading.Thread(target=in_thread, args=(second,))
    thread.start()
    semaphore.release(first)
    assert await granted(third, 10)
    entered.append("coroutine")
    thread.join()
    assert entered == ["thread", "coroutine"]


async def test_the_wait_for_a_gate_ends_with_its_time() -> None:
    semaphore = FairSemaphore(1)
    semaphore.request()
    request = semaphore.request()
    assert not await granted(request, 0.01)
    assert not granted_in_thread(request, 0.01)
