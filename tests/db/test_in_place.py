"""Coroutines that run to their end in the task of their caller."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from runner.db.in_place import Answer, InPlace


class Refused(Exception):
    """The error of a statement."""


async def _waiting(task: "asyncio.Task[str]") -> None:
    """Let a task begin its wait."""
    await asyncio.sleep(0)
    assert not task.done()


async def test_an_answer_reaches_the_coroutine_and_its_result_the_caller() -> None:
    answer = Answer()

    async def work() -> str:
        return f"got {await answer}"

    task = asyncio.ensure_future(_result(work()))
    await _waiting(task)
    answer.set_result(1)
    assert await task == "got 1"


async def test_the_coroutine_can_handle_the_error_of_an_answer() -> None:
    answer = Answer()

    async def work() -> str:
        try:
            return str(await answer)
        except Refused:
            return "handled"

    task = asyncio.ensure_future(_result(work()))
    await _waiting(task)
    answer.set_exception(Refused())
    assert await task == "handled"


@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
@pytest.mark.parametrize("kind", [Answer, asyncio.Future], ids=["answer", "other future"])
async def test_a_cancelled_caller_ends_after_the_coroutine(kind: type["asyncio.Future[int]"], fails: bool) -> None:
    waits, ended = kind(), list[int]()

    async def work() -> str:
        await asyncio.sleep(0)
        try:
            ended.append(await waits)
        finally:
            await asyncio.sleep(0)
            ended.append(0)
        return "lost"

    task = asyncio.ensure_future(_result(work()))
    await asyncio.sleep(0)
    await _waiting(task)
    task.cancel()
    await _waiting(task)
    if fails:
        waits.set_exception(Refused())
    else:
        waits.set_result(5)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ([0] if fails else [5, 0])


async def test_an_answer_without_a_kept_wait_can_be_cancelled() -> None:
    answer = Answer()
    assert answer.cancel()
    assert answer.cancelled()


async def _result(work: Coroutine[Any, Any, str]) -> str:
    return await InPlace(work)
