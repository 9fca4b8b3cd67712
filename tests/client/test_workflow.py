"""Workflows: tasks that depend on each other, submitted in one transaction under one name."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Context, Dead, DependsOn, TaskHandler, handler, workflow
from runner.client.client import get_client
from runner.db.database import Database
from runner.errors import InvalidTask, WouldBlock
from runner.model.task import NewTask, NewWorkflow, State
from runner.testing import TaskStore
from tests.client.external.applications import with_driver

pytestmark = pytest.mark.both_databases

Work = TaskHandler[Any, Any, Any]


@pytest.fixture
def store(migrated_url: str) -> Iterator[TaskStore]:
    with TaskStore(migrated_url, retry="1m") as store:
        yield store


@pytest.fixture
def work(own_handlers: None) -> Work:
    @handler("flow.work")
    def work(ctx: Context, name: str) -> Dead | str:
        parents = ctx.batch.results(return_exceptions=True) if ctx.batch else []
        return Dead("bad") if name == "bad" else f"{name}({', '.join(map(str, parents))})"

    return work


def read(query: str) -> list[tuple[Any, ...]]:
    async def rows(database: Database) -> list[tuple[Any, ...]]:
        async with database.reading() as tx:
            return [tuple(row) for row in await tx.rows(sa.text(query))]

    return get_client().run(rows).result()


def test_a_workflow_runs_each_task_after_its_parents(store: TaskStore, work: Work) -> None:
    with workflow("order 17") as w:
        first = w.add(work.new(name="a"))
        middle = [w.add(work.new(name=name), after=first) for name in "bc"]
        last = w.add(work.new(name="d"), after=middle)
    store.drain()
    assert last.handle.result(timeout=5) == "d(b(a()), c(a()))"
    assert w.tasks == [first.handle, *(task.handle for task in middle), last.handle]
    assert read("SELECT id, name FROM task_workflow") == [(w.id, "order 17")]
    assert read("SELECT DISTINCT workflow FROM task_history") == [(w.id,)]


def test_the_block_submits_at_its_end_and_not_before(store: TaskStore, work: Work) -> None:
    with workflow() as w:
        added = w.add(work.new(name="a"))
        assert (w.id, store.tasks()) == (None, [])
        with pytest.raises(InvalidTask, match="read the handle after it"):
            _ = added.handle
    assert len(store.tasks()) == 1
    assert read("SELECT name FROM task_workflow") == [(None,)]


def test_a_block_that_raises_submits_nothing(store: TaskStore, work: Work) -> None:
    def fail() -> None:
        with workflow("w") as w:
            w.add(work.new(name="a"))
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert (store.tasks(), read("SELECT id FROM task_workflow")) == ([], [])


def test_a_refused_task_leaves_no_workflow(store: TaskStore, work: Work) -> None:
    with pytest.raises(InvalidTask, match="there is no task with this id"), workflow("w") as w:
        w.add(work.new(name="a"), after=999)
    assert (store.tasks(), read("SELECT id FROM task_workflow")) == ([], [])


def test_an_empty_block_is_refused(store: TaskStore) -> None:
    with pytest.raises(InvalidTask, match="it has no task"), workflow("w"):
        pass
    assert read("SELECT id FROM task_workflow") == []


def test_tasks_are_added_only_inside_the_block(store: TaskStore, work: Work) -> None:
    w = workflow("w")
    with pytest.raises(InvalidTask, match="inside its block"):
        w.add(work.new(name="a"))
    with w:
        w.add(work.new(name="a"))
    with pytest.raises(InvalidTask, match="inside its block"):
        w.add(work.new(name="a"))
    with pytest.raises(InvalidTask, match="begun already"), w:
        pass
    assert len(store.tasks()) == 1


@pytest.mark.parametrize("name", ["", "x" * 201, 5, "a\nb"])
def test_a_name_that_a_row_cannot_hold_is_refused(store: TaskStore, work: Work, name: Any) -> None:
    with pytest.raises(InvalidTask, match="workflow"), workflow(name) as w:
        w.add(work.new(name="a"))
    assert store.tasks() == []


def test_a_parent_of_another_workflow_is_named_by_its_handle(store: TaskStore, work: Work) -> None:
    with workflow("one") as one:
        a = one.add(work.new(name="a"))
    with pytest.raises(InvalidTask, match="pass its handle"), workflow("two") as two:
        two.add(work.new(name="b"), after=a)
    with workflow("two") as two:
        two.add(work.new(name="b"), after=a.handle)
    store.drain()
    assert two.tasks[0].result(timeout=5) == "b(a())"


def test_parents_have_the_forms_of_options(store: TaskStore, work: Work) -> None:
    plain = work.options(key="k").submit(name="p")
    with workflow() as w:
        a = w.add(work.new(name="a"))
        b = w.add(work.options(after=plain).new(name="b"), after=("flow.work", "k"))
        c = w.add(work.new(name="c"), after=(a, DependsOn(b, "run")))
        with pytest.raises(InvalidTask, match="after"):
            w.add(work.new(name="d"), after="flow.work")  # type: ignore[arg-type] # refused
        with pytest.raises(InvalidTask, match="on_failure must be one of"):
            w.add(work.new(name="d"), after=a, on_failure="explode")  # type: ignore[arg-type] # refused
        with pytest.raises(InvalidTask, match=r"handler\.new"):
            w.add(5)  # type: ignore[arg-type] # refused
    store.drain()
    assert c.handle.result(timeout=5) == "c(a(), b(p(), p()))"


@pytest.mark.parametrize(
    ("rule", "end"), [(None, State.BLOCKED), ("wait", State.BLOCKED), ("cancel", State.CANCELLED), ("run", "succeeded")]
)
def test_on_failure_is_the_effect_of_a_dead_parent(store: TaskStore, work: Work, rule: Any, end: str) -> None:
    with workflow("w") as w:
        bad = w.add(work.new(name="bad"))
        w.add(work.new(name="b"), after=bad, on_failure=rule)
    store.drain()
    assert {task.id: task.state for task in store.tasks()} == {w.tasks[0]: "dead", w.tasks[1]: end}


def test_a_duplicate_does_not_join(store: TaskStore, work: Work) -> None:
    existing = work.options(unique_key="u").submit(name="old")
    with workflow("w") as w:
        a = w.add(work.options(unique_key="u").new(name="new"))
        b = w.add(work.new(name="b"), after=a)
    assert (a.handle, a.handle.duplicate) == (existing, True)
    assert dict(read("SELECT id, workflow FROM task")) == {existing: None, b.handle: w.id}
    store.drain()
    assert b.handle.result(timeout=5) == "b(old())"


def test_an_event_loop_submits_with_async_with(store: TaskStore, work: Work) -> None:
    async def submit() -> list[int]:
        with pytest.raises(WouldBlock, match=r"instead: async with workflow\(\.\.\.\)\.$"), workflow("w"):
            pass
        async with workflow("w") as w:
            a = w.add(work.new(name="a"))
            w.add(work.new(name="b"), after=a)
        assert w.id is not None
        return [int(task) for task in w.tasks]

    ids = asyncio.run(submit())
    assert [task.id for task in store.tasks()] == ids


def test_a_workflow_joins_the_transaction_of_the_application(migrated_url: str, work: Work) -> None:
    with TaskStore(migrated_url) as store:
        engine = sa.create_engine(
            with_driver(migrated_url, "pysqlite" if migrated_url.startswith("sqlite") else "psycopg")
        )
        with engine.connect() as connection:
            with connection.begin(), workflow("w", tx=connection) as w:
                w.add(work.new(name="a"))
            assert w.id is not None
            transaction = connection.begin()
            with workflow("x", tx=connection) as other:
                other.add(work.new(name="b"))
            transaction.rollback()
        engine.dispose()
        assert (len(store.tasks()), read("SELECT name FROM task_workflow")) == (1, [("w",)])


def test_a_submit_creates_at_most_one_workflow(store: TaskStore) -> None:
    one, other = (NewTask("h", workflow=NewWorkflow(name)) for name in ("a", "b"))
    for tasks in ([one, other], [one, NewTask("h")]):
        with pytest.raises(InvalidTask, match="at most one workflow"):
            get_client().submit(tasks)


def test_a_thousand_tasks_are_one_submit(store: TaskStore, work: Work) -> None:
    with workflow("wide") as w:
        first = w.add(work.new(name="a"))
        parts = [w.add(work.new(name=str(number)), after=first) for number in range(998)]
        w.add(work.new(name="end"), after=parts)
    assert read("SELECT count(*), sum(blocked_by) FROM task") == [(1_000, 998 + 998)]


@pytest.fixture
def pages(work: Work, own_handlers: None) -> Work:
    """A handler that adds tasks to the workflow of its task."""

    @handler("flow.pages")
    def pages(ctx: Context, names: list[str], sub: str | None = None, after: int | None = None) -> None:
        with ctx.transaction() as tx, workflow(sub, of=ctx, tx=tx) as w:
            for name in names:
                w.add(work.new(name=name), after=after)
            if "raise" in names and ctx.attempt == 1:
                raise LookupError

    return pages


@pytest.mark.slow
def test_a_task_fans_out_and_those_after_it_wait_for_all(store: TaskStore, work: Work, pages: Work) -> None:
    with workflow("book") as w:
        split = w.add(pages.new(names=["a", "b", "c"]))
        join = w.add(work.new(name="join"), after=split)
        w.add(work.new(name="end"), after=join)
    store.drain("flow.pages")
    assert read(f"SELECT state, blocked_by FROM task WHERE id = {join.handle}") == [("blocked", 3)]
    store.drain()
    assert join.handle.result(timeout=5) == "join(None, a(), b(), c())"
    assert read("SELECT count(*), count(DISTINCT workflow) FROM task_history") == [(6, 1)]


def test_an_attempt_that_fails_adds_nothing(store: TaskStore, work: Work, pages: Work) -> None:
    with workflow("book") as w:
        split = w.add(pages.new(names=["a", "raise"]))
        join = w.add(work.new(name="join"), after=split)
    store.drain()
    assert len(store.tasks()) == 2
    assert read("SELECT blocked_by FROM task WHERE state = 'blocked'") == [(1,)]
    store.advance("1h")
    store.drain()
    assert join.handle.result(timeout=5) == "join(None, a(), raise())"


def test_a_sub_workflow_has_a_name_and_holds_the_tasks_after_its_parent(
    store: TaskStore, work: Work, pages: Work
) -> None:
    with workflow("outer") as w:
        split = w.add(pages.new(names=["a", "b"], sub="inner"))
        join = w.add(work.new(name="join"), after=split)
    store.drain()
    assert join.handle.result(timeout=5) == "join(None, a(), b())"
    assert read("SELECT name FROM task_workflow ORDER BY id") == [("outer",), ("inner",)]
    assert read("SELECT workflow, count(*) FROM task_history GROUP BY workflow ORDER BY workflow") == [(1, 2), (2, 2)]


def test_a_task_outside_of_workflows_names_the_one_that_it_begins(store: TaskStore, work: Work, pages: Work) -> None:
    nameless = pages.options(max_attempts=1).submit(names=["a"])
    named = pages.submit(names=["a"], sub="new")
    after = work.options(after=named).submit(name="after")
    store.drain()
    states = {task.id: (task.state, task.error) for task in store.tasks()}
    assert states[nameless][0] == "dead"
    assert "give the new one a name" in str(states[nameless][1])
    assert after.result(timeout=5) == "after(None, a())"


def test_an_added_task_cannot_wait_for_one_that_waits_for_it(store: TaskStore, work: Work, pages: Work) -> None:
    first = pages.options(max_attempts=1)
    with workflow("w") as w:
        split = w.add(first.new(names=["a"], after=3))
        join = w.add(work.new(name="join"), after=split)
        w.add(work.new(name="end"), after=join)
    assert int(w.tasks[2]) == 3
    store.drain()
    path = "new task 0 -> task 3 (flow.work) -> task 2 (flow.work) -> new task 0"
    assert f"depend on itself: {path}; the tasks that wait for task 1 wait" in str(store.tasks("flow.pages")[0].error)
    assert len(store.tasks()) == 3


def test_tasks_join_another_only_in_its_transaction(store: TaskStore) -> None:
    context: Any = object()
    with pytest.raises(InvalidTask, match=r"ctx\.transaction"):
        workflow(of=context)
