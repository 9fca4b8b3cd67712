"""A retention of zero: a success leaves no row, unless something refers to its task."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema.partitions import SETTLES
from runner.db.transaction import Transaction
from runner.errors import InvalidTask
from runner.model.outcome import Cancelled, Done, Outcome
from runner.model.task import Claimed, DependsOn, NewTask, OrderKey, Scope, State, UniqueKey
from runner.operations.results import Actor, Target
from runner.operations.unblock import unblock
from runner.policy.retention import Retention
from runner.store.retention import SubmitWatch, oldest_submit, prune
from runner.store.settle import Settled, Settlement, settle
from runner.store.submit import submit, submit_steps
from tests.conftest import on_postgresql
from tests.store.dependencies import after, sweep
from tests.store.runners import Runner, settle_done, settlement
from tests.store.table import change, count, edit, live, past, put, put_many, row_of

Case = Callable[[Runner], Awaitable[Settlement]]


async def minutes(database: Database) -> tuple[int, int, int]:
    """The submitted and succeeded tasks, and the ones that succeeded at once, in the minute statistics."""
    minute = database.tables.minute.c
    sums = sa.select(*(sa.func.sum(minute[name]) for name in ("submitted", "succeeded", "first_try")))
    async with database.reading() as tx:
        ((submitted, succeeded, first),) = await tx.rows(sums)
    return submitted, succeeded, first


async def watching(database: Database) -> SubmitWatch:
    """The state of a runner that has just seen that no submit with parents is open."""
    if not database.dialect.row_locks:
        return SubmitWatch()
    last = sa.text("SELECT coalesce(pg_sequence_last_value('task_dependency_id_seq'), 0)")
    return SubmitWatch(await database.read(Transaction.scalar, last))


async def delete_done(runner: Runner, *batch: Settlement) -> set[int]:
    """Settle successes at a retention of zero."""
    return await runner.database.write(settle_done, runner.id, batch, await watching(runner.database))


async def test_successes_are_counted_and_leave_no_row(database: Database, runner: Runner) -> None:
    await put_many(database, 3)
    batch = [settlement(task) for task in await runner.claim()]
    assert await delete_done(runner, *batch) == {item.id for item in batch}
    assert await count(database, database.tables.task) == await count(database, database.tables.history) == 0
    assert await minutes(database) == (3, 3, 3)


async def test_a_success_that_another_runner_has_changes_nothing(database: Database, runner: Runner) -> None:
    task = await claimed(runner)
    assert await database.write(settle_done, runner.id + 1, [settlement(task)], await watching(database)) == set()
    assert await delete_done(runner, settlement(task)._replace(fence=2)) == set()
    assert (await live(database, task.id) or {})["state"] == "running"


async def claimed(runner: Runner, **options: Any) -> Claimed:
    """Submit a task and claim it."""
    await put(runner.database, **options)
    return await only(runner)


async def only(runner: Runner) -> Claimed:
    """Claim the only due task."""
    (task,) = await runner.claim()
    return task


async def with_a_result(runner: Runner) -> Settlement:
    return settlement(await claimed(runner), Done('{"sent": true}'))


async def with_a_log(runner: Runner) -> Settlement:
    return settlement(await claimed(runner))._replace(noted=True)


async def in_its_second_attempt(runner: Runner) -> Settlement:
    await runner.settle(settlement(await claimed(runner), Cancelled()))
    return settlement(await only(runner))


async def after_an_edit(runner: Runner) -> Settlement:
    task_id = await put(runner.database)
    await edit(runner.database, task_id, version=1)
    return settlement(await only(runner))


async def with_a_unique_key(runner: Runner) -> Settlement:
    return settlement(await claimed(runner, unique_key=UniqueKey("k", Scope.UNTIL_FINISHED)))


async def with_an_order_key(runner: Runner) -> Settlement:
    return settlement(await claimed(runner, order_key=OrderKey("k")))


async def of_a_schedule(runner: Runner) -> Settlement:
    return settlement(await claimed(runner, submitted_by="schedule mail"))


async def with_a_dependent(runner: Runner) -> Settlement:
    parent = await put(runner.database)
    await put(runner.database, after=(DependsOn(parent),))
    return settlement(await only(runner))


async def with_a_dependent_that_an_operator_unblocked(runner: Runner) -> Settlement:
    """An undo blocks the dependent again."""
    parent = await put(runner.database)
    dependent = await put(runner.database, after=(DependsOn(parent),), run_at=datetime(2099, 1, 1, tzinfo=UTC))
    await runner.database.write(unblock, [Target(dependent)], Actor("ana", "desk-1"))
    return settlement(await only(runner))


REFERRED = [
    with_a_result,
    with_a_log,
    in_its_second_attempt,
    after_an_edit,
    with_a_unique_key,
    with_an_order_key,
    of_a_schedule,
    with_a_dependent,
    with_a_dependent_that_an_operator_unblocked,
]


@pytest.mark.parametrize("case", REFERRED, ids=[case.__name__ for case in REFERRED])
async def test_a_task_to_which_something_refers_moves_to_the_history(
    database: Database, runner: Runner, case: Case
) -> None:
    item = await case(runner)
    assert await delete_done(runner, item) == {item.id}
    assert await live(database, item.id) is None
    assert (await past(database, item.id) or {})["state"] == "succeeded"


@pytest.mark.parametrize("outcome", [Done(), Cancelled()], ids=["done", "cancelled"])
async def test_a_success_without_a_row_is_known_after_a_lost_answer(
    database: Database, runner: Runner, outcome: Outcome
) -> None:
    task = await claimed(runner)
    await delete_done(runner, settlement(task))
    settled = await database.write(settle, runner.id, [settlement(task, outcome)], watch=SubmitWatch())
    written = {task.id: "succeed"} if isinstance(outcome, Done) else {}
    assert (settled.verbs, settled.written, settled.fenced) == ({}, written, {task.id} - written.keys())


async def test_a_success_whose_task_still_exists_is_fenced(database: Database, runner: Runner) -> None:
    task = await claimed(runner)
    await change(database, sa.update(database.tables.task).values(runner_id=runner.id + 1))
    settled = await database.write(settle, runner.id, [settlement(task)], watch=SubmitWatch())
    assert (settled.verbs, settled.written, settled.fenced) == ({}, {}, {task.id})


WAIT_SECONDS = 90.0
"""Seconds after which one side counts as blocked by the other."""

Parent = int | tuple[str, str]


class Side:
    """One side of a race: it runs one step at a time.

    Args:
        steps: the coroutine function of the side; it awaits its argument after each step.
    """

    def __init__(self, steps: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> None:
        self._go, self._paused, self._is_over = asyncio.Event(), asyncio.Event(), False
        self.run = asyncio.ensure_future(self._run(steps))

    async def _run(self, steps: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> None:
        try:
            await self._gate()
            await steps(self._gate)
        finally:
            self._is_over = True
            self._paused.set()

    async def _gate(self) -> None:
        self._paused.set()
        await self._go.wait()
        self._go.clear()

    async def step(self) -> None:
        """Let it run to its next gate, or to its end."""
        await self._paused.wait()
        if not self._is_over:
            self._paused.clear()
            self._go.set()
            await self._paused.wait()


SUBMITTING, SETTLING = 5, 2
"""Steps of a submit: mark, look-up, task, dependencies, commit; and of a settle: delete, commit."""

RACES = [
    "".join("s" if place in ends else "c" for place in range(SUBMITTING + SETTLING))
    for ends in combinations(range(SUBMITTING + SETTLING), SETTLING)
]
RACES = [race for race in RACES if race[: race.index("c")].count("s") in (0, SETTLING)]
"""Every interleaving in which the mark of the submit does not wait for the settle."""


async def submit_child(database: Database, task: NewTask, ids: list[int], gate: Callable[[], Awaitable[None]]) -> None:
    async with database.writing() as tx:
        steps, rows = submit_steps(tx, [task], False), None
        while True:
            try:
                step = next(steps) if rows is None else steps.send(rows)
            except StopIteration as end:
                ids += end.value.ids
                break
            rows = await tx.run(step.prepared, step.parameters)
            await gate()


@pytest.mark.slow
@on_postgresql
@pytest.mark.parametrize("named", ["by id", "by key"])
async def test_every_order_of_a_settle_and_of_a_submit_releases_the_dependent(
    database: Database, rival: Database, runner: Runner, named: str
) -> None:
    for race in RACES:
        parent = await put(database, key=race)
        task = await only(runner)
        ids: list[int] = []
        child = after(parent if named == "by id" else ("work", race))

        async def settling(gate: Callable[[], Awaitable[None]], task: Claimed = task) -> None:
            watch = await watching(database)
            async with database.writing() as tx:
                assert await settle_done(tx, runner.id, [settlement(task)], watch) == {task.id}
                await gate()

        async def submitting(gate: Callable[[], Awaitable[None]], child: NewTask = child, ids: list[int] = ids) -> None:
            await submit_child(rival, child, ids, gate)

        sides = {"s": Side(settling), "c": Side(submitting)}
        async with asyncio.timeout(WAIT_SECONDS):
            for side in race:
                await sides[side].step()
            await sides["s"].run
            if race.startswith("ss"):
                await end_after_its_parent(sides["c"].run, named)
            else:
                await sides["c"].run
                await sweep(database)
                assert (await row_of(database, ids[0]))["state"] == State.WAITING, race
                assert await past(database, parent) is not None, race
        await change(database, sa.delete(database.tables.task))
        await change(database, sa.delete(database.tables.dependency))


async def end_after_its_parent(submitting: Awaitable[None], named: str) -> None:
    """A submit after the end of a parent that left no row is refused; a key may name a task of the future."""
    if named == "by key":
        await submitting
        return
    with pytest.raises(InvalidTask, match="no task with this id"):
        await submitting


async def test_a_success_during_the_submit_of_its_dependent_releases_it(
    database: Database, rival: Database, runner: Runner
) -> None:
    task = await claimed(runner)
    async with asyncio.timeout(WAIT_SECONDS):
        async with rival.writing() as tx:
            child = await submit(tx, after(task.id))
            settling = asyncio.ensure_future(delete_done(runner, settlement(task)))
            if database.dialect.row_locks:  # a file has one writer at a time
                assert await settling == {task.id}
        assert await settling == {task.id}
    await sweep(database)
    assert (await row_of(database, child))["state"] == State.WAITING
    assert await past(database, task.id) is not None


WAITING = sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")


SETTLE_LOCK = sa.text(f"SELECT pg_advisory_lock({SETTLES}, CAST(CAST('task' AS regclass) AS oid)::integer)")


@on_postgresql
async def test_a_settle_finds_a_submit_that_ended_after_its_snapshot(
    database: Database, rival: Database, runner: Runner
) -> None:
    task, watch = await claimed(runner), await watching(database)
    async with asyncio.timeout(WAIT_SECONDS), database.reading() as holder:
        async with rival.writing() as tx:
            child = await submit(tx, after(task.id))
            await holder.execute(SETTLE_LOCK)
            settling = asyncio.ensure_future(database.write(settle_done, runner.id, [settlement(task)], watch))
            while not await rival.read(Transaction.scalar, WAITING):
                await asyncio.sleep(0)
        await holder.execute(sa.text("SELECT pg_advisory_unlock_all()"))
        assert await settling == {task.id}
    await sweep(database)
    assert (await row_of(database, child))["state"] == State.WAITING


@on_postgresql
async def test_a_settle_keeps_rows_until_it_has_seen_that_no_submit_is_open(database: Database, runner: Runner) -> None:
    tasks, watch = [await claimed(runner) for _ in range(3)], SubmitWatch()
    for task in tasks:
        assert await database.write(settle_done, runner.id, [settlement(task)], watch) == {task.id}
    assert [await past(database, task.id) is not None for task in tasks] == [True, False, False]


@on_postgresql
async def test_a_dependency_by_hand_keeps_the_rows_of_one_settle(database: Database, runner: Runner) -> None:
    tasks, watch = [await claimed(runner) for _ in range(4)], await watching(database)
    for task in tasks:
        if task is not tasks[0] and task is not tasks[3]:
            hand = sa.text("INSERT INTO task_dependency (task_id, parent_id, satisfied_at) VALUES (-1, -2, now())")
            await change(database, hand)
        assert await database.write(settle_done, runner.id, [settlement(task)], watch) == {task.id}
    assert [await past(database, task.id) is not None for task in tasks] == [False, True, True, False]


@on_postgresql
async def test_a_submit_waits_for_a_settle_that_may_not_see_it(
    database: Database, rival: Database, runner: Runner
) -> None:
    task, watch = await claimed(runner), await watching(database)
    async with asyncio.timeout(WAIT_SECONDS):
        async with database.writing() as tx:
            assert await settle_done(tx, runner.id, [settlement(task)], watch) == {task.id}
            submitting = asyncio.ensure_future(rival.write(submit, after(task.id)))
            while not await database.read(Transaction.scalar, WAITING):
                await asyncio.sleep(0)
        with pytest.raises(InvalidTask, match="no task with this id"):
            await submitting


@on_postgresql
async def test_a_settle_that_waits_for_a_row_holds_up_no_submit_of_its_holder(
    database: Database, rival: Database, runner: Runner
) -> None:
    task, other, parent = await claimed(runner), await claimed(runner), await put(database)
    columns = database.tables.task.c
    async with asyncio.timeout(WAIT_SECONDS):
        async with rival.writing() as tx:
            await tx.execute(sa.update(tx.tables.task).where(columns.id == task.id).values(bucket=7))
            assert await delete_done(runner, settlement(task), settlement(other)) == set()
            assert await runner.end(task) == Settled(locked={task.id})
            child = await submit(tx, after(parent))
        assert (await runner.end(task)).verbs == {task.id: "succeed"}
    assert (await row_of(database, child))["state"] == State.BLOCKED


@on_postgresql
async def test_a_submit_with_an_old_snapshot_is_repeated_if_its_parent_has_ended(
    database: Database, rival: Database, runner: Runner
) -> None:
    repeatable = sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    task = await claimed(runner)

    async def submit_after_the_end(tx: Transaction) -> int:
        await tx.execute(repeatable)
        await tx.scalar(sa.select(sa.func.count()).select_from(tx.tables.task))
        if await live(database, task.id):
            await delete_done(runner, settlement(task))
        return await submit(tx, after(task.id))

    with pytest.raises(InvalidTask, match="no task with this id"):  # the second time, with a new snapshot
        await rival.write(submit_after_the_end)
    assert await count(database, database.tables.task) == await count(database, database.tables.history) == 0
    parent = await put(database)
    async with rival.writing() as tx:
        await tx.execute(repeatable)
        child = await submit(tx, after(parent))
    assert (await row_of(database, child))["state"] == State.BLOCKED


async def pruned(database: Database) -> int:
    """Prune at a retention of zero, and return the number of deleted tasks."""
    return (await database.write(prune, Retention({State.SUCCEEDED: timedelta(0)}))).tasks[State.SUCCEEDED]


@on_postgresql
async def test_a_pruning_keeps_tasks_that_an_open_submit_may_wait_for(
    database: Database, rival: Database, runner: Runner
) -> None:
    task = await claimed(runner)
    async with rival.writing() as tx:
        child = await submit(tx, after(task.id))
        await delete_done(runner, settlement(task))
        assert await pruned(database) == 0
    assert await pruned(database) == 0  # a dependency on it is open
    await sweep(database)
    assert (await row_of(database, child))["state"] == State.WAITING
    assert await pruned(database) == 1


async def test_a_pruning_keeps_a_parent_by_key_until_its_dependent_is_released(
    database: Database, runner: Runner
) -> None:
    task, parent = await claimed(runner, key="k"), ("work", "k")
    child = await put(database, after=(DependsOn(parent),))
    await delete_done(runner, settlement(task))
    assert await pruned(database) == 0
    await sweep(database)
    assert (await row_of(database, child))["state"] == State.WAITING
    assert await pruned(database) == 1


@on_postgresql
async def test_a_pruning_deletes_tasks_that_ended_long_before_an_open_submit(
    database: Database, rival: Database, runner: Runner
) -> None:
    task, parent = await claimed(runner), await put(database)
    await runner.end(task)
    history = database.tables.history
    await change(database, sa.update(history).values(finished_at=datetime(2020, 1, 1, tzinfo=UTC)))
    async with rival.writing() as tx:
        await submit(tx, after(parent))
        assert await pruned(database) == 1


@on_postgresql
@pytest.mark.parametrize("named", ["by id", "by key"])
async def test_a_pruning_keeps_the_parent_of_a_submit_that_ends_during_it(
    database: Database, rival: Database, runner: Runner, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    task, ids = await claimed(runner, key="k"), list[int]()
    child = after(task.id if named == "by id" else ("work", "k"))
    async with AsyncExitStack() as submitting:

        async def read_during_a_submit(tx: Transaction) -> datetime | None:
            if ids:
                await submitting.aclose()  # the submit commits after the pruning has selected the parent
                return await oldest_submit(tx)
            start = await oldest_submit(tx)
            ids.append(await submit(await submitting.enter_async_context(rival.writing()), child))
            await delete_done(runner, settlement(task))
            return start

        monkeypatch.setattr("runner.store.retention.oldest_submit", read_during_a_submit)
        assert await pruned(database) == 0
    await sweep(database)
    assert (await row_of(database, ids[0]))["state"] == State.WAITING
