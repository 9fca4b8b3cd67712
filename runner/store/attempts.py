"""attempts: keep why an attempt failed, for good."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import EARLIEST, LATEST
from runner.outcome import Failure
from runner.policy.fingerprint import fingerprint
from runner.storable import to_storable
from runner.store.transaction import Transaction

MESSAGE_LIMIT = 4 * 1024
TRACEBACK_LIMIT = 16 * 1024
"""Bytes that are kept."""


class Tried(NamedTuple):
    """An attempt that failed.

    Args:
        row: of the task, with id, fence, attempt, queue, handler, claimed_at, runner_id and host of the attempt.
        verb: the move that it led to.
        failure: why it failed.
        delay: seconds until the next attempt; None when there is none.
    """

    row: Any
    verb: str
    failure: Failure
    delay: float | None


def started(task: Any) -> sa.Label[Any]:
    """When an attempt began, as the column claimed_at of a row that can be read whatever somebody has written there.

    Args:
        task: the columns of the task.
    """
    return sa.case((task.claimed_at.between(EARLIEST, LATEST), task.claimed_at)).label("claimed_at")


async def record(tx: Transaction, tried: Sequence[Tried]) -> None:
    """Write one row for each failed attempt.

    Args:
        tx: the transaction that also moves the tasks.
        tried: the attempts; an attempt that has its row already keeps it.
    """
    if tried:
        await tx.execute(sa.insert(tx.tables.attempt), [_values(item) for item in tried])


def _values(item: Tried) -> dict[str, Any]:
    row, failure = item.row, item.failure
    kind, message = to_storable(failure.type, 1024), to_storable(failure.message, MESSAGE_LIMIT)
    return {
        "task_id": row.id,
        "fence": row.fence,
        "attempt": row.attempt,
        "queue": row.queue,
        "handler": row.handler,
        "started_at": row.claimed_at,
        "runner_id": row.runner_id,
        "host": row.host,
        "verb": item.verb,
        "error_type": kind,
        "message": message,
        "traceback": to_storable(failure.traceback, TRACEBACK_LIMIT) or None,
        "fingerprint": fingerprint(row.handler, kind, message),
        "delay": item.delay,
    }
