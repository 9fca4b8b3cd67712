"""A program that is a runner whose handler counts, and records each acknowledged checkpoint in a file."""

import os
import sys
from pathlib import Path

from runner import Context, handler
from runner.engine.main import run_contained, work
from runner.handlers.registry import REGISTRY
from runner.settings import load


@handler("killed.count")
async def count(ctx: Context) -> None:
    with Path(os.environ["ACKNOWLEDGED"]).open("a") as file:
        number = ctx.state or 0
        while True:
            number += 1
            await ctx.checkpoint(number)
            file.write(f"{number}\n")
            file.flush()


if __name__ == "__main__":
    sys.exit(run_contained(work(load(), REGISTRY)))
