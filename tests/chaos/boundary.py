"""Boundary: a point around a checkpoint at which a runner kills itself, as if by `kill -9`."""

import os
import signal
from typing import Any, cast

KILL = "CHAOS_KILL"
"""The environment variable with a boundary and the number of a checkpoint, e.g. `statement 3`."""

RUNNER = "CHAOS_RUNNER"
"""The environment variable with the process id of the runner, for the processes of its handlers."""

BOUNDARIES = ("before", "statement", "commit", "answer")
"""Before the statement; before its commit; before the answer reaches the handler; after it."""


def die_at(boundary: str, number: int) -> None:
    """Kill the runner if the environment names this boundary."""
    if os.environ.get(KILL) == f"{boundary} {number}":
        os.kill(int(os.environ[RUNNER]), signal.SIGKILL)
        signal.pause()  # the process of a handler ends with its runner


def install() -> None:
    """Give this runner the boundaries inside the engine."""
    from runner.engine.executing import notes
    from runner.store.notes import Checkpoint, save_checkpoint

    os.environ[RUNNER] = str(os.getpid())
    store = notes.AttemptNotes._store

    async def save(tx: Any, holder: int, checkpoint: Checkpoint) -> bool:
        die_at("before", checkpoint.number)
        holds = await save_checkpoint(tx, holder, checkpoint)
        die_at("statement", checkpoint.number)
        return holds

    async def stored(attempt: notes.AttemptNotes, text: str) -> None:
        await store(attempt, text)
        die_at("commit", attempt.number)

    cast("Any", notes).save_checkpoint = save
    cast("Any", notes.AttemptNotes)._store = stored
