"""Outages in the calls of a Context: errors of the runner's own connection, which are not failures of the handler."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.server_watch import answer_within
from runner.db.transaction import require_answer
from runner.engine.executing.attempt_error import chain
from runner.engine.running import Running
from runner.errors import DatabaseUnavailable, StoreError

QUESTION_SECONDS = 2.0
"""Maximum seconds for the answer to a question that decides whether a server hangs."""


def note_outage(running: Running, error: BaseException, outage: StoreError) -> None:
    """Record an error that a call of the Context raises in a handler.

    Args:
        error: the error, which counts by its identity: the database of an application may fail in the same way.
    """
    running.outages = (*running.outages, (error, outage))


@contextmanager
def waiting(running: Running) -> Iterator[None]:
    """Let the runner know of a wait of the Context for the database, and of an outage."""
    running.unanswered = True  # also after a cancelled wait
    try:
        yield
    except Exception as error:
        running.unanswered = False
        if isinstance(error, DatabaseUnavailable):
            note_outage(running, error, error)
        raise
    running.unanswered = False


def begin_statements(running: Running, driver: Any) -> None:
    """Record the driver's connection of an own transaction, whose statements begin.

    Args:
        running: the task.
        driver: the connection; an earlier transaction may have used it.
    """
    running.tx_driver = driver
    if getattr(driver, "unanswered", 0.0):
        driver.unanswered = 0.0


async def hung_server(running: Running, database: Database) -> StoreError | None:
    """Return the outage of a server that does not answer a call of the Context when the timeout of an attempt passes.

    A statement of the handler may take long on a server that works. So the server is asked.

    Args:
        running: the task.
        database: its database.
    """
    driver = running.tx_driver
    in_statement = getattr(driver, "since", 0.0) or getattr(driver, "unanswered", 0.0)
    if not (running.unanswered or in_statement):
        return None
    try:
        with answer_within(QUESTION_SECONDS):
            await database.read(require_answer)
    except DatabaseUnavailable as error:
        return error
    except (StoreError, asyncio.CancelledError):  # it answers, or the runner ends the attempt
        return None
    fault = getattr(driver, "fault", None)
    return None if fault is None else DatabaseUnavailable(url=database.url, why=fault)


def outage_of(running: Running, error: BaseException) -> StoreError | None:
    """Return the outage that ended an attempt; None if the handler failed.

    Args:
        error: the exception that left the handler: a recorded error, or one with a recorded error in its chain.
    """
    if not running.outages:
        return None
    known = {id(each): outage for each, outage in running.outages}
    for each in chain(error):
        if id(each) in known:
            return known[id(each)]
        if isinstance(each, sa.exc.PendingRollbackError):  # of a statement after the recorded error
            return running.outages[-1][1]
    return None
