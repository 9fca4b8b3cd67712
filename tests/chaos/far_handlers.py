"""Handlers that run in the workers of a Dask cluster, beside those of the runner."""

import asyncio
from typing import Any

from runner import Context, handler
from tests.chaos.handlers import log_end, started


@handler("chaos.far", executor="far")
async def far(ctx: Context, token: str, data: Any, seconds: float = 0.0) -> None:
    """Take some time in a worker."""
    started(ctx, token, data)
    await asyncio.sleep(seconds)
    log_end(ctx)


@handler("chaos.far_flaky", executor="far")
def far_flaky(ctx: Context, token: str, data: Any, failures: int) -> None:
    """Fail a number of times in a worker."""
    started(ctx, token, data)
    if ctx.attempt <= failures:
        raise ConnectionError(f"attempt {ctx.attempt}")
    log_end(ctx)
