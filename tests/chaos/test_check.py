"""Tests of the checker: a sound history passes, and each broken promise is found."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runner.policy.suspicion import Proof
from tests.chaos.check import DUPLICATE, OK, PROMISES, REFUSED, UNKNOWN, check, duplicates
from tests.chaos.dump import Attempt, Dump, Row
from tests.chaos.evidence import Evidence
from tests.chaos.journal import Event
from tests.chaos.recovery import Recovery, idle_attempts, recoveries, restarts
from tests.chaos.workload import digest

BOUND = 5.0
DIGEST = digest(1)
FIRST, SECOND = 101, 102
"""Process ids of two runners."""


def submit(task: int | None, token: str, answer: str = OK, digest_: Any = DIGEST, run_at: float | None = None) -> Event:
    return Event(
        "submit", 0.0, 1, {"task": task, "token": token, "answer": answer, "digest": digest_, "run_at": run_at}
    )


def start(
    at: float, task: int, fence: int, token: str, attempt: int = 1, pid: int = FIRST, digest_: Any = DIGEST
) -> Event:
    data = {"task": task, "fence": fence, "attempt": attempt, "token": token, "digest": digest_}
    return Event("start", at, pid, data)


def end(at: float, task: int, fence: int, pid: int = FIRST) -> Event:
    return Event("end", at, pid, {"task": task, "fence": fence})


def row(id: int, token: str, state: str = "succeeded", **values: Any) -> Row:
    defaults: dict[str, Any] = {
        "payload": json.dumps({"token": token, "data": 1}),
        "attempt": 1,
        "max_attempts": 3,
        "fence": 1,
        "rescues": 0,
        "releases": 0,
        "run_at": 0.0,
        "claimed_at": 1.0,
        "finished_at": 3.0,
        "handler": "chaos.work",
    }
    return Row(id=id, state=state, **defaults | values)


def attempt(task_id: int, fence: int, verb: str, started_at: float, ended_at: float, **values: Any) -> Attempt:
    defaults: dict[str, Any] = {"attempt": 1, "error_type": "ValueError", "delay": None}
    return Attempt(
        task_id=task_id, fence=fence, verb=verb, started_at=started_at, ended_at=ended_at, **defaults | values
    )


LOST: dict[str, Any] = {"error_type": "runner lost"}

HISTORY = [
    submit(1, "a"),
    submit(2, "b"),
    submit(3, "c"),
    submit(None, "d", UNKNOWN),
    submit(None, "e", REFUSED),
    submit(None, "f", UNKNOWN),
    submit(4, "f", OK, run_at=1.0),
    # 1 succeeds on its first attempt.
    start(1.1, 1, 1, "a"),
    end(2.0, 1, 1),
    # 2 fails once, then its runner is killed, then it succeeds on another runner.
    start(1.1, 2, 1, "b"),
    start(3.6, 2, 2, "b", 2),
    Event("kill", 4.0, FIRST),
    start(8.1, 2, 4, "b", 3, SECOND),
    end(9.0, 2, 4, SECOND),
    # 3 dies.
    start(1.1, 3, 1, "c"),
    # 4 is not started early.
    start(1.1, 4, 1, "f"),
    end(2.0, 4, 1),
]

DUMP = Dump(
    history=(
        row(1, "a", handler="chaos.pay"),
        row(2, "b", attempt=3, fence=4, rescues=1, claimed_at=8.0, finished_at=9.1),
        row(3, "c", "dead"),
        row(4, "f", run_at=1.0),
    ),
    attempts=(
        attempt(2, 1, "retry", 1.0, 1.5, delay=2.0),
        attempt(2, 2, "rescue", 3.5, 7.0, attempt=2, **LOST),
        attempt(3, 1, "die", 1.0, 1.5),
    ),
    paid=(1,),
    reported={"submitted": 4, "succeeded": 3, "died": 1, "retried": 1},
)


def broken_promises(history: list[Event], dump: Dump) -> set[int]:
    return {violation.promise for violation in check(history, dump, BOUND)}


def test_a_sound_history_breaks_nothing() -> None:
    assert check(HISTORY, DUMP, BOUND) == []


def test_an_edit_that_another_operator_repeats_in_vain_breaks_nothing() -> None:
    again = [operated("edit", 1, UNKNOWN, at=1.1), operated("edit", 1, REFUSED, at=1.2)]
    history = [*HISTORY, operated("edit", 1), *again]
    assert check(history, with_audit(finished(DUMP, 1, key="edited"), ("edit", 1)), BOUND) == []


def test_nothing_at_all_breaks_nothing() -> None:
    assert check([], Dump(), BOUND) == []


def test_recoveries_are_measured_from_the_kill() -> None:
    assert recoveries(HISTORY, DUMP) == [3.0]


def test_duplicates_are_bodies_that_ended_again() -> None:
    assert duplicates(HISTORY) == 0
    assert duplicates([*HISTORY, end(2.5, 1, 2), end(2.6, 1, 3)]) == 2


def test_a_violation_names_its_promise_and_task() -> None:
    (violation, *_) = check(HISTORY, without(DUMP, 1))
    assert str(violation) == "promise 1 (no loss), task 1: was acknowledged and is there as []"


def reporting(**counts: int) -> Dump:
    return replace(DUMP, reported={**DUMP.reported, **counts})


def without(dump: Dump, task_id: int) -> Dump:
    return replace(dump, history=tuple(row for row in dump.history if row.id != task_id))


def finished(dump: Dump, task_id: int, **changes: Any) -> Dump:
    return replace(dump, history=tuple(row._replace(**changes) if row.id == task_id else row for row in dump.history))


def attempted(dump: Dump, task_id: int, fence: int, /, **changes: Any) -> Dump:
    run = (task_id, fence)
    return replace(
        dump, attempts=tuple(t._replace(**changes) if (t.task_id, t.fence) == run else t for t in dump.attempts)
    )


def living(dump: Dump, *rows: Row) -> Dump:
    return replace(dump, live=(*dump.live, *rows))


def less(*missing: Event) -> list[Event]:
    return [event for event in HISTORY if event not in missing]


END_OF_1 = end(2.0, 1, 1)


def operated(what: str, task: int, answer: str = OK, at: float = 1.0) -> Event:
    return Event(what, at, 1, {"task": task, "answer": answer, "key": "edited"})


def with_audit(dump: Dump, *entries: tuple[str, int]) -> Dump:
    return replace(dump, audited=entries)


def dependent(*parents: int) -> list[Event]:
    """The history, in which task 4 depends on other tasks."""
    return [
        replace(event, data=event.data | {"parents": list(parents)}) if event.data.get("task") == 4 else event
        for event in HISTORY
    ]


def same_key(dump: Dump) -> Dump:
    return finished(finished(dump, 1, unique_key="k", handler="chaos.work"), 4, unique_key="k")


DOCTORED: dict[str, tuple[int, Callable[[], tuple[list[Event], Dump]]]] = {
    "an acknowledged edit is lost": (9, lambda: ([*HISTORY, operated("edit", 1)], with_audit(DUMP, ("edit", 1)))),
    "an acknowledged edit is not audited": (
        9,
        lambda: ([*HISTORY, operated("edit", 1)], finished(DUMP, 1, key="edited")),
    ),
    "an edit is audited twice": (
        9,
        lambda: (
            [*HISTORY, operated("edit", 1)],
            with_audit(finished(DUMP, 1, key="edited"), ("edit", 1), ("edit", 1)),
        ),
    ),
    "a refused edit is there": (
        9,
        lambda: (
            [*HISTORY, operated("edit", 1, REFUSED)],
            with_audit(finished(DUMP, 1, key="edited"), ("edit", 1)),
        ),
    ),
    "an unknown edit is in the row only": (
        9,
        lambda: ([*HISTORY, operated("edit", 1, UNKNOWN)], finished(DUMP, 1, key="edited")),
    ),
    "a task started while another one had its unique key": (10, lambda: (HISTORY, same_key(DUMP))),
    "a task started before its parent had ended": (11, lambda: (dependent(2), DUMP)),
    "a task started before its parent, which is gone": (11, lambda: (dependent(9), DUMP)),
    "a terminated task succeeded": (
        16,
        lambda: ([*HISTORY, operated("terminate", 1)], with_audit(DUMP, ("terminate", 1))),
    ),
    "a terminated task started afterwards": (
        16,
        lambda: (
            [*HISTORY, operated("terminate", 3, at=1.0)],
            with_audit(finished(DUMP, 3, state="cancelled"), ("terminate", 3)),
        ),
    ),
    "a termination is not audited": (
        16,
        lambda: ([*HISTORY, operated("terminate", 3, UNKNOWN)], finished(DUMP, 3, state="cancelled")),
    ),
    "reports count a success twice": (19, lambda: (HISTORY, reporting(succeeded=4))),
    "reports miss a success": (19, lambda: (HISTORY, reporting(succeeded=2))),
    "reports miss a failed attempt": (19, lambda: (HISTORY, reporting(retried=0))),
    "reports miss a submit": (19, lambda: (HISTORY, reporting(submitted=3))),
    "a duplicate is there": (1, lambda: ([*HISTORY, submit(1, "a", DUPLICATE)], DUMP)),
    "an acknowledged task is gone": (1, lambda: (HISTORY, without(DUMP, 3))),
    "an acknowledged task is there twice": (1, lambda: (HISTORY, living(DUMP, row(9, "a", "waiting", run_at=1e9)))),
    "an acknowledged task has another id": (1, lambda: ([submit(7, "a"), *HISTORY[1:]], DUMP)),
    "an unknown task is there twice": (
        1,
        lambda: (HISTORY, living(DUMP, *(row(n, "d", "waiting", run_at=1e9) for n in (8, 9)))),
    ),
    "a refused task is there": (1, lambda: (HISTORY, living(DUMP, row(9, "e", "waiting", run_at=1e9)))),
    "a task that no process submitted is there": (
        1,
        lambda: (HISTORY, living(DUMP, row(9, "z", "waiting", run_at=1e9))),
    ),
    "a task is live and in the history": (2, lambda: (HISTORY, living(DUMP, row(1, "a", "waiting", run_at=1e9)))),
    "a task is due and no runner claims it": (2, lambda: (HISTORY, living(DUMP, row(9, "d", "waiting", run_at=2.0)))),
    "a task runs for ever": (2, lambda: (HISTORY, living(DUMP, row(9, "d", "running")))),
    "one run failed and succeeded": (2, lambda: (HISTORY, attempted(DUMP, 2, 2, fence=4))),
    "a task succeeded whose handler never ended": (3, lambda: (less(END_OF_1), DUMP)),
    "a task succeeded before its handler ended": (3, lambda: (HISTORY, finished(DUMP, 1, finished_at=1.5))),
    "a task succeeded by a run under another fence": (3, lambda: ([*less(END_OF_1), end(2.0, 1, 2)], DUMP)),
    "a fence was granted twice": (4, lambda: ([*HISTORY, start(1.2, 1, 1, "a", pid=SECOND)], DUMP)),
    "a fence was granted after a later one": (
        4,
        lambda: (HISTORY, attempted(attempted(DUMP, 2, 1, started_at=3.6, ended_at=3.7), 2, 2, started_at=3.5)),
    ),
    "a task was claimed again while it ran": (5, lambda: (HISTORY, attempted(DUMP, 2, 2, ended_at=8.05))),
    "an old run was accepted after a newer claim": (6, lambda: ([*HISTORY, start(2.5, 1, 2, "a")], DUMP)),
    "a failure was accepted after a newer start": (6, lambda: (HISTORY, attempted(DUMP, 2, 2, ended_at=8.5))),
    "an attempt was not counted": (7, lambda: (HISTORY, finished(DUMP, 2, attempt=2))),
    "no attempt was counted": (7, lambda: (HISTORY, finished(DUMP, 1, attempt=0))),
    "an attempt ended as fenced out under a valid fence": (
        7,
        lambda: (HISTORY, attempted(DUMP, 3, 1, error_type="runner.errors.FencedOut")),
    ),
    "a task was claimed too often": (7, lambda: (HISTORY, finished(DUMP, 2, max_attempts=2))),
    "a rescued task at its maximum was claimed again": (
        7,
        lambda: (HISTORY, attempted(DUMP, 2, 2, attempt=3)),
    ),
    "a lost task was rescued late": (8, lambda: (HISTORY, attempted(DUMP, 2, 2, ended_at=9.5))),
    "a task was started before its time": (14, lambda: ([submit(1, "a", run_at=1.2), *HISTORY[1:]], DUMP)),
    "a task was claimed again before its delay": (14, lambda: (HISTORY, attempted(DUMP, 2, 1, delay=3.0))),
    "a payload changed in the table": (
        15,
        lambda: (HISTORY, finished(DUMP, 1, payload=json.dumps({"token": "a", "data": 2}))),
    ),
    "a handler got another payload": (
        15,
        lambda: ([*less(start(1.1, 1, 1, "a")), start(1.1, 1, 1, "a", digest_=digest(2))], DUMP),
    ),
    "a payment is missing": (18, lambda: (HISTORY, replace(DUMP, paid=()))),
    "a payment was made twice": (18, lambda: (HISTORY, replace(DUMP, paid=(1, 1)))),
    "a task that died has a payment": (
        18,
        lambda: (HISTORY, replace(finished(DUMP, 3, handler="chaos.pay"), paid=(1, 3))),
    ),
}


@pytest.mark.parametrize("name", list(DOCTORED))
def test_a_broken_promise_is_found(name: str) -> None:
    promise, doctor = DOCTORED[name]
    assert promise in broken_promises(*doctor())


def test_every_promise_is_broken_by_some_test() -> None:
    assert {promise for promise, _ in DOCTORED.values()} == set(PROMISES)


def test_recovery_has_no_bound_without_a_live_runner() -> None:
    slow = attempted(DUMP, 2, 2, ended_at=7.9)
    assert check(HISTORY, slow, 1.0) != []
    assert check(HISTORY, slow) == []


RECOVERY = Recovery(lease=1.5, scan=0.2, proof=Proof(group=0.3, alone=1.5), longest=0.5, slots=4, restart=0.0)


def with_bystander(runner_id: int = 7) -> Dump:
    """The dump, with a bystander of task 2 that its runner had claimed and not started."""
    dump = attempted(DUMP, 2, 2, runner_id=runner_id)
    bystander = attempt(4, 1, "rescue", 3.5, 7.0, runner_id=runner_id, **LOST)
    again = finished(dump, 4, attempt=2, fence=3, rescues=1, claimed_at=8.0, finished_at=9.5)
    return replace(again, attempts=(*again.attempts, bystander))


BYSTANDER = [
    *(event for event in HISTORY if event.data.get("task") != 4),
    submit(4, "f", OK),
    start(8.4, 4, 3, "f", 2, SECOND),
    end(9.4, 4, 3, SECOND),
]


def test_restarts_are_measured_from_the_kill_for_bystanders_too() -> None:
    restart_by_task = {restart.task: restart for restart in restarts(Evidence(BYSTANDER, with_bystander()))}
    assert {task: (round(one.seconds, 2), one.ran) for task, one in restart_by_task.items()} == {
        2: (4.1, True),
        4: (4.4, False),
    }


def test_counted_attempts_without_a_body_are_found_with_the_fault_of_their_runner() -> None:
    dump = with_bystander()
    evidence = Evidence(BYSTANDER, dump)
    assert [(one.fault, round(one.seconds, 2)) for one in idle_attempts(evidence)] == [("kill", 0.5)]
    calm = [event for event in BYSTANDER if event.what != "kill"]
    assert [(one.fault, round(one.seconds, 2)) for one in idle_attempts(Evidence(calm, dump))] == [("connection", 3.5)]
    begun = Evidence([start(3.6, 4, 1, "f"), *BYSTANDER], dump)
    assert idle_attempts(begun) == []


def test_a_late_start_after_the_last_fault_breaks_the_bound() -> None:
    quick = RECOVERY._replace(lease=0.0, longest=0.3)
    assert check(HISTORY, attempted(DUMP, 2, 2, runner_id=7), recovery=quick)[0].promise == 8
    disturbed = sorted([*HISTORY, Event("outage", 5.5, 1)], key=lambda event: event.at)
    assert check(disturbed, attempted(DUMP, 2, 2, runner_id=7), recovery=quick) == []


def test_suspects_that_wait_before_a_task_widen_its_bound() -> None:
    assert RECOVERY.bound({}) == pytest.approx(4.7)
    assert RECOVERY.bound({1: 8}) == pytest.approx(4.7 + 8 * 0.5 + 2 * 0.5)


@pytest.mark.parametrize(("submitted_at", "late"), [(0.0, False), (5.0, True)])
def test_only_tasks_that_were_due_before_a_task_excuse_its_wait(submitted_at: float, late: bool) -> None:
    submits = [replace(submit(50 + number, f"o{number}"), at=submitted_at) for number in range(5)]
    starts = [start(6.0, 50 + number, 1, f"o{number}") for number in range(5)]
    history = sorted([*HISTORY, *submits, *starts], key=lambda event: event.at)
    quick = RECOVERY._replace(lease=0.0, longest=0.3)
    violations = check(history, attempted(DUMP, 2, 2, runner_id=7), recovery=quick)
    assert (8 in {violation.promise for violation in violations}) is late
