"""preview: what an intervention would do to all that a filter lets through."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.people.fields import Operator
from runner.people.filters import Filter, Term
from runner.store.intervene.eligibility import is_last, objection
from runner.store.intervene.keys import ANOTHER, keyless
from runner.store.observe.legible import whole, words
from runner.store.observe.search import find
from runner.store.observe.tallies import Count
from runner.store.observe.tasks import STORED, TaskRow, shown_state, task_rows
from runner.store.transaction import Transaction
from runner.task import Shown, State

CAP = 10_000
MOST_STRETCHES = 50
"""How often a search that no index serves is continued before the preview says that there may be more."""

SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be touched.

    Args:
        verb: the intervention.
        total: how many tasks the filter lets through.
        groups: how many of these are in each state and queue, the most first.
        eligible: how many of these it would be done to.
        skipped: how many of these it would not be done to, by the reason.
        samples: the newest ones that it would be done to.
        newest: the highest id among all of them; None when there are none.
        last: how many of the eligible ones have one attempt left.
    """

    verb: str
    total: Count
    groups: Mapping[tuple[Shown, str], int]
    eligible: int
    skipped: Mapping[str, int]
    samples: list[TaskRow]
    newest: int | None = None
    last: int = 0


async def preview(tx: Transaction, wanted: Filter, verb: str, cap: int = CAP) -> Preview:
    """Tell what an intervention would do, without doing it.

    Args:
        tx: an open transaction.
        wanted: the filter.
        verb: a key of eligibility.VERBS.
        cap: the most tasks to look at.
    """
    ids, more = await gathered(tx, wanted, cap)
    outlines = await _outlines(tx, ids)
    objections = {outline.id: objection(verb, outline) for outline in outlines}
    returning = [outline.id for outline in outlines if outline.state.final and objections[outline.id] is None]
    objections |= dict.fromkeys(await keyless(tx, returning), ANOTHER)
    eligible = [id for id in ids if id in objections and objections[id] is None]
    return Preview(
        verb=verb,
        total=Count(len(outlines), more),
        groups=dict(Counter((outline.shown, outline.queue) for outline in outlines).most_common()),
        eligible=len(eligible),
        skipped=dict(Counter(why for why in objections.values() if why).most_common()),
        samples=await task_rows(tx, eligible[:SAMPLES]),
        newest=ids[0] if ids else None,
        last=sum(objections[outline.id] is None and is_last(verb, outline) for outline in outlines),
    )


def bounded(wanted: Filter, newest: int | None) -> Filter:
    """The filter, for what had been submitted when a preview was made: nobody has seen what came later."""
    return wanted if newest is None else Filter((*wanted.terms, Term("id", Operator.LE, newest)))


class Outline(NamedTuple):
    """What an objection is decided by."""

    id: int
    shown: Shown
    queue: str
    attempt: int
    max_attempts: int | None
    cancel_requested: bool

    @property
    def state(self) -> State:
        """The stored state."""
        return STORED[self.shown]


async def gathered(tx: Transaction, wanted: Filter, cap: int = CAP) -> tuple[list[int], bool]:
    """Find all ids that a filter lets through, the highest first, up to a cap; and tell whether there may be more."""
    ids: list[int] = []
    after = None
    for _ in range(MOST_STRETCHES):
        found = await find(tx, wanted, cap - len(ids), after)
        ids += found.ids
        after = found.next
        if after is None or len(ids) >= cap:
            break
    return ids, after is not None


async def _outlines(tx: Transaction, ids: Sequence[int]) -> list[Outline]:
    outlines = []
    for table in (tx.tables.task, tx.tables.history):
        names = [name for name in Outline._fields if name in table.c]
        columns: list[Any] = [sa.type_coerce(table.c[name], sa.types.NullType()).label(name) for name in names]
        columns.append(shown_state(tx.tables, table).label("shown"))
        rows = await tx.execute(sa.select(*columns).where(tx.dialect.one_of(table.c.id, ids)))
        outlines += [_outline(row) for row in rows.mappings()]
    return outlines


def _outline(row: sa.RowMapping) -> Outline:
    return Outline(
        id=row["id"],
        shown=Shown(row["shown"]),
        queue=words(row["queue"]),
        attempt=whole(row["attempt"]),
        max_attempts=None if row["max_attempts"] is None else whole(row["max_attempts"]),
        cancel_requested=row.get("cancel_requested") in (1, True),
    )
