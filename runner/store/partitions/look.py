"""look: which partitions there are, and whether this role may change them."""

import re
from dataclasses import dataclass

import sqlalchemy as sa

from runner.policy.ranges import Range
from runner.schema.partitions import SUCCEEDED, full_name
from runner.store.transaction import Transaction

BOUNDS = re.compile(r"FOR VALUES FROM \('(-?\d+)'\) TO \('(-?\d+)'\)")

# The default partition has no bounds. Asking for them would wait for whoever makes a range, and has it locked.
RANGES = sa.text("""
    SELECT pg_get_expr(part.relpartbound, part.oid) AS bounds, part.reltuples AS rows
    FROM pg_inherits AS link JOIN pg_class AS part ON part.oid = link.inhrelid
        JOIN pg_partitioned_table AS whole ON whole.partrelid = link.inhparent AND whole.partdefid <> part.oid
    WHERE link.inhparent = CAST(:whole AS regclass)
""")

# Only an owner is asked for the sequence, because others may not look at it.
RIGHTS = sa.text("""
    SELECT own, CASE WHEN own THEN pg_sequence_last_value(CAST(pg_get_serial_sequence(:task, 'id') AS regclass)) END,
        current_user
    FROM (
        SELECT pg_has_role(relowner, 'USAGE') AND has_schema_privilege(relnamespace, 'CREATE') AS own
        FROM pg_class WHERE oid = CAST(:whole AS regclass)
    ) AS rights
""")


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranges of the history.

    Args:
        ranges: from the lowest ids to the highest, each with the number of rows that the server last knew of; None
            when it has not counted yet.
        next_id: the id that will be handed out next; 0 when this role may not know.
        may_change: this role may create and drop partitions.
        role: by which we are known.
    """

    ranges: dict[Range, int | None]
    next_id: int
    may_change: bool
    role: str


async def look(tx: Transaction) -> Layout | None:
    """Look at the ranges of the history.

    Args:
        tx: an open transaction; two statements are executed.

    Returns:
        The ranges; None when the history of this database has no partitions.
    """
    if not tx.dialect.partitions:
        return None
    whole, found = full_name(tx.tables.history, SUCCEEDED), {}
    for row in await tx.rows(RANGES, {"whole": whole}):
        # A range that was dropped while the statement ran is still listed, without bounds.
        if bounds := BOUNDS.fullmatch(row.bounds or ""):
            found[Range(int(bounds[1]), int(bounds[2]))] = None if row.rows < 0 else round(row.rows)
    ((own, last, role),) = await tx.rows(RIGHTS, {"whole": whole, "task": full_name(tx.tables.task)})
    return Layout(dict(sorted(found.items())), (last or 0) + 1 if own else 0, own, role)
