"""Stored signatures of handlers, among them those with a codec, whose payloads match no filter."""

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.filter.fields import PAYLOAD
from runner.filter.parse import Filter
from runner.handlers.parameters import StoredSignature, read_signature
from runner.queries.rows import as_text, text
from runner.text.sanitize import one_line

MOST = 1_000
"""Maximum number of handlers that are read."""

MOST_NAMED = 5


async def stored_signature(tx: Transaction, handler: str) -> StoredSignature | None:
    """Read the signature that the runners of a handler stored last; None if there is none."""
    return (await stored_signatures(tx, tx.tables.handler.c.name == handler)).get(handler)


async def stored_signatures(tx: Transaction, condition: sa.ColumnElement[bool]) -> dict[str, StoredSignature]:
    """Read the signatures of handlers by name, at most MOST, without unreadable ones."""
    registry = tx.tables.handler.c
    statement = sa.select(registry.name, registry.signature).where(condition)
    rows = await tx.rows(statement.order_by(registry.name).limit(MOST))
    found = ((as_text(row.name), read_signature(text(row.signature))) for row in rows)
    return {name: signature for name, signature in found if signature is not None}


async def sealed_handlers(tx: Transaction) -> dict[str, str]:
    """Return the codecs of the handlers that have one, by name, as their runners stored them."""
    has_codec = sa.cast(tx.tables.handler.c.signature, sa.Text).contains('"codec": "')
    signatures = await stored_signatures(tx, has_codec)
    return {name: each.codec for name, each in signatures.items() if each.codec is not None}


async def chunk_sizes(tx: Transaction) -> dict[str, int]:
    """Return the maximum numbers of tasks in a chunk of the handlers that have chunks, by name."""
    has_chunk = sa.cast(tx.tables.handler.c.signature, sa.Text).contains('"chunk": ')
    sizes = {name: each.attempts.get("chunk") for name, each in (await stored_signatures(tx, has_chunk)).items()}
    return {name: size for name, size in sizes.items() if isinstance(size, int) and size > 0}


async def payload_remark(tx: Transaction, task_filter: Filter) -> str:
    """Return the remark about encrypted payloads for people with a filter on the payload; empty without any."""
    if not any(term.field.startswith(PAYLOAD) for term in task_filter.terms) or not (
        names := await sealed_handlers(tx)
    ):
        return ""
    listed = ", ".join(map(one_line, list(names)[:MOST_NAMED])) + (", ..." if len(names) > MOST_NAMED else "")
    return f"encrypted payloads match no filter on payload.NAME: {listed}"
