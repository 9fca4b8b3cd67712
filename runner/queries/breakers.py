"""breakers: the breakers of handlers, and their next probes."""

from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import Dialect
from runner.db.transaction import Transaction, clock
from runner.policy.breaker import BreakerDefinition, OpenBreaker
from runner.queries.registries import MOST, open_breaker, probe_in
from runner.queries.rows import as_text, moment, readable
from runner.text.document import JsonProperty


class BreakerRow(NamedTuple):
    """The breaker of a handler.

    Args:
        definition: from the handler's code; None if it is not readable.
        state: the state while it is open; None while it is closed.
        closed_at: when it was closed; None if it never was.
    """

    handler: str
    definition: BreakerDefinition | None
    state: OpenBreaker | None
    at: datetime
    closed_at: datetime | None = None

    @JsonProperty
    def open(self) -> bool:
        """True while it is open."""
        return self.state is not None


async def breakers(tx: Transaction, handler: str | None = None, *, only_open: bool = False) -> list[BreakerRow]:
    """Read the breakers, by the names of their handlers.

    Args:
        tx: an open transaction; two statements are executed.
        handler: only the breaker of this handler.
        only_open: leave out the closed ones.
    """
    registry = tx.tables.handler
    column = registry.c.breaker_probes if only_open else registry.c.breaker
    statement = _breakers_statement(registry, tx.dialect, column.name)
    found, at = await tx.gather(
        tx.execute(statement if handler is None else statement.where(registry.c.name == handler)), clock(tx)
    )
    return [
        BreakerRow(
            as_text(row["name"]),
            BreakerDefinition.of(row["breaker"]),
            open_breaker(row, at),
            at,
            moment(row["breaker_closed_at"]),
        )
        for row in found.mappings()
    ]


@lru_cache
def _breakers_statement(registry: sa.Table, dialect: Dialect, column: str) -> sa.Select[Any]:
    """The entries with a value in a column, with their probes."""
    columns = (*readable(dialect, registry.c), probe_in(registry))
    return sa.select(*columns).where(registry.c[column].is_not(None)).order_by(registry.c.name).limit(MOST)
