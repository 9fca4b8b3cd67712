"""The partitioned history on PostgreSQL: ranges of ids that are created in advance and dropped as a whole."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema.partitions import WIDTH, full_name
from runner.db.transaction import Transaction, clock
from runner.db.types import db_now
from runner.errors import DatabaseRefused
from runner.model.outcome import Dead
from runner.model.task import DependsOn, Scope, State
from runner.operations.results import Actor, Target
from runner.operations.retry import requeue
from runner.policy.partitions import FEW, Fate, Range, fate
from runner.policy.retention import Retention
from runner.queries.health import health
from runner.queries.task.detail import task_detail
from runner.store import partitions
from runner.store.partitions import LockAttempt, assess, extend, read_layout
from runner.store.retention import START, Pruned, enforce, forget_gone
from tests.conftest import on_postgresql
from tests.databases import database_at
from tests.postgres import login
from tests.store.dependencies import sweep
from tests.store.plans import watch
from tests.store.rows import add_attempt, add_live, add_past, ahead, stored
from tests.store.runners import Runner, settle_done, settlement
from tests.store.table import change, count, live, past, put

pytestmark = [on_postgresql, pytest.mark.usefixtures("new_database")]

DAY = timedelta(days=1)
WEEK = Retention({State.SUCCEEDED: 7 * DAY})
FIRST = Range(1, 1 + WIDTH)
BY = Actor("ana", "desk-1")


def days_ago(days: float) -> Any:
    return ahead(-86_400 * days)


async def ranges(database: Database) -> list[Range]:
    layout = await database.read(read_layout)
    assert layout is not None
    return list(layout.ranges)


async def extended(database: Database) -> list[Range]:
    """Create all necessary ranges."""
    made = []
    while one := await database.write(extend):
        made.append(one)
    return made


async def hand_out(database: Database, id: int) -> None:
    """Give the next task this id."""
    await change(database, sa.text(f"ALTER TABLE task ALTER COLUMN id RESTART WITH {id}"))


async def use_up(database: Database, part: Range = FIRST) -> None:
    """Make all ids of a range used."""
    await hand_out(database, part.end)
    await database.write(_burn)


async def _burn(tx: Any) -> None:
    await tx.execute(sa.text("SELECT nextval(pg_get_serial_sequence('task', 'id'))"))


async def fill(database: Database, first: int, rows: int, finished: Any) -> None:
    """Add succeeded tasks with consecutive ids."""
    i = sa.func.generate_series(first, first + rows - 1).table_valued("i").render_derived()
    values = sa.select(i.c.i, sa.literal("work"), sa.literal(State.SUCCEEDED.value), finished)
    history = database.tables.history
    await change(database, sa.insert(history).from_select(["id", "handler", "state", "finished_at"], values))


async def enforced(database: Database, leeway: float = 0) -> Pruned:
    """Delete all expired rows, and return their number."""
    rounds = [pruned async for pruned in enforce(database, WEEK, leeway)]
    succeeded = sum(pruned.tasks.get(State.SUCCEEDED, 0) for pruned in rounds)
    return Pruned({State.SUCCEEDED: succeeded}, ranges=[part for pruned in rounds for part in pruned.ranges])


async def home(database: Database, id: int) -> str:
    """The partition of a finished task."""
    async with database.reading() as tx:
        question = sa.text("SELECT tableoid::regclass::text FROM task_history WHERE id = :id")
        return str(await tx.scalar(question, {"id": id}))


async def test_ranges_are_made_ahead_of_the_ids(database: Database) -> None:
    assert await ranges(database) == [FIRST]
    made = await extended(database)
    assert made == [Range(1 + WIDTH, 1 + 2 * WIDTH), Range(1 + 2 * WIDTH, 1 + 3 * WIDTH)]
    assert await extended(database) == []
    await use_up(database)
    assert await extended(database) == [Range(1 + 3 * WIDTH, 1 + 4 * WIDTH)]
    id = made[1].first + 7
    await add_past(database, id)
    assert await home(database, id) == f"task_history_from_{made[1].first}"


async def test_a_created_range_has_the_structure_of_the_first(database: Database) -> None:
    await extended(database)
    described = []
    async with database.reading() as tx:
        for first in (1, 1 + WIDTH):
            table = f"task_history_from_{first}"
            columns = "SELECT attname, attnotnull, atttypid, attcollation FROM pg_attribute WHERE attnum > 0 AND "
            rows = await tx.rows(sa.text(f"{columns} attrelid = '{table}'::regclass ORDER BY attnum"))
            rules = "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = "
            checks = await tx.rows(sa.text(f"{rules} '{table}'::regclass ORDER BY 1"))
            indexes = await tx.rows(sa.text(f"SELECT indexdef FROM pg_indexes WHERE tablename = '{table}' ORDER BY 1"))
            described.append(str([*rows, *checks, *indexes]).replace(table, "it"))
    assert described[0] == described[1]


async def test_a_task_beyond_all_ranges_still_settles_and_keeps_no_range_from_being_made(
    database: Database, runner: Runner
) -> None:
    await hand_out(database, 40 * WIDTH + 7)
    await put(database)
    (task,) = await runner.claim()
    assert await database.write(settle_done, runner.id, [settlement(task)]) == {task.id}
    assert await home(database, task.id) == "task_history_beyond"
    made = await extended(database)
    assert made[0] == Range(41 * WIDTH + 1, 42 * WIDTH + 1)
    assert (await database.read(task_detail, task.id)).task.id == task.id
    assert (await past(database, task.id) or {})["state"] == State.SUCCEEDED


async def test_concurrent_creators_make_each_range_once(database: Database, rival: Database) -> None:
    made = await asyncio.gather(extended(database), extended(rival), extended(database))
    assert sorted(itertools.chain(*made)) == (await ranges(database))[1:]
    assert len(await ranges(database)) == 3


async def test_a_second_process_does_not_wait_to_create_ranges(database: Database, rival: Database) -> None:
    async with rival.writing() as tx:
        assert await extend(tx)
        assert await extended(database) == []
    assert len(await extended(database)) == 1


async def test_a_table_in_use_is_not_waited_for_long(database: Database, rival: Database) -> None:
    await use_up(database)
    await fill(database, 1, 3, days_ago(8))
    async with rival.reading() as tx:
        assert await tx.scalar(sa.select(sa.func.count()).select_from(tx.tables.history)) == 3
        assert await extended(database) == []
        assert await enforced(database) == Pruned({State.SUCCEEDED: 0}, ranges=[])
        await add_past(database, 7)  # settles continue
    assert await ranges(database) == [FIRST]
    assert len(await extended(database)) > 0
    assert (await enforced(database)).ranges == [FIRST]


async def test_an_old_range_is_dropped_with_all_that_belongs_to_its_tasks(database: Database) -> None:
    await extended(database)
    await use_up(database)
    await fill(database, 1, 20, days_ago(8))
    await add_past(database, 21, State.DEAD, finished_at=days_ago(8))
    await add_past(database, 22, finished_at=days_ago(6))
    await add_live(database, id=23)
    for id in (3, 21, 22, 23):
        await add_attempt(database, id)
        await add_attempt(database, id, 2)
        audit_values = {"operator": "ana", "host": "desk-1", "verb": "edit", "task_id": id}
        await change(database, sa.insert(database.tables.audit).values(**audit_values))
    assert await enforced(database) == Pruned({State.SUCCEEDED: 20}, ranges=[FIRST])
    assert FIRST not in await ranges(database)
    assert [id for id in range(1, 23) if await past(database, id)] == [21, 22]
    assert await home(database, 22) == "task_history_beyond"
    async with database.reading() as tx:
        for column in (tx.tables.attempt.c.task_id, tx.tables.audit.c.task_id):
            rows = await tx.rows(sa.select(column).distinct().order_by(column))
            assert [row[0] for row in rows] == [21, 22, 23]


async def test_a_young_range_is_assessed_without_the_dead_entries_of_its_tasks(
    database: Database, migrated_url: str
) -> None:
    await fill(database, FIRST.first, 3, days_ago(1))
    rows = sa.select(sa.literal("work")).select_from(sa.func.generate_series(1, 10_000).table_valued("number"))
    await change(database, sa.insert(database.tables.task).from_select(["handler"], rows))
    await change(database, sa.delete(database.tables.task))
    opened = Database.open(migrated_url)
    looking = watch(opened)
    try:
        before = await opened.read(clock) - WEEK.states[State.SUCCEEDED]
        async with looking.seeing() as cost:
            state = await opened.read(assess, FIRST, FIRST.end, before, before)
    finally:
        await opened.dispose()
    assert (state.used_up, state.old, fate(state)) == (True, False, Fate.KEEP)
    assert cost.pages < 50  # more than 200 with these


async def test_concurrent_prunes_drop_a_range_once(database: Database, rival: Database) -> None:
    await use_up(database)
    await fill(database, 1, 20, days_ago(8))
    rounds = await asyncio.gather(enforced(database), enforced(rival))
    assert [part for pruned in rounds for part in pruned.ranges] == [FIRST]
    assert sum(pruned.tasks[State.SUCCEEDED] for pruned in rounds) == 20
    assert await ranges(database) == []
    assert await extended(database)


async def test_a_range_dropped_during_a_read_counts_as_missing(database: Database, rival: Database) -> None:
    await use_up(database)
    await fill(database, 1, 20, days_ago(8))
    async with rival.reading() as tx:
        await tx.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        await tx.rows(sa.text("SELECT 1"))  # from here on it sees the current catalogue
        assert (await enforced(database)).ranges == [FIRST]
        layout = await read_layout(tx)
    assert layout is not None
    assert FIRST not in layout.ranges


async def test_rows_of_a_range_are_deleted_in_small_chunks(database: Database) -> None:
    await use_up(database)
    await fill(database, 1, 1_500, days_ago(8))
    i = sa.func.generate_series(1, 1_500).table_valued("i").render_derived()
    names = ["task_id", "fence", "attempt", "queue", "handler", "verb", "error_type", "message", "fingerprint"]
    values = [i.c.i, *map(sa.literal, (1, 1, "q", "h", "retry", "E", "no", "f"))]
    await change(database, sa.insert(database.tables.attempt).from_select(names, sa.select(*values)))
    rounds = [pruned async for pruned in enforce(database, WEEK)]
    assert [sum(pruned.tasks.values()) for pruned in rounds] == [0, 0, 1_500, 0, 0]
    assert await count(database, database.tables.attempt) == 0


async def test_the_keys_of_a_dropped_range_are_forgotten(database: Database) -> None:
    await use_up(database)
    await fill(database, 1, 3, days_ago(8))
    await add_past(database, 4, finished_at=days_ago(6))
    await add_live(database, id=5)
    unique = database.tables.unique
    until, forever = Scope.UNTIL_FINISHED.value, Scope.FOREVER.value
    for id, scope in ((1, until), (2, until), (3, forever), (4, until), (5, until)):
        row = {"handler": "h", "unique_key": f"k{id}", "task_id": id, "scope": scope}
        await change(database, sa.insert(unique).values(**row))
    assert (await enforced(database)).ranges == [FIRST]
    async with database.reading() as tx:
        assert [row[0] for row in await tx.rows(sa.select(unique.c.task_id).order_by(unique.c.task_id))] == [3, 4, 5]


@pytest.mark.parametrize("parent", [3, ("h", "k")])
async def test_a_dropped_range_leaves_the_parents_of_open_dependencies(
    database: Database, parent: int | tuple[str, str]
) -> None:
    await use_up(database)
    await fill(database, 1, 2, days_ago(8))
    await add_live(database, id=3, key="k")
    child = await put(database, after=(DependsOn(parent),))
    await change(database, sa.delete(database.tables.task).where(database.tables.task.c.id == 3))
    await add_past(database, 3, key="k", finished_at=days_ago(8))
    await add_attempt(database, 3)
    assert (await enforced(database)).ranges == [FIRST]
    assert [id for id in (1, 2, 3) if await past(database, id)] == [3]
    assert await count(database, database.tables.attempt) == 1
    await sweep(database)
    assert (await stored(database, child)).state == State.WAITING


@pytest.mark.parametrize("reads", ["later", "before"])
async def test_a_dropped_range_leaves_a_child_until_its_caller_has_read_its_end(database: Database, reads: str) -> None:
    await use_up(database)
    await fill(database, 1, 3, days_ago(8))
    await add_attempt(database, 3)
    caller, tables = await add_live(database), database.tables
    call = {"task_id": caller, "name": "invoice", "kind": "call", "number": 1, "attempt": 1, "fence": 1}
    await change(database, sa.insert(tables.step).values(**call, done_at=db_now() if reads == "before" else None))
    child = {"task_id": caller, "parent_id": 3, "step": "invoice", "satisfied_at": db_now()}
    await change(database, sa.insert(tables.dependency).values(**child, parent_state=State.SUCCEEDED.value))
    assert (await enforced(database)).ranges == [FIRST]
    assert [id for id in (1, 2, 3) if await past(database, id)] == ([3] if reads == "later" else [])
    assert await count(database, tables.attempt) == (reads == "later")


KEPT_LONGER = Retention(WEEK.states, {State.SUCCEEDED: {"audit": 30 * DAY, "laws": None}})


async def test_a_dropped_range_leaves_the_tasks_of_queues_that_are_kept_longer(database: Database) -> None:
    await use_up(database)
    await fill(database, 1, 2, days_ago(40))
    for id, queue, days in ((3, "audit", 40), (4, "audit", 8), (5, "laws", 9_000), (6, "mail", 8)):
        await add_past(database, id, queue=queue, finished_at=days_ago(days))
        await add_attempt(database, id)
    rounds = [pruned async for pruned in enforce(database, KEPT_LONGER, 0)]
    assert [part for pruned in rounds for part in pruned.ranges] == [FIRST]
    assert [id for id in range(1, 7) if await past(database, id)] == [4, 5]
    assert await home(database, 4) == "task_history_beyond"
    assert await count(database, database.tables.attempt) == 2


async def test_a_range_with_many_tasks_of_a_queue_that_is_kept_longer_is_not_dropped(database: Database) -> None:
    await use_up(database)
    await fill(database, 1, FEW + 2, days_ago(8))
    history = database.tables.history
    await change(database, sa.update(history).where(history.c.id > 1).values(queue="audit"))
    rounds = [pruned async for pruned in enforce(database, KEPT_LONGER, 0)]
    assert not [part for pruned in rounds for part in pruned.ranges]
    assert await count(database, history) == FEW + 1
    assert (await enforced(database)).tasks == {State.SUCCEEDED: FEW + 1}
    assert await count(database, history) == 0


async def test_keys_are_looked_through_a_little_at_a_time(database: Database) -> None:
    for id in range(1, 6):
        row = {"handler": "h", "unique_key": f"k{id}", "task_id": id}
        await change(database, sa.insert(database.tables.unique).values(**row))
    places = [START]
    while place := await database.write(forget_gone, places[-1], 2):
        places.append(place)
    assert places == [START, ("h", "k2"), ("h", "k4")]
    assert await count(database, database.tables.unique) == 0


async def test_a_task_of_a_dropped_range_still_settles(database: Database, runner: Runner) -> None:
    await use_up(database)
    await add_live(database, "work", id=5)
    assert (await enforced(database)).ranges == [FIRST]
    (task,) = await runner.claim()
    assert await database.write(settle_done, runner.id, [settlement(task)]) == {5}
    assert await past(database, 5)


async def test_a_range_in_use_is_swept_row_by_row(database: Database) -> None:
    await fill(database, 1, 3, days_ago(8))
    await fill(database, 4, 3, days_ago(1))
    assert await enforced(database) == Pruned({State.SUCCEEDED: 3}, ranges=[])
    assert await ranges(database) == [FIRST]
    assert await count(database, database.tables.history) == 3


async def test_a_range_that_can_soon_be_dropped_is_spared_unless_nothing_may_be_kept_longer(database: Database) -> None:
    await use_up(database)
    await fill(database, 1, 3, days_ago(7.1))
    await fill(database, 4, FEW + 1, days_ago(6.9))
    await add_past(database, WIDTH + 7, finished_at=days_ago(7.1))  # not in this range
    assert await enforced(database, leeway=1 / 7) == Pruned({State.SUCCEEDED: 1}, ranges=[])
    assert await enforced(database, leeway=0.01) == Pruned({State.SUCCEEDED: 3}, ranges=[])


async def test_a_range_with_future_ids_stays(database: Database) -> None:
    await use_up(database)
    i = sa.func.generate_series(1, FEW + 1).table_valued("i").render_derived()
    task = database.tables.task
    await change(database, sa.insert(task).from_select(["id", "handler"], sa.select(i.c.i, sa.literal("later"))))
    assert (await enforced(database)).ranges == []
    assert FIRST in await ranges(database)


async def test_the_size_of_a_database_is_with_its_partitions(database: Database) -> None:
    before = (await database.read(health)).size or 0
    await fill(database, 1, 2_000, days_ago(1))
    assert ((await database.read(health)).size or 0) > before + 100_000


@pytest.fixture
def limited(migrated_url: str) -> Iterator[str]:
    """The URL of a role that may only change rows."""
    with login(migrated_url, "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public") as url:
        yield url


async def test_a_role_that_may_not_make_partitions_deletes_row_by_row(database: Database, limited: str) -> None:
    await use_up(database)
    await fill(database, 1, 3, days_ago(8))
    await add_past(database, 40 * WIDTH, finished_at=days_ago(8))
    async with database_at(limited) as other:
        assert await extended(other) == []
        assert await enforced(other) == Pruned({State.SUCCEEDED: 4}, ranges=[])
        layout = await other.read(read_layout)
        assert layout is not None
        assert layout.role == urlsplit(limited).username
    assert await ranges(database) == [FIRST]


async def test_partitions_are_in_the_schema_of_the_tables(database: Database, migrated_url: str) -> None:
    async with database_at(migrated_url, prefix="jobs_", schema="user") as elsewhere:
        await elsewhere.migrate()
        made = await extended(elsewhere)
        assert await ranges(elsewhere) == [FIRST, *made]
        await use_up(database)
        assert await ranges(database) == [FIRST]
        async with elsewhere.writing() as tx:
            await tx.execute(
                sa.text(f"ALTER TABLE {full_name(tx.tables.task)} ALTER COLUMN id RESTART WITH {FIRST.end}")
            )
            await tx.execute(sa.text("SELECT nextval(:sequence)"), {"sequence": '"user".jobs_task_id_seq'})
        assert (await enforced(elsewhere)).ranges == [FIRST]


async def test_an_id_is_unique_after_repeated_deaths_and_retries(database: Database, runner: Runner) -> None:
    id = await put(database)
    for _ in range(2):
        (task,) = await runner.claim()
        await runner.end(task, Dead())
        assert await home(database, id) == "task_history_others"
        assert (await database.write(requeue, [Target(id)], BY)).changed == [id]
        assert await past(database, id) is None
    (task,) = await runner.claim()
    assert await database.write(settle_done, runner.id, [settlement(task)]) == {id}
    assert await live(database, id) is None
    assert await count(database, database.tables.history) == 1


async def test_a_task_with_the_id_of_an_earlier_one_replaces_no_record(database: Database, runner: Runner) -> None:
    await add_past(database, 7, State.DEAD, finished_at=days_ago(1))
    await add_live(database, "work", id=7)
    (task,) = await runner.claim()
    assert await database.write(settle_done, runner.id, [settlement(task)]) == set()
    with pytest.raises(DatabaseRefused, match="the history has an earlier task with the id 7"):
        await runner.end(task)
    assert (await stored(database, 7)).state == State.RUNNING
    assert (await database.write(requeue, [Target(7)], BY)).changed == []


async def test_a_range_that_a_view_depends_on_is_named_and_the_others_are_dropped(database: Database) -> None:
    made = await extended(database)
    for part in (FIRST, made[0]):
        await fill(database, part.first, 3, days_ago(30))
    await use_up(database, made[0])
    await change(database, sa.text(f"CREATE VIEW mine AS SELECT id FROM task_history_from_{FIRST.first}"))
    rounds = [pruned async for pruned in enforce(database, WEEK, 0)]
    assert [part for pruned in rounds for part in pruned.ranges] == [made[0]]
    ((part, fact),) = [item for pruned in rounds for item in pruned.refused.items()]
    assert part == FIRST
    assert fact.startswith("2BP01 cannot drop table")
    assert sum(pruned.tasks.get(State.SUCCEEDED, 0) for pruned in rounds) == 6  # those of the view by row
    await change(database, sa.text("DROP VIEW mine"))
    assert (await enforced(database)).ranges == [FIRST]


async def test_a_range_that_is_locked_is_named_and_the_others_are_dropped(database: Database) -> None:
    made = await extended(database)
    for part in (FIRST, made[0]):
        await fill(database, part.first, 3, days_ago(30))
    await use_up(database, made[0])
    async with database.writing() as tx:
        await tx.execute(sa.text(f"LOCK TABLE task_history_from_{FIRST.first} IN SHARE MODE"))
        rounds = [pruned async for pruned in enforce(database, WEEK, 0)]
    assert [part for pruned in rounds for part in pruned.ranges] == [made[0]]
    ((part, fact),) = [item for pruned in rounds for item in pruned.in_use.items()]
    assert (part, fact[:6]) == (FIRST, "55P03 ")


async def test_a_range_that_is_locked_for_a_moment_is_dropped_by_the_same_prune(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await extended(database)
    await fill(database, FIRST.first, 3, days_ago(30))
    await use_up(database, FIRST)
    tries, attempt_change = list[Any](), partitions.attempt_change

    @contextlib.asynccontextmanager
    async def attempt(tx: Transaction) -> AsyncIterator[LockAttempt]:
        if len(tries) == 2:
            await holder.aclose()
        async with attempt_change(tx) as result:
            tries.append(result)
            yield result

    monkeypatch.setattr(partitions, "attempt_change", attempt)
    async with contextlib.AsyncExitStack() as holder:
        tx = await holder.enter_async_context(database.writing())
        await tx.execute(sa.text(f"LOCK TABLE task_history_from_{FIRST.first} IN SHARE MODE"))
        assert (await enforced(database)).ranges == [FIRST]
    assert [each.in_use for each in tries] == [True, True, False]


async def test_rows_that_a_foreign_key_keeps_do_not_hold_up_those_of_other_ranges(database: Database) -> None:
    made = await extended(database)
    await fill(database, FIRST.first, 3, days_ago(30))
    await use_up(database, FIRST)
    await fill(database, made[0].first, 2, days_ago(30))
    first = f"task_history_from_{FIRST.first}"
    await change(database, sa.text(f"CREATE TABLE mine (id bigint REFERENCES {first} (id))"))
    await change(database, sa.text(f"INSERT INTO mine SELECT id FROM {first}"))
    rounds = [pruned async for pruned in enforce(database, WEEK, 0)]
    assert [part for pruned in rounds for part in pruned.refused] == [FIRST]
    assert sum(pruned.tasks.get(State.SUCCEEDED, 0) for pruned in rounds) == 2
    assert await count(database, database.tables.history) == 3
