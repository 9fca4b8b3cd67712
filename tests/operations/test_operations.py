import asyncio
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import clock
from runner.db.types import db_later, db_now
from runner.errors import DatabaseRefused, InvalidEdit, InvalidRetryPlan, PayloadTooLarge
from runner.filter.parse import Filter
from runner.model.outcome import Cancelled, Done, Failure, Retry
from runner.model.task import Claimed, NewTask, Shown, State
from runner.operations.bulk import BulkOptions, matching, to_all, to_each
from runner.operations.delay import delay
from runner.operations.edit import edit, preview_edit
from runner.operations.edit_values import KEEP, Changes
from runner.operations.erase import erase
from runner.operations.names import name_warning
from runner.operations.pause import Paused, PauseKind, PauseTarget, pause
from runner.operations.preview import bounded, preview
from runner.operations.rekey import rekey
from runner.operations.results import Actor, Conflict, Result, Skipped, Target
from runner.operations.resume import resume
from runner.operations.retry import requeue, retry_now
from runner.operations.rewind import rewind
from runner.operations.runner_command import send_command
from runner.operations.signal import signal
from runner.operations.targets import ACCEPTED_STATES
from runner.operations.terminate import terminate
from runner.operations.unblock import unblock
from runner.operations.undo.undo import undo
from runner.policy.positions import LanePosition as Start
from runner.queries.audit import AuditRecord, audit
from runner.queries.counting import Count
from runner.queries.counts import counts
from runner.queries.registries import registry_entries
from runner.queries.runners import runners
from runner.queries.task.detail import task_detail
from runner.queries.task_list.cursor import Cursor
from runner.queries.task_list.search import page
from runner.store.claim.plain import Claimant, HandlerDefaults, claim
from runner.store.claim.survey import survey
from runner.store.heartbeat import heartbeat
from runner.store.registration import Identity, register
from runner.store.settle import Settlement, settle
from runner.store.submit import submit, submit_many
from tests.databases import database_at
from tests.store.dependencies import dependencies_of, put_after
from tests.store.every_operation import KEYRING
from tests.store.rows import add_live, add_past, add_runner, ahead, filtered, history_row, stored
from tests.store.runners import Runner
from tests.store.table import change, put

ANA = Actor("ana", "desk-1", "relay is back")
BEN = Actor("ben", "desk-2")


async def take(database: Database, handler: str = "h", max_attempts: int = 3) -> Claimed:
    """Claim one task with its own runner."""
    runner_id = await database.write(register, Identity("web-1", 1, "1", [handler], 4), 60.0)
    start = Start(database.dialect.position(datetime(1970, 1, 1, tzinfo=UTC)), 0)
    lanes = {head.lane: start for head in await database.read(survey) if head.lane.handler == handler}
    terms = {handler: HandlerDefaults(max_attempts, None)}
    claimed: list[Claimed] = []
    while not claimed:  # a claim skips a row that another transaction is changing
        claimed = await database.write(claim, Claimant(runner_id, "web-1"), lanes, terms, 1)
    return claimed[0]


async def holder_of(database: Database, id: int) -> int:
    return int((await stored(database, id)).runner_id)


async def entries(database: Database, id: int) -> list[AuditRecord]:
    return [*reversed(await database.read(audit, task_id=id))]


async def last_entry(database: Database, id: int | None = None) -> tuple[str, Any, Any]:
    entry = (await database.read(audit, task_id=id))[0]
    return entry.verb, json.loads(entry.before or "null"), json.loads(entry.after or "null")


class TestRetryNow:
    async def test_a_waiting_task_becomes_due_immediately(self, database: Database) -> None:
        id = await database.write(submit, NewTask("h", delay=3600))
        result = await database.write(retry_now, [Target(id, 0)], ANA)
        assert result == Result(changed=[id])
        (task,) = (await database.read(page, Filter())).tasks
        assert (task.shown, task.version) == (Shown.READY, 1)

    async def test_a_waiting_suspect_is_run_as_others_are(self, database: Database) -> None:
        id = await add_live(database, rescues=3, attempt=3, max_attempts=9)
        assert (await database.write(retry_now, [Target(id, 0)], ANA)).changed == [id]
        (row,) = [await stored(database, id)]
        assert (row.rescues, row.attempt, row.version) == (0, 3, 1)

    async def test_dead_and_cancelled_tasks_come_back_with_all_their_attempts(self, database: Database) -> None:
        await add_past(database, 1, State.DEAD, attempt=3, max_attempts=3, error="no", payload='{"a": 1}')
        await add_past(database, 2, State.CANCELLED)
        result = await database.write(retry_now, [Target(2, 0), Target(1, 0)], ANA)
        assert result.changed == [1, 2]
        row = await stored(database, 1)
        assert (row.attempt, row.error, row.payload, row.state) == (0, "no", '{"a": 1}', State.WAITING.value)
        assert await history_row(database, 1) is None
        verb, before, after = await last_entry(database, 1)
        assert (verb, before["state"], before["attempt"]) == ("retry_now", State.DEAD.value, 3)
        assert (after["state"], after["attempt"]) == (State.WAITING.value, 0)

    async def test_a_task_without_attempts_left_is_refused_with_the_remedy(self, database: Database) -> None:
        id = await add_live(database, attempt=4, max_attempts=4)
        ((refused, why, _),) = (await database.write(retry_now, [Target(id)], ANA)).skipped
        assert refused == id
        assert "4 of 4" in why
        assert "max_attempts" in why

    async def test_retries_can_be_spread_over_time(self, database: Database) -> None:
        ids = await database.write(submit_many, [NewTask("h", delay=9_999) for _ in range(40)])
        await database.write(retry_now, [Target(id) for id in ids], ANA, spread=600.0)
        listing = await database.read(page, Filter())
        waits = sorted((task.run_at or listing.at) - listing.at for task in listing.tasks)
        assert timedelta(seconds=-60) < waits[0]
        assert timedelta(seconds=300) < waits[-1] <= timedelta(seconds=600)
        assert len(set(waits)) > 20

    async def test_requeue_skips_live_tasks(self, database: Database) -> None:
        id = await add_live(database, run_at=ahead(60))
        await add_past(database, 100, State.DEAD)
        await add_past(database, 101, State.SUCCEEDED)
        result = await database.write(requeue, [Target(id), Target(100), Target(101)], ANA)
        assert result.changed == [100]
        assert [refused.id for refused in result.skipped] == [id, 101]


class TestGuard:
    async def test_a_conflict_is_reported_with_the_current_state(self, database: Database) -> None:
        first, second = await database.write(submit_many, [NewTask("h", delay=60), NewTask("h", delay=60)])
        await database.write(edit, second, 0, Changes(priority=5), BEN)
        result = await database.write(retry_now, [Target(first, 0), Target(second, 0)], ANA)
        assert result == Result([first], [Conflict(second, State.WAITING, 1)])
        assert len(await entries(database, second)) == 1

    async def test_without_a_version_the_task_is_changed_as_it_is(self, database: Database) -> None:
        id = await add_live(database, version=7)
        assert (await database.write(edit, id, None, Changes(priority=5), ANA)).changed == [id]

    async def test_an_unknown_task_is_skipped(self, database: Database) -> None:
        for verb in (retry_now, requeue, terminate):
            ((id, why, _),) = (await database.write(verb, [Target(77, 0)], ANA)).skipped
            assert id == 77
            assert "pruned" in why

    async def test_of_two_edits_of_one_version_the_second_is_a_conflict(
        self, database: Database, migrated_url: str
    ) -> None:
        async with database_at(migrated_url) as other:
            for _ in range(5):
                id = await add_live(database, run_at=ahead(60))
                one, two = await asyncio.gather(
                    database.write(edit, id, 0, Changes(priority=5), ANA),
                    other.write(edit, id, 0, Changes(priority=6), BEN),
                )
                winner, loser, priority = (one, two, 5) if one.changed else (two, one, 6)
                assert winner == Result([id])
                assert loser == Result([], [Conflict(id, State.WAITING, 1)])
                assert (await stored(database, id)).priority == priority
                assert len(await entries(database, id)) == 1

    async def test_an_edit_overtaken_by_a_claim_is_a_conflict(self, database: Database, migrated_url: str) -> None:
        async with database_at(migrated_url) as other:
            for _ in range(5):
                id = await database.write(submit, NewTask("h"))
                task, result = await asyncio.gather(
                    take(database), other.write(edit, id, 0, Changes(payload='{"a": 1}'), ANA)
                )
                assert task.id == id
                changed = result.changed == [id]
                assert changed is (result.conflicts == [])
                # Either the claim saw the edit, or the edit is a conflict.
                assert task.payload == ('{"a": 1}' if changed else "{}")
                if not changed:
                    assert result.conflicts == [Conflict(id, State.RUNNING, 1)]
                await database.write(settle, await holder_of(database, id), [Settlement(id, task.fence, Done())])

    async def test_of_one_id_given_twice_the_first_counts(self, database: Database) -> None:
        id = await add_live(database, run_at=ahead(60))
        assert (await database.write(retry_now, [Target(id, 0), Target(id, 9)], ANA)) == Result([id])

    async def test_no_audit_entry_is_written_without_a_change(self, database: Database) -> None:
        id = await add_live(database, state=State.RUNNING.value)
        await database.write(delay, [Target(id), Target(99)], 60.0, ANA)
        assert await database.read(audit) == []

    async def test_a_change_and_its_audit_entry_commit_together(self, database: Database) -> None:
        id = await add_live(database, priority=1)

        async def edit_and_fail(tx: Any) -> None:
            await edit(tx, id, 0, Changes(priority=9), ANA)
            raise RuntimeError

        with pytest.raises(RuntimeError):
            await database.write(edit_and_fail)
        assert (await stored(database, id)).priority == 1
        assert await database.read(audit) == []


class TestEdit:
    async def test_values_are_set_and_recorded(self, database: Database) -> None:
        id = await add_live(database, max_attempts=4, priority=1, key="old", attempt=2)
        at = datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
        changes = Changes(at, 6, 9, "30s", 12.5, '{"to": "ü\\u00fc"}', "neu'); --")
        assert await database.write(edit, id, 0, changes, ANA) == Result([id])
        row = await stored(database, id)
        assert (row.max_attempts, row.priority, row.retry, row.timeout) == (6, 9, "30s", 12.5)
        assert (row.payload, row.key, row.version) == ('{"to": "ü\\u00fc"}', "neu'); --", 1)
        assert row.run_at == at.replace(microsecond=678_000)
        verb, before, after = await last_entry(database, id)
        assert verb == "edit"
        assert (before["max_attempts"], before["key"], before["retry"]) == (4, "old", None)
        assert (after["max_attempts"], after["key"], after["retry"]) == (6, "neu'); --", "30s")

    async def test_only_changed_values_are_recorded(self, database: Database) -> None:
        id = await add_live(database, priority=5, max_attempts=3)
        await database.write(edit, id, None, Changes(priority=5, max_attempts=4), ANA)
        assert await last_entry(database, id) == ("edit", {"max_attempts": 3}, {"max_attempts": 4})
        result = await database.write(edit, id, None, Changes(priority=5), ANA)
        assert result.skipped == [Skipped(id, "it already has these values")]
        assert (await stored(database, id)).version == 1

    async def test_values_can_be_left_to_the_handler_again(self, database: Database) -> None:
        id = await add_live(database, retry="30s", timeout=5.0, max_attempts=9, key="k")
        await database.write(edit, id, None, Changes(retry=None, timeout=None, max_attempts=None, key=None), ANA)
        row = await stored(database, id)
        assert (row.retry, row.timeout, row.max_attempts, row.key) == (None, None, None, None)

    @pytest.mark.parametrize(
        "changes",
        [
            Changes(),
            Changes(priority=0),
            Changes(priority=10),
            Changes(max_attempts=0),
            Changes(max_attempts=2**31),
            Changes(timeout=0.0),
            Changes(timeout=-1.0),
            Changes(timeout=float("nan")),
            Changes(timeout=float("inf")),
            Changes(run_at=datetime(2030, 1, 1)),  # noqa: DTZ001 - the missing zone is what is refused
            Changes(run_at=datetime(1969, 12, 31, tzinfo=UTC)),
            Changes(run_at=datetime(9999, 6, 1, tzinfo=UTC)),
            Changes(key="a\0b"),
            Changes(key="\ud800"),
            Changes(payload='{"a": "\0"}'),
            Changes(payload='{"a": "\\u0000"}'),
            Changes(payload='{"\\u0000": 1}'),
            Changes(payload='{"a": "\ud800"}'),
            Changes(payload='{"a": "\\ud800"}'),
            Changes(payload='{"a": NaN}'),
            Changes(payload='{"a": -Infinity}'),
            Changes(payload="[1]"),
            Changes(payload='"text"'),
            Changes(payload="{"),
            Changes(payload=""),
            Changes(payload='{"a":' * 10_000 + "1" + "}" * 10_000),
        ],
        ids=lambda changes: str(changes.edited())[:40].encode("unicode_escape").decode(),
    )
    async def test_invalid_values_are_rejected(self, database: Database, changes: Changes) -> None:
        id = await add_live(database)
        with pytest.raises(InvalidEdit):
            await database.write(edit, id, None, changes, ANA)
        row = await stored(database, id)
        assert row.version == 0
        assert await database.read(audit) == []

    async def test_a_year_that_cannot_be_written_as_a_date_is_refused_by_the_database_too(
        self, database: Database
    ) -> None:
        """The table itself rejects such values from other clients, because a list could not show them."""
        id = await add_live(database)
        with pytest.raises(DatabaseRefused):
            async with database.writing() as tx:
                await tx.execute(
                    sa.text("update task set run_at = '20000-01-01 00:00:00.000' where id = :id"), {"id": id}
                )

    async def test_an_invalid_plan_and_a_large_payload_are_rejected(self, database: Database) -> None:
        id = await add_live(database)
        with pytest.raises(InvalidRetryPlan):
            await database.write(edit, id, None, Changes(retry="sometimes"), ANA)
        with pytest.raises(PayloadTooLarge, match="300"):
            await database.write(edit, id, None, Changes(payload=json.dumps({"a": "x" * 300})), ANA, payload_limit=300)

    async def test_no_task_is_left_waiting_that_could_never_run(self, database: Database) -> None:
        id = await add_live(database, attempt=3, max_attempts=5)
        for most in (2, 3):
            with pytest.raises(InvalidEdit, match="3 attempts"):
                await database.write(edit, id, None, Changes(max_attempts=most), ANA)
        assert (await database.write(edit, id, None, Changes(max_attempts=4), ANA)).changed == [id]

    async def test_a_running_task_takes_a_smaller_limit_and_dies_of_it(self, database: Database) -> None:
        id = await database.write(submit, NewTask("h", max_attempts=5))
        task = await take(database)
        assert (await database.write(edit, id, None, Changes(max_attempts=1), ANA)).changed == [id]
        outcome = Retry(failure=Failure("ValueError", "no"))
        settled = await database.write(settle, await holder_of(database, id), [Settlement(id, task.fence, outcome)])
        assert settled.verbs == {id: "die"}

    async def test_a_running_task_takes_another_retry_plan_for_its_next_try(self, database: Database) -> None:
        id = await database.write(submit, NewTask("h", retry="1m"))
        task = await take(database)
        await database.write(edit, id, None, Changes(retry="10h"), ANA)
        outcome = Retry(failure=Failure("ValueError", "no"))
        await database.write(settle, await holder_of(database, id), [Settlement(id, task.fence, outcome)])
        detail = await database.read(task_detail, id)
        assert detail.task.run_at is not None
        assert detail.task.run_at - detail.at > timedelta(hours=9)

    async def test_the_due_time_of_a_running_task_cannot_be_set(self, database: Database) -> None:
        id = await database.write(submit, NewTask("h"))
        await take(database)
        with pytest.raises(InvalidEdit, match="retry plan"):
            await database.write(edit, id, None, Changes(run_at=datetime(2030, 1, 1, tzinfo=UTC)), ANA)

    async def test_a_finished_task_is_not_edited(self, database: Database) -> None:
        await add_past(database, 5, State.DEAD)
        ((id, why, _),) = (await database.write(edit, 5, None, Changes(priority=5), ANA)).skipped
        assert id == 5
        assert State.DEAD in why

    @pytest.mark.parametrize("past", [State.DEAD, State.CANCELLED])
    async def test_a_task_is_requeued_with_new_values_before_any_claim(self, database: Database, past: State) -> None:
        await add_past(database, 5, past, payload='{"wieght": 2}', attempt=3, max_attempts=3)
        tried = await database.read(
            preview_edit, 5, None, Changes(payload='{"weight": 2}', max_attempts=1), requeue=True
        )
        changes = Changes(payload='{"weight": 2}', max_attempts=1)
        assert (await database.write(edit, 5, None, changes, ANA, requeue=True)).changed == tried.result.changed == [5]
        task = await take(database)
        assert (task.id, task.attempt, task.payload) == (5, 1, '{"weight": 2}')

    async def test_a_requeue_with_new_values_is_undone_as_one_change(self, database: Database) -> None:
        await add_past(database, 5, State.DEAD, payload='{"wieght": 2}', attempt=3)
        with pytest.raises(InvalidEdit):
            await database.write(edit, 5, None, Changes(priority=99), ANA, requeue=True)
        assert (await history_row(database, 5)).state == State.DEAD
        later = datetime.now(UTC) + timedelta(minutes=10)
        await database.write(edit, 5, None, Changes(payload="{}", run_at=later), ANA, requeue=True)
        (entry,) = await entries(database, 5)
        await database.write(edit, 5, None, Changes(payload='{"theirs": 1}'), BEN)
        assert (await database.write(undo, [entry.id], ANA)).skipped
        await database.write(edit, 5, None, Changes(payload="{}"), BEN)
        assert (await database.write(undo, [entry.id], ANA)).changed == [5]
        task = await history_row(database, 5)
        assert (task.state, task.attempt, json.loads(task.payload)) == (State.DEAD, 3, {"wieght": 2})

    async def test_only_eligible_tasks_are_retried(self, database: Database) -> None:
        await add_past(database, 5, State.SUCCEEDED)
        id = await add_live(database)
        for other in (5, id):
            assert (await database.write(edit, other, None, Changes(priority=5), ANA, requeue=True)).skipped

    def test_unset_values_are_kept(self) -> None:
        assert Changes(key=None).edited() == {"key": None}
        assert Changes().key is KEEP


class TestDelay:
    async def test_a_delay_counts_from_the_due_time(self, database: Database) -> None:
        late = await add_live(database, run_at=ahead(-5_000))
        soon = await add_live(database, run_at=ahead(1_000))
        assert (await database.write(delay, [Target(soon, 0), Target(late, 0)], 600.0, ANA)).changed == [late, soon]
        now = await database.read(clock)
        waits = {id: ((await stored(database, id)).run_at - now).total_seconds() for id in (late, soon)}
        assert waits == {late: pytest.approx(600, abs=60), soon: pytest.approx(1_600, abs=60)}

    async def test_a_task_is_not_delayed_beyond_what_can_be_stored(self, database: Database) -> None:
        far = await add_live(database, run_at=datetime(9998, 12, 31, tzinfo=UTC))
        near = await add_live(database)
        result = await database.write(delay, [Target(far), Target(near)], 86_400.0 * 30, ANA)
        assert result.changed == [near]
        assert [refused.id for refused in result.skipped] == [far]

    @pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e12])
    async def test_an_invalid_delay_is_rejected(self, database: Database, seconds: float) -> None:
        with pytest.raises(InvalidEdit):
            await database.write(delay, [Target(1)], seconds, ANA)


class TestTerminate:
    async def test_a_waiting_task_is_cancelled_immediately(self, database: Database) -> None:
        waiting = await add_live(database, error="old")
        blocked = await add_live(database, state=State.BLOCKED.value, runner_id=99)
        assert (await database.write(terminate, [Target(waiting, 0), Target(blocked, 0)], ANA)).changed == [
            waiting,
            blocked,
        ]
        for id, state in ((waiting, State.WAITING), (blocked, State.BLOCKED)):
            row = await history_row(database, id)
            assert (row.state, row.version) == (State.CANCELLED.value, 2)
            assert row.error == "terminated by ana: relay is back"
            assert await stored(database, id) is None
            verb, before, after = await last_entry(database, id)
            assert (verb, before["state"], after["state"]) == ("terminate", state, State.CANCELLED)

    @pytest.mark.both_databases
    @pytest.mark.parametrize("end", ["settled", "failed", "rescued"])
    async def test_a_running_task_ends_with_the_reason(self, database: Database, other: Runner, end: str) -> None:
        id = await add_live(database, "work")
        claimed = await take(database, "work")
        await database.write(terminate, [Target(id)], BEN)
        (entry,) = await database.read(audit, task_id=id)
        await database.write(undo, [entry.id], BEN)
        await database.write(terminate, [Target(id)], ANA)
        holder = await holder_of(database, id)
        if end == "rescued":
            await change(database, database.tables.runner.delete().where(database.tables.runner.c.id == holder))
            assert await other.rescue() == {id: "cancel"}
        else:
            outcome = Cancelled() if end == "settled" else Retry(failure=Failure("OSError", "no route"))
            await database.write(settle, holder, [Settlement(id, claimed.fence, outcome)])
        assert (await history_row(database, id)).error == "terminated by ana: relay is back"

    @pytest.mark.both_databases
    async def test_the_reason_for_an_earlier_attempt_is_not_that_for_a_later_one(self, database: Database) -> None:
        id = await add_live(database, "work")
        first = await take(database, "work")
        await database.write(terminate, [Target(id)], ANA)
        (entry,) = await database.read(audit, task_id=id)
        await database.write(undo, [entry.id], BEN)
        failed = Settlement(id, first.fence, Retry("0s", failure=Failure("OSError", "no route")))
        await database.write(settle, await holder_of(database, id), [failed])
        second = await take(database, "work")
        task = database.tables.task
        await change(database, task.update().where(task.c.id == id).values(cancel_requested=True))
        await database.write(settle, await holder_of(database, id), [Settlement(id, second.fence, Cancelled())])
        row = await history_row(database, id)
        assert row.state == State.CANCELLED
        assert "ana" not in (row.error or "")

    @pytest.mark.both_databases
    async def test_a_terminated_task_waits_for_no_parent(self, database: Database) -> None:
        id = await put_after(database, await put(database))
        await database.write(terminate, [Target(id)], ANA)
        assert [dependency["satisfied_at"] is None for dependency in await dependencies_of(database, id)] == [False]

    async def test_after_it_is_acknowledged_no_claim_takes_the_task(self, database: Database) -> None:
        id = await database.write(submit, NewTask("h"))
        await database.write(terminate, [Target(id, 0)], ANA)
        assert await database.read(survey) == []

    async def test_a_running_task_is_requested_and_not_reported_as_changed(self, database: Database) -> None:
        waiting = await add_live(database)
        running = [await add_live(database, state=State.RUNNING.value, runner_id=5) for _ in range(2)]
        result = await database.write(terminate, [Target(running[0])], ANA)
        assert str(result) == "1 requested of its runner"
        result.add(await database.write(terminate, [Target(waiting), Target(running[1])], ANA))
        assert str(result) == "1 changed, 2 requested of their runners"
        assert str(Result()) == "0 changed"

    async def test_terminating_a_running_task_notifies_its_runner(self, database: Database) -> None:
        id = await database.write(submit, NewTask("h"))
        await take(database)
        assert (await database.write(terminate, [Target(id, 1)], ANA)).changed == [id]
        reply = await database.write(heartbeat, await holder_of(database, id), 60.0, 1, 60.0, tasks=[id])
        assert reply.cancelled == {id}
        ((_, why, _),) = (await database.write(terminate, [Target(id)], ANA)).skipped
        assert "already" in why

    async def test_a_failure_after_the_request_cancels_the_task_instead_of_retrying_it(
        self, database: Database
    ) -> None:
        id = await database.write(submit, NewTask("h"))
        task = await take(database)
        await database.write(terminate, [Target(id)], ANA)
        outcome = Retry(failure=Failure("ValueError", "no"))
        settled = await database.write(settle, await holder_of(database, id), [Settlement(id, task.fence, outcome)])
        assert settled.verbs == {id: "cancel"}
        assert (await history_row(database, id)).state == State.CANCELLED.value

    async def test_a_task_that_succeeds_before_its_end_stays_a_success(self, database: Database) -> None:
        id = await database.write(submit, NewTask("h"))
        task = await take(database)
        holder = await holder_of(database, id)
        await database.write(terminate, [Target(id)], ANA)
        await database.write(settle, holder, [Settlement(id, task.fence, Done())])
        assert (await history_row(database, id)).state == State.SUCCEEDED.value

    async def test_a_termination_and_a_concurrent_settle_have_one_winner(
        self, database: Database, migrated_url: str
    ) -> None:
        async with database_at(migrated_url) as other:
            for _ in range(5):
                id = await database.write(submit, NewTask("h"))
                task = await take(database)
                holder = await holder_of(database, id)
                batch = [Settlement(id, task.fence, Retry("1h", failure=Failure("ValueError", "no")))]
                settled, result = await asyncio.gather(
                    database.write(settle, holder, batch), other.write(terminate, [Target(id, 1)], ANA)
                )
                if result.changed:
                    if not settled.verbs:  # The row stayed locked for the time that a settle waits: runners try again.
                        settled = await database.write(settle, holder, batch)
                    assert settled.verbs == {id: "cancel"}
                    assert (await history_row(database, id)).state == State.CANCELLED.value
                else:
                    assert result.conflicts == [Conflict(id, State.WAITING, 2)]
                    assert settled.verbs == {id: "retry"}
                    assert len(await entries(database, id)) == 0

    async def test_a_reason_that_no_database_can_hold_is_made_storable(self, database: Database) -> None:
        id = await add_live(database)
        hostile = Actor("a\0na", "\ud800", "why\0" + "x" * 50_000)
        assert (await database.write(terminate, [Target(id)], hostile)).changed == [id]
        (entry,) = await entries(database, id)
        assert entry.operator == "a\\x00na"
        assert len(entry.reason or "") < 5_000
        assert (await history_row(database, id)).error.startswith("terminated by a\\x00na: why")


class TestPause:
    QUEUE = PauseTarget(PauseKind.QUEUE, "mail")

    async def test_a_name_that_was_never_used_causes_a_warning(self, database: Database) -> None:
        await database.write(submit, NewTask("h", queue="mail"))
        assert await database.read(name_warning, self.QUEUE) == ""
        await database.write(pause, PauseTarget(PauseKind.QUEUE, "reports"), ANA)
        assert await database.read(name_warning, PauseTarget(PauseKind.QUEUE, "reports")) == ""
        assert "did you mean 'reports'" in await database.read(name_warning, PauseTarget(PauseKind.QUEUE, "report"))
        assert "no runner ever had handler mail" in await database.read(
            name_warning, PauseTarget(PauseKind.HANDLER, "mail")
        )

    async def test_tasks_of_a_paused_queue_are_not_claimed_until_it_is_resumed(self, database: Database) -> None:
        await database.write(submit, NewTask("h", queue="mail"))
        assert await database.write(pause, self.QUEUE, ANA) == Paused(None, "relay is back", again=False)
        assert [head.paused for head in await database.read(survey)] == [True]
        (mail,) = await database.read(counts)
        assert mail.paused is not None
        assert (mail.paused.by, mail.paused.why, mail.paused.until) == ("ana", "relay is back", None)
        assert await database.write(resume, self.QUEUE, BEN) is True
        assert [head.paused for head in await database.read(survey)] == [False]
        assert await database.write(resume, self.QUEUE, BEN) is False
        first, second = reversed(await database.read(audit))
        assert (first.verb, first.target, second.verb, second.operator) == ("pause", "queue mail", "resume", "ben")
        assert json.loads(second.before or "")["paused_by"] == "ana"

    async def test_an_unknown_handler_can_be_paused(self, database: Database) -> None:
        await database.write(submit, NewTask("h"))
        await database.write(pause, PauseTarget(PauseKind.HANDLER, "h"), ANA)
        assert [head.paused for head in await database.read(survey)] == [True]
        async with database.reading() as tx:
            entry = (await registry_entries(tx, tx.tables.handler))["h"]
        assert entry.pause is not None
        assert entry.last_seen is None

    async def test_another_pause_keeps_the_reason_that_it_does_not_give(self, database: Database) -> None:
        until = await database.read(clock) + timedelta(hours=1)
        await database.write(pause, self.QUEUE, ANA)
        assert await database.write(pause, self.QUEUE, BEN, until) == Paused(until, "relay is back", again=True)
        (mail,) = await database.read(counts)
        assert mail.paused is not None
        assert (mail.paused.by, mail.paused.why, mail.paused.until) == ("ben", "relay is back", until)

    async def test_another_pause_keeps_the_end_that_it_does_not_name(self, database: Database) -> None:
        until = await database.read(clock) + timedelta(hours=1)
        await database.write(pause, self.QUEUE, BEN, until)
        assert await database.write(pause, self.QUEUE, ANA) == Paused(until, "relay is back", again=True)
        (mail,) = await database.read(counts)
        assert mail.paused is not None
        assert (mail.paused.by, mail.paused.why, mail.paused.until) == ("ana", "relay is back", until)

    async def test_an_expired_pause_is_not_kept_by_the_next(self, database: Database) -> None:
        await database.write(pause, self.QUEUE, ANA, await database.read(clock) + timedelta(hours=1))
        await change(database, sa.update(database.tables.queue).values(paused_until=db_later(db_now(), -1.0)))
        assert await database.write(pause, self.QUEUE, BEN) == Paused(None, None, again=False)

    async def test_an_invalid_pause_is_rejected(self, database: Database) -> None:
        past, naive = datetime(2020, 1, 1, tzinfo=UTC), datetime(2999, 1, 1)  # noqa: DTZ001 - the missing zone is refused
        for target, until in (
            (PauseTarget(PauseKind.QUEUE, ""), None),
            (PauseTarget(PauseKind.QUEUE, "x" * 201), None),
            (PauseTarget(PauseKind.HANDLER, "a\0"), None),
            (self.QUEUE, past),
            (self.QUEUE, naive),
            (self.QUEUE, datetime(9999, 6, 1, tzinfo=UTC)),
        ):
            with pytest.raises(InvalidEdit):
                await database.write(pause, target, ANA, until)
        assert await database.read(audit) == []


class TestWish:
    async def test_a_runner_receives_a_command_with_its_next_heartbeat(self, database: Database) -> None:
        runner_id = await add_runner(database)
        assert await database.write(send_command, runner_id, "drain", ANA) is True
        assert (await database.write(heartbeat, runner_id, 60.0, 0, 60.0)).command == "drain"
        assert (await database.read(runners))[0].command == "drain"
        assert (await last_entry(database)) == ("command", {"command": None}, {"command": "drain"})

    async def test_an_unknown_runner_or_command_changes_nothing(self, database: Database) -> None:
        assert await database.write(send_command, 77, "drain", ANA) is False
        with pytest.raises(InvalidEdit, match="drain"):
            await database.write(send_command, 77, "dance", ANA)
        assert await database.read(audit) == []


class TestBulk:
    async def test_all_matching_tasks_are_changed_in_chunks(self, database: Database) -> None:
        await database.write(submit_many, [NewTask("h", queue="mail", delay=60) for _ in range(23)])
        await database.write(submit_many, [NewTask("h", delay=60) for _ in range(5)])
        totals: list[int] = []
        terminating = partial(terminate, by=ANA)
        options = BulkOptions(5, on_progress=lambda so_far: totals.append(len(so_far.changed)))
        result = await to_all(database, terminating, filtered("queue:mail"), options)
        assert (len(result.changed), result.conflicts, result.skipped) == (23, [], [])
        assert totals == [5, 10, 15, 20, 23]
        assert (await database.read(page, filtered("queue:mail state:cancelled"), limit=100)).next is None
        assert len((await database.read(page, filtered("state:waiting"))).tasks) == 5

    async def test_requeued_tasks_are_not_met_again(self, database: Database) -> None:
        for id in range(1_000, 1_012):
            await add_past(database, id, State.DEAD)
        result = await to_all(database, partial(retry_now, by=ANA), filtered("state:dead,ready"), BulkOptions(5))
        assert sorted(result.changed) == list(range(1_000, 1_012))

    async def test_tasks_found_by_key_are_sorted_once_for_many_chunks(self, database: Database) -> None:
        await database.write(submit_many, [NewTask("h", key="k", delay=60) for _ in range(23)])
        searches: list[Any] = []

        class WatchedDatabase:
            async def read(self, verb: Any, *args: Any) -> Any:
                searches.append(verb)
                return await database.read(verb, *args)

            async def write(self, verb: Any, *args: Any) -> Any:
                return await database.write(verb, *args)

        changed: list[int] = []
        options = BulkOptions(5, limit=18, on_progress=lambda so_far: changed.append(len(so_far.changed)))
        result = await to_all(cast("Any", WatchedDatabase()), partial(terminate, by=ANA), filtered("key:k"), options)
        assert (searches, changed, len(result.changed)) == ([matching], [5, 10, 15, 18], 18)

    async def test_a_bulk_stops_between_chunks_on_request(self, database: Database) -> None:
        await database.write(submit_many, [NewTask("h", delay=60) for _ in range(20)])
        done: list[int] = []
        options = BulkOptions(5, on_progress=lambda so_far: done.append(len(so_far.changed)), stop=lambda: 10 in done)
        assert len((await to_all(database, partial(terminate, by=ANA), Filter(), options)).changed) == 10
        targets = (await database.read(matching, filtered("state:waiting"), 100)).targets
        done.clear()
        assert len((await to_each(database, partial(delay, seconds=60.0, by=ANA), targets, options)).changed) == 10

    async def test_no_more_tasks_are_changed_than_were_confirmed(self, database: Database) -> None:
        ids = await database.write(submit_many, [NewTask("h", delay=60) for _ in range(20)])
        await database.write(terminate, [Target(id) for id in ids[-4:]], ANA)
        result = await to_all(database, partial(delay, seconds=60.0, by=ANA), Filter(), BulkOptions(3, limit=7))
        assert sorted(result.changed) == ids[9:16]
        assert len(result.skipped) == 4

    async def test_tasks_submitted_after_a_preview_are_not_changed(self, database: Database) -> None:
        seen_ids = await database.write(submit_many, [NewTask("h", delay=60) for _ in range(3)])
        before = await database.read(preview, Filter(), "terminate")
        await add_live(database)
        result = await to_all(database, partial(terminate, by=ANA), bounded(Filter(), before.newest))
        assert sorted(result.changed) == seen_ids

    async def test_a_task_that_changes_between_being_found_and_being_changed_is_reported(
        self, database: Database
    ) -> None:
        first, second = await database.write(submit_many, [NewTask("h", delay=60), NewTask("h", delay=60)])

        async def rival(tx: Any, targets: Any) -> Result:
            await edit(tx, second, None, Changes(priority=5), BEN)
            return await terminate(tx, targets, ANA)

        result = await to_all(database, rival, Filter())
        assert result == Result([first], [Conflict(second, State.WAITING, 1)])

    async def test_targets_carry_the_versions_of_the_moment(self, database: Database) -> None:
        id = await add_live(database, version=3)
        await add_past(database, 100, State.DEAD, version=8)
        matches = await database.read(matching, Filter(), 1)
        assert (matches.targets, matches.next) == ([Target(100, 8)], Cursor(100))
        assert (await database.read(matching, Filter(), 1, matches.next)).targets == [Target(id, 3)]


class TestPreview:
    async def test_a_preview_lists_eligible_and_skipped_tasks_with_reasons(self, database: Database) -> None:
        for number in range(7):
            await add_live(database, queue="mail", run_at=ahead(60), attempt=number % 2, max_attempts=2 + number // 2)
        await add_live(database, state=State.RUNNING.value)
        await add_live(database, attempt=3, max_attempts=3)
        await add_past(database, 100, State.DEAD)
        await add_past(database, 101, State.SUCCEEDED)
        preview_result = await database.read(preview, Filter(), "retry_now")
        assert (preview_result.total, preview_result.eligible, preview_result.last) == (Count(11), 8, 1)
        assert preview_result.groups[Shown.SCHEDULED, "mail"] == 4
        assert preview_result.groups[Shown.RETRYING, "mail"] == 3
        assert sum(preview_result.groups.values()) == 11
        assert sum(preview_result.skipped.values()) == 3
        assert any("3 of 3" in why for why in preview_result.skipped)
        assert [task.id for task in preview_result.samples] == [100, 7, 6, 5, 4]

    async def test_it_does_not_count_beyond_its_cap(self, database: Database) -> None:
        await database.write(submit_many, [NewTask("h") for _ in range(10)])
        preview_result = await database.read(preview, Filter(), "terminate", 4)
        assert (preview_result.total, preview_result.eligible) == (Count(4, True), 4)

    @pytest.mark.parametrize("verb", ACCEPTED_STATES)
    async def test_the_operation_matches_its_preview(self, database: Database, verb: str) -> None:
        await add_live(database, run_at=ahead(60))
        await add_live(database, attempt=3, max_attempts=3)
        await add_live(database, state=State.BLOCKED.value)
        await add_live(database, state=State.RUNNING.value, runner_id=1)
        await add_live(database, state=State.RUNNING.value, runner_id=1, cancel_requested=True)
        for id, state in ((100, State.DEAD), (101, State.CANCELLED), (102, State.SUCCEEDED)):
            await add_past(database, id, state)
        preview_result = await database.read(preview, Filter(), verb)
        acts: dict[str, Any] = {
            "retry_now": partial(retry_now, by=ANA),
            "requeue": partial(requeue, by=ANA),
            "delay": partial(delay, seconds=60.0, by=ANA),
            "terminate": partial(terminate, by=ANA),
            "edit": _edit_each,
            "unblock": partial(unblock, by=ANA),
            "signal": partial(signal, name="approved", payload=None, by=ANA),
            "rewind": partial(rewind, number=1, by=ANA),
            "erase": partial(erase, by=ANA),
            "rekey": partial(rekey, by=ANA, keyring=KEYRING),
        }
        await add_checkpoints(database, 2)
        result = await to_all(database, acts[verb], Filter())
        assert (len(result.changed), len(result.skipped)) == (
            preview_result.eligible,
            sum(preview_result.skipped.values()),
        )
        assert {refused.why for refused in result.skipped} == set(preview_result.skipped)


async def add_checkpoints(database: Database, number: int) -> None:
    """Give every task checkpoints."""
    async with database.writing() as tx:
        for table in (tx.tables.task, tx.tables.history):
            for task_id, fence in await tx.rows(sa.select(table.c.id, table.c.fence)):
                rows = [
                    {"task_id": task_id, "number": n, "fence": fence, "attempt": 1, "state": "{}"}
                    for n in range(1, number + 1)
                ]
                await tx.execute(sa.insert(tx.tables.checkpoint), rows)


async def _edit_each(tx: Any, targets: Any) -> Result:
    result = Result()
    for target in targets:
        result.add(await edit(tx, target.id, target.version, Changes(priority=9), ANA))
    return result
