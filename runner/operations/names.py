"""Names: warnings about queues and handlers that do not exist."""

from collections.abc import Collection

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import EARLIEST
from runner.filter.fields import Operator, suggestion
from runner.filter.parse import Filter, Term
from runner.operations.pause import PauseKind, PauseTarget, registry_of
from runner.queries.registries import MOST, registry_entries
from runner.queries.rows import as_text, texts

MOST_NAMES = 5
"""Maximum number of names in a filter that are looked up."""


async def name_warning(tx: Transaction, target: PauseTarget, *, if_similar: bool = False) -> str:
    """Warn about a new name, with a similar known one.

    Args:
        target: the queue or handler.
        if_similar: warn only if there is a similar name.

    Returns:
        A clause; empty if a task, runner or pause has used the name.
    """
    from runner.queries.task_list.search import find  # The first data of the console does not need it.
    from runner.store.claim.survey import survey

    runner = tx.tables.runner.c
    column = runner.queues if target.kind is PauseKind.QUEUE else runner.handlers
    names = {*await registry_entries(tx, registry_of(tx, target))}
    names.update(name for row in await tx.rows(sa.select(column)) for name in texts(row[0]))
    if target.name in names or (await find(tx, Filter((Term(target.kind, Operator.EQ, target.name),)), 1)).ids:
        return ""
    names.update(as_text(getattr(head.lane, target.kind)) for head in await survey(tx))
    return _unknown(target, names, if_similar=if_similar)


async def handler_warning(tx: Transaction, name: str) -> str:
    """Warn about a handler that no runner ever had, as `name_warning` does, for tasks that need one.

    Returns:
        A clause; empty if a runner had the handler, or if no runner has started yet. A task does not make it known.
    """
    table = tx.tables.handler.c
    registered = sa.select(table.name).where(table.last_seen_at > sa.literal(EARLIEST, table.last_seen_at.type))
    if await tx.scalar(registered.where(table.name == name)) is not None:
        return ""
    names = {as_text(row[0]) for row in await tx.rows(registered.order_by(table.name).limit(MOST))}
    return _unknown(PauseTarget(PauseKind.HANDLER, name), names) if names else ""


def _unknown(target: PauseTarget, names: Collection[str], *, if_similar: bool = False) -> str:
    similar = suggestion(target.name, tuple(sorted(names)))
    is_queue = target.kind is PauseKind.QUEUE
    clause = f"{target} has never been used" if is_queue else f"no runner ever had {target}"
    return f"{clause}{similar}" if similar or not if_similar else ""


async def pause_note(tx: Transaction, target: PauseTarget) -> str:
    """Warn about a pause of a name that is new: it may be misspelled, or meant for tasks to come.

    Args:
        target: the queue or handler.

    Returns:
        A clause; empty if a task, runner or pause has used the name.
    """
    warning = await name_warning(tx, target)
    return f"{warning}; the pause holds its first tasks back" if warning else ""


async def filter_warnings(tx: Transaction, task_filter: Filter) -> list[str]:
    """Warn about names of queues and handlers in a filter that are new and similar to known ones.

    A filter may name a queue that has no tasks yet: a script prints no warning then.

    Args:
        tx: an open transaction; a few statements per name, for MOST_NAMES of them.
    """
    kinds = {kind.value: kind for kind in PauseKind}
    targets = [
        PauseTarget(kinds[term.field], str(name))
        for term in task_filter.terms
        if term.field in kinds and term.operator in (Operator.EQ, Operator.IN) and not term.negated
        for name in (term.value if isinstance(term.value, tuple) else (term.value,))
    ]
    warnings = [await name_warning(tx, target, if_similar=True) for target in targets[:MOST_NAMES]]
    return [warning for warning in warnings if warning]
