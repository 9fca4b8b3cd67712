"""An ended attempt leaves nothing in memory: no local variable, no exception, and no reference cycle."""

import asyncio
import ctypes
import gc
import logging
import subprocess
import sys
import traceback
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from runner import AttemptEnd, Context, around_execute, on_failure
from runner.engine.executing.attempt_error import clear_frames
from runner.engine.periodic import garbage_collection
from runner.engine.periodic.garbage_collection import GarbageCollection
from runner.logs import HumanLines, JsonLines
from runner.model.text_limits import ERROR_LIMIT
from tests.conftest import on_sqlite
from tests.engine import test_processes
from tests.engine.frames import ENDS, Frame, collect, end_attempt, leftovers
from tests.engine.harness import Harness, until, wait_for_event
from tests.engine.test_terminating import terminate

HANDLERS = test_processes.HANDLERS


@contextmanager
def no_collector() -> Iterator[None]:
    """Objects of a reference cycle stay during the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def define(harness: Harness, kind: str) -> None:
    async def coroutine(ctx: Context, end: str) -> None:
        frame = Frame()
        ctx.progress(1)
        await asyncio.sleep(0)
        end_attempt(ctx, end, frame)
        if end == "timeout":
            await asyncio.sleep(10)

    def thread(ctx: Context, end: str) -> None:
        frame = Frame()
        ctx.progress(1)
        end_attempt(ctx, end, frame)
        if end == "timeout":
            ctx.stop.wait(10)
            raise LookupError("late")

    harness.handler("work", timeout=0.5)(coroutine if kind == "coroutine" else thread)


async def execute(harness: Harness, handler: str) -> None:
    """Execute a task for each end of an attempt."""
    attempts = {end: 2 if end == "retry" else 1 for end in ENDS}
    tasks = [await harness.submit(handler, {"end": end}, max_attempts=most) for end, most in attempts.items()]
    await harness.wait_for(*tasks)


@pytest.mark.slow
@on_sqlite
@pytest.mark.parametrize("around", ["", "hook", "middleware"])
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_attempts_in_this_process_leave_nothing(harness: Harness, kind: str, around: str) -> None:
    if around == "hook":

        @on_failure
        def observe(end: AttemptEnd) -> None:
            assert end.error is None or end.error.__traceback__ is None or traceback.extract_tb(end.error.__traceback__)

    if around == "middleware":

        @around_execute
        async def surround(ctx: Context) -> AsyncIterator[None]:
            yield

    define(harness, kind)
    async with harness.running():
        await execute(harness, "work")
        with no_collector():
            await execute(harness, "work")
            await until(lambda: not Frame.alive)
            assert not leftovers(collect())


@on_sqlite
@pytest.mark.parametrize("handler", ["process.frames", pytest.param("process.frames_async", marks=pytest.mark.slow)])
async def test_attempts_in_processes_leave_nothing(harness: Harness, handler: str) -> None:
    harness.handlers |= HANDLERS
    async with harness.running(processes=1):
        await execute(harness, handler)
        with no_collector():
            await execute(harness, handler)
            assert not leftovers(collect())
        report = await harness.submit("process.garbage")
        await harness.wait_for(report)
        assert (await harness.row(report)).result == "[0,{}]"


@pytest.mark.slow
@on_sqlite
async def test_a_terminated_attempt_leaves_nothing(harness: Harness) -> None:
    begun = asyncio.Event()

    @harness.handler("work")
    async def work(ctx: Context) -> None:
        frame = Frame()
        ctx.progress(1)
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            assert frame in Frame.alive

    async with harness.running():
        with no_collector():
            task = await harness.submit("work")
            await wait_for_event(begun)
            await terminate(harness, task)
            await harness.wait_for(task)
            await until(lambda: not Frame.alive)
            assert not leftovers(collect())


ERROR = ValueError("one object for all failures")


@on_sqlite
async def test_an_exception_that_a_module_keeps_does_not_collect_frames(harness: Harness) -> None:
    @harness.handler("work", max_attempts=1)
    async def work() -> None:
        frame = Frame()
        assert frame in Frame.alive
        raise ERROR

    tasks = [await harness.submit("work") for _ in range(5)]
    await harness.work()
    assert [(await harness.row(task)).state for task in tasks] == ["dead"] * 5
    assert not Frame.alive
    assert ERROR.__traceback__ is None


@pytest.mark.slow
@on_sqlite
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_hooks_and_trackers_receive_the_exception_with_its_lines(harness: Harness, kind: str) -> None:
    seen: dict[str, list[str]] = {}
    errors: list[weakref.ref[BaseException]] = []

    def note(place: str, error: BaseException | None) -> None:
        assert error is not None
        seen[place] = [frame.name for frame in traceback.extract_tb(error.__traceback__)][-1:]
        errors.append(weakref.ref(error))

    @on_failure
    def on_fail(end: AttemptEnd) -> None:
        note("hook", end.error)

    @around_execute
    async def surround(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        except ValueError as error:
            note("middleware", error)
            raise

    class Tracker(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                note("tracker", record.exc_info[1])

    define(harness, kind)
    logger, tracker = logging.getLogger("runner.outcome"), Tracker()
    logger.addHandler(tracker)
    try:
        with no_collector():
            await harness.submit("work", {"end": "failure"}, max_attempts=1)
            await harness.work()
            assert seen == {place: ["end_attempt"] for place in ("middleware", "tracker", "hook")}
            await until(lambda: all(error() is None for error in errors))
    finally:
        logger.removeHandler(tracker)


async def test_frames_of_suspended_coroutines_are_not_cleared() -> None:
    """An exception can refer to the frame of a coroutine that has caught it and continues."""
    keep: list[BaseException] = []
    go_on = asyncio.Event()

    async def producer() -> str:
        survivor = "survivor"
        try:
            _fail()
        except ValueError as error:
            keep.append(error)
        await go_on.wait()
        return survivor

    def generator() -> Iterator[Any]:
        value = 3
        try:
            _fail()
        except ValueError as error:
            yield error
        yield value

    job = asyncio.create_task(producer())
    await until(lambda: bool(keep))
    values = generator()
    for error in (*keep, next(values)):
        clear_frames(error)
        assert [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)][-1] == {}
    go_on.set()
    assert (await job, next(values)) == ("survivor", 3)


def _fail() -> None:
    frame = Frame()
    assert frame in Frame.alive
    raise ValueError("bad row")


@on_sqlite
async def test_texts_of_outcomes_that_wait_and_of_log_lines_are_cut(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("work", max_attempts=1)
    async def work() -> None:
        raise ValueError("x" * 1_000_000)

    task = await harness.run("work")
    (record,) = [record for record in caplog.records if getattr(record, "task", None) == task]
    assert record.exc_info is None
    for form in (JsonLines(), HumanLines(), logging.Formatter()):
        assert len(form.format(record)) < ERROR_LIMIT + 1_000
    assert "ValueError: xxx" in str(record.exc_text)


def test_free_memory_returns_before_the_next_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, returned = [100 * 2**20], list[int]()
    monkeypatch.setattr(garbage_collection, "return_memory", lambda: returned.append(memory[0] // 2**20))
    collection = GarbageCollection(lambda: memory[0])
    collections = gc.get_stats()[2]["collections"]
    for size in (105, 107, 110, 114):
        memory[0] = size * 2**20
        assert collection.memory() == memory[0]
    assert returned == [107, 114]
    assert gc.get_stats()[2]["collections"] == collections


@pytest.mark.slow
def test_garbage_is_collected_when_the_memory_has_grown() -> None:
    memory = [100 * 2**20]
    collection = GarbageCollection(lambda: memory[0])

    def cycle() -> "weakref.ref[Frame]":
        frame = Frame()
        vars(frame)["cycle"] = frame
        return weakref.ref(frame)

    with no_collector():
        waste = cycle()
        memory[0] = 110 * 2**20
        assert collection.memory() == memory[0]
        assert waste() is not None
        memory[0] = 130 * 2**20
        assert collection.memory() == memory[0]
        assert waste() is None
        later = cycle()
        memory[0] = 140 * 2**20
        collection.memory()
        assert later() is not None
    gc.collect()


FREED_BLOCKS = """
import ctypes
from runner.engine.main import tune_interpreter
from runner.settings import Settings
from tests.engine.test_attempt_memory import mapped_blocks

tune_interpreter(Settings(url="sqlite:////tmp/unused.db"))
bytes(2**22)
before = mapped_blocks()
blocks = [bytes(2**20) for _ in range(8)]
after = mapped_blocks()
del blocks
print(after - before, mapped_blocks() - before)
"""


pytestmark = pytest.mark.usefixtures("own_hooks")


class MallocInfo(ctypes.Structure):
    """The struct mallinfo2 of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd".split()] + [  # noqa: SIM905
        ("rest", ctypes.c_size_t * 5)
    ]


def mapped_blocks() -> int:
    """Blocks that return to the system when they are freed."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallocInfo
    return int(mallinfo2().hblks)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 counts its blocks")
def test_large_blocks_return_to_the_system_after_a_larger_one_was_freed() -> None:
    command = [sys.executable, "-c", FREED_BLOCKS]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "8 0\n"
