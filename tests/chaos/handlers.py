"""Handlers for chaos tests: each writes its start and end to the journal."""

import asyncio
import os
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from runner import Breaker, Context, handler
from tests.chaos.boundary import die_at
from tests.chaos.journal import FOLDER, Journal
from tests.chaos.workload import digest

CHECK_INTERVAL = 0.01
LOSSES = 2
"""Attempts at which `late_kill` and `innocent` wait until their runner is killed."""

NARROW = 2
"""Slots of a runner for `narrow`."""

OUTAGE = "outage"
"""While a file with this name is in the working directory, the service that `brittle` calls is down."""

PAYMENTS = sa.table("payments", sa.column("task"))
"""A table of the application, written to by handlers in the transactions that end their tasks."""


@cache
def journal() -> Journal:
    return Journal(Path(os.environ[FOLDER]), "runner")


def started(ctx: Context, token: str, data: Any) -> None:
    journal().write("start", task=ctx.id, fence=ctx.fence, attempt=ctx.attempt, token=token, digest=digest(data))


def log_end(ctx: Context) -> None:
    journal().write("end", task=ctx.id, fence=ctx.fence)


@handler("chaos.work")
async def work(ctx: Context, token: str, data: Any, seconds: float = 0.0) -> None:
    """Take some time."""
    started(ctx, token, data)
    await asyncio.sleep(seconds)
    log_end(ctx)


@handler("chaos.narrow", limit_per_runner=NARROW)
async def narrow(ctx: Context, token: str, data: Any, seconds: float = 0.0) -> None:
    """Take some time in one of few slots."""
    started(ctx, token, data)
    journal().write("enter", task=ctx.id, fence=ctx.fence)
    try:
        await asyncio.sleep(seconds)
        log_end(ctx)
    finally:
        journal().write("leave", task=ctx.id, fence=ctx.fence)


@handler("chaos.brittle", breaker=Breaker("4/5s", probe="1s"))
async def brittle(ctx: Context, token: str, data: Any) -> None:
    """Call a service that is down while the file OUTAGE exists."""
    started(ctx, token, data)
    if Path(OUTAGE).exists():
        raise ConnectionError("the service is down")
    log_end(ctx)


@handler("chaos.thread")
def thread(ctx: Context, token: str, data: Any, seconds: float = 0.0) -> None:
    """Take some time in a thread."""
    started(ctx, token, data)
    time.sleep(seconds)
    log_end(ctx)


@handler("chaos.tick")
async def tick(ctx: Context, seconds: float = 0.0) -> None:
    """Run for one tick of a schedule."""
    journal().write("start", task=ctx.id, fence=ctx.fence, key=ctx.key)
    await asyncio.sleep(seconds)
    log_end(ctx)


def resumed(ctx: Context) -> int:
    """Write the state with which an attempt begins, and return it."""
    state = int(ctx.state or 0)
    journal().write("resume", task=ctx.id, fence=ctx.fence, state=state)
    return state


def acknowledged(ctx: Context, number: int) -> None:
    journal().write("acknowledge", task=ctx.id, fence=ctx.fence, number=number)
    die_at("answer", number)


@handler("chaos.count")
async def count(ctx: Context, last: int, seconds: float = 0.0) -> None:
    """Count with a checkpoint for each number."""
    for number in range(resumed(ctx) + 1, last + 1):
        await ctx.checkpoint(number)
        acknowledged(ctx, number)
        await asyncio.sleep(seconds)


def count_plainly(ctx: Context, last: int, seconds: float = 0.0) -> None:
    for number in range(resumed(ctx) + 1, last + 1):
        ctx.checkpoint(number)
        acknowledged(ctx, number)
        time.sleep(seconds)


@handler("chaos.count_thread")
def count_in_thread(ctx: Context, last: int, seconds: float = 0.0) -> None:
    """Do what `count` does, in a thread."""
    count_plainly(ctx, last, seconds)


@handler("chaos.count_process", executor="process")
def count_in_process(ctx: Context, last: int, seconds: float = 0.0) -> None:
    """Do what `count` does, in a process."""
    count_plainly(ctx, last, seconds)


@handler("chaos.wait")
async def wait(ctx: Context, token: str, data: Any, gate: str) -> None:
    """Wait until this attempt's gate, a file, is open."""
    started(ctx, token, data)
    while not Path(f"{gate}.{ctx.attempt}").exists():
        await asyncio.sleep(CHECK_INTERVAL)
    log_end(ctx)


@handler("chaos.pay")
async def pay(ctx: Context, token: str, data: Any, seconds: float = 0.0) -> None:
    """Write a payment, in the transaction that ends the task."""
    started(ctx, token, data)
    async with ctx.transaction() as tx:
        await tx.execute(sa.insert(PAYMENTS).values(task=ctx.id))
        await asyncio.sleep(seconds)
        log_end(ctx)


@handler("chaos.pay_thread")
def pay_thread(ctx: Context, token: str, data: Any, seconds: float = 0.0) -> None:
    """Do what `pay` does, in a thread."""
    started(ctx, token, data)
    with ctx.transaction() as tx:
        tx.execute(sa.insert(PAYMENTS).values(task=ctx.id))
        time.sleep(seconds)
        log_end(ctx)


@handler("chaos.flaky")
async def flaky(ctx: Context, token: str, data: Any, failures: int) -> None:
    """Fail a number of times."""
    started(ctx, token, data)
    if ctx.attempt <= failures:
        raise ConnectionError(f"attempt {ctx.attempt}")
    log_end(ctx)


@handler("chaos.kill")
async def kill(ctx: Context, token: str, data: Any) -> None:
    """Kill the runner."""
    started(ctx, token, data)
    journal().write("kill")
    os.kill(os.getpid(), signal.SIGKILL)


@handler("chaos.late_kill")
async def late_kill(ctx: Context, token: str, data: Any) -> None:
    """Wait until the runner is lost on the first two attempts; kill the runner on each later one."""
    started(ctx, token, data)
    while ctx.attempt <= LOSSES:
        await asyncio.sleep(CHECK_INTERVAL)
    await asyncio.sleep(0.2)  # so that a group has formed around it
    journal().write("kill")
    os.kill(os.getpid(), signal.SIGKILL)


@handler("chaos.innocent")
async def innocent(ctx: Context, token: str, data: Any) -> None:
    """Run until the runner is lost on the first two attempts; take a moment on each later one."""
    started(ctx, token, data)
    while ctx.attempt <= LOSSES:
        await asyncio.sleep(CHECK_INTERVAL)
    await asyncio.sleep(0.1)
    log_end(ctx)
