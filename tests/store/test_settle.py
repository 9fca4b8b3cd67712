import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, get_args

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.sql_text import Recording
from runner.db.types import db_later, db_now
from runner.model.outcome import (
    Cancelled,
    Dead,
    Done,
    Failure,
    Interrupted,
    Outage,
    Outcome,
    Release,
    Retry,
    Snooze,
    Suspended,
    fingerprint,
)
from runner.model.task import Claimed
from runner.model.text_limits import ERROR_LIMIT
from runner.policy.attempt_verdict import FREE_RELEASES, AttemptState, judge
from runner.store import history as history_module
from runner.store.attempts import MESSAGE_LIMIT, TRACEBACK_LIMIT
from runner.store.claim import plain as claim_module
from runner.store.claim.plain import Claimant, HandlerDefaults, prepare_claims
from runner.store.complete import complete_steps
from runner.store.history import FinishedTask, prepare_successes
from runner.store.rescue import rescue
from runner.store.settle import RETURNS, Settled, Settlement, settle
from tests.conftest import on_postgresql
from tests.store.rows import until_locked
from tests.store.runners import Runner, settle_done, settlement
from tests.store.table import Row, attempts, change, count, edit, expire, live, make_due, past, put, put_many, row_of

BROKEN = Failure("ValueError", "no such coupon: 17", "Traceback ...\nValueError: no such coupon: 17")

EVERY_OUTCOME: dict[str, tuple[Outcome, str]] = {
    "done": (Done('{"a": 1}'), "succeed"),
    "retry": (Retry(failure=BROKEN), "retry"),
    "dead": (Dead(failure=BROKEN), "die"),
    "snooze": (Snooze("10m"), "snooze"),
    "release": (Release(), "release"),
    "cancelled, without a request": (Cancelled(), "release"),
}
every_outcome = pytest.mark.parametrize(("outcome", "verb"), EVERY_OUTCOME.values(), ids=EVERY_OUTCOME.keys())


async def started(runner: Runner, **options: Any) -> Claimed:
    """Submit a task and claim it."""
    task_id = await put(runner.database, **options)
    (task,) = await runner.claim()
    assert task.id == task_id
    return task


async def one_of_each(runner: Runner) -> list[Settlement]:
    """Claim one task per outcome, and settle each with its own."""
    await put_many(runner.database, len(EVERY_OUTCOME))
    outcomes = [outcome for outcome, _ in EVERY_OUTCOME.values()]
    return [settlement(task, outcome) for task, outcome in zip(await runner.claim(), outcomes, strict=True)]


async def everything(database: Database) -> list[Any]:
    """All rows of all tasks, live and finished, and of their attempts."""
    tables = database.tables
    async with database.reading() as tx:
        contents = [await tx.rows(sa.select(table)) for table in (tables.task, tables.history, tables.attempt)]
    return [sorted(map(str, rows)) for rows in contents]


async def wait(database: Database, task_id: int) -> float:
    """Seconds from the last release of the row until it is due: exact, because one statement wrote both."""
    task = database.tables.task
    async with database.reading() as tx:
        moment, now = (await tx.rows(sa.select(task.c.run_at, db_now()).where(task.c.id == task_id)))[0]
    return float((moment - now).total_seconds())


def in_no_hands(row: Row) -> bool:
    return row["runner_id"] is row["claimed_at"] is row["deadline_at"] is None


async def test_a_success_moves_to_the_history_with_its_result(database: Database, runner: Runner) -> None:
    task = await started(runner, key="k", payload='{"a": 1}', priority=4, tags='["red"]')
    before = await live(database, task.id) or {}
    settled = await runner.end(task, Done('{"sent": true}'))
    assert (settled.verbs, settled.fenced) == ({task.id: "succeed"}, set())
    assert await live(database, task.id) is None
    row = await past(database, task.id) or {}
    assert (row["state"], row["result"], row["duration"], row["error"]) == ("succeeded", '{"sent": true}', 0.1, None)
    assert row["finished_at"] >= row["claimed_at"]
    assert row["version"] == before["version"] + 1
    kept = row.keys() & before.keys() - {"state", "version"}
    assert {name: row[name] for name in kept} == {name: before[name] for name in kept}


async def test_a_success_without_a_result_is_none(database: Database, runner: Runner) -> None:
    task = await started(runner)
    await runner.end(task)
    assert (await row_of(database, task.id))["result"] is None


async def test_a_failed_task_waits_for_the_delay_of_its_plan(database: Database, runner: Runner) -> None:
    task = await started(runner, retry="7m")
    assert (await runner.end(task, Retry(failure=BROKEN))).verbs == {task.id: "retry"}
    row = await live(database, task.id) or {}
    assert (row["state"], row["attempt"], row["error"]) == ("waiting", 1, BROKEN.reason)
    assert in_no_hands(row)
    assert 415 < await wait(database, task.id) <= 420


async def test_a_task_without_a_plan_uses_its_handlers_plan(database: Database, runner: Runner) -> None:
    task = await started(runner)
    await runner.settle(settlement(task, Retry(failure=BROKEN), retry="20m"))
    assert 1_195 < await wait(database, task.id) <= 1_200


async def test_stages_follow_the_attempts(database: Database) -> None:
    runner = await Runner.enter(database, terms=HandlerDefaults(9, None))
    task_id = await put(database, retry="1m,5m")
    for delay in (60, 300, 300):
        (task,) = await runner.claim()
        await runner.end(task, Retry(failure=BROKEN))
        assert delay - 5 < await wait(database, task_id) <= delay
        await make_due(database, task_id)


async def test_a_delay_from_the_handler_overrides_the_plan(database: Database, runner: Runner) -> None:
    task = await started(runner, retry="7m")
    await runner.end(task, Retry("90s", why="busy"))
    assert 85 < await wait(database, task.id) <= 90


@pytest.mark.parametrize(("plan", "most"), [("30s", 1), ("never", 9)])
async def test_without_another_attempt_a_failure_is_final(
    database: Database, runner: Runner, plan: str, most: int
) -> None:
    task = await started(runner, max_attempts=most, retry=plan)
    assert (await runner.end(task, Retry(failure=BROKEN))).verbs == {task.id: "die"}
    row = await past(database, task.id) or {}
    assert (row["state"], row["error"], row["attempt"]) == ("dead", BROKEN.reason, 1)


async def test_giving_up_is_final_despite_remaining_attempts(database: Database, runner: Runner) -> None:
    task = await started(runner, max_attempts=9)
    await runner.end(task, Dead(why="the user has left"))
    row = await past(database, task.id) or {}
    assert (row["state"], row["error"]) == ("dead", "Dead: the user has left")


async def test_a_snooze_does_not_count_as_an_attempt(database: Database, runner: Runner) -> None:
    task = await started(runner)
    await runner.end(task, Snooze("10m", why="the shop is closed"))
    row = await live(database, task.id) or {}
    assert (row["state"], row["attempt"], row["fence"]) == ("waiting", 0, task.fence)
    assert row["error"] == "the shop is closed"
    assert in_no_hands(row)
    assert 595 < await wait(database, task.id) <= 600
    assert await attempts(database, task.id) == []


async def test_a_released_attempt_does_not_count_and_keeps_the_due_time(database: Database, runner: Runner) -> None:
    task = await started(runner)
    before = await live(database, task.id) or {}
    await runner.end(task, Release())
    row = await live(database, task.id) or {}
    assert (row["state"], row["attempt"], row["releases"], row["run_at"]) == ("waiting", 0, 1, before["run_at"])
    assert [again.id for again in await runner.claim()] == [task.id]


async def test_handing_back_too_often_counts(database: Database, runner: Runner) -> None:
    task = await started(runner)
    await edit(database, task.id, releases=FREE_RELEASES)
    await runner.end(task, Release())
    row = await live(database, task.id) or {}
    assert (row["attempt"], row["releases"]) == (1, FREE_RELEASES + 1)


async def test_handing_back_too_often_ends_with_the_last_attempt(database: Database, runner: Runner) -> None:
    task = await started(runner, max_attempts=1)
    await edit(database, task.id, releases=FREE_RELEASES)
    assert (await runner.end(task, Release())).verbs == {task.id: "die"}
    assert (await row_of(database, task.id))["state"] == "dead"


async def test_a_terminated_attempt_is_cancelled(database: Database, runner: Runner) -> None:
    task = await started(runner)
    await edit(database, task.id, cancel_requested=True)
    assert (await runner.end(task, Cancelled())).verbs == {task.id: "cancel"}
    row = await past(database, task.id) or {}
    assert (row["state"], row["error"]) == ("cancelled", "terminated while running")
    assert await attempts(database, task.id) == []


async def test_attempts_granted_while_it_ran_count(database: Database, runner: Runner) -> None:
    task = await started(runner, max_attempts=1)
    await edit(database, task.id, max_attempts=2)
    assert (await runner.end(task, Retry(failure=BROKEN))).verbs == {task.id: "retry"}


async def test_attempts_taken_away_while_it_ran_count(database: Database, runner: Runner) -> None:
    task = await started(runner, max_attempts=9)
    await edit(database, task.id, max_attempts=1)
    assert (await runner.end(task, Retry(failure=BROKEN))).verbs == {task.id: "die"}


async def test_a_plan_changed_while_it_ran_counts(database: Database, runner: Runner) -> None:
    task = await started(runner, retry="1m")
    await edit(database, task.id, retry="1h")
    await runner.end(task, Retry(failure=BROKEN))
    assert await wait(database, task.id) > 3_590


@pytest.mark.parametrize("outcome", [Retry(failure=BROKEN), Snooze("1m"), Release(), Dead(), Cancelled()], ids=repr)
async def test_a_termination_requested_during_the_run_counts(
    database: Database, runner: Runner, outcome: Outcome
) -> None:
    task = await started(runner)
    await edit(database, task.id, cancel_requested=True)
    assert (await runner.end(task, outcome)).verbs == {task.id: "cancel"}
    assert (await row_of(database, task.id))["state"] == "cancelled"
    failed = isinstance(outcome, (Retry, Dead))
    assert len(await attempts(database, task.id)) == failed


async def test_a_success_outruns_a_termination(database: Database, runner: Runner) -> None:
    task = await started(runner)
    await edit(database, task.id, cancel_requested=True)
    assert (await runner.end(task)).verbs == {task.id: "succeed"}


async def test_a_change_by_an_operator_survives(database: Database, runner: Runner) -> None:
    task = await started(runner, retry="1m")
    await edit(database, task.id, priority=9, key="mine", payload='{"b": 2}', max_attempts=7)
    await runner.end(task, Retry(failure=BROKEN))
    row = await live(database, task.id) or {}
    assert [row[name] for name in ("priority", "key", "payload", "max_attempts")] == [9, "mine", '{"b": 2}', 7]


@pytest.mark.parametrize("plan", ["sometimes", "", "\u202e1m", "exp:1s*0"])
async def test_an_invalid_plan_is_replaced_by_the_handlers(database: Database, runner: Runner, plan: str) -> None:
    task = await started(runner)
    await edit(database, task.id, retry=plan)
    await runner.settle(settlement(task, Retry(failure=BROKEN), retry="20m"))
    assert 1_195 < await wait(database, task.id) <= 1_200


async def test_a_removed_maximum_limits_nothing(database: Database, runner: Runner) -> None:
    task = await started(runner, max_attempts=1)
    await edit(database, task.id, max_attempts=None)
    assert (await runner.end(task, Retry(failure=BROKEN))).verbs == {task.id: "retry"}


async def test_a_failed_attempt_is_stored_with_its_reason(database: Database, runner: Runner) -> None:
    task = await started(runner, retry="7m")
    before = await live(database, task.id) or {}
    await runner.end(task, Retry(failure=BROKEN))
    (kept,) = await attempts(database, task.id)
    assert kept["ended_at"] >= kept["started_at"] == before["claimed_at"]
    columns = {
        name: kept[name] for name in ("fence", "attempt", "queue", "handler", "runner_id", "host", "verb", "delay")
    }
    assert columns == {
        "fence": task.fence,
        "attempt": 1,
        "queue": "default",
        "handler": "work",
        "runner_id": runner.id,
        "host": "here",
        "verb": "retry",
        "delay": 420,
    }
    assert (kept["error_type"], kept["message"], kept["traceback"]) == (BROKEN.type, BROKEN.message, BROKEN.traceback)
    assert kept["fingerprint"] == fingerprint("work", "ValueError", "no such coupon: 99")


async def test_every_failed_attempt_is_kept(database: Database) -> None:
    runner = await Runner.enter(database, terms=HandlerDefaults(3, None))
    task_id = await put(database)
    for _ in range(3):
        (task,) = await runner.claim()
        await runner.end(task, Retry("0s", failure=BROKEN))
    kept = await attempts(database, task_id)
    assert [(row["attempt"], row["verb"], row["delay"]) for row in kept] == [
        (1, "retry", 0),
        (2, "retry", 0),
        (3, "die", None),
    ]


@pytest.mark.parametrize("outcome", [Retry, Dead], ids=["retry", "dead"])
async def test_long_texts_are_cut_to_their_limits(database: Database, runner: Runner, outcome: Any) -> None:
    task = await started(runner)
    await runner.end(task, outcome(failure=Failure("E" * 9_000, "é" * 10**6, "\N{SNOWMAN}" * 10**6)))
    row, (kept,) = await row_of(database, task.id), await attempts(database, task.id)
    limits = {row["error"]: ERROR_LIMIT, kept["message"]: MESSAGE_LIMIT, kept["traceback"]: TRACEBACK_LIMIT}
    for text, limit in limits.items():
        assert limit - 20 < len(text.encode()) <= limit
        assert "more bytes" in text
    assert ERROR_LIMIT == TRACEBACK_LIMIT == 16 * 1024


async def test_settling_twice_changes_nothing_the_second_time(database: Database, runner: Runner) -> None:
    batch = await one_of_each(runner)
    first = await runner.settle(*batch)
    before = await everything(database)
    again = await runner.settle(*batch)
    assert (again.verbs, again.fenced, again.written) == ({}, set(), first.verbs)
    assert await everything(database) == before


@pytest.mark.parametrize("first", [Retry(failure=BROKEN), Dead(failure=BROKEN)], ids=["retry", "dead"])
async def test_a_success_after_a_failure_of_the_same_run_is_fenced(
    database: Database, runner: Runner, first: Outcome
) -> None:
    task = await started(runner)
    await runner.end(task, first)
    before = await everything(database)
    settled = await runner.end(task, Done('{"sent": true}'))
    assert (settled.verbs, settled.fenced, settled.written) == ({}, {task.id}, {})
    assert await everything(database) == before


async def rescued(runner: Runner) -> None:
    await expire(runner.database, runner.id)
    await (await Runner.enter(runner.database)).rescue()


async def rescued_and_taken_by_another(runner: Runner) -> None:
    await rescued(runner)
    assert await (await Runner.enter(runner.database)).claim()


async def rescued_and_taken_anew(runner: Runner) -> None:
    task = runner.database.tables.task
    await change(runner.database, sa.update(task).values(deadline_at=db_later(db_now(), -60)))
    await (await Runner.enter(runner.database)).rescue()
    assert await runner.claim()


async def held_by_another(runner: Runner) -> None:
    runner.who = Claimant(runner.id + 1, "there")


LOSSES = [rescued, rescued_and_taken_by_another, rescued_and_taken_anew, held_by_another]


@pytest.mark.parametrize("lose", LOSSES, ids=[case.__name__ for case in LOSSES])
async def test_a_fenced_settle_changes_nothing(
    database: Database, runner: Runner, lose: Callable[[Runner], Awaitable[None]]
) -> None:
    batch = await one_of_each(runner)
    await lose(runner)
    before = await everything(database)
    settled = await runner.settle(*batch)
    assert (settled.verbs, settled.fenced, settled.written) == ({}, {item.id for item in batch}, {})
    assert await everything(database) == before


@pytest.mark.parametrize("wrong", [-1, 1])
async def test_a_settle_under_another_fence_changes_nothing(database: Database, runner: Runner, wrong: int) -> None:
    batch = await one_of_each(runner)
    before = await everything(database)
    settled = await runner.settle(*(item._replace(fence=item.fence + wrong) for item in batch))
    assert settled.fenced == {item.id for item in batch}
    assert await everything(database) == before


async def test_an_unknown_task_is_fenced(runner: Runner) -> None:
    assert (await runner.settle(Settlement(10**15, 1, Done()))).fenced == {10**15}


async def test_the_fast_path_for_successes_checks_the_fence(runner: Runner) -> None:
    task = await started(runner)
    wrong = Settlement(task.id, task.fence + 1, Done())
    assert await runner.database.write(settle_done, runner.id, [wrong]) == set()
    assert await runner.database.write(settle_done, runner.id, [settlement(task)]) == {task.id}


@pytest.mark.parametrize("outcome", [Retry("0s"), Snooze("0s"), Release()], ids=["retry", "snooze", "release"])
async def test_the_fast_path_for_successes_refuses_a_run_that_returned_its_task(
    database: Database, runner: Runner, outcome: Outcome
) -> None:
    """A returned task keeps its fence until the next claim: only the holder distinguishes it."""
    task = await started(runner)
    await runner.end(task, outcome)
    before = await everything(database)
    assert await runner.database.write(settle_done, runner.id, [settlement(task)]) == set()
    assert await everything(database) == before


async def test_the_fast_path_for_successes_accepts_a_row_that_moved_since_its_claim(
    database: Database, runner: Runner
) -> None:
    task, table = await started(runner), database.tables.task
    await change(database, sa.update(table).where(table.c.id == task.id).values(priority=9))
    assert await database.write(settle_done, runner.id, [settlement(task)]) == {task.id}
    assert (await row_of(database, task.id))["priority"] == 9


async def test_the_fast_path_for_successes_settles_no_other_task_at_the_place(
    database: Database, runner: Runner
) -> None:
    await put_many(database, 2)
    first, second = await runner.claim()
    moved = settlement(first)._replace(address=second.address)
    assert await database.write(settle_done, runner.id, [moved]) == {first.id}
    assert (await row_of(database, second.id))["state"] == "running"


async def complete(runner: Runner, task: Claimed) -> bool:
    """Complete a task as the transaction of a handler does."""
    async with runner.database.writing() as tx:
        return await tx.follow(complete_steps(tx, runner.id, FinishedTask(task.id, task.fence)))


async def test_completing_twice_changes_nothing_the_second_time(database: Database, runner: Runner) -> None:
    task = await started(runner)
    assert await complete(runner, task)
    before = await everything(database)
    assert not await complete(runner, task)
    assert await everything(database) == before


@pytest.mark.parametrize("answers", [[[]], [[(1,)], [], []]], ids=["lock", "move"])
async def test_completing_accepts_only_a_task_that_it_locked_and_moved(
    database: Database, answers: list[list[Any]]
) -> None:
    """The two checks are redundant in a database; either of them refuses alone."""
    async with database.writing() as tx:
        steps = complete_steps(tx, 1, FinishedTask(1, 1))
        next(steps)
        for rows in answers[:-1]:
            steps.send(rows)
        in_file = not tx.dialect.is_server and len(answers) > 1
        with pytest.raises(StopIteration) as stopped:
            steps.send([("[]",)] if in_file else answers[-1])  # SQLite returns the ids of the held tasks as JSON
    assert stopped.value.value is False


async def test_a_mixed_batch_settles_each_in_its_own_way(database: Database, runner: Runner) -> None:
    await put_many(database, 2 * len(EVERY_OUTCOME) + 2, max_attempts=2)
    *some, lost, unwilling = await runner.claim()
    await edit(database, unwilling.id, cancel_requested=True)
    expected = {}
    batch = [settlement(lost)._replace(fence=lost.fence + 1), settlement(unwilling, Retry(failure=BROKEN))]
    for task, (outcome, verb) in zip(some, 2 * list(EVERY_OUTCOME.values()), strict=True):
        batch.append(settlement(task, outcome))
        expected[task.id] = verb
    settled = await runner.settle(*batch)
    assert (settled.verbs, settled.fenced) == (expected | {unwilling.id: "cancel"}, {lost.id})
    tables = database.tables
    assert (await count(database, tables.task), await count(database, tables.history)) == (9, 5)
    assert (await live(database, lost.id) or {})["state"] == "running"


async def test_an_empty_batch_settles_nothing(runner: Runner) -> None:
    assert await runner.settle() == Settled()


async def test_a_thousand_outcomes_settle_in_one_call(database: Database, runner: Runner) -> None:
    await put_many(database, 1_000)
    batch = [settlement(task, Done() if task.id % 2 else Retry(failure=BROKEN)) for task in await runner.claim(1_000)]
    settled = await runner.settle(*batch)
    assert len(settled.verbs) == 1_000
    assert await count(database, database.tables.task) == await count(database, database.tables.attempt) == 500


@on_postgresql
@every_outcome
async def test_an_edit_at_the_same_moment_never_fences_a_settle(
    database: Database, rival: Database, runner: Runner, outcome: Outcome, verb: str
) -> None:
    task = await started(runner)
    table = rival.tables.task
    touched = sa.update(table).where(table.c.id == task.id).values(priority=9, version=table.c.version + 1)
    async with rival.writing() as tx:
        await tx.execute(touched)
        assert await runner.end(task, outcome) == Settled(locked={task.id})
    settled = await runner.end(task, outcome)
    assert (settled.verbs, settled.fenced) == ({task.id: verb}, set())
    assert (await row_of(database, task.id))["priority"] == 9


@on_postgresql  # SQLite has one writer at a time
async def test_an_edit_at_the_same_moment_never_fences_a_completion(
    database: Database, rival: Database, runner: Runner
) -> None:
    task = await started(runner)
    table = rival.tables.task
    async with rival.writing() as tx:
        await tx.execute(sa.update(table).where(table.c.id == task.id).values(priority=9))
        completing = asyncio.ensure_future(complete(runner, task))
        await until_locked(database)
    assert await completing
    assert (await row_of(database, task.id))["priority"] == 9


@on_postgresql
async def test_a_rescue_at_the_same_moment_fences_a_settle(
    database: Database, rival: Database, runner: Runner, other: Runner
) -> None:
    task = await started(runner)
    await expire(database, runner.id)
    async with rival.writing() as tx:
        assert [(id, back.verb) for id, back in (await rescue(tx, other.rescuer, 0)).items()] == [(task.id, "rescue")]
        assert await runner.end(task) == Settled(locked={task.id})
    assert await runner.end(task) == Settled(fenced={task.id})


@on_postgresql
async def test_a_rescue_at_the_same_moment_fences_a_success_on_the_fast_path(
    database: Database, rival: Database, runner: Runner, other: Runner
) -> None:
    task = await started(runner)
    await expire(database, runner.id)
    async with rival.writing() as tx:
        assert [*await rescue(tx, other.rescuer, 0)] == [task.id]
        settling = asyncio.ensure_future(database.write(settle_done, runner.id, [settlement(task)]))
        await until_locked(database)
    assert await settling == set()
    assert (await row_of(database, task.id))["state"] == "waiting"


@pytest.mark.parametrize(
    ("outcome", "rescues"),
    [(Retry("0s"), 0), (Snooze("0s"), 0), (Release("no slot"), 3)],
    ids=["retry", "snooze", "release"],
)
async def test_a_task_that_its_runner_survived_is_no_suspect_any_more(
    database: Database, runner: Runner, outcome: Outcome, rescues: int
) -> None:
    task = await started(runner)
    await edit(database, task.id, rescues=3)
    await runner.end(task, outcome)
    assert (await live(database, task.id) or {})["rescues"] == rescues


async def test_a_prepared_runner_compiles_nothing_for_its_first_task(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_module, "_prepared", lru_cache(claim_module._prepared.__wrapped__))
    monkeypatch.setattr(history_module, "_prepared_success", lru_cache(history_module._prepared_success.__wrapped__))
    await runner.database.read(prepare_claims, Claimant(runner.id, "host"))
    await runner.database.read(prepare_successes, False)
    compiled = claim_module._prepared.cache_info().misses, history_module._prepared_success.cache_info().misses
    task = await started(runner)
    await runner.database.write(settle_done, runner.id, [settlement(task, Done())])
    assert await count(runner.database, runner.database.tables.history) == 1
    assert compiled == (
        claim_module._prepared.cache_info().misses,
        history_module._prepared_success.cache_info().misses,
    )


def test_each_outcome_that_leaves_no_attempt_has_its_move() -> None:
    returns: list[Outcome] = [Snooze("1m"), Suspended(60.0, "x"), Release(), Interrupted(), Outage(BROKEN), Cancelled()]
    outcomes = [Retry("1m", "x"), Dead("x"), *returns]
    assert {type(outcome) for outcome in outcomes} == {*get_args(Outcome)} - {Done}
    row = AttemptState(1, 3, None, "1m", 0, False)
    verdicts = {type(outcome): judge(outcome, row, 0.5) for outcome in outcomes}
    # Without its entry, a settle whose commit was uncertain would count as fenced the second time.
    unrecorded = {kind: each.verb for kind, each in verdicts.items() if each.delay is not None and not each.failure}
    assert unrecorded == RETURNS


async def test_settling_failed_attempts_builds_no_statements(runner: Runner) -> None:
    statements: list[list[Any]] = []
    outcomes: list[Outcome] = [Retry(failure=BROKEN), Dead(failure=BROKEN)]
    for size in (2, 4):
        await put_many(runner.database, size)
        tasks = await runner.claim(size)
        batch = [settlement(task, outcomes[index % 2]) for index, task in enumerate(tasks)]
        async with runner.database.writing() as tx:
            recording = Recording(tx)
            assert len((await settle(recording, runner.id, batch)).verbs) == size
        statements.append([executed.statement for executed in recording.executed])
    first, second = statements
    assert [*map(id, second)] == [*map(id, first)]
