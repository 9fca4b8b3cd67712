"""open and close: changes of a breaker by operators."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.lock_limits import OPERATION_LOCKS
from runner.db.transaction import Transaction
from runner.errors import InvalidEdit, InvalidInput
from runner.filter.fields import suggestion
from runner.operations.audit_log import AuditEntry, record
from runner.operations.results import Actor
from runner.operations.written_rows import write_rows
from runner.queries.breakers import BreakerRow, breakers
from runner.queries.rows import moment, readable, text
from runner.store.breaker import STATE, close_breaker, open_breaker

BREAKER_COLUMNS = (*STATE, "breaker_opened_at", "breaker_by", "breaker_why", "breaker_closed_at")


TIMES = ("breaker_probe_at", "breaker_opened_at", "breaker_closed_at")


TEXTS = ("breaker_by", "breaker_why")


OPEN, CLOSE = "open breaker", "close breaker"
"""The audit verbs."""


LONGEST_WAIT = timedelta(days=365)


class BreakerResult(NamedTuple):
    """The breaker before and after a change.

    Args:
        changed: False if it was in that state before; then nothing was written.
        row: the breaker after the change.
    """

    changed: bool
    row: BreakerRow


async def open_by_hand(tx: Transaction, handler: str, by: Actor, wait: timedelta | None = None) -> BreakerResult:
    """Open the breaker of a handler: its tasks wait, and probe after a time.

    Args:
        wait: time until the first probe; None for that of the definition.

    Raises:
        InvalidInput: the handler has no breaker, or the time is not valid; nothing was changed.
    """
    row = await breaker_of(tx, handler)
    if wait is not None and not timedelta(seconds=1) <= wait <= LONGEST_WAIT:
        raise InvalidEdit(field="the time until the first probe", value=str(wait), why="it must be from 1s to 365d")
    if row.definition is None:
        raise InvalidInput(why=f"the definition of the breaker of {handler} is not readable; start a runner")
    before = await read_state(tx, handler)
    seconds, author = None if wait is None else wait.total_seconds(), by.stored.operator
    why = by.reason or f"opened by {by.operator}"
    changed = await open_breaker(tx, handler, row.definition, why, author, seconds)
    return await _recorded(tx, handler, by, OPEN, before, changed=changed)


async def close_by_hand(tx: Transaction, handler: str, by: Actor) -> BreakerResult:
    """Close the breaker of a handler: its tasks start again, and earlier failures do not count.

    Raises:
        InvalidInput: the handler has no breaker.
    """
    await breaker_of(tx, handler)
    before = await read_state(tx, handler)
    changed = await close_breaker(tx, handler)
    return await _recorded(tx, handler, by, CLOSE, before, changed=changed)


async def _recorded(
    tx: Transaction, handler: str, by: Actor, verb: str, before: Mapping[str, Any], *, changed: bool
) -> BreakerResult:
    if changed:
        after = await read_state(tx, handler)
        await record(tx, by, [AuditEntry(verb, before, after, target=f"handler {handler}")])
    return BreakerResult(changed, await breaker_of(tx, handler))


async def breaker_of(tx: Transaction, handler: str) -> BreakerRow:
    """Read the breaker of a handler.

    Raises:
        InvalidInput: the handler has no breaker.
    """
    rows = await breakers(tx, handler)
    if rows:
        return rows[0]
    names = tuple(row.handler for row in await breakers(tx))
    hint = suggestion(handler, names) or (f"; handlers with a breaker: {', '.join(names[:5])}" if names else "")
    why = f"handler {handler} has no breaker{hint}; @handler(breaker=...) sets one, and runner pause stops its tasks"
    raise InvalidInput(why=why)


async def read_state(tx: Transaction, handler: str) -> dict[str, Any]:
    """Read and lock the state of a breaker, as the audit has it."""
    registry = tx.tables.handler
    columns = readable(tx, [registry.c[name] for name in BREAKER_COLUMNS])
    entry = sa.select(*columns).where(registry.c.name == handler, tx.dialect.lock_limit(OPERATION_LOCKS))
    statement = entry.with_for_update(key_share=True)
    row = (await tx.execute(statement)).mappings().one()
    return {name: _value(name, row[name]) for name in BREAKER_COLUMNS}


def _value(name: str, value: Any) -> Any:
    if name in TIMES:
        return moment(value)
    return text(value) if name in TEXTS else value


async def restore(tx: Transaction, handler: str, values: Mapping[str, Any]) -> None:
    """Write the state of a breaker from the audit.

    Args:
        values: the values by column; times as text.
    """
    registry = tx.tables.handler
    columns: dict[str, Any] = {
        name: moment(values.get(name)) if name in TIMES else values.get(name) for name in BREAKER_COLUMNS
    }
    await write_rows(tx, sa.update(registry).where(registry.c.name == handler).values(columns))
