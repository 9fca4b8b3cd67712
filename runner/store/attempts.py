"""Attempts: store why an attempt failed, and the fingerprint that failures share if they differ only in values."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import EARLIEST, LATEST
from runner.model.outcome import Failure
from runner.model.text_limits import to_storable

MESSAGE_LIMIT = 4 * 1024
TRACEBACK_LIMIT = 16 * 1024
"""Maximum sizes in bytes."""

MASKS = (
    (re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""), "'*'"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "*"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "*"),
    (re.compile(r"\d+(?:\.\d+)?"), "#"),
)
LONGEST_COMPARED = 2_000
"""Characters of a message that are compared."""


class FailedAttempt(NamedTuple):
    """A failed attempt.

    Args:
        row: the task's row with id, fence, attempt, queue, handler, claimed_at, runner_id and host of the attempt.
        verb: the resulting move.
        failure: the reason.
        delay: seconds until the next attempt; None without one.
        breaks: True if the breaker of the handler counts it.
    """

    row: Any
    verb: str
    failure: Failure
    delay: float | None
    breaks: bool = False


def started_at_column(task: Any) -> sa.Label[Any]:
    """Return the start of an attempt as the column claimed_at; NULL for values that the driver cannot read.

    Args:
        task: the columns of the task.
    """
    return sa.case((task.claimed_at.between(EARLIEST, LATEST), task.claimed_at)).label("claimed_at")


async def record(tx: Transaction, attempts: Sequence[FailedAttempt]) -> None:
    """Write one row per failed attempt.

    Args:
        tx: the transaction that also moves the tasks.
        attempts: the attempts; existing rows stay unchanged.
    """
    if attempts:
        await tx.execute(sa.insert(tx.tables.attempt), [_values(item) for item in attempts])


def _values(item: FailedAttempt) -> dict[str, Any]:
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
        "breaks": item.breaks or None,
        "rule": to_storable(failure.rule, MESSAGE_LIMIT) or None,
    }


def masked(message: str) -> str:
    """Return the message in one line, with numbers, ids and quoted values masked."""
    text = " ".join(message[:LONGEST_COMPARED].split())
    for pattern, mark in MASKS:
        text = pattern.sub(mark, text)
    return text


def fingerprint(handler: str, error_type: str, message: str) -> str:
    """Return sixteen hexadecimal digits that identify a failure group.

    Args:
        handler: handler name.
        error_type: class of the exception.
        message: message of the exception; only its first line counts, masked.
    """
    first, *_ = message.strip().splitlines() or [""]
    return hashlib.sha256(f"{handler}\0{error_type}\0{masked(first)}".encode("utf-8", "replace")).hexdigest()[:16]
