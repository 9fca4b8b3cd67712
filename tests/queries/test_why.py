"""Why a task is not running: every cause, by the rules that claims follow."""

import json
import re
from dataclasses import replace
from datetime import UTC, timedelta

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import TaskNotFound
from runner.model.alert import DELIVER, DELIVERIES, QUEUE
from runner.model.outcome import Dead, Done, Retry
from runner.model.task import DependsOn, NewWorkflow, Shown, State
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor, Target
from runner.operations.retry import retry_now
from runner.operations.terminate import terminate
from runner.policy.lanes import Lane
from runner.queries.runners import runners
from runner.queries.task.detail import task_detail
from runner.queries.why.ahead import ahead as tasks_ahead
from runner.queries.why.facts import read_facts
from runner.queries.why.remedies import Cause
from runner.queries.why.why import Why, causes, why
from runner.store.registration import Identity, register
from tests.store.dependencies import sweep
from tests.store.minutes import Minute, write_statistics
from tests.store.plans import watch
from tests.store.rows import add_live, add_past, add_runner, ahead
from tests.store.runners import Runner
from tests.store.table import change, expire, put, put_many

BY = Actor("ana", "web-1", "restore of db-2")
WORK = '["work"]'


async def explain(database: Database, id: int) -> Why:
    return await database.read(why, id, UTC)


async def kinds(database: Database, id: int) -> list[str]:
    return [cause.kind for cause in (await explain(database, id)).causes]


async def only(database: Database, id: int) -> Cause:
    (cause,) = (await explain(database, id)).causes
    return cause


async def test_a_missing_task_has_no_causes(database: Database) -> None:
    with pytest.raises(TaskNotFound, match="77"):
        await explain(database, 77)


async def test_a_future_task_is_not_due(database: Database, runner: Runner) -> None:
    cause = await only(database, await put(database, delay=91_800.0))
    assert cause.kind == "due"
    assert cause.text.startswith("It is due in 1d01h (")
    assert cause.advice.startswith("runner retry ")


async def test_a_retrying_task_shows_its_last_error(database: Database, runner: Runner) -> None:
    id = await put(database)
    (task,) = await runner.claim()
    await runner.end(task, Retry("1h", why="relay is down"))
    cause = await only(database, id)
    assert "because attempt 1 failed: " in cause.text
    assert "relay is down" in cause.text


@pytest.mark.parametrize(
    ("polling", "attempt", "scan"),
    [
        ("fixed-rate 1s; report.*=1h; w*=20s", 0, "w*=20s"),
        ("tiers 3s", 2, "tiers"),
        ("tiers:0=3s,9=20s 3s", 8, "tiers:0=3s,9=20s"),
    ],
)
async def test_a_task_that_waits_for_a_scan_names_it(database: Database, polling: str, attempt: int, scan: str) -> None:
    await add_runner(database, handlers=WORK, polling=polling, capacity=5)
    id = await add_live(database, handler="work", run_at=ahead(-5), attempt=attempt)
    cause = await only(database, id)
    period = "30s" if scan == "tiers" else "20s"
    assert cause.kind == "scan"
    assert f"in a scan every {period} ({scan}), with free slots. The next one takes it." in cause.text
    late = await add_live(database, handler="work", run_at=ahead(-90), attempt=attempt)
    assert "Nothing blocks it, yet it has been due" in (await only(database, late)).text


@pytest.mark.parametrize("polling", ["", "fixed-rate 1m", "tiers 3s", "x; work=soon", "tiers:no 3s", "tiersx:os 3s"])
async def test_a_scan_that_a_submit_causes_or_that_is_unknown_blocks_nothing(database: Database, polling: str) -> None:
    await add_runner(database, handlers=WORK, polling=polling, capacity=5)
    cause = await only(database, await add_live(database, handler="work", run_at=ahead(-5)))
    assert "Nothing blocks it, yet it has been due" in cause.text


async def test_a_pause_names_its_author_reason_and_end(database: Database, runner: Runner) -> None:
    id = await put(database, queue="mail")
    until = await database.read(clock) + timedelta(minutes=10, seconds=1)
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), BY, until)
    await database.write(pause, PauseTarget(PauseKind.HANDLER, "work"), BY)
    queue, handler = (await explain(database, id)).causes
    assert queue.kind == handler.kind == "paused"
    assert queue.text.startswith("Queue mail was paused by ana ")
    assert "restore of db-2. It resumes in 10m" in queue.text
    assert handler.text.endswith("It stays paused until it is resumed.")
    assert (queue.advice, handler.advice) == ("runner resume mail", "runner resume --handler work")
    assert queue.view is not None
    assert queue.view.command == "runner audit --of 'queue mail'"


async def test_a_pause_that_ends_before_the_task_is_due_is_not_a_cause(database: Database, runner: Runner) -> None:
    id = await put(database, queue="mail", delay=3600.0)
    await database.write(
        pause, PauseTarget(PauseKind.QUEUE, "mail"), BY, await database.read(clock) + timedelta(minutes=10)
    )
    assert await kinds(database, id) == ["due"]


async def test_a_handler_without_a_runner_is_named(database: Database) -> None:
    id = await put(database)
    assert "(no live runner; no runner ever had it)" in (await only(database, id)).text
    runner = await Runner.enter(database)
    await expire(database, runner.id)
    await add_runner(database, handlers='["other"]')
    cause = await only(database, id)
    assert cause.kind == "unknown"
    assert "No live runner has handler work (1 live runner; last seen " in cause.text


async def test_a_misspelled_handler_is_named_with_the_one_that_was_probably_meant(database: Database) -> None:
    await Runner.enter(database, "mail.send", "mail.fetch")
    id = await put(database, "mail.sned")
    cause = await only(database, id)
    assert cause.text == (
        "No live runner has handler mail.sned, did you mean 'mail.send' (1 live runner; no runner ever had it)."
    )
    assert cause.advice.startswith(f"if it is misspelled, submit it again and run: runner terminate {id}; otherwise")
    assert "did you mean" not in (await only(database, await put(database, "reports.make"))).text


async def test_a_queue_that_no_runner_claims_from_is_named(database: Database) -> None:
    id = await put(database, queue="mail")
    await database.write(register, Identity("web-1", 1, "1", ["work"], 4, ["default", "reports"]), 60.0)
    cause = await only(database, id)
    assert cause.kind == "queue"
    assert "serve only default, reports" in cause.text


async def test_a_delivery_waits_for_the_slots_of_deliveries_alone(database: Database) -> None:
    runner = await add_runner(database, handlers=f'["{DELIVER}", "work"]', capacity=1)
    waiting = await put(database, DELIVER, queue=QUEUE)
    own = await put(database)
    busy = await put(database)
    task, held = database.tables.task, {"state": "running", "runner_id": runner, "attempt": 1}
    await change(database, sa.update(task).where(task.c.id == busy).values(held))
    assert "full" not in await kinds(database, waiting)
    assert (await only(database, own)).kind == "full"
    sent = [await put(database, DELIVER, queue=QUEUE) for _ in range(DELIVERIES)]
    await change(database, sa.update(task).where(task.c.id.in_(sent)).values(held))
    cause = await only(database, waiting)
    assert cause.kind == "full"
    assert f"no slots for deliveries are free: {DELIVERIES} {DELIVER} in {DELIVERIES} slots" in cause.text
    assert cause.advice == "start another runner"
    await change(database, sa.delete(task).where(task.c.id == busy))
    assert "full" not in await kinds(database, own)
    assert "executor" not in (await only(database, sent[0])).text


def block(*tasks: tuple[int, str], locked: bool = False) -> str:
    return json.dumps({"seconds": 12.0, "tasks": tasks, "place": "reports.py:7", "locked": locked})


@pytest.mark.slow
async def test_a_blocked_event_loop_is_the_cause_for_its_own_task_and_for_others(database: Database) -> None:
    id = await add_runner(
        database, handlers='["reports.render", "work"]', capacity=9, pid=4117, heartbeat_at=ahead(300)
    )
    values = {"state": "running", "runner_id": id, "attempt": 1}
    task = await add_live(database, "reports.render", **values)
    other = await add_live(database, "work", **values)
    waiting = await put(database)
    table = database.tables.runner
    await change(database, sa.update(table).values(stall=block((task, "reports.render"))))
    for each in (task, other, waiting):
        cause = (await explain(database, each)).causes[-1]
        assert cause.text == (
            f"The event loop of runner {id} (web-1:4117) has been blocked for 12s by reports.render "
            f"(task {task}) at reports.py:7: a blocking call in an async handler."
        )
        assert cause.advice == 'make it a plain function, or use executor="process"'
    await change(database, sa.update(table).values(stall=block((task, "reports.render"), (other, "w"), locked=True)))
    cause = (await explain(database, other)).causes[-1]
    assert cause.text == (
        f"Runner {id} (web-1:4117) has sent neither a heartbeat nor a ping for 12s: probably C code of "
        f"one of reports.render (task {task}), w (task {other}) holds the interpreter lock."
    )
    stored = json.loads(block((task, "reports.render"), locked=True)) | {"fact": "its thread 7 sleeps in pipe_write"}
    await change(database, sa.update(table).values(stall=json.dumps(stored)))
    cause = (await explain(database, other)).causes[-1]
    assert cause.text == (
        f"Runner {id} (web-1:4117) has sent neither a heartbeat nor a ping for 12s, and its thread 7 "
        "sleeps in pipe_write: probably a reader of its log or output has stopped."
    )
    await add_runner(database, handlers=WORK, capacity=9)
    assert await kinds(database, waiting) == ["now"]


@pytest.mark.parametrize(
    "stored", ['"x"', "[1]", '{"seconds": "many", "tasks": [[1], [2, 3], 4]}', '{"seconds": 1e300}']
)
async def test_an_unreadable_block_is_one_by_unknown_code(database: Database, stored: str) -> None:
    id = await add_runner(database, handlers=WORK, stall=stored, cpu=1e300, memory=-5)
    task = await add_live(database, "work", state="running", runner_id=id)
    assert " by unknown code: " in (await explain(database, task)).causes[-1].text
    (row,) = await database.read(runners)
    assert (row.cpu, row.memory) == (None, None)


async def test_a_bucket_that_no_runner_takes_is_named(database: Database) -> None:
    await add_runner(database, handlers=WORK, buckets="0-511")
    await add_runner(database, handlers=WORK, buckets="", slice="single")
    answer = await explain(database, await put(database, bucket=700))
    (cause,) = answer.causes
    assert cause.kind == "bucket"
    assert cause.text == (
        "No live runner takes bucket 700; those with handler work take buckets 0-511, slice single (standby)."
    )
    assert cause.advice == "wait for one lease, in which a live slice moves, or start a runner with --buckets 700"
    assert [remedy.commands for remedy in answer.remedies] == ["runner work -H package.module --buckets 700"]
    assert "bucket" not in await kinds(database, await put(database, bucket=511))


async def test_the_buckets_of_runners_without_the_handler_are_not_advised(database: Database) -> None:
    await add_runner(database, handlers='["other"]', buckets="0-511")
    answer = await explain(database, await put(database, bucket=700))
    assert [remedy.commands for remedy in answer.remedies] == ["runner work -H package.module"]


async def test_a_runner_that_drains_takes_nothing(database: Database, runner: Runner) -> None:
    id = await put(database)
    await change(database, sa.update(database.tables.runner).values(command="drain"))
    assert await kinds(database, id) == ["draining"]


async def test_attempts_that_are_used_up_are_the_first_reason(database: Database) -> None:
    id = await add_live(database, "work", attempt=3, max_attempts=3, run_at=ahead(60))
    answer = await explain(database, id)
    assert [cause.kind for cause in answer.causes] == ["attempts", "due", "unknown"]
    assert answer.causes[0].text == "It has used 3 of 3 attempts and will not be retried."
    assert answer.causes[0].advice == f"runner edit {id} --max-attempts 4"


async def test_full_runners_list_their_tasks(database: Database) -> None:
    busy = await add_runner(database, handlers='["work", "other"]', capacity=3)
    for handler in ("other", "other", "work"):
        await add_live(database, handler, state=State.RUNNING.value, runner_id=busy)
    cause = await only(database, await put(database))
    assert cause.kind == "full"
    assert cause.text.endswith("but no slots are free: 2 other, 1 work in 3 slots.")
    assert cause.view == ("tasks", f"state:running runner:{busy}")


async def test_threads_are_full_though_slots_are_free(database: Database) -> None:
    busy = await add_runner(database, handlers='["slow", "work"]', threaded='["slow", "work"]', capacity=102, threads=2)
    for _ in range(2):
        await add_live(database, "slow", state=State.RUNNING.value, runner_id=busy)
    plain = await put(database)
    assert (await only(database, plain)).text.endswith("2 slow in 2 threads.")
    await change(database, sa.update(database.tables.runner).values(threaded='["slow"]'))
    assert await kinds(database, plain) == ["now"]


async def test_more_claimed_tasks_than_slots_are_named_as_prefetched(database: Database) -> None:
    busy = await add_runner(database, handlers='["slow", "work"]', capacity=2)
    for _ in range(3):
        await add_live(database, "slow", state=State.RUNNING.value, runner_id=busy)
    text = (await only(database, await put(database))).text
    assert text.endswith("no slots are free: 3 slow for 2 slots, 1 of them prefetched.")


@pytest.mark.slow
async def test_tasks_ahead_are_counted_in_claim_order(database: Database) -> None:
    await add_runner(database, handlers='["work", "other"]', capacity=5)
    await put_many(database, 3, handler="other", priority=9)
    await put_many(database, 2, handler="foreign", priority=9)
    await put_many(database, 2, priority=1)
    await add_live(database, "work", run_at=ahead(-50), attempt=3, max_attempts=3)
    id = await put(database)
    await put_many(database, 4)
    cause = await only(database, id)
    assert cause.text == "5 tasks are ahead of it; none of their kind has ended in the last 10 minutes."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "effect"),
    [
        ("strict", ""),
        ("aged:10s", " (tasks rise by one priority every 10s)"),
        ("weighted:mail=3", " (queues divide the slots by weight)"),
    ],
)
async def test_the_order_of_the_runners_is_named_where_the_priority_is_not_the_whole_reason(
    database: Database, order: str, effect: str
) -> None:
    await add_runner(database, handlers='["work"]', capacity=1, claim_order=order)
    await put_many(database, 3, priority=9)
    cause = await only(database, await put(database))
    assert cause.text == f"3 tasks are ahead of it{effect}; none of their kind has ended in the last 10 minutes."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("finished", "order", "share"),
    [
        (((9, -5),), "strict", 1.0),
        (((9, -5),), "aged", 0.0),
        (((9, -5), (1, -5)), "strict", 0.5),
        (((9, -3_600), (1, -5)), "strict", 0.0),
    ],
    ids=["overtaken for ever", "aged", "half the rate", "an old backlog"],
)
async def test_tasks_of_a_higher_priority_that_become_due_leave_less_of_the_rate(
    database: Database, runner: Runner, finished: tuple[tuple[int, float], ...], order: str, share: float
) -> None:
    minute = Minute(await database.read(clock), "default", "work")
    minute.counts |= {"succeeded": 60}
    await database.write(write_statistics, runner.id, [minute], {})
    await change(database, sa.update(database.tables.runner).values(claim_order=order, capacity=0))
    for number, (priority, due) in enumerate(finished):
        for id in range(10):
            await add_past(database, 1_000 + 10 * number + id, handler="work", priority=priority, run_at=ahead(due))
    id = await add_live(database, "work", run_at=ahead(-700))
    for _ in range(4):
        await add_live(database, "work", priority=9, run_at=ahead(-900))
    facts = await database.read(read_facts, id)
    assert facts.arrivals == pytest.approx(share * facts.pace)
    text = (await explain(database, id)).causes[-1].text
    if share == 1.0:
        assert re.search(r"4 tasks are ahead of it: not at this rate: in the last 10 minutes, (\d+) .* and \1 of", text)
    else:
        assert re.search(r": about [\d.]+s at the rate of the last 10 minutes", text)


@pytest.mark.slow
async def test_waiting_tasks_that_became_due_lately_leave_less_of_the_rate(database: Database, runner: Runner) -> None:
    minute = Minute(await database.read(clock), "default", "work")
    minute.counts |= {"succeeded": 60}
    await database.write(write_statistics, runner.id, [minute], {})
    id = await add_live(database, "work", run_at=ahead(-700))
    await put_many(database, 30, priority=9)
    assert (await database.read(read_facts, id)).arrivals == pytest.approx(30 / 600)


async def test_a_claim_takes_exactly_the_tasks_reported_as_ahead(database: Database, runner: Runner) -> None:
    for number in range(30):
        await add_live(database, "work", priority=1 + number % 3, run_at=ahead(-(number * 7 % 10)))
    last = await add_live(database, "work", priority=2, run_at=ahead(-4.5))
    before = (await database.read(read_facts, last)).ahead.number
    claimed = [task.id for task in await runner.claim(before + 1)]
    assert claimed[-1] == last
    assert len(claimed) == before + 1


async def test_a_capped_count_is_marked(database: Database, runner: Runner) -> None:
    await put_many(database, 5, priority=2)
    await put_many(database, 5)
    id = await put(database)
    for cap, shown in ((3, "3+"), (7, "7+"), (10, "10")):
        assert str((await database.read(read_facts, id, cap)).ahead) == shown


@pytest.mark.slow
async def test_the_wait_follows_from_the_rate_of_the_last_minutes(database: Database, runner: Runner) -> None:
    now = await database.read(clock)
    minute = Minute(now.replace(second=0, microsecond=0) - timedelta(minutes=8), "default", "work")
    minute.counts |= {"succeeded": 40, "retried": 20}
    other = Minute(minute.minute, "default", "foreign")
    other.counts["succeeded"] = 10_000
    await database.write(write_statistics, runner.id, [minute, other], {})
    await put_many(database, 60)
    text = (await only(database, await put(database))).text
    assert text.startswith("60 tasks are ahead of it: about ")
    assert (await database.read(read_facts, 61)).pace == pytest.approx(60 / 510, rel=0.1)


async def test_a_suspect_is_reported_as_isolated(database: Database, runner: Runner) -> None:
    await add_live(database, "work", rescues=2, run_at=ahead(-60))
    await put_many(database, 5, priority=9)
    id = await add_live(database, "work", rescues=2, run_at=ahead(-1))
    apart, behind = (await explain(database, id)).causes
    assert (apart.kind, apart.advice) == ("apart", f"runner retry {id}")
    assert apart.text.startswith("It lost 2 runners, and is suspected of killing them: a runner runs such tasks ")
    assert apart.text == f"{(await database.read(task_detail, id)).suspicion} `runner retry {id}` clears it."
    assert behind.text == "1 older suspect may run before it."


async def test_a_due_task_without_obstacles_is_reported(database: Database, runner: Runner) -> None:
    fresh, old = await put(database), await add_live(database, "work", run_at=ahead(-600))
    await change(database, sa.delete(database.tables.task).where(database.tables.task.c.id == fresh))
    cause = await only(database, old)
    assert cause.kind == "now"
    assert "yet it has been due for 10m" in cause.text


async def test_the_dependencies_of_a_blocked_task_are_named(database: Database) -> None:
    dead = await add_past(database, 900, State.DEAD, handler="fetch")
    there = await add_live(database, "load", key="day-2")
    parents = (DependsOn(dead), DependsOn(("load", "day-1")), DependsOn(("load", "day-2")))
    id = await put(database, after=parents)
    texts = [cause.text for cause in (await explain(database, id)).causes]
    assert texts == [
        "It depends on task 900 fetch, which is dead; it waits until that task succeeds.",
        "It depends on a task of load with key day-1, which has not been submitted yet.",
        f"It depends on task {there} load, which is ready.",
    ]
    history = database.tables.history
    await change(database, sa.delete(history).where(history.c.id == dead))
    assert (await explain(database, id)).causes[0].text == "It depends on task 900, which no longer exists."
    await change(database, sa.delete(database.tables.dependency))
    assert "no open row in task_dependency" in (await only(database, id)).text


async def test_a_task_that_will_fail_with_its_parent_states_it(database: Database) -> None:
    await add_past(database, 900, State.DEAD, handler="fetch")
    id = await put(database, after=(DependsOn(900, "cancel"),))
    assert (await only(database, id)).text.endswith("which is dead; it will be cancelled in a moment.")


async def test_a_retried_task_waits_until_its_failed_parent_is_retried(database: Database) -> None:
    dead = await add_past(database, 900, State.DEAD, handler="fetch")
    id = await put(database, after=(DependsOn(dead, "cancel"),), workflow=NewWorkflow("w"))
    await sweep(database)
    await database.write(retry_now, [Target(id)], BY)
    assert (await only(database, id)).text.endswith("which is dead; it waits until that task is retried.")


async def test_a_running_task_names_its_runner_and_start(database: Database, runner: Runner) -> None:
    id = await put(database, timeout=600.0)
    await runner.claim()
    await database.write(terminate, [Target(id)], BY)
    answer = await explain(database, id)
    running, asked = answer.causes
    assert answer.verdict == f"Task {id} work is running."
    assert running.text.startswith(f"It has been running on runner {runner.id} (here:1) for ")
    assert "attempt 1 of 3; its deadline is in 9m" in running.text
    assert asked.text.startswith("Termination was requested by ana ")


@pytest.mark.parametrize(
    ("threaded", "timeout", "beat", "sentence"),
    [
        ((), None, False, "learns about it with its next heartbeat."),
        (("work",), None, False, "learns about it with its next heartbeat."),
        ((), None, True, "its runner knows: the handler is cancelled at its next await."),
        (("work",), None, True, "cannot be stopped: .* abandoned when its runner stops, not before."),
        (("work",), 600.0, True, "cannot be stopped: .* abandoned at its deadline, not before."),
    ],
)
async def test_a_terminated_running_task_states_the_next_step(
    database: Database, runner: Runner, threaded: tuple[str, ...], timeout: float | None, beat: bool, sentence: str
) -> None:
    id = await put(database, timeout=timeout)
    await runner.claim()
    await database.write(terminate, [Target(id)], BY)
    task_facts = await database.read(read_facts, id)
    assert task_facts.runner is not None
    assert task_facts.terminated is not None
    assert task_facts.terminated.at is not None
    silent = (task_facts.at - task_facts.terminated.at).total_seconds() + (-0.1 if beat else 0.1)
    task_facts = replace(task_facts, runner=task_facts.runner._replace(threaded=threaded, heartbeat_age=silent))
    *_, asked = causes(task_facts, UTC)
    assert re.search(f"Termination was requested by ana .*{sentence}", asked.text)


async def test_a_lost_task_states_whether_a_runner_can_rescue_it(database: Database, runner: Runner) -> None:
    id = await put(database)
    await runner.claim()
    await expire(database, runner.id)
    cause = await only(database, id)
    assert "No live runner can rescue the task." in cause.text
    await Runner.enter(database)
    assert (await only(database, id)).text.endswith("A live runner will rescue the task within seconds.")
    assert (await explain(database, id)).task.shown is Shown.LOST


async def test_an_ended_task_states_its_end(database: Database, runner: Runner) -> None:
    for outcome in (Done(), Dead("no such address"), None):
        id = await put(database)
        if outcome is None:
            await database.write(terminate, [Target(id)], BY)
            assert (await only(database, id)).text.endswith(" by ana: restore of db-2.")
        else:
            (task,) = await runner.claim()
            await runner.end(task, outcome)
            sentence = "no such address." if isinstance(outcome, Dead) else "attempt 1 of 3."
            assert (await only(database, id)).text.endswith(sentence)


async def test_rows_of_foreign_clients_break_nothing(database: Database) -> None:
    await add_runner(database, handlers=WORK, capacity=0, threaded="{}", queues="[5]")
    hostile = "\x1b[31m\u202e'; drop"
    id = await add_live(database, "work", queue=hostile, error=hostile)
    (cause,) = (await explain(database, id)).causes
    assert "\x1b" not in cause.text
    await change(
        database, sa.insert(database.tables.queue).values(name=hostile, paused_at=ahead(0), paused_why=hostile)
    )
    assert all("\x1b" not in cause.text + cause.advice for cause in (await explain(database, id)).causes)


async def test_the_position_of_the_first_of_many_is_found_without_reading_the_others(
    new_database: None, migrated_url: str
) -> None:
    opened = Database.open(migrated_url)
    looking = watch(opened)
    try:
        await Runner.enter(opened)
        first = await add_live(opened, "work", run_at=ahead(-60))
        task, n = opened.tables.task, sa.select(sa.literal_column("1").label("i")).cte("n", recursive=True)
        n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < 20_000))
        same = sa.select(task.c.run_at).where(task.c.id == first).scalar_subquery()
        bulk = sa.select(sa.literal("work"), same).select_from(n)
        await change(opened, sa.insert(task).from_select(["handler", "run_at"], bulk))
        async with opened.reading() as tx:
            run_at = await tx.scalar(sa.select(tx.dialect.readable_time(task.c.run_at)).where(task.c.id == first))
        lanes = [Lane("default", "work", priority) for priority in (1, 2)]
        async with looking.seeing() as cost:
            assert await opened.read(tasks_ahead, first, run_at, 1, lanes, 10_000) == (0, False)
        assert cost.rows < 2_000, cost
        assert "task" not in cost.whole, cost
    finally:
        await opened.dispose()


async def test_a_task_for_a_host_without_a_runner_names_the_host_and_the_time(database: Database) -> None:
    await add_runner(database, handlers=WORK, host="web-1", capacity=4)
    bound, waiting = await put(database, hosts="web-3"), await put(database, hosts="web-2,web-3", hosts_for=91_800.0)
    cause = await only(database, bound)
    assert cause.kind == "host"
    assert cause.text == "It waits for host web-3, which has no live runner, and no other host may take it."
    assert cause.advice == f"start a runner there, or let web-1 take it: runner edit {bound} --hosts any"
    text = (await only(database, waiting)).text
    assert "one of the hosts web-2, web-3, which have no live runner; any host may take it in 1d01h (" in text
    (remedy,) = (await explain(database, bound)).remedies
    assert remedy.text == "a runner claimed handler work from queue default on web-3"
    await database.write(edit, bound, None, Changes(hosts=""), BY)
    assert await kinds(database, bound) == ["now"]


async def test_a_failed_task_names_the_host_of_its_failure(database: Database) -> None:
    await add_runner(database, handlers=WORK, host="web-1", capacity=4)
    bound, fresh = await put(database, hosts="failed,web-3"), await put(database, hosts="failed")
    cause = await only(database, bound)
    assert cause.text == (
        "It waits for host web-3, where its last attempt failed, which has no live runner, "
        "and no other host may take it."
    )
    assert cause.advice == f"start a runner there, or let web-1 take it: runner edit {bound} --hosts any"
    assert await kinds(database, fresh) == ["now"]


async def test_a_task_of_a_host_stands_behind_all_that_its_runner_may_take(database: Database) -> None:
    await add_runner(database, handlers=WORK, host="web-1", capacity=1)
    await put_many(database, 3)
    await put_many(database, 2, hosts="web-1")
    await put_many(database, 4, hosts="web-2")
    last = await put(database, hosts="web-1")
    facts = await database.read(read_facts, last)
    assert facts.ahead.number == 5
