"""edges: what new tasks wait for, looked up before they are written, and written with them."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from runner.bulk import Bulk
from runner.columns import NO_JOIN, db_now
from runner.errors import InvalidTask
from runner.schema import Tables
from runner.store.dependencies.cycles import refuse_cycles
from runner.store.dialects import DIALECTS, by_column
from runner.store.parentage import final_state, is_live, parent_of
from runner.store.statement import Prepared
from runner.store.steps import Frame, Step, Steps
from runner.task import FINAL, After, NewTask, Sibling, State

Parent: TypeAlias = int | tuple[str, str] | Sibling

CHUNK = 5_000
"""Parents per statement, and edges per statement."""

PARENT_COLUMNS: dict[str, Any] = {
    "place": sa.Integer,
    "parent_id": sa.BigInteger,
    "parent_handler": sa.Text,
    "parent_key": sa.Text,
}
EDGE_COLUMNS: dict[str, Any] = {
    "task_id": sa.BigInteger,
    "parent_id": sa.BigInteger,
    "parent_handler": sa.Text,
    "parent_key": sa.Text,
    "on_failure": sa.Text,
    "parent_state": sa.Text,
    "satisfied": sa.Integer,
}


class Standing(NamedTuple):
    """How a parent stands: the id of the task that is meant, and its final state; None for what there is not yet."""

    id: int | None = None
    state: str | None = None


class Waits(NamedTuple):
    """What one new task waits for.

    Args:
        edges: each with how its parent stands.
        open: how many of them hold it back.
    """

    edges: tuple[tuple[After, Standing], ...]
    open: int

    @property
    def summary(self) -> str | None:
        """How its parents have ended, as JSON text; None while one is waited for."""
        states = [standing.state for _, standing in self.edges]
        return None if self.open else json.dumps({"total": len(states)} | {end: states.count(end) for end in FINAL})


Held: TypeAlias = Sequence[Waits | None]
"""What each of some new tasks waits for, in their order; empty when none of them waits."""


def waits(frame: Frame, tasks: Sequence[NewTask]) -> Steps[Held]:
    """Look up how the parents of new tasks stand.

    A parent that ends while this is being submitted is not waited for by locking it: the edge is then written as open,
    and the sweep of any runner finds it.

    Args:
        frame: what the statements are for.
        tasks: to be submitted; without any parents nothing is looked up.

    Raises:
        InvalidTask: a parent does not exist, or tasks would wait for each other; nothing has been written then.
    """
    alike: Sequence[NewTask] = [tasks.like] if isinstance(tasks, Bulk) else tasks
    waiting = [task for task in alike if task.after is not None]
    if not waiting:
        return []
    _refuse_later_siblings(alike)
    yield from refuse_cycles(frame, alike)
    parents = {edge.parent: None for task in waiting for edge in task.after or ()}
    standings = yield from _look_up(frame, [parent for parent in parents if not isinstance(parent, Sibling)])
    held = [_waits(task.after, standings) if task.after else None for task in alike]
    return held * len(tasks) if isinstance(tasks, Bulk) else held


def tie(frame: Frame, ids: Sequence[int], held: Held) -> Steps[None]:
    """Write the edges of tasks that were just written.

    Args:
        frame: what the statements are for.
        ids: of the tasks, and of those that were there already.
        held: what each of them waits for; None for those that were there already.
    """
    tied = [(id, waits.edges) for id, waits in zip(ids, held, strict=False) if waits]
    rows = [_row(id, edge, standing, ids) for id, waited in tied for edge, standing in waited]
    for first in range(0, len(rows), CHUNK):
        part = by_column(EDGE_COLUMNS, rows[first : first + CHUNK])
        yield Step(_insertion(frame.tables, frame.driver), frame.dialect.parameters("edge", part))


def _refuse_later_siblings(tasks: Sequence[NewTask]) -> None:
    for place, task in enumerate(tasks):
        for parent, _ in task.after or ():
            if isinstance(parent, Sibling) and not 0 <= parent.place < place:
                why = "a task can wait for one that stands before it among those that are submitted together"
                raise InvalidTask(field="after", value=f"place {parent.place} (from {place})", why=why)


def _look_up(frame: Frame, wanted: Sequence[Parent]) -> Steps[Mapping[Parent, Standing]]:
    standings: dict[Parent, Standing] = {}
    for first in range(0, len(wanted), CHUNK):
        asked = wanted[first : first + CHUNK]
        rows = yield _ask(frame, asked)
        standings |= {asked[place]: Standing(id, state) for place, id, state in rows}
    for parent in wanted:
        if isinstance(parent, int) and parent not in standings:
            why = "there is no such task, neither live nor in the history: it was never submitted, or it was pruned"
            raise InvalidTask(field="after", value=parent, why=why)
    return standings


def _row(task_id: int, edge: After, standing: Standing, ids: Sequence[int]) -> tuple[Any, ...]:
    parent: tuple[Any, ...]
    match edge.parent:
        case Sibling(place):
            parent = (ids[place], None, None)
        case (handler, key):
            parent = (standing.id if standing.state else None, handler, key)
        case id:
            parent = (id, None, None)
    holds = _holds(edge, standing)
    # What has to be cancelled is left to the next sweep, for which an end that is written down would be no news.
    seen = None if holds and edge.on_failure == "cancel" else standing.state
    return (task_id, *parent, edge.on_failure, seen, int(not holds))


def _waits(after: Sequence[After], standings: Mapping[Parent, Standing]) -> Waits:
    edges = tuple((edge, standings.get(edge.parent, Standing())) for edge in after)
    return Waits(edges, sum(_holds(edge, standing) for edge, standing in edges))


def _holds(edge: After, standing: Standing) -> bool:
    """Tell whether an edge is open: its parent has not ended, or not as it should."""
    return standing.state is None or (standing.state != State.SUCCEEDED and edge.on_failure != "run")


def _ask(frame: Frame, wanted: Sequence[Parent]) -> Step:
    rows = [
        (place, None, *parent) if isinstance(parent, tuple) else (place, parent, None, None)
        for place, parent in enumerate(wanted)
    ]
    parameters = frame.dialect.parameters("wanted", by_column(PARENT_COLUMNS, rows))
    return Step(_standings(frame.tables, frame.driver), parameters)


@lru_cache
def _standings(tables: Tables, driver: sa.Dialect) -> Prepared:
    """The place of each parent that there is, the task that is meant, and its state when that is not live."""
    wanted = DIALECTS[driver.name].rows("wanted", PARENT_COLUMNS)
    named = sa.select(wanted.c.place, parent_of(tables, wanted).label("parent")).offset(NO_JOIN)
    named_ = named.subquery("named")
    live, past = is_live(tables, named_.c.parent), tables.history.alias("ended")
    there = live | sa.select(past.c.id).where(past.c.id == named_.c.parent).offset(NO_JOIN).exists()
    state = sa.case((~live, final_state(tables, named_.c.parent)))
    return Prepared(sa.select(named_.c.place, named_.c.parent, state).where(there), driver)


@lru_cache
def _insertion(tables: Tables, driver: sa.Dialect) -> Prepared:
    new = DIALECTS[driver.name].rows("edge", EDGE_COLUMNS)
    values = {name: new.c[name] for name in EDGE_COLUMNS if name != "satisfied"}
    satisfied_at = sa.case((new.c.satisfied == sa.literal_column("1"), db_now()))
    row = sa.select(*values.values(), satisfied_at)
    return Prepared(sa.insert(tables.dependency).from_select([*values, "satisfied_at"], row), driver)
