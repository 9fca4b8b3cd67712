"""work: one runner as a process of its own, with its signals, until it is told to stop."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Mapping
from functools import partial

from runner.door.door import connect
from runner.engine.process import Runner
from runner.handlers import Handler
from runner.people.terminal import counted
from runner.settings import Settings

log = logging.getLogger("runner")

AT_ONCE = 130
"""The exit code after a second signal."""


async def work(settings: Settings, handlers: Mapping[str, Handler], *, until_idle: bool = False) -> int:
    """Run a runner until a signal or, if asked, until there is nothing left to do.

    The first SIGTERM or SIGINT drains; a second one ends the process at once, and what it had in hand is rescued when
    its lease has run out.

    Args:
        settings: how.
        handlers: what, by name.
        until_idle: end by itself when nothing is due or will come back.

    Returns:
        The exit code: 0, or 1 when some outcomes could not be written.
    """
    connect(settings)  # handlers submit tasks to the database that they come from
    runner = Runner(settings, handlers)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(_stop, runner))
    collect_seldom()
    clean = await runner.run(until_idle=until_idle)
    if runner.later:
        log.info("left for later: %s", counted(runner.later, "scheduled task"))
    if runner.working.executor.stuck:
        log.warning("ending without %s whose task does not end", counted(runner.working.executor.stuck, "thread"))
        _end_now(0 if clean else 1)
    return 0 if clean else 1


def _stop(runner: Runner) -> None:
    if runner.stopping:
        log.warning("stopping at once; %s in hand will be rescued", counted(len(runner.working.in_hand), "task"))
        _end_now(AT_ONCE)
    log.info("stopping; once more to stop at once")
    runner.stop()


def _end_now(code: int) -> None:
    """End without waiting for threads, which a plain exit would."""
    logging.shutdown()
    os._exit(code)


def collect_seldom() -> None:
    """Let the collector of cycles look less often: a runner makes many objects and hardly any cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
