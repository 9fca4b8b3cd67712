"""Names: warnings about queues and handlers that do not exist."""

from collections.abc import Collection

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import EARLIEST, db_later, db_now
from runner.filter.fields import Operator, suggestion
from runner.filter.parse import Filter, Term
from runner.operations.pause import PauseKind, PauseTarget, registry_of
from runner.queries.registries import MOST, registry_entries
from runner.queries.rows import as_text, texts

HOUR = 3600.0
"""Seconds in which the names of finished tasks are known."""

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
    registry = registry_of(tx, target)
    names = {*await registry_entries(tx, registry), *await registry_entries(tx, registry, [target.name])}
    names.update(name for row in await tx.rows(sa.select(column)) for name in texts(row[0]))
    names.update(as_text(getattr(head.lane, target.kind)) for head in await survey(tx))
    names.update(await _finished_names(tx, target.kind))
    if target.name in names:
        return ""
    tasks = await find(tx, Filter((Term(target.kind, Operator.EQ, target.name),)), 1)
    return "" if tasks.ids else _unknown(target, names, if_similar=if_similar, searched=not tasks.capped)


async def _finished_names(tx: Transaction, kind: PauseKind) -> set[str]:
    """The queues or handlers whose attempts ended in the last hour: their tasks may all be finished."""
    minute = tx.tables.minute.c
    name = minute.queue if kind is PauseKind.QUEUE else minute.handler
    statement = sa.select(name).where(minute.minute > db_later(db_now(), -HOUR)).distinct().order_by(name).limit(MOST)
    return {as_text(row[0]) for row in await tx.rows(statement)}


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


def _unknown(target: PauseTarget, names: Collection[str], *, if_similar: bool = False, searched: bool = True) -> str:
    """The clause about an unknown name.

    Args:
        names: the known names.
        searched: False if the search for its tasks stopped at the scan limit.
    """
    similar = suggestion(target.name, tuple(sorted(names)))
    is_queue = target.kind is PauseKind.QUEUE
    clause = f"{target} has never been used" if is_queue else f"no runner ever had {target}"
    clause = clause if searched or not is_queue else f"no recent task is in {target}"
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


async def filter_warnings(tx: Transaction, task_filter: Filter, *, if_similar: bool = True) -> list[str]:
    """Warn about names of queues and handlers in a filter that are new.

    Args:
        tx: an open transaction; a few statements per name, for MOST_NAMES of them.
        if_similar: warn only about names that are similar to known ones. A filter may name a queue that has no tasks
            yet: a script prints no warning then.
    """
    kinds = {kind.value: kind for kind in PauseKind}
    targets = [
        PauseTarget(kinds[term.field], str(name))
        for term in task_filter.terms
        if term.field in kinds and term.operator in (Operator.EQ, Operator.IN) and not term.negated
        for name in (term.value if isinstance(term.value, tuple) else (term.value,))
    ]
    warnings = [await name_warning(tx, target, if_similar=if_similar) for target in targets[:MOST_NAMES]]
    return [warning for warning in warnings if warning]
