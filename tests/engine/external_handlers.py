"""Handlers of external executors, in a module that their workers import."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

from runner import Context, Dead, around_process, handler, injected, resource


def processes() -> Executor:
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


def not_an_executor() -> object:
    return object()


class Greeting(str):
    """The type of a resource."""


@resource
def greeting() -> Iterator[Greeting]:
    yield Greeting(f"from {os.getpid()}")


SEEN: list[int] = []


@around_process
def note(ctx: Context) -> Iterator[None]:
    """Note the attempts that this process runs. The tests' own process runs none of them."""
    SEEN.append(ctx.id)
    yield


@handler("far.seen", executor="far")
def seen(ctx: Context) -> bool:
    return ctx.id in SEEN


@handler("far.add", executor="far")
def add(a: int, b: int) -> list[int]:
    return [a + b, os.getpid()]


@handler("far.greet", executor="far")
async def greet(name: str, greeting: Greeting = injected) -> str:
    return f"{name} {greeting}"


@handler("far.fail", executor="far", max_attempts=1)
def fail() -> None:
    raise ValueError("no luck")


@handler("far.refuse", executor="far")
async def refuse() -> Dead:
    return Dead("not today")


@handler("far.notes", executor="far")
async def notes(ctx: Context) -> int:
    """Fail at the first attempt, after a checkpoint from which the second continues."""
    ctx.logger.info("attempt %d here", ctx.attempt)
    if ctx.state is not None:
        return int(ctx.state["step"])
    ctx.progress(1, 4, "steps")
    await ctx.checkpoint({"step": 7})
    raise ValueError("after the checkpoint")


@handler("far.sleep", executor="far", timeout="200ms", max_attempts=1)
async def sleep() -> None:
    await asyncio.sleep(600)


@handler("far.wait", executor="far", max_attempts=2)
async def wait(ctx: Context) -> None:
    ctx.progress(1)
    await asyncio.sleep(600)


@handler("far.loop", executor="far")
def loop(ctx: Context) -> str:
    ctx.progress(1)
    while not ctx.cancelled:
        time.sleep(0.01)
    return "stopped"


@handler("far.die", executor="far", max_attempts=1)
def die(ctx: Context) -> None:
    ctx.progress(1)
    os.kill(os.getpid(), signal.SIGKILL)


@handler("far.local", executor="far", max_attempts=1)
def local(ctx: Context) -> None:
    with ctx.transaction():
        raise AssertionError
