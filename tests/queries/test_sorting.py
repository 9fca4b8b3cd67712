"""Lists in every order are complete and without duplicates, and a page costs the same for any number of tasks."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.errors import InvalidInput, InvalidSort
from runner.filter.sort import NEWEST, SORTS, Sort, parse_sort, sort_by
from runner.model.task import State
from runner.operations.bulk import matching
from runner.queries.task_list.cursor import Cursor, parse_cursor
from runner.queries.task_list.cursor import written as marked
from runner.queries.task_list.row import same_key_tasks
from runner.queries.task_list.search import find, page
from tests.store.plans import Cost, Watch, watch
from tests.store.rows import add_live, add_past, add_runner, ahead, filtered
from tests.store.table import change
from tests.store.test_plans import SOME, analyse, prevent_analysis

LIMIT = 20


async def listed(database: Database, text: str, sort: str, limit: int = 50, scan_limit: int = 20_000) -> list[int]:
    """All tasks of a list, page by page, with every cursor written and parsed again."""
    listing: list[int] = []
    after, order = None, parse_sort(sort)
    while True:
        one = await database.read(find, filtered(text), limit, after, order, scan_limit)
        listing += one.ids
        if one.next is None:
            return listing
        after = parse_cursor(marked(one.next, order), order)
        assert after == one.next


@pytest.fixture
async def mixed(database: Database) -> Database:
    """Tasks of several lanes and states, some with equal values."""
    runner = await add_runner(database)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for id, queue, priority, minute, attempt in (
        (1, "a", 1, 30, 0), (2, "b", 9, 10, 2), (3, "a", 5, 10, 0), (4, "a", 1, 20, 2), (5, "c", 9, 10, 1),
    ):  # fmt: skip
        await add_live(
            database, queue=queue, id=id, priority=priority, run_at=at.replace(minute=minute), attempt=attempt
        )
    await add_live(database, id=6, state=State.RUNNING.value, runner_id=runner, claimed_at=ahead(-5), attempt=1)
    await add_live(database, id=7, state=State.RUNNING.value, runner_id=runner, claimed_at=ahead(-9), attempt=1)
    await add_live(database, id=8, state=State.RUNNING.value, runner_id=runner)
    await add_live(database, id=9, state=State.BLOCKED.value)
    for id, state, minute in (
        (10, State.DEAD, 5),
        (11, State.SUCCEEDED, 5),
        (12, State.DEAD, 1),
        (13, State.CANCELLED, 9),
    ):
        await add_past(database, id, state, finished_at=at.replace(minute=minute, microsecond=123_000), key="k")
    return database


EXPECTED = {
    ("", "id"): [13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1],
    ("", "age"): [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
    ("", "run_at"): [2, 3, 5, 4, 1],
    ("state:waiting", "run_at desc"): [1, 4, 5, 3, 2],
    ("queue:a,b", "run_at"): [2, 3, 4, 1],
    ("-queue:a* priority>5", "run_at"): [2, 5],
    ("attempts>0", "run_at"): [2, 5, 4],
    ("state:retrying", "run_at"): [],
    ("due<1h", "run_at desc"): [1, 4, 5, 3, 2],
    ("id:2..4", "run_at"): [2, 3, 4],
    ("queue:nothing", "run_at"): [],
    ("", "priority"): [2, 5, 3, 4, 1],
    ("", "priority asc"): [1, 4, 3, 5, 2],
    ("handler:h attempts>0", "priority"): [2, 5, 4],
    ("", "claimed_at"): [8, 7, 6],
    ("state:running", "claimed_at desc"): [6, 7, 8],
    ("", "finished_at"): [13, 11, 10, 12],
    ("", "finished_at asc"): [12, 10, 11, 13],
    ("state:dead", "finished_at"): [10, 12],
    ("state:dead,cancelled", "finished_at"): [13, 10, 12],
    ("state:succeeded", "finished_at"): [11],
    ("state:dead queue:default", "id"): [12, 10],
    ("key:k state:dead", "finished_at asc"): [12, 10],
    ("", "attempts"): [4, 2, 7, 6, 5, 13, 12, 11, 10, 9, 8, 3, 1],
    ("state:waiting", "attempts asc"): [1, 3, 5, 2, 4],
    ("state:blocked,running,dead", "id"): [12, 10, 9, 8, 7, 6],
    ("state:running,lost", "id"): [8, 7, 6],
}  # fmt: skip
"""The tasks that match each filter, in each order."""


@pytest.mark.slow
async def test_every_order_lists_each_task_once_at_any_page_size(mixed: Database) -> None:
    for (text, sort), expected in EXPECTED.items():
        assert await listed(mixed, text, sort) == expected, (text, sort)
        assert await listed(mixed, text, sort, limit=1) == expected, (text, sort)


@pytest.mark.slow
@pytest.mark.parametrize("scan_limit", [1, 5])
async def test_a_walk_finds_all_tasks_at_any_scan_limit(mixed: Database, scan_limit: int) -> None:
    for (text, sort), expected in EXPECTED.items():
        if sort.split()[0] not in ("attempts", "claimed_at") and "id:" not in text and "key:" not in text:
            assert await listed(mixed, text, sort, 2, scan_limit) == expected, (text, sort)


async def test_orders_without_an_index_sort_the_newest_tasks(mixed: Database) -> None:
    listing = await mixed.read(page, filtered(""), sort=parse_sort("attempts"), scan_limit=3)
    assert [task.id for task in listing.tasks] == [13, 12, 11]
    assert listing.access == "scan: sorted the newest 20,000 rows"
    whole = await mixed.read(page, filtered("state:waiting"), sort=parse_sort("attempts"))
    assert (whole.capped, whole.sorted, whole.access) == (False, True, "scan: sorted all rows")


async def test_the_filter_must_match_tasks_that_have_the_sort_field(mixed: Database) -> None:
    for text, sort, others in (
        ("state:dead", "run_at", "id, age, finished_at, attempts"),
        ("state:blocked", "priority", "id, age, attempts"),
        ("state:ready", "finished_at", "id, age, run_at, priority, attempts"),
    ):
        with pytest.raises(InvalidSort, match=f"only .* tasks have this field; .* by {others}.$"):
            await listed(mixed, text, sort)
    assert await listed(mixed, "state:dead state:ready", "run_at") == []


async def test_too_many_lanes_are_rejected_with_advice(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.queries.task_list.by_lane.MOST_LANES", 2)
    for queue in "abc":
        await add_live(database, queue=queue)
    with pytest.raises(InvalidSort, match="filter by one of these"):
        await listed(database, "", "run_at")
    assert await listed(database, "queue:a,c", "run_at") == [1, 3]


async def test_unreadable_times_are_sorted_too(database: Database) -> None:
    times = ["infinity", "-infinity", "20000-01-01"] if database.dialect.is_server else ["soon", "", "x"]
    for id, text in enumerate(times, 1):
        moment = sa.cast(sa.literal(text, sa.Text), database.tables.history.c.finished_at.type)
        await add_past(database, id, finished_at=moment if database.dialect.is_server else sa.literal(text, sa.Text))
    await add_past(database, 4)
    expected = [1, 3, 4, 2] if database.dialect.is_server else [3, 1, 4, 2]
    assert await listed(database, "", "finished_at", limit=1) == expected


@pytest.mark.parametrize(
    ("text", "order"),
    [("run_at", "run_at asc"), ("run_at desc", "run_at desc"), ("id", "id desc"), ("finished_at", "finished_at desc")],
)
def test_an_order_is_read_as_it_is_written(text: str, order: str) -> None:
    assert str(parse_sort(text)) == order
    assert parse_sort(order) == parse_sort(text)


@pytest.mark.parametrize("text", ["", "size", "run_at down", "run_at desc desc", "runat"])
def test_an_invalid_order_lists_the_valid_ones(text: str) -> None:
    with pytest.raises(InvalidSort, match=r"the sort fields are id, age|asc, desc"):
        parse_sort(text)


@pytest.mark.parametrize("text", ["", "7", "run_at.", "run_at.AAAA", "priority.x", "run_at.é", "run_at." + "A" * 500])
def test_a_cursor_of_another_list_is_rejected(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a cursor of a list"):
        parse_cursor(text, sort_by("run_at"))
    assert parse_cursor("7", NEWEST) == Cursor(7)


@pytest.fixture
async def watched(new_database: None, migrated_url: str) -> AsyncIterator[tuple[Database, Watch]]:
    """A database that was analysed only while it was empty."""
    prevent_analysis(migrated_url)
    analyse(migrated_url)
    opened = Database.open(migrated_url)
    yield opened, watch(opened)
    await opened.dispose()


async def fill(database: Database, rows: int) -> None:
    """Add tasks in each state: waiting in a few lanes, running, succeeded, dead and cancelled."""
    tables = database.tables
    n = sa.select(sa.literal_column("0").label("i")).cte("n", recursive=True)
    n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < rows - 1))
    most = sa.select(sa.func.coalesce(sa.func.max(tables.history.c.id), 10**9)).scalar_subquery()
    later, queue = db_later(db_now(), n.c.i % 1_000 - 500), sa.literal("q") + sa.cast(n.c.i % 3, sa.Text)
    work: list[Any] = [sa.literal("work"), queue]
    waiting = sa.select(*work, later).select_from(n)
    await change(database, sa.insert(tables.task).from_select(["handler", "queue", "run_at"], waiting))
    for state in (State.SUCCEEDED, State.DEAD, State.CANCELLED):
        finished = sa.select(*work, most + n.c.i + 1, sa.literal(state.value), later).select_from(n)
        names = ["handler", "queue", "id", "state", "finished_at"]
        await change(database, sa.insert(tables.history).from_select(names, finished))


PLANS: dict[tuple[str, str], set[str]] = {
    ("", "id"): set(),
    ("", "finished_at"): {"finished"},
    ("", "finished_at asc"): {"finished"},
    ("", "run_at"): {"ready"},
    ("", "run_at desc"): {"ready"},
    ("queue:q1", "run_at"): {"ready"},
    ("state:ready", "run_at desc"): {"ready"},
    ("", "priority"): {"ready"},
    ("", "priority asc"): {"ready"},
    ("state:dead", "id"): {"rare"},
    ("-state:succeeded", "id"): {"rare"},
    ("-state:succeeded", "finished_at"): {"ended"},
    ("-state:succeeded", "run_at"): {"ready"},
    ("state:dead", "age"): {"rare"},
    ("state:dead,cancelled", "id"): {"rare"},
    ("state:dead queue:q1", "id"): {"failed"},
    ("state:dead", "finished_at"): {"ended"},
    ("state:dead,cancelled", "finished_at asc"): {"ended"},
}
"""The index that each list must use; look-ups by id are also allowed."""

PARTS = {
    "state_queue_id": "failed",
    "state_id": "rare",
    "state_finished_at_id": "ended",
    "finished_at_id": "finished",
    "task_ready": "ready",
    "task_history_failed": "failed",
    "task_history_rare": "rare",
    "task_history_ended": "ended",
    "task_history_finished": "finished",
}


def walked(cost: Cost) -> set[str]:
    """The indexes that were used, without primary keys, over all partitions."""
    names = set()
    for index in cost.indexes:
        part = index.removesuffix("_idx").rpartition("task_history_others_")[2].rpartition("task_history_from_1_")[2]
        names |= {PARTS.get(part, PARTS.get(index, ""))}
    return names - {""}


async def costs(database: Database, looking: Watch, text: str, sort: Sort) -> Cost:
    """A page in the middle of a list."""
    first = await database.read(page, filtered(text), None, LIMIT, sort)
    async with looking.seeing() as cost:
        listing = await database.read(page, filtered(text), first.next, LIMIT, sort)
    assert len(listing.tasks) == LIMIT
    assert (listing.access, listing.next is not None) == ("indexed", True)
    return cost


@pytest.mark.slow
async def test_a_page_costs_the_same_for_any_length_of_the_list(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    await fill(database, SOME)
    before = {plan: await costs(database, looking, plan[0], parse_sort(plan[1])) for plan in PLANS}
    await fill(database, 4 * SOME)
    for (text, sort), indexes in PLANS.items():
        cost = await costs(database, looking, text, parse_sort(sort))
        report = f"{text!r} by {sort}: {before[text, sort]} -> {cost}"
        assert walked(cost) == indexes, report
        assert not cost.whole & {"task", "task_history", "task_history_others", "task_history_from_1"}, report
        assert cost.rows <= 1.2 * before[text, sort].rows + 50, report
        assert cost.rows < 1_000, report
        assert cost.pages <= 1.5 * before[text, sort].pages + 50, report


async def test_the_other_tasks_of_a_key_are_found_without_reading_all_of_them(watched: tuple[Database, Watch]) -> None:
    database, looking = watched
    await fill(database, SOME)
    for table in (database.tables.task, database.tables.history):
        await change(database, sa.update(table).values(key="order-7"))
    (task,) = (await database.read(page, filtered("key:order-7"), None, 1)).tasks
    async with looking.seeing() as cost:
        others = await database.read(same_key_tasks, task)
    assert (len(others), others[0].id) == (5, task.id - 1)
    assert cost.rows < 100, cost


@pytest.mark.parametrize("text", ["state:dead", "state:dead,cancelled id<=2000000000", "state:dead queue:q1"])
async def test_a_chunk_of_a_bulk_over_a_rare_state_is_found_without_sorting_all(
    watched: tuple[Database, Watch], text: str
) -> None:
    database, looking = watched
    await fill(database, SOME)
    after, rows = None, []
    for _ in range(3):
        async with looking.seeing() as cost:
            listing = await database.read(matching, filtered(text), 100, after)
        after = listing.next
        rows.append(cost.rows)
        assert (len(listing.targets), walked(cost)) == (100, {"failed"} if "queue" in text else {"rare"})
    assert max(rows) <= min(rows) + 50, rows


def test_every_sort_describes_its_tasks_and_order() -> None:
    for by, meaning in SORTS.items():
        assert meaning.ascending != meaning.descending
        assert sort_by(by).reverse.reverse == sort_by(by)
        assert sort_by(by).words in meaning
