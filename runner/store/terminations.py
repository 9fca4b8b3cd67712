"""terminations: the operators' reasons for the end of running tasks, from the audit log."""

import json
from collections.abc import Mapping

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.model.text_limits import ERROR_LIMIT, to_storable


def termination_text(operator: str, reason: str | None) -> str:
    """The error of a task that an operator terminated."""
    return to_storable(f"terminated by {operator}{f': {reason}' if reason else ''}", ERROR_LIMIT)


async def termination_texts(tx: Transaction, fences: Mapping[int, int]) -> dict[int, str]:
    """Read why running tasks are terminated; tasks whose termination was requested with plain SQL are missing.

    Args:
        tx: an open transaction; one statement is executed along the index `task_id`.
        fences: the fences of the attempts by task.
    """
    audit = tx.tables.audit.c
    requested = tx.dialect.one_of(audit.task_id, sorted(fences)) & (audit.verb == "terminate")
    statement = sa.select(audit.task_id, audit.operator, audit.reason, audit.after).where(requested).order_by(audit.id)
    rows = await tx.rows(statement)
    return {id: termination_text(by, why) for id, by, why, after in rows if _fence(after) == fences[id]}


def _fence(after: object) -> object:
    """The fence in the new values of an audit entry; None without one."""
    try:
        values = json.loads(after) if isinstance(after, str) else None
    except (ValueError, RecursionError):
        return None
    return values.get("fence") if isinstance(values, dict) else None
