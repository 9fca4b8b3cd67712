"""The gate that coroutines and threads share."""

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from runner.db.gate import Gate, admission, admission_in_thread

if TYPE_CHECKING:
    from concurrent.futures import Future


async def test_the_first_to_ask_is_the_first_to_enter() -> None:
    gate = Gate(1)
    first, second, third = gate.join(), gate.join(), gate.join()
    assert (first.done(), second.done(), third.done()) == (True, False, False)
    gate.leave(first)
    assert (second.done(), third.done()) == (True, False)


async def test_a_place_that_is_given_up_is_passed_over() -> None:
    gate = Gate(1)
    first, second, third = gate.join(), gate.join(), gate.join()
    gate.leave(second)
    gate.leave(first)
    assert third.done()
    gate.leave(third)
    assert gate.join().done()


async def test_a_cancelled_coroutine_gives_its_place_up() -> None:
    gate = Gate(1)
    first = gate.join()

    async def enter() -> None:
        async with gate.admitted():
            raise AssertionError

    waiting = asyncio.ensure_future(enter())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.leave(first)
    assert gate.join().done()


async def test_a_coroutine_that_is_cancelled_as_it_is_admitted_passes_the_place_on() -> None:
    gate = Gate(1)
    first = gate.join()

    async def enter() -> None:
        async with gate.admitted():
            pass

    waiting = asyncio.ensure_future(enter())
    await asyncio.sleep(0)
    gate.leave(first)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gate.join().done()


async def test_a_coroutine_and_a_thread_hand_the_gate_to_each_other() -> None:
    gate = Gate(1)
    first = gate.join()
    entered: list[str] = []

    def in_thread(place: "Future[None]") -> None:
        assert admission_in_thread(place, 10)
        entered.append("thread")
        gate.leave(place)

    second, third = gate.join(), gate.join()
    thread = threading.Thread(target=in_thread, args=(second,))
    thread.start()
    gate.leave(first)
    assert await admission(third, 10)
    entered.append("coroutine")
    thread.join()
    assert entered == ["thread", "coroutine"]


async def test_the_wait_for_a_gate_ends_with_its_time() -> None:
    gate = Gate(1)
    gate.join()
    place = gate.join()
    assert not await admission(place, 0.01)
    assert not admission_in_thread(place, 0.01)
