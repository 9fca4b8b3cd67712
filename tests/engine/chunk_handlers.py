"""Chunk handlers, which the worker processes of the tests import."""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from runner import Chunk, handler


@dataclass
class Mail:
    """The arguments of one task of a chunk."""

    number: int = 0


@handler("process.chunk", executor="process", chunk=10, chunk_wait="50ms", max_attempts=1)
def decide(chunk: Chunk[Mail, int]) -> None:
    """Give some tasks outcomes, and leave others to the end of the function, which depends on the first number."""
    for task in chunk:
        if task.payload.number == 1:
            task.succeed(os.getpid())
        elif task.payload.number == 2:
            task.dead("unsubscribed")
    match chunk[0].payload.number:
        case 10:
            raise ConnectionError("relay is down")
        case 11:
            os._exit(3)
        case 12:
            time.sleep(3600)


@handler("process.chunk_notes", executor="process", chunk=10, chunk_wait="50ms")
def take_notes(chunk: Chunk[Mail, int]) -> None:
    """Resume each task from its checkpoint."""
    for task in chunk:
        state = task.ctx.state
        task.ctx.progress(1, 2, "lines")
        task.ctx.logger.info("number %d", task.payload.number)
        if state is None:
            task.ctx.checkpoint(task.payload.number + 10)
            task.fail(ConnectionError("again"))
        else:
            task.succeed(state)


@handler("process.chunk_stop", executor="process", chunk=10, chunk_wait="50ms")
def wait_for_stop(chunk: Chunk[Mail]) -> None:
    """Wait until the second task is terminated."""
    Path(os.environ["PROCESS_FOLDER"], "begun").touch()
    while not chunk[1].ctx.cancelled:
        time.sleep(0.01)
    assert not chunk[0].ctx.cancelled


@handler("chunks.hang", chunk=10, chunk_wait="50ms")
async def hang(chunk: Chunk[Mail]) -> None:
    """Set the outcome of a task, and wait until the runner is killed."""
    chunk[0].succeed()
    Path(os.environ["PROCESS_FOLDER"], "begun").touch()
    await asyncio.Event().wait()


@handler("chunks.form", chunk=10, chunk_wait="10s")
async def form(chunk: Chunk[Mail]) -> None:
    """Succeed; the chunk of a test does not fill, so that it never starts."""
