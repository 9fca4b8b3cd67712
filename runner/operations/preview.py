"""preview: the tasks that an operation on a filter would change and skip."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import Shown, State
from runner.operations.edit_values import edit_objection
from runner.operations.targets import is_last, objection
from runner.operations.unique_keys import ANOTHER, key_conflicts
from runner.queries.counting import Count
from runner.queries.rows import from_row, readable
from runner.queries.task_list.row import STORED, TaskRow, displayed_state, task_rows
from runner.queries.task_list.search import find

CAP = 10_000
MAX_SEARCHES = 50
"""Maximum number of searches, each up to the scan limit, before the preview is incomplete."""

SAMPLES = 5

NO_VALUES: Mapping[str, Any] = MappingProxyType({})


STAYING = ("erase", "rekey")
"""The operations after which a finished task stays finished, so that it takes no unique key again."""

PART = 500
"""Tasks per call of the objections of an operation."""

Objections: TypeAlias = Callable[[Transaction, Sequence[int]], Awaitable[Mapping[int, str]]]


@dataclass(frozen=True, slots=True)
class Preview:
    """The preview of an operation.

    Args:
        total: the number of matching tasks.
        groups: their number by state and queue, largest first.
        eligible: the number of tasks that would change.
        skipped: the number of tasks that would be skipped, by reason.
        samples: the newest tasks that would change.
        newest: the highest matching id; None if no task matches.
        last: the number of eligible tasks with one attempt left.
        states: the number of eligible tasks by state, largest first.
        reasons: why each matching task would not change, None for those that would, by id.
    """

    verb: str
    total: Count
    groups: Mapping[tuple[Shown, str], int]
    eligible: int
    skipped: Mapping[str, int]
    samples: list[TaskRow]
    newest: int | None = None
    last: int = 0
    states: Mapping[Shown, int] = field(default_factory=dict)
    reasons: Mapping[int, str | None] = field(default_factory=dict)


async def preview(
    tx: Transaction,
    task_filter: Filter,
    verb: str,
    cap: int = CAP,
    *,
    values: Mapping[str, Any] = NO_VALUES,
    objections: Objections | None = None,
) -> Preview:
    """Preview an operation.

    Args:
        verb: a key of targets.ACCEPTED_STATES.
        cap: maximum number of tasks to read.
        objections: returns further reasons why tasks would not change, by id.
    """
    ids, more = await matching_ids(tx, task_filter, cap)
    outlines = await _outlines(tx, ids)
    reasons = {outline.id: objection(verb, outline) or edit_objection(values, outline) for outline in outlines}
    if objections is not None:
        applies = [id for id in ids if id in reasons and reasons[id] is None]
        for first in range(0, len(applies), PART):
            reasons |= await objections(tx, applies[first : first + PART])
    if verb not in STAYING:
        returning = [outline.id for outline in outlines if outline.state.final and reasons[outline.id] is None]
        reasons |= dict.fromkeys(await key_conflicts(tx, returning), ANOTHER)
    eligible = [id for id in ids if id in reasons and reasons[id] is None]
    return Preview(
        verb=verb,
        total=Count(len(outlines), more),
        groups=dict(Counter((outline.shown, outline.queue) for outline in outlines).most_common()),
        eligible=len(eligible),
        skipped=dict(Counter(why for why in reasons.values() if why).most_common()),
        samples=await task_rows(tx, eligible[:SAMPLES]),
        newest=ids[0] if ids else None,
        last=sum(reasons[outline.id] is None and is_last(verb, outline) for outline in outlines),
        states=dict(Counter(one.shown for one in outlines if reasons[one.id] is None).most_common()),
        reasons=reasons,
    )


def bounded(task_filter: Filter, newest: int | None) -> Filter:
    """The filter, restricted to the tasks that existed at the time of the preview."""
    return task_filter if newest is None else Filter((*task_filter.terms, Term("id", Operator.LE, newest)))


class Outline(NamedTuple):
    """The columns that reasons depend on."""

    id: int
    shown: Shown
    queue: str
    attempt: int
    max_attempts: int | None
    cancel_requested: bool
    priority: int
    run_at: datetime | None
    retry: str | None
    timeout: float | None
    expires_at: datetime | None
    hosts: str

    @property
    def state(self) -> State:
        """The stored state."""
        return STORED[self.shown]


async def matching_ids(tx: Transaction, task_filter: Filter, cap: int = CAP) -> tuple[list[int], bool]:
    """The ids of all matching tasks, highest first, up to a cap; and whether there may be more."""
    ids: list[int] = []
    after = None
    for _ in range(MAX_SEARCHES):
        page = await find(tx, task_filter, cap - len(ids), after)
        ids += page.ids
        after = page.next
        if after is None or len(ids) >= cap:
            break
    return ids, after is not None


async def _outlines(tx: Transaction, ids: Sequence[int]) -> list[Outline]:
    statements = []
    for table in (tx.tables.task, tx.tables.history):
        columns: list[Any] = readable(tx, [table.c[name] for name in Outline._fields if name in table.c])
        columns.append(displayed_state(tx.tables, table).label("shown"))
        statements.append(sa.select(*columns).where(tx.dialect.one_of(table.c.id, ids)))
    found = await tx.gather(*map(tx.execute, statements))
    return [from_row(Outline, row) for rows in found for row in rows.mappings()]
