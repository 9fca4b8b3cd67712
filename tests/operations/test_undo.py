"""Undo of operations: values, terminations, unblocks, pauses and runner commands; one by one and as change groups."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.outcome import Cancelled, Done, Release, Suspended
from runner.model.step import StepWrite
from runner.model.task import NewTask, OnFailure, Scope, State, UniqueKey
from runner.operations.audit_log import reveal
from runner.operations.bulk import BulkOptions, to_each
from runner.operations.delay import delay
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget, pause, registry_of
from runner.operations.results import Actor, Result, Target, with_change_group
from runner.operations.resume import resume
from runner.operations.retry import requeue, retry_now
from runner.operations.runner_command import send_command
from runner.operations.signal import signal
from runner.operations.terminate import terminate
from runner.operations.unblock import unblock
from runner.operations.undo.undo import preview_undo, undo, undo_all
from runner.policy.retention import Retention
from runner.queries.audit import AuditRecord, audit, undoable
from runner.queries.registries import pauses
from runner.queries.runners import runners
from runner.store.calls import submit_child
from runner.store.dependencies.resolve import close_moot, find_strays
from runner.store.heartbeat import acknowledge
from runner.store.retention import prune
from runner.store.settle import Settlement, settle
from runner.store.signals import receive
from runner.store.steps import StepOwner
from runner.store.submit import submit
from tests.conftest import on_postgresql
from tests.operations.test_operations import holder_of, take
from tests.store.dependencies import dependencies_of, put_after, sweep
from tests.store.rows import add_live, add_past, add_runner, ahead, history_row, stored, until_locked
from tests.store.runners import Runner
from tests.store.table import change, put

ANA = Actor("ana", "desk-1", "relay is back")
BEN = Actor("ben", "desk-2")
BENS = partial(undo, by=BEN)
MAIL = PauseTarget(PauseKind.QUEUE, "mail")


async def latest(database: Database) -> AuditRecord:
    return (await database.read(audit, limit=1))[0]


async def taken_back(database: Database, entry: int | None = None) -> Result:
    """Undo the latest change, and compare the result with its preview."""
    number = (await latest(database)).id if entry is None else entry
    preview = await database.read(preview_undo, [number])
    answer = await database.write(undo, [number], BEN)
    assert bool(preview.able) == bool(answer.changed), (preview, answer)
    return answer


@on_postgresql
async def test_an_undone_delay_restores_the_due_time_to_the_microsecond(database: Database) -> None:
    due = datetime(2030, 1, 1, 12, 30, 15, 123_456, tzinfo=UTC)
    id = await add_live(database, run_at=due)
    await database.write(delay, [Target(id)], 60.0, ANA)
    assert (await stored(database, id)).run_at != due
    assert (await taken_back(database)).changed == [id]
    assert (await stored(database, id)).run_at == due
    await database.write(edit, id, None, Changes(priority=5, run_at=datetime(2031, 1, 1, tzinfo=UTC)), ANA)
    await taken_back(database)
    assert ((await stored(database, id)).run_at, (await stored(database, id)).priority) == (due, 1)


async def submitted(database: Database) -> int:
    """The number of tasks that the minute statistics count as submitted."""
    async with database.reading() as tx:
        return sum(row.submitted for row in await tx.rows(tx.tables.minute.select()))


async def refusal(database: Database, entry: int | None = None) -> str:
    answer = await taken_back(database, entry)
    assert answer.changed == []
    return answer.skipped[0].why


async def succeed_and_prune(database: Database, id: int) -> None:
    """Let a task succeed and be pruned after the sweep that closes the dependencies of ended tasks."""
    await sweep(database)
    claimed = await take(database, "work")
    await database.write(settle, await holder_of(database, id), [Settlement(id, claimed.fence, Done())])
    await database.write(prune, Retention({State.SUCCEEDED: timedelta(seconds=-1)}, {}))
    assert await history_row(database, id) is None


async def steps_of(database: Database) -> list[dict[str, Any]]:
    """The rows of all steps."""
    async with database.reading() as tx:
        return [dict(row._mapping) for row in await tx.rows(sa.select(tx.tables.step))]


class TestValues:
    async def test_values_are_set_back(self, database: Database) -> None:
        id = await add_live(database, priority=3, key="k")
        await database.write(edit, id, 0, Changes(priority=9, key=None), ANA)
        entry = await latest(database)
        assert await taken_back(database) == Result([id])
        row = await stored(database, id)
        assert (row.priority, row.key, row.version) == (3, "k", 2)
        assert (await latest(database)).undo_of == entry.id
        assert "already" in await refusal(database, entry.id)

    async def test_times_are_set_back(self, database: Database) -> None:
        id = await add_live(database, run_at=datetime(2030, 1, 1, tzinfo=UTC))
        await database.write(delay, [Target(id)], 60.0, ANA)
        await database.write(retry_now, [Target(id)], ANA)
        for entry in await database.read(audit, task_id=id):
            assert await taken_back(database, entry.id) == Result([id])
        assert (await stored(database, id)).run_at == datetime(2030, 1, 1, tzinfo=UTC)

    async def test_a_later_change_is_not_undone_along_with_it(self, database: Database) -> None:
        id = await add_live(database)
        await database.write(edit, id, None, Changes(priority=5), ANA)
        first = (await latest(database)).id
        await database.write(edit, id, None, Changes(priority=6), BEN)
        assert "values have changed since" in await refusal(database, first)
        assert (await stored(database, id)).priority == 6

    async def test_a_value_that_the_task_may_not_have_any_more_is_refused(self, database: Database) -> None:
        id = await add_live(database, max_attempts=2)
        await database.write(edit, id, None, Changes(max_attempts=9), ANA)
        for _ in range(2):
            claimed = await take(database)
            outcome = Settlement(id, claimed.fence, Cancelled())
            await database.write(settle, await holder_of(database, id), [outcome])
            await database.write(edit, id, None, Changes(key=str(claimed.fence)), ANA)
        entry = [entry.id for entry in await database.read(audit, task_id=id)][-1]
        await add_live(database)
        async with database.writing() as tx:
            await tx.execute(tx.tables.task.update().values(attempt=5))
        assert "could never run again" in await refusal(database, entry)

    async def test_an_undone_retry_makes_a_task_a_suspect_again(self, database: Database) -> None:
        id = await add_live(database, rescues=2, attempt=1)
        await database.write(retry_now, [Target(id)], ANA)
        assert (await stored(database, id)).rescues == 0
        assert await taken_back(database) == Result([id])
        assert (await stored(database, id)).rescues == 2

    @pytest.mark.both_databases
    @pytest.mark.parametrize("state", [State.WAITING, State.DEAD, State.CANCELLED])
    async def test_an_undone_retry_brings_failed_steps_back(self, database: Database, state: State) -> None:
        id = await (add_past(database, 7, state) if state.final else add_live(database, id=7, run_at=ahead(60)))
        failed = {"name": "charge", "number": 2, "function": "shop.charge", "failures": 2, "error": "OSError: no route"}
        failed |= {"kind": "function", "due_at": ahead(60), "at": ahead(-5), "duration": 0.25, "fence": 3, "attempt": 1}
        async with database.writing() as tx:
            await tx.execute(sa.insert(tx.tables.step).values(task_id=id, **failed))
        before = await steps_of(database)
        await database.write(retry_now, [Target(id)], ANA)
        assert await steps_of(database) == []
        assert await taken_back(database) == Result([id])
        assert await steps_of(database) == before != []
        if state is State.WAITING:
            assert await taken_back(database) == Result([id])
            assert await steps_of(database) == []
            assert await taken_back(database) == Result([id])
            assert await steps_of(database) == before


class TestEnd:
    async def test_a_terminated_task_is_restored_unchanged(self, database: Database) -> None:
        values: dict[str, Any] = {
            "key": "k",
            "bucket": 7,
            "priority": 4,
            "attempt": 2,
            "max_attempts": 4,
            "releases": 1,
            "fence": 2,
        }
        id = await add_live(database, run_at=ahead(600), error="no relay", **values)
        before = (await stored(database, id))._asdict()
        await database.write(terminate, [Target(id)], ANA)
        assert await taken_back(database) == Result([id])
        after = (await stored(database, id))._asdict()
        assert after.pop("version") > before.pop("version")
        assert after == before
        assert await history_row(database, id) is None
        assert (await latest(database)).verb == "restore"

    async def test_a_task_that_was_retried_or_ended_since_is_skipped(self, database: Database) -> None:
        id = await add_live(database)
        await database.write(terminate, [Target(id)], ANA)
        first = (await latest(database)).id
        await database.write(requeue, [Target(id)], BEN)
        assert "now waiting" in await refusal(database, first)
        await database.write(terminate, [Target(id)], BEN)
        assert "changed since" in await refusal(database, first)
        assert (await history_row(database, id)).state == State.CANCELLED

    async def test_a_pruned_task_is_missing(self, database: Database) -> None:
        id = await add_live(database)
        await database.write(terminate, [Target(id)], ANA)
        async with database.writing() as tx:
            await tx.execute(tx.tables.history.delete())
        assert "pruned" in await refusal(database)

    async def test_a_requeue_resets_the_interruptions_and_its_undo_restores_them(self, database: Database) -> None:
        id = await add_past(database, 7, state=State.DEAD, interruptions=7)
        await database.write(requeue, [Target(id)], ANA)
        assert (await stored(database, id)).interruptions == 0
        assert await taken_back(database) == Result([id])
        assert (await history_row(database, id)).interruptions == 7

    async def test_a_restored_task_holds_its_unique_key(self, database: Database) -> None:
        id = await database.write(submit, NewTask("h", unique_key=UniqueKey("k")))
        await database.write(terminate, [Target(id)], ANA)
        assert await taken_back(database) == Result([id])
        assert await database.write(submit, NewTask("h", unique_key=UniqueKey("k"))) == id

    @pytest.mark.parametrize("scope", [Scope.UNTIL_FINISHED, Scope.FOREVER])
    async def test_a_unique_key_of_another_task_stays_there(self, database: Database, scope: Scope) -> None:
        id = await database.write(submit, NewTask("h", unique_key=UniqueKey("k")))
        await database.write(terminate, [Target(id)], ANA)
        other = await database.write(submit, NewTask("h", unique_key=UniqueKey("k", scope)))
        assert f"task {other} has its unique key" in await refusal(database)

    async def test_a_restored_blocked_task_waits_for_its_live_parents(self, database: Database) -> None:
        done, open_ = await put(database), await put(database)
        id = await put_after(database, done, open_)
        claimed = await take(database, "work")
        await database.write(settle, await holder_of(database, done), [Settlement(claimed.id, claimed.fence, Done())])
        await sweep(database)
        before = (await stored(database, id))._asdict()
        assert before["blocked_by"] == 1
        await database.write(terminate, [Target(id)], ANA)
        assert await taken_back(database) == Result([id])
        after = (await stored(database, id))._asdict()
        assert after | {"version": 0} == before | {"version": 0}
        assert [dependency["satisfied_at"] is None for dependency in await dependencies_of(database, id)] == [
            False,
            True,
        ]

    @on_postgresql
    async def test_a_concurrent_sweep_loses_no_dependency(self, database: Database, rival: Database) -> None:
        id = await put_after(database, await put(database))
        await database.write(terminate, [Target(id)], ANA)
        # A client that cancels the task itself leaves the dependency open.
        await change(database, sa.update(database.tables.dependency).values(satisfied_at=None))
        moot = (await database.write(find_strays)).moot
        entry = (await latest(database)).id
        async with rival.writing() as tx:
            assert (await undo(tx, [entry], BEN)).changed == [id]
            forgetting = asyncio.ensure_future(database.write(close_moot, moot))
            await until_locked(database)
        await forgetting
        assert [dependency["satisfied_at"] for dependency in await dependencies_of(database, id)] == [None]

    async def test_a_restored_task_whose_parent_has_ended_is_released(self, database: Database) -> None:
        parent = await put(database)
        id = await put_after(database, parent)
        await database.write(terminate, [Target(id)], ANA)
        await sweep(database)
        claimed = await take(database, "work")
        await database.write(settle, await holder_of(database, parent), [Settlement(parent, claimed.fence, Done())])
        assert await taken_back(database, (await latest(database)).id) == Result([id])
        await sweep(database)
        assert (await stored(database, id)).state == State.WAITING

    @pytest.mark.both_databases
    async def test_a_termination_is_not_undone_after_the_pruning_of_a_parent(self, database: Database) -> None:
        rules: tuple[OnFailure, ...] = ("wait", "cancel")
        for rule in rules:
            parent, other = await put(database), await put(database, run_at=datetime(2099, 1, 1, tzinfo=UTC))
            id = await put_after(database, parent, other, on_failure=rule)
            await database.write(terminate, [Target(id)], ANA)
            await succeed_and_prune(database, parent)
            assert f"its parent task {parent} has ended and was pruned" in await refusal(database)
            assert (await history_row(database, id)).state == State.CANCELLED

    @pytest.mark.both_databases
    async def test_a_dependent_of_any_end_is_restored_after_the_pruning_of_its_parent(self, database: Database) -> None:
        parent = await put(database)
        id = await put_after(database, parent, on_failure="run")
        await database.write(terminate, [Target(id)], ANA)
        await succeed_and_prune(database, parent)
        assert await taken_back(database) == Result([id])
        await sweep(database)
        assert (await stored(database, id)).state == State.WAITING

    async def test_a_termination_with_consequences_is_not_undone(self, database: Database) -> None:
        rules: tuple[OnFailure, ...] = ("cancel", "run")
        for rule in rules:
            parent = await put(database)
            child = await put_after(database, parent, on_failure=rule)
            await database.write(terminate, [Target(parent)], ANA)
            await sweep(database)
            assert f"dependent task {child} was cancelled or released" in await refusal(database)
            assert (await history_row(database, parent)).state == State.CANCELLED

    async def test_a_dependent_that_only_waits_keeps_waiting(self, database: Database) -> None:
        parent = await put(database)
        child = await put_after(database, parent)
        await database.write(terminate, [Target(parent)], ANA)
        await sweep(database)
        assert await taken_back(database) == Result([parent])
        claimed = await take(database, "work")
        await database.write(settle, await holder_of(database, parent), [Settlement(parent, claimed.fence, Done())])
        await sweep(database)
        assert (await stored(database, child)).state == State.WAITING

    async def test_it_is_counted_once_as_submitted(self, database: Database) -> None:
        id = await add_live(database)
        await database.write(terminate, [Target(id)], ANA)
        await taken_back(database)
        assert await submitted(database) == 0


class TestRequest:
    async def test_a_termination_that_did_not_take_effect_is_withdrawn(self, database: Database) -> None:
        id = await add_live(database)
        claimed = await take(database)
        await database.write(terminate, [Target(id)], ANA)
        assert await taken_back(database) == Result([id])
        assert not (await stored(database, id)).cancel_requested
        settled = await database.write(settle, await holder_of(database, id), [Settlement(id, claimed.fence, Done())])
        assert settled.verbs == {id: "succeed"}

    async def test_a_handler_cancelled_despite_the_undo_runs_again(self, database: Database) -> None:
        id = await add_live(database)
        claimed = await take(database)
        await database.write(terminate, [Target(id)], ANA)
        await taken_back(database)
        ending = Settlement(id, claimed.fence, Cancelled())
        assert (await database.write(settle, await holder_of(database, id), [ending])).verbs == {id: "release"}
        row = await stored(database, id)
        assert (row.state, row.attempt) == (State.WAITING, 0)
        assert "withdrew the request" in row.error

    async def test_a_termination_that_took_effect_is_not_undone(self, database: Database) -> None:
        id = await add_live(database)
        claimed = await take(database)
        await database.write(terminate, [Target(id)], ANA)
        await database.write(settle, await holder_of(database, id), [Settlement(id, claimed.fence, Cancelled())])
        first = (await latest(database)).id
        assert "taken effect" in await refusal(database, first)
        await database.write(requeue, [Target(id)], ANA)
        await take(database)
        await database.write(terminate, [Target(id)], ANA)
        assert "that attempt has ended" in await refusal(database, first)
        assert (await stored(database, id)).cancel_requested


class TestAgain:
    @pytest.mark.parametrize("state", [State.DEAD, State.CANCELLED])
    async def test_a_requeued_task_returns_to_its_old_state(self, database: Database, state: State) -> None:
        ending = {"run_at": ahead(-900), "claimed_at": ahead(-800), "finished_at": ahead(-700)}
        ending |= {"runner_id": 5, "host": "web-1", "duration": 99.5, "expires_at": ahead(-600)}
        await add_past(
            database, 7, state, attempt=3, rescues=1, error="no", fence=4, payload='{"a": 1}', key="k", **ending
        )
        before = (await history_row(database, 7))._asdict()
        await database.write(retry_now, [Target(7)], ANA, 600.0)
        await database.write(edit, 7, None, Changes(key="other"), BEN)
        entry = [entry.id for entry in await database.read(audit, task_id=7)][-1]
        assert await taken_back(database, entry) == Result([7])
        after = (await history_row(database, 7))._asdict()
        for name in ("state", "attempt", "rescues", "error", "fence", "payload", *ending):
            assert after[name] == before[name], name
        assert (after["key"], await stored(database, 7)) == ("other", None)

    @on_postgresql
    async def test_other_finished_tasks_keep_their_endings(self, database: Database) -> None:
        # Rows of different partitions may have the same address.
        succeeded = range(100, 120)
        for id in succeeded:
            await add_past(database, id, State.SUCCEEDED, finished_at=ahead(-60), duration=1.5, runner_id=9)
        await add_past(database, 7, State.DEAD, finished_at=ahead(-700), duration=99.5, runner_id=5)
        before = [await history_row(database, id) for id in succeeded]
        await database.write(requeue, [Target(7)], ANA)
        assert await taken_back(database) == Result([7])
        assert [await history_row(database, id) for id in succeeded] == before

    async def test_a_started_retry_is_not_undone(self, database: Database) -> None:
        await add_past(database, 7, State.DEAD)
        await database.write(requeue, [Target(7)], ANA)
        claimed = await take(database)
        assert "started" in await refusal(database)
        ending = Settlement(7, claimed.fence, Release())
        await database.write(settle, await holder_of(database, 7), [ending])
        assert "started" in await refusal(database)

    async def test_a_later_task_of_its_order_key_stays_free(self, database: Database) -> None:
        await add_past(database, 7, State.DEAD, order_key="o")
        later = await add_live(database, id=8, order_key="o")
        await database.write(requeue, [Target(7)], ANA)
        assert await taken_back(database) == Result([7])
        assert (await stored(database, later)).state == State.WAITING

    async def test_its_unique_key_is_free_again(self, database: Database) -> None:
        await add_past(database, 7, State.DEAD, unique_key="k")
        await database.write(requeue, [Target(7)], ANA)
        assert await database.write(submit, NewTask("h", unique_key=UniqueKey("k"))) == 7
        await taken_back(database)
        assert await database.write(submit, NewTask("h", unique_key=UniqueKey("k"))) != 7

    async def test_a_task_that_never_ran_counts_once_as_submitted(self, database: Database) -> None:
        id = await put(database)
        await database.write(terminate, [Target(id)], ANA)
        assert await submitted(database) == 1
        await database.write(retry_now, [Target(id)], ANA)
        assert await submitted(database) == 0
        await taken_back(database)
        assert await submitted(database) == 1
        await database.write(requeue, [Target(id)], ANA)
        await succeed_and_prune(database, id)
        assert await submitted(database) == 1


async def waiting(runner: Runner, seconds: float, child: NewTask | None = None) -> int:
    """A task that waits for the signal "approved" for some seconds, and for a child."""
    id = await put(runner.database)
    (task,) = await runner.claim()
    owner = StepOwner(id, task.fence, task.attempt, runner.id)
    wait = StepWrite("approval", "wait", 1, signal="approved", due_in=seconds)
    await runner.database.write(receive, owner, wait, timed_out=False)
    if child is None:
        await runner.end(task, Suspended(seconds, "waits for signal approved", waits=True))
        return id
    called = await runner.database.write(submit_child, owner, StepWrite("charge", "call", 2), child)
    assert called is not None
    await runner.end(task, Suspended(seconds, "waits for task 2", waits=True, children=tuple(called.ids)))
    return id


@pytest.mark.both_databases
class TestSignal:
    async def test_the_task_waits_again(self, database: Database, runner: Runner) -> None:
        id = await waiting(runner, 3_600.0)
        before = await stored(database, id)
        await database.write(signal, [Target(id)], "approved", None, ANA)
        assert (await stored(database, id)).run_at < before.run_at
        assert await taken_back(database) == Result([id])
        assert (await stored(database, id)).run_at == before.run_at

    async def test_the_task_waits_for_its_child_again(self, database: Database, runner: Runner) -> None:
        id = await waiting(runner, 3_600.0, NewTask("work", delay=60.0))
        before = await stored(database, id)
        await database.write(signal, [Target(id)], "approved", None, ANA)
        assert (await stored(database, id)).state == State.WAITING
        assert await taken_back(database) == Result([id])
        after = await stored(database, id)
        assert (after.state, after.blocked_by, after.run_at) == (State.BLOCKED, 1, before.run_at)

    async def test_the_task_is_due_after_another_signal(self, database: Database, runner: Runner) -> None:
        id = await waiting(runner, 3_600.0)
        await database.write(signal, [Target(id)], "approved", None, ANA)
        first = (await latest(database)).id
        await database.write(signal, [Target(id)], "approved", None, ANA)
        assert await taken_back(database, first) == Result([id])
        assert [task.id for task in await runner.claim()] == [id]

    async def test_a_later_due_time_stays(self, database: Database, runner: Runner) -> None:
        id = await waiting(runner, 3_600.0)
        await database.write(signal, [Target(id)], "approved", None, ANA)
        sent, due = (await latest(database)).id, datetime(2099, 1, 1, tzinfo=UTC)
        await database.write(edit, id, None, Changes(run_at=due), ANA)
        assert await taken_back(database, sent) == Result([id])
        assert (await stored(database, id)).run_at == due


class TestLettingGo:
    @pytest.mark.both_databases
    async def test_a_task_that_is_blocked_again_has_its_due_time(self, database: Database) -> None:
        id = await put_after(database, await put(database), run_at=datetime(2020, 1, 1, tzinfo=UTC))
        before = await stored(database, id)
        await database.write(unblock, [Target(id)], ANA)
        assert (await stored(database, id)).run_at > before.run_at
        assert await taken_back(database) == Result([id])
        assert (await stored(database, id)).run_at == before.run_at

    async def test_an_unblocked_task_is_blocked_again(self, database: Database) -> None:
        parent = await put(database)
        id = await put_after(database, parent)
        await database.write(unblock, [Target(id)], ANA)
        assert await taken_back(database) == Result([id])
        row, (dependency,) = await stored(database, id), await dependencies_of(database, id)
        assert (row.state, row.blocked_by, row.parents) == (State.BLOCKED, 1, None)
        assert (dependency["satisfied_at"], dependency["satisfied_by"]) == (None, None)
        claimed = await take(database, "work")
        await database.write(settle, await holder_of(database, parent), [Settlement(parent, claimed.fence, Done())])
        await sweep(database)
        assert (await stored(database, id)).state == State.WAITING

    async def test_one_dependency_of_several_is_reopened(self, database: Database) -> None:
        first, second = await put(database), await put(database)
        id = await put_after(database, first, second)
        number = (await dependencies_of(database, id))[0]["id"]
        await database.write(unblock, [Target(id)], ANA, number)
        assert await taken_back(database) == Result([id])
        assert (await stored(database, id)).blocked_by == 2

    @pytest.mark.both_databases
    async def test_a_task_is_not_blocked_again_on_a_parent_that_was_pruned(self, database: Database) -> None:
        parent = await put(database)
        id = await put_after(database, parent, run_at=datetime(2099, 1, 1, tzinfo=UTC))
        await database.write(unblock, [Target(id)], ANA)
        await succeed_and_prune(database, parent)
        assert f"its parent task {parent} has ended and was pruned" in await refusal(database)
        assert (await stored(database, id)).state == State.WAITING

    async def test_a_started_or_ended_task_is_not_blocked_again(self, database: Database) -> None:
        parent = await put(database, run_at=datetime(2099, 1, 1, tzinfo=UTC))
        for _ in range(2):
            id = await put_after(database, parent)
            await database.write(unblock, [Target(id)], ANA)
            entry = (await latest(database)).id
            await take(database, "work")
            assert "started" in await refusal(database, entry)
        id = await put_after(database, parent)
        await database.write(unblock, [Target(id)], ANA)
        entry = (await latest(database)).id
        await database.write(terminate, [Target(id)], ANA)
        assert "now cancelled" in await refusal(database, entry)


class TestElsewhere:
    async def test_undo_ends_a_pause_or_restores_the_previous_one(self, database: Database) -> None:
        await database.write(pause, MAIL, ANA)
        await database.write(pause, MAIL, BEN._replace(reason="deploy"), datetime(2099, 1, 1, tzinfo=UTC))
        entry = await latest(database)
        assert (await taken_back(database)).changed == [entry.id]
        assert (await database.read(pauses)).queues["mail"].by == "ana"
        (_, first) = [entry.id for entry in await database.read(audit) if entry.undo_of is None]
        assert (await taken_back(database, first)).changed
        assert (await database.read(pauses)).queues == {}

    async def test_a_resume_is_undone(self, database: Database) -> None:
        await database.write(pause, MAIL, ANA)
        await database.write(resume, MAIL, BEN)
        await taken_back(database)
        mail_pause = (await database.read(pauses)).queues["mail"]
        assert (mail_pause.by, mail_pause.why) == ("ana", "relay is back")

    @pytest.mark.both_databases
    @pytest.mark.parametrize("target", [MAIL, PauseTarget(PauseKind.HANDLER, "mail.send")])
    @pytest.mark.parametrize("verb", ["pause", "resume", "limit"])
    async def test_a_target_without_a_registry_row_is_named(
        self, database: Database, verb: str, target: PauseTarget
    ) -> None:
        await database.write(pause, target, ANA)
        if verb == "resume":
            await database.write(resume, target, BEN)
        elif verb == "limit":
            await database.write(set_limits, target, LimitEdit({"concurrency": "5"}), BEN)
        entry = (await latest(database)).id
        async with database.writing() as tx:
            await tx.execute(sa.delete(registry_of(tx, target)))
        answer = await database.write(undo, [entry], BEN)
        assert (answer.changed, answer.stuck) == ([], [])
        assert answer.skipped[0].why == f"the registry has no row of {target} any more"

    async def test_another_pause_is_not_overruled(self, database: Database) -> None:
        await database.write(pause, MAIL, ANA)
        first = (await latest(database)).id
        await database.write(pause, MAIL, BEN)
        answer = await database.write(undo, [first], BEN)
        assert "since" in answer.skipped[0].why

    async def test_a_command_that_was_not_received_is_withdrawn(self, database: Database) -> None:
        runner = await add_runner(database)
        await database.write(send_command, runner, "drain", ANA)
        await taken_back(database)
        assert (await database.read(runners))[0].command is None
        await database.write(send_command, runner, "drain", ANA)
        entry = (await latest(database)).id
        await database.write(acknowledge, runner, "drain", None, 1, 1, 0)
        assert "received" in (await database.write(undo, [entry], BEN)).skipped[0].why


async def test_a_change_that_cannot_be_undone_has_a_reason(database: Database) -> None:
    id = await add_live(database)
    await database.write(reveal, id, ANA)
    assert "revealed secrets" in await refusal(database)
    await database.write(terminate, [Target(id)], ANA)
    await taken_back(database)
    assert "repeat the original operation" in await refusal(database)
    assert "no such change" in await refusal(database, 999)
    await database.write(requeue, [Target(await add_past(database, 70, State.DEAD))], ANA)
    await taken_back(database)
    assert "repeat the original operation" in await refusal(database)


MADE_UP = ("null", "[1]", '{"state": 7}', '{"version": {}}', '{"run_at": "soon"}', "{}")


@pytest.mark.representatives(2)
@pytest.mark.parametrize("verb", ["edit", "terminate", "retry_now", "unblock", "pause", "command", "sing"])
async def test_a_forged_audit_entry_breaks_nothing(database: Database, verb: str) -> None:
    id = await add_past(database, 5, State.CANCELLED)
    for written in MADE_UP:
        made_up: dict[str, Any] = {"operator": "x", "host": "y", "verb": verb, "before": written, "after": written}
        async with database.writing() as tx:
            insert = tx.tables.audit.insert()
            await tx.execute(insert, [made_up | {"task_id": id}, made_up | {"task_id": None, "target": "moon x"}])
        entries = [entry.id for entry in await database.read(audit, limit=2)]
        answer = await database.write(undo, entries, BEN)
        assert (answer.changed, len(answer.skipped)) == ([], 2)


class TestTogether:
    async def test_a_change_group_is_undone_together(self, database: Database) -> None:
        ids = [await add_live(database, run_at=datetime(2099, 1, 1, tzinfo=UTC)) for _ in range(5)]
        ids += [await add_live(database)]
        claimed = await take(database)
        by, other = with_change_group(ANA), with_change_group(ANA)
        targets = [Target(id) for id in ids]
        await to_each(database, partial(terminate, by=by), targets, BulkOptions(2))
        await database.write(pause, MAIL, other)
        await database.write(requeue, [Target(ids[0])], BEN)
        preview = await database.read(preview_undo, None, by.change_group or "")
        assert (preview.number, list(preview.skipped.values())) == ("5", [1])
        progress: list[int] = []
        options = BulkOptions(2, on_progress=lambda so_far: progress.append(len(so_far.changed)))
        answer = await undo_all(database, BENS, by.change_group or "", options)
        assert sorted(answer.changed) == ids[1:]
        assert [skipped_task.id for skipped_task in answer.skipped] == ids[:1]
        assert len(progress) == 3
        assert not (await stored(database, claimed.id)).cancel_requested
        again = await undo_all(database, BENS, by.change_group or "")
        assert (again.changed, len(again.skipped)) == ([], 6)
        assert (await database.read(pauses)).queues

    async def test_of_several_changes_of_a_task_the_latest_comes_first(self, database: Database) -> None:
        id = await add_live(database)
        by = with_change_group(ANA)
        for priority in (5, 6):
            await database.write(edit, id, None, Changes(priority=priority), by)
        answer = await undo_all(database, BENS, by.change_group or "")
        assert (answer.changed, len(answer.skipped)) == ([id], 1)
        assert (await stored(database, id)).priority == 5

    async def test_rare_reasons_are_combined(self, database: Database) -> None:
        by = with_change_group(ANA)
        for _ in range(8):
            parent = await put(database)
            await put_after(database, parent, on_failure="run")
            await database.write(terminate, [Target(parent)], by)
        await sweep(database)
        preview = await database.read(preview_undo, None, by.change_group or "")
        assert (preview.able, list(preview.skipped.values())) == ([], [1, 1, 1, 1, 1, 3])

    async def test_an_undo_can_be_limited_and_stopped(self, database: Database) -> None:
        ids = [await add_live(database) for _ in range(5)]
        by = with_change_group(ANA)
        await database.write(delay, [Target(id) for id in ids], 60.0, by)
        answer = await undo_all(database, BENS, by.change_group or "", BulkOptions(2, limit=1))
        assert answer.changed == [ids[-1]]
        assert (await undo_all(database, BENS, by.change_group or "", BulkOptions(stop=lambda: True))).changed == []


async def test_the_latest_undoable_change_is_found(database: Database) -> None:
    id = await add_live(database)
    await database.write(terminate, [Target(id)], ANA)
    entry = await latest(database)
    await database.write(reveal, id, ANA)
    assert undoable(await database.read(audit)) == entry
    await taken_back(database, entry.id)
    assert undoable(await database.read(audit)) is None
