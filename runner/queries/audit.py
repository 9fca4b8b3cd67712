"""audit: the operations of operators, with who, when and why."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, NamedTuple

import sqlalchemy as sa

from runner.db.schema.task import Condition
from runner.db.transaction import Transaction
from runner.queries.counting import Count, capped
from runner.queries.rows import from_row, readable
from runner.text.document import Flat, JsonProperty, Treatment


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An audit entry: one change by an operator.

    Args:
        task_id: the changed task; None if the change was not to a task.
        target: the changed queue, handler or runner, e.g. "queue mail".
        undo_of: the entry that this one undoes.
        before: the values before, JSON text.
        after: the values after, JSON text.
        change_group: the id of the change group; None for a single change.
        login: the database login that wrote the entry; None if the database has no logins.
    """

    id: int
    task_id: int | None
    target: str | None
    undo_of: int | None
    at: datetime | None
    operator: str
    host: str
    verb: str
    reason: str | None
    before: Annotated[str | None, Treatment.AUDIT]
    after: Annotated[str | None, Treatment.AUDIT]
    change_group: str | None = None
    login: str | None = None


REVEAL = "reveal"
"""The verb of an entry that records a reveal of secrets."""

CANARY = "canary"
"""The verb of an entry that records the result of a canary, beside the entries of its changes."""

UNCHANGED = (REVEAL, CANARY)
"""The verbs of entries that changed nothing, and to which undo does not apply."""

SCAN_LIMIT = 100_000
"""Maximum number of entries that a search without an index reads."""


async def audit(
    tx: Transaction,
    task_id: int | None = None,
    after: int | None = None,
    limit: int = 50,
    *,
    operator: str | None = None,
    since: datetime | None = None,
    change_group: str | None = None,
    target: str | None = None,
) -> list[AuditRecord]:
    """List the changes by operators, latest first.

    Args:
        task_id: only changes of this task.
        after: the id of the last entry of the previous page; None to begin.
        limit: maximum number of entries.
        operator: only changes by this operator; without a task the search reads at most SCAN_LIMIT entries.
        since: only changes at or after this time, aware; the same bound applies.
        change_group: only the changes of this change group.
        target: only changes of this target, e.g. "queue mail"; the same bound applies.
    """
    table = tx.tables.audit.c
    conditions = [table.task_id == task_id] if task_id is not None else []
    if change_group is not None:
        conditions.append(table.change_group == change_group)
    if after is not None:
        conditions.append(table.id < after)
    columns = ((table.operator, operator), (table.target, target))
    unindexed = [column == value for column, value in columns if value is not None]
    if since is not None:
        unindexed.append(table.at >= since)
    if task_id is not None:
        return await entries(tx, [*conditions, *unindexed], [], limit)
    return await entries(tx, conditions, unindexed, limit)


async def entries(
    tx: Transaction, indexed: Sequence[Condition], unindexed: Sequence[Condition], limit: int
) -> list[AuditRecord]:
    """List entries, latest first.

    Args:
        tx: an open transaction; one statement is executed.
        unindexed: conditions without an index; with any of them the search reads at most SCAN_LIMIT entries.
        limit: maximum number of entries.
    """
    table, conditions = tx.tables.audit.c, [*indexed, *unindexed]
    if unindexed:
        oldest = sa.select(table.id).where(*indexed).order_by(table.id.desc()).offset(SCAN_LIMIT - 1).limit(1)
        conditions.append(table.id >= sa.func.coalesce(oldest.scalar_subquery(), 0))
    statement = sa.select(*readable(tx, table)).where(*conditions).order_by(table.id.desc()).limit(limit)
    return [from_row(AuditRecord, row) for row in (await tx.execute(statement)).mappings().all()]


async def audit_record(tx: Transaction, entry: int) -> AuditRecord | None:
    """Read one entry; None if there is none with this id."""
    table = tx.tables.audit
    row = (await tx.execute(sa.select(*readable(tx, table.c)).where(table.c.id == entry))).mappings().one_or_none()
    return from_row(AuditRecord, row) if row else None


def undoable(entries: Sequence[AuditRecord]) -> AuditRecord | None:
    """The latest change that has not been undone and is not an undo itself; None if there is none.

    Args:
        entries: audit entries, latest first.
    """
    undone = {entry.undo_of for entry in entries}
    changes = (entry for entry in entries if entry.undo_of is None and entry.verb not in UNCHANGED)
    return next((entry for entry in changes if entry.id not in undone), None)


CAP = 10_000
"""Maximum number of changes of one operation that are counted."""


class ChangeGroup(NamedTuple):
    """One operation.

    Args:
        entry: the audit entry; the latest of a change group.
        number: the changes in the group; 1 for a single change.
    """

    entry: Annotated[AuditRecord, Flat()]
    number: Annotated[Count, Treatment.HIDDEN]

    @JsonProperty
    def changes(self) -> Count:
        """The changes in the group; 1 for a single change."""
        return self.number


async def change_groups(
    tx: Transaction, limit: int = 50, group: str | None = None, within: Sequence[Condition] = ()
) -> list[ChangeGroup]:
    """List operations, latest first.

    Args:
        tx: an open transaction; one statement per page of entries, and one that counts.
        limit: maximum number of operations.
        group: a change group, whose changes are then listed one by one.
        within: conditions on the entries, such as a period; they need no index.
    """
    if group is not None:
        return [ChangeGroup(entry, Count(1)) for entry in await audit(tx, limit=limit, change_group=group)]
    entries = await _latest(tx, limit, within)
    numbers = await _numbers(tx, [entry.id for entry in entries if entry.change_group])
    return [ChangeGroup(entry, numbers.get(entry.id, Count(1))) for entry in entries]


async def _latest(tx: Transaction, limit: int, within: Sequence[Condition]) -> list[AuditRecord]:
    """The latest entry of each operation.

    A page skips the change groups of earlier pages, so the search reads each entry about once, however large the
    groups are.
    """
    latest: list[AuditRecord] = []
    groups: set[str] = set()
    last: int | None = None
    while len(latest) < limit:
        page = await _page(tx, limit, last, groups, within)
        for entry in page:
            if entry.change_group is None or entry.change_group not in groups:
                latest.append(entry)
                groups.update([entry.change_group] if entry.change_group else [])
        if len(page) < limit:
            break
        last = page[-1].id
    return latest[:limit]


async def _page(
    tx: Transaction, limit: int, last: int | None, groups: Collection[str], within: Sequence[Condition]
) -> list[AuditRecord]:
    table = tx.tables.audit.c
    others = table.change_group.is_(None) | ~tx.dialect.one_of(table.change_group, sorted(groups))
    after = [table.id < last] if last is not None else []
    return await entries(tx, after, [*within, *([others] if groups else [])], limit)


async def _numbers(tx: Transaction, entries: Sequence[int]) -> Mapping[int, Count]:
    if not entries:
        return {}
    table, other = tx.tables.audit, tx.tables.audit.alias("together")
    same = other.c.change_group == table.c.change_group
    window = sa.select(other.c.id).where(same).limit(CAP + 1).correlate(table).subquery()
    number = sa.select(sa.func.count()).select_from(window).correlate(table).scalar_subquery()
    rows = await tx.rows(sa.select(table.c.id, number).where(tx.dialect.one_of(table.c.id, entries)))
    return {id: capped(count, CAP) for id, count in rows}
