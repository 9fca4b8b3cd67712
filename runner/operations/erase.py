"""erase: remove the contents of finished tasks, for a request of erasure."""

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import next_version
from runner.operations.audit_log import AuditEntry, record
from runner.operations.failed_steps import FAILED_STEPS
from runner.operations.results import Actor, Result, Target
from runner.operations.targets import lock_targets
from runner.operations.written_rows import write_rows
from runner.store.task_records import RELATED, Record

CONTENTS = ("payload", "result", "headers", "error")
"""The columns of a task that are erased; entries of the audit log lose the same values."""

ERASED: dict[str, Any] = {"payload": "{}", "result": None, "headers": None, "error": None}
"""Their values afterwards."""

ERASED_ROWS = ("log", "checkpoints", "steps", "signals")
"""The related rows that are deleted, by their key in a record."""

MESSAGE = "erased"
"""The message of the failed attempts; the class of the exception and the failure group stay."""


async def erase(tx: Transaction, targets: Iterable[Target], by: Actor) -> Result:
    """Remove the contents of finished tasks: CONTENTS, ERASED_ROWS, and the errors of their attempts. There is no undo.

    The tasks, their states, times, attempts and failure groups stay, so that counts do not change.

    Args:
        targets: the tasks, with the versions that the operator saw.
    """
    tasks, result = await lock_targets(tx, "erase", targets)
    ids = [task.id for task in tasks]
    if ids:
        history, attempt = tx.tables.history, tx.tables.attempt
        values = {**ERASED, "version": next_version(history.c.version)}
        await write_rows(tx, sa.update(history).where(tx.dialect.one_of(history.c.id, ids)).values(values), len(ids))
        of_attempts = sa.update(attempt).where(tx.dialect.one_of(attempt.c.task_id, ids))
        await tx.execute(of_attempts.values(message=MESSAGE, traceback=None))
        for key in ERASED_ROWS:
            table: sa.Table = getattr(tx.tables, RELATED[key])
            await tx.execute(sa.delete(table).where(tx.dialect.one_of(table.c.task_id, ids)))
        await _erase_audit(tx, ids)
    await record(tx, by, [AuditEntry("erase", {}, {"erased": ", ".join(CONTENTS)}, id) for id in ids])
    result.changed = ids
    return result


async def _erase_audit(tx: Transaction, ids: list[int]) -> None:
    audit = tx.tables.audit
    rows = await tx.rows(
        sa.select(audit.c.id, audit.c.before, audit.c.after).where(tx.dialect.one_of(audit.c.task_id, ids))
    )
    for id, before, after in rows:
        new = {"before": without_contents(before), "after": without_contents(after)}
        if new != {"before": before, "after": after}:
            await write_rows(tx, sa.update(audit).where(audit.c.id == id).values(new))


def without_contents(values: str | None) -> str | None:
    """The values of an audit entry, JSON text, without those that are erased."""
    try:
        fields = json.loads(values or "null")
    except (ValueError, RecursionError):
        return "{}"
    erased = {*CONTENTS, FAILED_STEPS}
    if not isinstance(fields, dict) or erased.isdisjoint(fields):
        return values
    return json.dumps({name: value for name, value in fields.items() if name not in erased})


def erased_record(archived: Record) -> Record:
    """An archived task without its contents."""
    attempts = [{**attempt, "message": MESSAGE, "traceback": None} for attempt in archived["attempts"]]
    audit = [
        {**entry, "before": without_contents(entry["before"]), "after": without_contents(entry["after"])}
        for entry in archived["audit"]
    ]
    return {**archived, **ERASED, "attempts": attempts, "audit": audit, **{key: [] for key in ERASED_ROWS}}
