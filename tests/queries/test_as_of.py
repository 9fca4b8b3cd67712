"""Tasks, queues and causes as of a past moment, compared with those of the moment."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidFilter, InvalidInput
from runner.model.outcome import Dead, Done, Failure, Retry, Snooze, Suspended
from runner.model.step import StepWrite
from runner.model.task import NewTask, Shown, State
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor, Target
from runner.operations.resume import resume
from runner.operations.retry import retry_now
from runner.operations.signal import signal
from runner.operations.terminate import terminate
from runner.operations.unblock import unblock
from runner.operations.undo.undo import undo
from runner.queries.audit import audit
from runner.queries.counts import counts
from runner.queries.past.as_of import queues_as_of, read_moment, reconstructed, task_as_of, tasks_as_of
from runner.queries.task_list.row import task_rows
from runner.queries.why.why import why_as_of
from runner.store.calls import submit_child
from runner.store.signals import receive
from runner.store.steps import StepOwner, save_step
from tests.store.dependencies import dependencies_of, put_after, sweep
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import ahead, filtered
from tests.store.runners import Runner
from tests.store.table import change, expire, put
from tests.store.test_model import Histories

pytestmark = pytest.mark.both_databases

ANA = Actor("ana", "desk", "deploy")
MAIL = PauseTarget(PauseKind.QUEUE, "mail")
FAILURE = Failure("OSError", "no route", "")


async def moment(database: Database) -> datetime:
    """A moment after all changes so far, and before all later ones."""
    at = await database.read(clock)
    while await database.read(clock) <= at:
        pass
    return at


class PastHistories(Histories):
    """Random histories, whose tasks are reconstructed at each of their steps."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[tuple[datetime, dict[int, tuple[State, int]]]] = []

    @invariant()
    def a_snapshot_is_kept(self) -> None:
        tasks = {id: (task.state, task.attempt) for id, task in self.model.tasks.items()}
        self.snapshots.append((self.do(moment(self.database)), tasks))

    def teardown(self) -> None:
        try:
            for at, expected in self.snapshots:
                past = self.do(self.database.read(reconstructed, sorted(self.model.tasks), at, audited=True))
                assert [task.task.id for task in past] == sorted(expected), at
                for word in ("running", "waiting"):
                    page = self.do(self.database.read(tasks_as_of, at, filtered(f"state:{word}"), limit=1_000))
                    shown = [task.task.id for task in reversed(past) if word in (task.word, task.task.state)]
                    assert [task.task.id for task in page.tasks] == shown, (at, word)
                for task in past:
                    state, attempt = expected[task.task.id]
                    if task.word == "waiting or running":
                        assert state in (State.WAITING, State.RUNNING)
                    else:
                        assert (task.task.id, task.task.state, task.task.attempt) == (task.task.id, state, attempt), at
        finally:
            super().teardown()


def run(url: str, examples: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    bounds = settings(max_examples=examples, stateful_step_count=30, database=None, suppress_health_check=checks)
    machine = type("Reconstructed", (PastHistories,), {"url": url})
    run_state_machine_as_test(machine, settings=settings(bounds, phases=[Phase.generate]))


@pytest.mark.slow
def test_each_task_is_reconstructed_as_it_was_at_each_step(migrated_url: str) -> None:
    run(migrated_url, examples=2)


@pytest.mark.slow
def test_long_histories_are_reconstructed(migrated_url: str) -> None:
    run(migrated_url, examples=200)


def fields(task: Any) -> tuple[object, ...]:
    return (task.shown, task.attempt, task.priority, task.run_at and task.run_at.replace(microsecond=0))


@pytest.mark.slow
async def test_due_times_and_edited_values_are_those_of_the_moment(database: Database, runner: Runner) -> None:
    id = await put(database, delay=3600.0)
    later = datetime(2099, 1, 1, tzinfo=UTC)
    snapshots: list[tuple[datetime, tuple[object, ...]]] = []

    async def keep() -> None:
        (row,) = await database.read(task_rows, [id])
        snapshots.append((await moment(database), fields(row)))

    await keep()
    await database.write(edit, id, None, Changes(run_at=later, priority=7), ANA)
    await keep()
    await database.write(undo, [(await database.read(audit, task_id=id))[0].id], ANA)
    await keep()
    await database.write(retry_now, [Target(id)], ANA)
    (first,) = await runner.claim()
    await keep()
    await runner.end(first, Retry("1h", failure=FAILURE))
    await keep()
    await database.write(retry_now, [Target(id)], ANA)
    (second,) = await runner.claim()
    await runner.end(second, Dead(failure=FAILURE))
    await keep()
    await database.write(retry_now, [Target(id)], ANA)
    await keep()
    (third,) = await runner.claim()
    await runner.end(third)
    await keep()
    states = [Shown.SCHEDULED] * 3 + [Shown.RUNNING, Shown.RETRYING, Shown.DEAD, Shown.READY, Shown.SUCCEEDED]
    assert [values[0] for _, values in snapshots] == states
    for number, (at, values) in enumerate(snapshots):
        past = await database.read(task_as_of, id, at)
        mine, theirs = fields(past.task), values
        if number in (3, 5):  # while it runs, and after its death, nothing depends on the due time
            mine, theirs = mine[:3], theirs[:3]
        assert (number, past.certain, mine) == (number, True, theirs)


async def test_a_run_without_a_record_is_named_and_not_guessed(database: Database, runner: Runner) -> None:
    id = await put(database)
    (claimed,) = await runner.claim()
    during = await moment(database)
    await runner.end(claimed, Snooze("1h"))
    after = await moment(database)
    words = [(await database.read(task_as_of, id, at)).word for at in (during, after)]
    assert words == ["waiting or running"] * 2
    assert "a run that its runner postponed" in (await database.read(why_as_of, id, during, UTC)).causes[-1].text


async def test_an_unrecorded_run_before_a_recorded_one_is_named(database: Database, runner: Runner) -> None:
    id = await put(database)
    (first,) = await runner.claim()
    during = await moment(database)
    await runner.end(first, Snooze("1h"))
    await database.write(retry_now, [Target(id)], ANA)
    (second,) = await runner.claim()
    later = await moment(database)
    await runner.end(second)
    words = [(await database.read(task_as_of, id, at)).word for at in (during, later)]
    assert words == ["waiting or running", "running"]


async def test_a_task_is_blocked_from_its_call_to_the_end_of_its_child(database: Database, runner: Runner) -> None:
    id = await put(database)
    before = await moment(database)
    (task,) = await runner.claim()
    owner, call = StepOwner(id, task.fence, task.attempt, runner.id), StepWrite("charge", "call", 1)
    called = await database.write(submit_child, owner, call, NewTask("work"))
    assert called is not None
    running = await moment(database)
    assert (await database.read(task_as_of, id, running)).word == "running"
    await runner.end(task, Suspended(3_600.0, "waits for task 2", children=tuple(called.ids)))
    during = await moment(database)
    (child,) = await runner.claim()
    await runner.end(child)
    await sweep(database)
    after = await moment(database)
    past = [await database.read(task_as_of, id, at) for at in (before, during, after)]
    assert [each.word for each in past] == ["waiting or running", "blocked", "waiting or running"]
    assert [each.parents for each in past] == [(), (child.id,), ()]


async def test_a_task_with_a_call_is_blocked_until_an_operator_unblocks_it(database: Database, runner: Runner) -> None:
    id = await put(database)
    (task,) = await runner.claim()
    owner, call = StepOwner(id, task.fence, task.attempt, runner.id), StepWrite("charge", "call", 1)
    called = await database.write(submit_child, owner, call, NewTask("work"))
    assert called is not None
    await runner.end(task, Suspended(3_600.0, "waits for task 2", children=tuple(called.ids)))
    during = await moment(database)
    assert (await database.write(unblock, [Target(id)], ANA)).changed == [id]
    assert (await database.read(task_as_of, id, during)).word == "blocked"


async def test_a_task_with_a_call_is_blocked_until_its_termination(database: Database, runner: Runner) -> None:
    id = await put(database)
    (task,) = await runner.claim()
    owner, call = StepOwner(id, task.fence, task.attempt, runner.id), StepWrite("charge", "call", 1)
    called = await database.write(submit_child, owner, call, NewTask("work"))
    assert called is not None
    await runner.end(task, Suspended(3_600.0, "waits for task 2", children=tuple(called.ids)))
    during = await moment(database)
    assert (await database.write(terminate, [Target(id)], ANA)).changed == [id]
    past = await database.read(task_as_of, id, during)
    assert (past.word, past.parents) == ("blocked", tuple(called.ids))


async def test_a_call_whose_result_is_stored_has_blocked_its_task(database: Database, runner: Runner) -> None:
    id = await put(database)
    (task,) = await runner.claim()
    owner, call = StepOwner(id, task.fence, task.attempt, runner.id), StepWrite("charge", "call", 1)
    called = await database.write(submit_child, owner, call, NewTask("work"))
    assert called is not None
    await runner.end(task, Suspended(0.0, "waits for task 2", children=tuple(called.ids)))
    during = await moment(database)
    (child,) = await runner.claim()
    await runner.end(child)
    await sweep(database)
    (task,) = await runner.claim()
    owner = StepOwner(id, task.fence, task.attempt, runner.id)
    assert await database.write(save_step, owner, call._replace(done=True, result="7"))
    past = await database.read(task_as_of, id, during)
    assert (past.word, past.parents) == ("blocked", (child.id,))


async def test_a_failed_step_uses_up_no_attempt(database: Database, runner: Runner) -> None:
    id = await put(database)
    (first,) = await runner.claim()
    await runner.end(first, Suspended(0.0, "step charge failed", FAILURE))
    between = await moment(database)
    assert (await database.read(task_as_of, id, between)).task.attempt == 0
    (second,) = await runner.claim()
    await runner.end(second, Retry("0s", failure=FAILURE))
    after = await moment(database)
    await runner.end((await runner.claim())[0])
    past = [await database.read(task_as_of, id, at) for at in (between, after)]
    assert [(each.word, each.task.attempt) for each in past] == [("ready", 0), ("ready", 1)]


async def test_a_requeue_that_was_undone_is_waiting_between(database: Database, runner: Runner) -> None:
    id = await put(database)
    (claimed,) = await runner.claim()
    await runner.end(claimed, Dead(failure=FAILURE))
    dead = await moment(database)
    await database.write(retry_now, [Target(id)], ANA)
    waiting = await moment(database)
    entry = (await database.read(audit, task_id=id))[0]
    await database.write(undo, [entry.id], ANA)
    again = await moment(database)
    await database.write(retry_now, [Target(id)], ANA)
    past = [(await database.read(task_as_of, id, at)).task for at in (dead, waiting, again)]
    assert [task.state for task in past] == [State.DEAD, State.WAITING, State.DEAD]
    first, _, last = past
    assert (last.attempt, last.finished_at, last.error) == (first.attempt, first.finished_at, first.error)


async def test_the_due_time_of_an_undone_retry_is_known(database: Database) -> None:
    id = await put(database)
    await database.write(terminate, [Target(id)], ANA)
    await moment(database)
    await database.write(retry_now, [Target(id)], ANA)
    (row,) = await database.read(task_rows, [id])
    at = await moment(database)
    (retry, _) = await database.read(audit, task_id=id)
    assert (await database.write(undo, [retry.id], ANA)).changed == [id]
    assert (await database.read(task_as_of, id, at)).task.run_at == row.run_at


async def test_the_values_between_a_retry_and_its_undo_are_known(database: Database) -> None:
    id = await put(database, priority=3)
    await change(database, sa.update(database.tables.task).values(expires_at=ahead(-60)))
    await database.write(terminate, [Target(id)], ANA)
    await database.write(edit, id, None, Changes(priority=7), ANA, requeue=True)
    at = await moment(database)
    (retry, _) = await database.read(audit, task_id=id)
    assert (await database.write(undo, [retry.id], ANA)).changed == [id]
    between = (await database.read(task_as_of, id, at)).task
    after = (await database.read(task_as_of, id, await moment(database))).task
    assert [task.priority for task in (between, after)] == [7, 3]
    assert [task.expires_at is None for task in (between, after)] == [True, False]


async def test_the_due_time_before_an_unblock_is_known(database: Database) -> None:
    id = await put_after(database, await put(database), run_at=datetime(2020, 1, 1, tzinfo=UTC))
    (before,) = await database.read(task_rows, [id])
    at = await moment(database)
    await database.write(unblock, [Target(id)], ANA)
    assert (await database.read(task_as_of, id, at)).task.run_at == before.run_at


async def test_the_due_time_before_a_signal_is_known(database: Database, runner: Runner) -> None:
    id = await put(database)
    (task,) = await runner.claim()
    wait = StepWrite("approval", "wait", 1, signal="approved", due_in=3_600.0)
    await database.write(receive, StepOwner(id, task.fence, task.attempt, runner.id), wait, timed_out=False)
    await runner.end(task, Suspended(3_600.0, "waits for signal approved", waits=True))
    (before,) = await database.read(task_rows, [id])
    at = await moment(database)
    await database.write(signal, [Target(id)], "approved", None, ANA)
    assert (await database.read(task_as_of, id, at)).task.run_at == before.run_at


async def test_a_dependency_is_closed_between_an_unblock_and_its_undo(database: Database) -> None:
    first, second = await put(database), await put(database)
    id = await put_after(database, first, second)
    before = await moment(database)
    await database.write(unblock, [Target(id)], ANA, (await dependencies_of(database, id))[0]["id"])
    between = await moment(database)
    (entry,) = await database.read(audit, task_id=id)
    assert (await database.write(undo, [entry.id], ANA)).changed == [id]
    after = await moment(database)
    parents = [(await database.read(task_as_of, id, at)).parents for at in (before, between, after)]
    assert parents == [(first, second), (second,), (first, second)]


async def test_between_a_rescue_and_the_next_run_a_task_is_waiting(database: Database, runner: Runner) -> None:
    id = await put(database)
    await runner.claim()
    other = await Runner.enter(database, host="there")
    await expire(database, runner.id)
    await other.rescue()
    rescued = await moment(database)
    await database.write(retry_now, [Target(id)], ANA)
    (second,) = await other.claim()
    running = await moment(database)
    await other.end(second)
    past = [await database.read(task_as_of, id, at) for at in (rescued, running)]
    assert [(task.certain, task.task.state, task.task.attempt) for task in past] == [
        (True, State.WAITING, 1),
        (True, State.RUNNING, 2),
    ]


async def test_a_due_time_that_a_retry_replaced_is_unknown(database: Database, runner: Runner) -> None:
    id = await put(database)
    before = await moment(database)
    (claimed,) = await runner.claim()
    await runner.end(claimed, Retry("1h", failure=FAILURE))
    past = await database.read(task_as_of, id, before)
    assert (past.word, past.task.run_at) == ("waiting", None)
    listed = [await database.read(tasks_as_of, before, filtered(text)) for text in ("state:ready", "state:waiting")]
    assert [[task.task.id for task in page.tasks] for page in listed] == [[], [id]]


@pytest.mark.slow
async def test_lists_and_queues_are_those_of_the_moment(database: Database, runner: Runner) -> None:
    ids = [await put(database, queue="mail") for _ in range(4)]
    late = await put(database, queue="later", delay=60.0)
    first, second = await runner.claim(2)
    await runner.end(first, Dead(failure=FAILURE))
    await database.write(pause, MAIL, ANA)
    await database.write(set_limits, MAIL, LimitEdit({"concurrency": "1"}), ANA)
    queues = {queue.queue: queue for queue in await database.read(counts)}
    at = await moment(database)
    await database.write(resume, MAIL, ANA)
    await database.write(set_limits, MAIL, LimitEdit({"concurrency": "9"}), ANA)
    await runner.end(second)
    for claimed in await runner.claim():
        await runner.end(claimed, Done())
    await database.write(retry_now, [Target(first.id)], ANA)
    await put(database, queue="mail")
    past = await database.read(queues_as_of, at)
    assert [queue.queue for queue in past.queues] == ["later", "mail"]
    for queue in past.queues:
        then = queues[queue.queue]
        numbers = (then.ready.number, then.scheduled.number, then.running.number, then.dead)
        assert (*(queue.states.get(word, 0) for word in ("ready", "scheduled", "running")), queue.dead) == numbers
        assert (queue.limits, queue.pause) == (then.limits, then.paused)
    assert past.busy == {(runner.id, "here"): 1}

    async def listed(text: str, **page: Any) -> list[int]:
        return [task.task.id for task in (await database.read(tasks_as_of, at, filtered(text), **page)).tasks]

    assert await listed("") == [late, *reversed(ids)]
    assert await listed("", after=late, limit=2) == [ids[3], ids[2]]
    assert await listed("state:running") == [second.id]
    assert await listed("state:dead error~route") == [first.id]
    assert await listed("queue:mail -state:dead,running age<1h") == [ids[3], ids[2]]
    assert await listed("due>30s") == [late]
    with pytest.raises(InvalidFilter, match="tag is unknown at a past time"):
        await listed("tag:slow")


@pytest.mark.slow
async def test_the_hour_of_a_moment_counts_no_later_failure_of_its_minute(database: Database) -> None:
    at = (await moment(database)).replace(second=7, microsecond=0)
    for minutes, died in ((0, 50), (1, 3), (60, 2), (61, 9)):
        minute = Minute(at - timedelta(minutes=minutes), "mail", "mail.send")
        minute.counts |= {"died": died}
        await database.write(write_statistics, 1, [minute], {})
    (queue,) = (await database.read(queues_as_of, at)).queues
    assert (queue.minute.failed, queue.hour.failed) == (3, 5)


async def test_the_causes_are_those_of_the_moment(database: Database, runner: Runner) -> None:
    parent, waiting = [await put(database, queue="mail") for _ in range(2)]
    child = await put_after(database, parent)
    (claimed,) = await runner.claim(1)
    await database.write(set_limits, MAIL, LimitEdit({"concurrency": "1"}), ANA)
    full = await moment(database)
    await database.write(pause, MAIL, ANA)
    paused = await moment(database)
    await database.write(resume, MAIL, ANA)
    await runner.end(claimed)

    async def texts(id: int, at: datetime) -> str:
        answer = await database.read(why_as_of, id, at, UTC)
        return " ".join([answer.verdict, *(cause.text for cause in answer.causes)])

    assert "Queue mail runs at most 1 task at the same time" in await texts(waiting, full)
    assert "paused" not in await texts(waiting, full)
    assert "Queue mail was paused by ana" in await texts(waiting, paused)
    assert f"It depended on task {parent} work, which was running." in await texts(child, paused)
    assert f"running on runner {runner.id} (here:1)" in await texts(parent, paused)
    assert "Not recorded for that time: the live runners" in await texts(waiting, full)


@pytest.mark.parametrize(
    ("text", "why"),
    [("+5m", "is in the future"), ("soon", "is not a past time"), ("1999-01-01", "is before the first task")],
)
async def test_only_a_known_past_time_is_accepted(database: Database, text: str, why: str) -> None:
    await put(database)
    with pytest.raises(InvalidInput, match=rf"{why}.*Write a time such as 03:12"):
        await database.read(read_moment, text, UTC)


async def test_ago_is_accepted(database: Database) -> None:
    id = await put(database)
    async with database.writing() as tx:
        task = tx.tables.task
        await tx.execute(task.update().values(submitted_at=datetime.now(UTC) - timedelta(hours=1)))
    at = await database.read(read_moment, "20m ago", UTC)
    assert timedelta(minutes=19) < datetime.now(UTC) - at < timedelta(minutes=21)
    assert [task.task.id for task in (await database.read(tasks_as_of, at)).tasks] == [id]
