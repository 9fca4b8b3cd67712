"""With many partitions a look-up by id stays one or two index probes, and a page a walk along a few indexes."""

import itertools
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema.partitions import WIDTH
from runner.db.types import db_now
from runner.filter.parse import Filter
from runner.filter.sort import NEWEST
from runner.model.task import State
from runner.policy.retention import Retention
from runner.queries.counts import counts
from runner.queries.task.detail import task_detail
from runner.queries.task_list.cursor import Cursor
from runner.queries.task_list.search import page
from runner.store.retention import prune
from tests.conftest import on_postgresql
from tests.store.plans import Cost, Watch, watch
from tests.store.rows import add_past, ahead, filtered
from tests.store.table import change

pytestmark = [on_postgresql, pytest.mark.usefixtures("new_database")]

RANGES, FULL, ROWS, DEAD = 20, (0, 7, 8), 8_000, 4_000
LIMIT = 10


@pytest.fixture
async def watched(migrated_url: str) -> AsyncIterator[tuple[Database, Watch]]:
    """A database whose history has many ranges, some of them with many rows."""
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        for number in range(1, RANGES):
            first = number * WIDTH + 1
            made = f"CREATE TABLE task_history_from_{first} PARTITION OF task_history_succeeded"
            connection.execute(f"{made} FOR VALUES FROM ({first}) TO ({first + WIDTH})".encode())
    opened = Database.open(migrated_url)
    looking = watch(opened)
    for number in FULL:
        await _fill(opened, number * WIDTH + 1, ROWS, State.SUCCEEDED)
    await _fill(opened, ROWS + 1, DEAD, State.DEAD)
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")  # as autovacuum does within a minute
    yield opened, looking
    await opened.dispose()


async def _fill(database: Database, first: int, rows: int, state: State) -> None:
    i = sa.func.generate_series(first, first + rows - 1).table_valued("i").render_derived()
    values = sa.select(i.c.i, sa.literal("work"), sa.literal(state.value), db_now())
    names = ["id", "handler", "state", "finished_at"]
    await change(database, sa.insert(database.tables.history).from_select(names, values))


def walked(cost: Cost) -> set[str]:
    """The indexes of the history that were used."""
    return {name for name in cost.indexes if name.startswith("task_history")}


def whole(cost: Cost) -> set[str]:
    """The non-empty tables of finished tasks that were read completely."""
    return {name for name in cost.whole if name.startswith("task_history")} - {"task_history_beyond"}


async def test_an_id_is_looked_up_in_two_partitions(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    for id in (5, 7 * WIDTH + 5, ROWS + 5):
        async with looking.seeing() as cost:
            await database.read(task_detail, id)
        here = f"task_history_from_{(id - 1) // WIDTH * WIDTH + 1}_pkey"
        assert walked(cost) == {"task_history_others_pkey", here}
        assert not whole(cost)


async def test_a_page_walks_along_the_keys(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    for order, after in itertools.product((NEWEST, NEWEST.reverse), (None, Cursor(7 * WIDTH + 300))):
        async with looking.seeing() as cost:
            listing = await database.read(page, Filter(), after, LIMIT, order)
        assert len(listing.tasks) == LIMIT
        assert {name.rpartition("_")[2] for name in walked(cost)} == {"pkey"}
        assert not whole(cost)
        # One row for the head of each partition, the page itself, and its rows by id.
        assert cost.rows <= RANGES + 3 * LIMIT + 10


async def test_rare_states_are_searched_in_one_partition(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    async with looking.seeing() as cost:
        (queue,) = await database.read(counts)
    assert queue.dead.number == DEAD
    assert walked(cost) == {"task_history_others_state_queue_id_idx"}
    async with looking.seeing() as cost:
        listing = await database.read(page, filtered("state:dead"), None, LIMIT)
    assert len(listing.tasks) == LIMIT
    assert whole(cost) <= {"task_history_others"}  # whose rows are all dead


async def test_old_tasks_are_found_by_their_time(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    await add_past(database, 7 * WIDTH + ROWS + 1, finished_at=ahead(-8 * 86_400))
    async with looking.seeing() as cost:
        pruned = await database.write(prune, Retention({State.SUCCEEDED: timedelta(days=7)}), 10)
    assert pruned.tasks == {State.SUCCEEDED: 1}
    assert cost.rows <= RANGES + 20
