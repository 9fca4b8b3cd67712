"""The semaphore that coroutines and threads share."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, _base

import pytest

from runner.db import semaphore as semaphore_module
from runner.db.semaphore import FairSemaphore, InterruptibleLock, SemaphoreRequest, granted, granted_in_thread
from tests.db.interruption import Interruption


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


INTERRUPTED = {semaphore_module.__file__, threading.__file__, _base.__file__}


def test_no_interruption_of_a_wait_keeps_the_semaphore_from_the_others() -> None:
    for count in range(1_000):
        semaphore = FairSemaphore(1)
        first, second, mine = enter(semaphore), enter(semaphore), SemaphoreRequest()
        try:
            with Interruption(INTERRUPTED, count):
                try:
                    semaphore.enter(mine)
                    granted_in_thread(mine, 0)
                finally:
                    semaphore.release(mine)
        except KeyboardInterrupt:
            semaphore.release(mine)
        else:
            break
        last: list[SemaphoreRequest] = []

        def others(semaphore: FairSemaphore, requests: list[SemaphoreRequest], last: list[SemaphoreRequest]) -> None:
            for request in requests:
                semaphore.release(request)
            last.append(enter(semaphore))

        thread = threading.Thread(target=others, args=(semaphore, [first, second], last), daemon=True)
        thread.start()
        thread.join(90)
        assert last, "the semaphore is lost"
        assert last[0].is_granted
    assert 5 < count < 1_000


def test_no_interruption_of_a_release_loses_a_grant() -> None:
    for count in range(1_000):
        semaphore = FairSemaphore(1)
        first, second = enter(semaphore), enter(semaphore)
        try:
            with Interruption(INTERRUPTED, count):
                semaphore.release(first)
        except KeyboardInterrupt:
            semaphore.release(first)
        else:
            break
        assert granted_in_thread(second, 0)
        thread = threading.Thread(target=semaphore.release, args=(second,), daemon=True)
        thread.start()
        thread.join(90)
        assert not thread.is_alive(), "the semaphore is lost"
        assert enter(semaphore).is_granted
    assert 5 < count < 1_000


def test_a_call_of_a_lock_may_call_it_again() -> None:
    lock = InterruptibleLock()
    assert lock.call(lambda: lock.call(lambda: 7)) == 7
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lock.call, lambda: 8).result(20) == 8
