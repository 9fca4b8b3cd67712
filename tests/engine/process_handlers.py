"""Process handlers, which the worker processes of the tests import."""

import asyncio
import contextvars
import ctypes
import gc
import logging
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from runner import Context, Dead, NewTask, around_process, handler, resource
from tests.engine.frames import Frame, collect, end_attempt, leftovers

RESOURCES: list[int] = []
"""Process ids in which the resource was opened."""


class Model:
    """A resource."""


@resource
async def process_model() -> AsyncIterator[Model]:
    RESOURCES.append(os.getpid())
    yield Model()


@handler("process.pid", executor="process")
def pid() -> int:
    return os.getpid()


@handler("process.steps", executor="process", max_attempts=3)
def steps(ctx: Context) -> list[Any]:
    place = ctx.step("place", os.getpid)
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ctx.sleep("1ms")
    found = ctx.wait_for("go").result()
    return [place != os.getpid(), found and found.payload]


@handler("process.call", executor="process", max_attempts=1)
def call(ctx: Context) -> str:
    return str(ctx.call("child", NewTask("process.trace")).result())


@handler("process.trace")
async def trace(ctx: Context) -> str:
    return ctx.headers["traceparent"]


@handler("process.paid", executor="process", max_attempts=1)
def paid(ctx: Context) -> None:
    ctx.step("pay", print, transaction=True)


@handler("process.model", executor="process")
async def predict(model: Model, number: int) -> list[int]:
    await asyncio.sleep(0)
    return [number, len(RESOURCES), type(model) is Model]


@handler("process.fail", executor="process", on_error=KeyError)
def fail(kind: str) -> None:
    raise {"key": KeyError, "value": ValueError, "dead": Dead}[kind]("bad input")


@handler("process.none", executor="process", on_none=lambda ctx: Dead(f"none on attempt {ctx.attempt}"))
def give_nothing() -> int:
    return None  # type: ignore[return-value] # the mistake under test


@handler("process.crash", executor="process")
def crash(how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    os._exit(3)


@handler("process.hold", executor="process", timeout=2)
def hold() -> None:
    """Start a child, and hold the interpreter lock for ever."""
    child = subprocess.Popen(["sleep", "600"])
    Path(os.environ["PROCESS_FOLDER"], "child").write_text(str(child.pid))
    ctypes.PyDLL(None).sleep(600)


@handler("process.held", executor="process")
def hold_lock(folder: Path) -> None:
    (folder / "held").touch()
    ctypes.PyDLL(None).sleep(600)


@handler("process.wait", executor="process")
def wait(ctx: Context, folder: Path) -> None:
    child = subprocess.Popen(["sleep", "600"])
    (folder / "pids").write_text(f"{os.getpid()} {child.pid}")
    while True:
        time.sleep(0.05)


@handler("process.tidy", executor="process")
def tidy(ctx: Context, folder: Path) -> None:
    (folder / "started").touch()
    while not ctx.cancelled:
        time.sleep(0.02)
    (folder / "tidied").touch()


@handler("process.async", executor="process", timeout=0.3)
async def sleeps() -> None:
    await asyncio.sleep(600)


@handler("process.memory", executor="process", memory_limit="256m")
def memory() -> int:
    return len(bytearray(600_000_000))


@handler("process.greedy", executor="process", memory_limit="256m")
def greedy(folder: Path) -> int:
    """Need too much memory when the test asks for it."""
    (folder / "started").touch()
    _wait_for(folder / "go")
    return len(bytearray(600_000_000))


@handler("process.service", executor="process", breaker="1/min")
def service(folder: Path, call: str) -> None:
    """Call a service that is down at first."""
    (folder / call).touch()
    if call == "first":
        raise ConnectionError("refused")
    if call == "second":
        _wait_for(folder / "go")


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


@handler("process.notes", executor="process")
def notes(ctx: Context, secret: str) -> Any:
    before = ctx.state
    ctx.checkpoint({"step": (before or {"step": 0})["step"] + 1})
    ctx.progress(1, 4, "files")
    ctx.progress(2, 4, "files")
    ctx.logger.info("reads with %s", secret)
    logging.getLogger("shop").warning("a line of a library")
    if before is None:
        ctx.keep({"step": 5})
        os.kill(os.getpid(), signal.SIGKILL)
    return [before, ctx.attempt]


@handler("process.transaction", executor="process")
def transaction(ctx: Context) -> None:
    with ctx.transaction():
        pass


@handler("process.invalid", executor="process")
def invalid(ctx: Context) -> None:
    ctx.checkpoint(object())


@handler("process.parents", executor="process")
def parents(ctx: Context) -> list[str]:
    return [str(item) for item in ctx.batch.results(return_exceptions=True)] if ctx.batch else []


@handler("process.parents_async", executor="process")
async def parents_async(ctx: Context) -> list[Any]:
    return await ctx.batch.results_async() if ctx.batch else []


def spin(ms: float) -> int:
    """Compute for some milliseconds of processor time."""
    steps, end = 0, time.process_time() + ms / 1_000
    while time.process_time() < end:
        steps += 1
    return steps


@handler("process.compute", executor="process")
def compute(ms: float) -> int:
    """Our form of the same function."""
    return spin(ms)


@handler("process.secrets", executor="process")
def secret_lines(ctx: Context, password: str) -> None:
    """Log the argument in each way."""
    ctx.logger.info("by the context: %s", password)
    logging.getLogger("shop").info("by a logger: %s", password, extra={"extra": [password]})
    try:
        raise LookupError(f"by an error: {password}")
    except LookupError:
        logging.getLogger("shop").exception("failed")


@handler("process.frames", executor="process", timeout=0.5)
def frames(ctx: Context, end: str) -> None:
    """End an attempt with a large local variable, without a collector."""
    gc.disable()
    frame = Frame()
    ctx.progress(1)
    end_attempt(ctx, end, frame)
    if end == "timeout":
        ctx.stop.wait(10)


@handler("process.frames_async", executor="process", timeout=0.5)
async def frames_async(ctx: Context, end: str) -> None:
    """The same as a coroutine."""
    gc.disable()
    frame = Frame()
    ctx.progress(1)
    await asyncio.sleep(0)
    end_attempt(ctx, end, frame)
    if end == "timeout":
        await asyncio.sleep(10)


@handler("process.garbage", executor="process")
def garbage() -> list[Any]:
    """The variables of earlier attempts in this process, and the garbage that they left."""
    alive = len(Frame.alive)
    return [alive, dict(leftovers(collect()))]


@handler("process.checkpoint", executor="process")
def checkpoint(ctx: Context) -> None:
    ctx.checkpoint({"row": 1})


@handler("process.late_checkpoint", executor="process", timeout=5.0)
def save_late(ctx: Context, folder: Path) -> None:
    with (folder / "runs").open("a") as runs:
        runs.write("1")
    while not (folder / "go").exists():
        time.sleep(0.02)
    ctx.checkpoint({"row": 1})


@handler("process.late_checkpoint_async", executor="process", timeout=5.0)
async def save_late_async(ctx: Context, folder: Path) -> None:
    with (folder / "runs").open("a") as runs:
        runs.write("1")
    while not (folder / "go").exists():
        await asyncio.sleep(0.02)
    await ctx.checkpoint({"row": 1})


@handler("process.late_results", executor="process", timeout=5.0)
def read_late(ctx: Context, folder: Path) -> list[Any]:
    with (folder / "runs").open("a") as runs:
        runs.write("1")
    while not (folder / "go").exists():
        time.sleep(0.02)
    return ctx.batch.results() if ctx.batch else []


@handler("process.late_results_async", executor="process", timeout=5.0)
async def read_late_async(ctx: Context, folder: Path) -> list[Any]:
    with (folder / "runs").open("a") as runs:
        runs.write("1")
    while not (folder / "go").exists():
        await asyncio.sleep(0.02)
    return await ctx.batch.results_async() if ctx.batch else []


@handler("process.refuse", executor="process")
def refuse(number: int) -> None:
    raise ValueError(number)


VALUE: contextvars.ContextVar[str] = contextvars.ContextVar("VALUE", default="none")


@around_process
def enter(ctx: Context) -> Iterator[None]:
    token = VALUE.set(ctx.headers.get("number", "none"))
    try:
        yield
    finally:
        VALUE.reset(token)


@handler("process.value", executor="process")
def value() -> str:
    return VALUE.get()
