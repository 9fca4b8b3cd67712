"""Handlers of the conformance suite of HTTP executors. tests/node/conformance.mjs has them in Node."""

import asyncio
from pathlib import Path
from typing import Any

from runner import Context, Dead, Snooze, handler

LATER = "10ms"


@handler("conform.echo")
def echo(value: Any) -> Any:
    return value


@handler("conform.fail", max_attempts=2)
def fail() -> None:
    raise TypeError("no luck")


@handler("conform.die")
def die() -> Dead:
    return Dead("not today")


@handler("conform.snooze")
async def snooze(ctx: Context) -> int | Snooze:
    if ctx.state is not None:
        return ctx.attempt
    await ctx.checkpoint({"slept": True})
    return Snooze(LATER, "too early")


@handler("conform.steps")
async def steps(ctx: Context) -> int:
    if ctx.state is not None:
        return int(ctx.state["step"])
    await ctx.checkpoint({"step": 7})
    raise TypeError("after the checkpoint")


@handler("conform.notes")
def notes(ctx: Context) -> None:
    ctx.progress(3, 4, "pages")
    ctx.logger.warning("slow relay")


@handler("conform.gate")
async def gate(ctx: Context, begun: str, gate: str) -> int:
    """Wait until the file `gate` exists."""
    with Path(begun).open("a") as file:
        file.write(f"{ctx.attempt}\n")
    while not Path(gate).exists():
        await asyncio.sleep(0.02)
    return ctx.attempt
