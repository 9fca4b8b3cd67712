"""Taking back what operators did: values, ends, requests, letting go, pauses and wishes; one by one and together."""

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from runner.outcome import Cancelled, Done, Release
from runner.store.database import Database
from runner.store.dependencies import forget, strays
from runner.store.intervene import (
    By,
    Changes,
    Course,
    Kind,
    Place,
    Result,
    Target,
    delay,
    edit,
    pause,
    requeue,
    resume,
    retry_now,
    reveal,
    terminate,
    to_each,
    together,
    unblock,
    undo,
    undo_all,
    undoing,
    wish,
)
from runner.store.observe import Audited, audit, pauses, runners, undoable
from runner.store.runners import heed
from runner.store.settle import Settlement, settle
from runner.store.submit import submit
from runner.task import NewTask, OnFailure, Scope, State, Unique
from tests.store.conftest import ON_POSTGRESQL
from tests.store.family import edges, put_after, sweep
from tests.store.rows import add_live, add_past, add_runner, ahead, ended, stored
from tests.store.table import put
from tests.store.test_intervene import holder_of, take
from tests.store.test_settle import wait_for_blocked

ANA = By("ana", "desk-1", "relay is back")
BEN = By("ben", "desk-2")
BENS = partial(undo, by=BEN)
MAIL = Place(Kind.QUEUE, "mail")


async def latest(database: Database) -> Audited:
    return (await database.read(audit, limit=1))[0]


async def taken_back(database: Database, entry: int | None = None) -> Result:
    """Take the latest change back, and look whether it was foretold what comes of it."""
    number = (await latest(database)).id if entry is None else entry
    told = await database.read(undoing, [number])
    answer = await database.write(undo, [number], BEN)
    assert bool(told.able) == bool(answer.changed), (told, answer)
    return answer


async def refusal(database: Database, entry: int | None = None) -> str:
    answer = await taken_back(database, entry)
    assert answer.changed == []
    return answer.refused[0].why


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
        assert "changed again" in await refusal(database, first)
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


class TestEnd:
    async def test_a_terminated_task_is_what_it_was_before(self, database: Database) -> None:
        values: dict[str, Any] = {
            "key": "k",
            "bucket": 7,
            "priority": 4,
            "attempt": 2,
            "max_attempts": 4,
            "releases": 1,
            "fence": 2,
        }
        id = await add_live(database, run_at=ahead(600), error="no relay", progress=0.5, checkpoint="{}", **values)
        before = (await stored(database, id))._asdict()
        await database.write(terminate, [Target(id)], ANA)
        assert await taken_back(database) == Result([id])
        after = (await stored(database, id))._asdict()
        assert after.pop("version") > before.pop("version")
        assert after == before
        assert await ended(database, id) is None
        assert (await latest(database)).verb == "restore"

    async def test_a_task_that_was_run_again_or_ended_anew_is_left_alone(self, database: Database) -> None:
        id = await add_live(database)
        await database.write(terminate, [Target(id)], ANA)
        first = (await latest(database)).id
        await database.write(requeue, [Target(id)], BEN)
        assert "waiting now" in await refusal(database, first)
        await database.write(terminate, [Target(id)], BEN)
        assert "changed since" in await refusal(database, first)
        assert (await ended(database, id)).state == State.CANCELLED

    async def test_a_task_that_was_pruned_is_gone(self, database: Database) -> None:
        id = await add_live(database)
        await database.write(terminate, [Target(id)], ANA)
        async with database.writing() as tx:
            await tx.execute(tx.tables.history.delete())
        assert "pruned" in await refusal(database)

    async def test_a_unique_key_is_taken_again(self, database: Database) -> None:
        id = await database.write(submit, NewTask("h", unique=Unique("k")))
        await database.write(terminate, [Target(id)], ANA)
        assert await taken_back(database) == Result([id])
        assert await database.write(submit, NewTask("h", unique=Unique("k"))) == id

    @pytest.mark.parametrize("scope", [Scope.UNTIL_FINISHED, Scope.FOREVER])
    async def test_a_unique_key_that_another_task_has_is_not_taken_away(self, database: Database, scope: Scope) -> None:
        id = await database.write(submit, NewTask("h", unique=Unique("k")))
        await database.write(terminate, [Target(id)], ANA)
        other = await database.write(submit, NewTask("h", unique=Unique("k", scope)))
        assert f"task {other} has its unique key" in await refusal(database)

    async def test_a_blocked_task_waits_again_for_what_has_not_ended(self, database: Database) -> None:
        done, open_ = await put(database), await put(database)
        id = await put_after(database, done, open_)
        claimed = await take(database, "work")
        await database.write(settle, await holder_of(database, done), [Settlement(claimed.id, claimed.fence, Done())])
        await sweep(database)
        before = (await stored(database, id))._asdict()
        assert before["blocked_by"] == 1
        await database.write(terminate, [Target(id)], ANA)
        await sweep(database)  # closes edges of what is not blocked
        assert await taken_back(database) == Result([id])
        after = (await stored(database, id))._asdict()
        assert after | {"version": 0} == before | {"version": 0}
        assert [edge["satisfied_at"] is None for edge in await edges(database, id)] == [False, True]

    @ON_POSTGRESQL
    async def test_a_sweep_at_the_same_moment_does_not_forget_what_it_waits_for(
        self, database: Database, rival: Database
    ) -> None:
        id = await put_after(database, await put(database))
        await database.write(terminate, [Target(id)], ANA)
        moot = (await database.state(strays)).moot
        entry = (await latest(database)).id
        async with rival.writing() as tx:
            assert (await undo(tx, [entry], BEN)).changed == [id]
            forgetting = asyncio.ensure_future(database.write(forget, moot))
            await wait_for_blocked(database)
        await forgetting
        assert [edge["satisfied_at"] for edge in await edges(database, id)] == [None]

    async def test_a_blocked_task_whose_parent_has_ended_meanwhile_is_let_go(self, database: Database) -> None:
        parent = await put(database)
        id = await put_after(database, parent)
        await database.write(terminate, [Target(id)], ANA)
        await sweep(database)
        claimed = await take(database, "work")
        await database.write(settle, await holder_of(database, parent), [Settlement(parent, claimed.fence, Done())])
        assert await taken_back(database, (await latest(database)).id) == Result([id])
        await sweep(database)
        assert (await stored(database, id)).state == State.WAITING

    async def test_what_others_were_cancelled_or_let_go_for_stays_ended(self, database: Database) -> None:
        rules: tuple[OnFailure, ...] = ("cancel", "run")
        for rule in rules:
            parent = await put(database)
            child = await put_after(database, parent, on_failure=rule)
            await database.write(terminate, [Target(parent)], ANA)
            await sweep(database)
            assert f"task {child}, which waited for it" in await refusal(database)
            assert (await ended(database, parent)).state == State.CANCELLED

    async def test_what_still_waits_for_it_keeps_waiting(self, database: Database) -> None:
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
        async with database.reading() as tx:
            rows = await tx.rows(tx.tables.minute.select())
        assert sum(row.submitted for row in rows) == 0


class TestRequest:
    async def test_a_request_that_was_not_carried_out_is_withdrawn(self, database: Database) -> None:
        id = await add_live(database)
        claimed = await take(database)
        await database.write(terminate, [Target(id)], ANA)
        assert await taken_back(database) == Result([id])
        assert not (await stored(database, id)).cancel_requested
        settled = await database.write(settle, await holder_of(database, id), [Settlement(id, claimed.fence, Done())])
        assert settled.verbs == {id: "succeed"}

    async def test_a_body_that_was_ended_all_the_same_is_run_again(self, database: Database) -> None:
        id = await add_live(database)
        claimed = await take(database)
        await database.write(terminate, [Target(id)], ANA)
        await taken_back(database)
        ending = Settlement(id, claimed.fence, Cancelled())
        assert (await database.write(settle, await holder_of(database, id), [ending])).verbs == {id: "release"}
        row = await stored(database, id)
        assert (row.state, row.attempt) == (State.WAITING, 0)
        assert "taken back" in row.error

    async def test_one_that_was_carried_out_is_told_so(self, database: Database) -> None:
        id = await add_live(database)
        claimed = await take(database)
        await database.write(terminate, [Target(id)], ANA)
        await database.write(settle, await holder_of(database, id), [Settlement(id, claimed.fence, Cancelled())])
        first = (await latest(database)).id
        assert "carried out" in await refusal(database, first)
        await database.write(requeue, [Target(id)], ANA)
        await take(database)
        await database.write(terminate, [Target(id)], ANA)
        assert "that run has ended" in await refusal(database, first)
        assert (await stored(database, id)).cancel_requested


class TestAgain:
    @pytest.mark.parametrize("state", [State.DEAD, State.CANCELLED])
    async def test_a_task_that_was_to_be_run_again_is_what_it_was(self, database: Database, state: State) -> None:
        await add_past(database, 7, state, attempt=3, rescues=1, error="no", fence=4, payload='{"a": 1}', key="k")
        before = (await ended(database, 7))._asdict()
        await database.write(retry_now, [Target(7)], ANA, 600.0)
        await database.write(edit, 7, None, Changes(key="other"), BEN)
        entry = [entry.id for entry in await database.read(audit, task_id=7)][-1]
        assert await taken_back(database, entry) == Result([7])
        after = (await ended(database, 7))._asdict()
        for name in ("state", "attempt", "rescues", "error", "fence", "payload"):
            assert after[name] == before[name], name
        assert (after["key"], await stored(database, 7)) == ("other", None)

    async def test_one_that_has_been_started_goes_on(self, database: Database) -> None:
        await add_past(database, 7, State.DEAD)
        await database.write(requeue, [Target(7)], ANA)
        claimed = await take(database)
        assert "started" in await refusal(database)
        ending = Settlement(7, claimed.fence, Release())
        await database.write(settle, await holder_of(database, 7), [ending])
        assert "started" in await refusal(database)

    async def test_its_unique_key_is_free_again(self, database: Database) -> None:
        await add_past(database, 7, State.DEAD, unique_key="k")
        await database.write(requeue, [Target(7)], ANA)
        assert await database.write(submit, NewTask("h", unique=Unique("k"))) == 7
        await taken_back(database)
        assert await database.write(submit, NewTask("h", unique=Unique("k"))) != 7


class TestLettingGo:
    async def test_a_task_that_was_let_go_waits_again(self, database: Database) -> None:
        parent = await put(database)
        id = await put_after(database, parent)
        await database.write(unblock, [Target(id)], ANA)
        assert await taken_back(database) == Result([id])
        row, (edge,) = await stored(database, id), await edges(database, id)
        assert (row.state, row.blocked_by, row.parents) == (State.BLOCKED, 1, None)
        assert (edge["satisfied_at"], edge["satisfied_by"]) == (None, None)
        claimed = await take(database, "work")
        await database.write(settle, await holder_of(database, parent), [Settlement(parent, claimed.fence, Done())])
        await sweep(database)
        assert (await stored(database, id)).state == State.WAITING

    async def test_one_edge_of_several_is_opened_again(self, database: Database) -> None:
        first, second = await put(database), await put(database)
        id = await put_after(database, first, second)
        number = (await edges(database, id))[0]["id"]
        await database.write(unblock, [Target(id)], ANA, number)
        assert await taken_back(database) == Result([id])
        assert (await stored(database, id)).blocked_by == 2

    async def test_one_that_has_been_started_or_ended_goes_on(self, database: Database) -> None:
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
        assert "cancelled now" in await refusal(database, entry)


class TestElsewhere:
    async def test_a_pause_is_ended_or_is_the_one_before(self, database: Database) -> None:
        await database.write(pause, MAIL, ANA)
        await database.write(pause, MAIL, BEN._replace(reason="deploy"), datetime(2099, 1, 1, tzinfo=UTC))
        entry = await latest(database)
        assert (await taken_back(database)).changed == [entry.id]
        assert (await database.read(pauses)).queues["mail"].by == "ana"
        (_, first) = [entry.id for entry in await database.read(audit) if entry.undo_of is None]
        assert (await taken_back(database, first)).changed
        assert (await database.read(pauses)).queues == {}

    async def test_the_end_of_a_pause_is_taken_back(self, database: Database) -> None:
        await database.write(pause, MAIL, ANA)
        await database.write(resume, MAIL, BEN)
        await taken_back(database)
        held = (await database.read(pauses)).queues["mail"]
        assert (held.by, held.why) == ("ana", "relay is back")

    async def test_another_pause_is_not_overruled(self, database: Database) -> None:
        await database.write(pause, MAIL, ANA)
        first = (await latest(database)).id
        await database.write(pause, MAIL, BEN)
        answer = await database.write(undo, [first], BEN)
        assert "since" in answer.refused[0].why

    async def test_a_wish_that_was_not_heard_is_withdrawn(self, database: Database) -> None:
        runner = await add_runner(database)
        await database.write(wish, runner, "drain", ANA)
        await taken_back(database)
        assert (await database.read(runners))[0].wish is None
        await database.write(wish, runner, "drain", ANA)
        entry = (await latest(database)).id
        await database.write(heed, runner, "drain", 1, 1)
        assert "heard" in (await database.write(undo, [entry], BEN)).refused[0].why


async def test_what_cannot_be_taken_back_says_why(database: Database) -> None:
    id = await add_live(database)
    await database.write(reveal, id, ANA)
    assert "look" in await refusal(database)
    await database.write(terminate, [Target(id)], ANA)
    await taken_back(database)
    assert "do that again" in await refusal(database)
    assert "no such change" in await refusal(database, 999)


MADE_UP = ("null", "[1]", '{"state": 7}', '{"version": {}}', '{"run_at": "soon"}', "{}")


@pytest.mark.parametrize("verb", ["edit", "terminate", "retry_now", "unblock", "pause", "wish", "sing"])
async def test_an_entry_that_somebody_made_up_breaks_nothing(database: Database, verb: str) -> None:
    id = await add_past(database, 5, State.CANCELLED)
    for written in MADE_UP:
        made_up: dict[str, Any] = {"operator": "x", "host": "y", "verb": verb, "before": written, "after": written}
        async with database.writing() as tx:
            insert = tx.tables.audit.insert()
            await tx.execute(insert, [made_up | {"task_id": id}, made_up | {"task_id": None, "target": "moon x"}])
        entries = [entry.id for entry in await database.read(audit, limit=2)]
        answer = await database.write(undo, entries, BEN)
        assert (answer.changed, len(answer.refused)) == ([], 2)


class TestTogether:
    async def test_all_that_was_changed_together_is_taken_back_together(self, database: Database) -> None:
        ids = [await add_live(database, run_at=datetime(2099, 1, 1, tzinfo=UTC)) for _ in range(5)]
        ids += [await add_live(database)]
        claimed = await take(database)
        by, other = together(ANA), together(ANA)
        chosen = [Target(id) for id in ids]
        await to_each(database, partial(terminate, by=by), chosen, Course(2))
        await database.write(pause, MAIL, other)
        await database.write(requeue, [Target(ids[0])], BEN)
        seen = await database.read(undoing, None, by.batch or "")
        assert (seen.number, list(seen.skipped.values())) == ("5", [1])
        progress: list[int] = []
        course = Course(2, on_progress=lambda so_far: progress.append(len(so_far.changed)))
        answer = await undo_all(database, BENS, by.batch or "", course)
        assert sorted(answer.changed) == ids[1:]
        assert [left.id for left in answer.refused] == ids[:1]
        assert len(progress) == 3
        assert not (await stored(database, claimed.id)).cancel_requested
        again = await undo_all(database, BENS, by.batch or "")
        assert (again.changed, len(again.refused)) == ([], 6)
        assert (await database.read(pauses)).queues

    async def test_of_several_changes_of_a_task_the_latest_comes_first(self, database: Database) -> None:
        id = await add_live(database)
        by = together(ANA)
        for priority in (5, 6):
            await database.write(edit, id, None, Changes(priority=priority), by)
        answer = await undo_all(database, BENS, by.batch or "")
        assert (answer.changed, len(answer.refused)) == ([id], 1)
        assert (await stored(database, id)).priority == 5

    async def test_many_reasons_are_summed_up(self, database: Database) -> None:
        by = together(ANA)
        for _ in range(8):
            parent = await put(database)
            await put_after(database, parent, on_failure="run")
            await database.write(terminate, [Target(parent)], by)
        await sweep(database)
        seen = await database.read(undoing, None, by.batch or "")
        assert (seen.able, list(seen.skipped.values())) == ([], [1, 1, 1, 1, 1, 3])

    async def test_it_can_be_tried_on_some_and_stopped(self, database: Database) -> None:
        ids = [await add_live(database) for _ in range(5)]
        by = together(ANA)
        await database.write(delay, [Target(id) for id in ids], 60.0, by)
        answer = await undo_all(database, BENS, by.batch or "", Course(2, most=1))
        assert answer.changed == [ids[-1]]
        assert (await undo_all(database, BENS, by.batch or "", Course(stop=lambda: True))).changed == []


async def test_the_last_change_that_can_be_taken_back_is_found(database: Database) -> None:
    id = await add_live(database)
    await database.write(terminate, [Target(id)], ANA)
    entry = await latest(database)
    await database.write(reveal, id, ANA)
    assert undoable(await database.read(audit)) == entry
    await taken_back(database, entry.id)
    assert undoable(await database.read(audit)) is None
