"""check: compare a history and a dump with the promises. Pure: no clock, no database, no files.

Fences distinguish the runs of a task. Promises are numbered as in `PROMISES`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from runner.model.task import State
from tests.chaos.dump import Attempt, Dump, Row
from tests.chaos.evidence import (
    DUPLICATE,
    GRAIN,
    INTERRUPT,
    OK,
    PROMISES,
    REFUSED,
    RUNNER_LOST,
    UNKNOWN,
    Evidence,
    Violation,
    run_of,
    token_of,
)
from tests.chaos.journal import Event
from tests.chaos.recovery import Recovery, rescued_late, started_late
from tests.chaos.relations import dependencies, edits, reports, terminations, unique_keys
from tests.chaos.workload import digest

__all__ = ["DUPLICATE", "GRAIN", "OK", "PROMISES", "REFUSED", "UNKNOWN", "check", "duplicates"]

UNCOUNTED = 2
"""Maximum number of starts in a row that count no attempt, because a runner died within a moment of them."""

PAYING = ("chaos.pay", "chaos.pay_thread")
"""Handlers that write a payment in the transaction that ends their task."""

FENCED_OUT = "FencedOut"
"""The error of an own transaction that lost its fence. A fenced settle stores nothing, so no attempt ends with it."""


def check(
    history: Sequence[Event], dump: Dump, bound: float | None = None, recovery: Recovery | None = None
) -> list[Violation]:
    """Find every promise that was broken.

    Args:
        history: the events of all processes, by time.
        dump: the content of the database at rest.
        bound: seconds within which work of a killed or frozen runner must be rescued; None when there were times
            without a healthy runner.
        recovery: the figures that bound the time from the last fault to the next start; None checks no such bound.

    Returns:
        The violations, each with the task that shows it.
    """
    evidence = Evidence(history, dump)
    violations = [
        *_loss(evidence),
        *_endings(evidence),
        *_effects(evidence),
        *_grants(evidence),
        *_overlaps(evidence),
        *_zombies(evidence),
        *_counts(evidence),
        *_early(evidence),
        *_changed(evidence),
        *_payments(evidence),
        *edits(evidence),
        *unique_keys(evidence),
        *dependencies(evidence),
        *terminations(evidence),
        *reports(evidence),
    ]
    if bound is not None:
        violations += rescued_late(evidence, bound)
    return violations + list(started_late(evidence, recovery)) if recovery is not None else violations


def duplicates(history: Sequence[Event]) -> int:
    """How many times a body that had ended well ended well again."""
    ends = Counter(event.data["task"] for event in history if event.what == "end")
    return sum(times - 1 for times in ends.values())


def _loss(evidence: Evidence) -> Iterator[Violation]:
    ids: dict[Any, list[int]] = defaultdict(list)
    for row in evidence.dump.rows:
        ids[token_of(row)].append(row.id)
    for token, event in evidence.submits.items():
        ids_of_token, answer = ids.pop(token, []), event.data["answer"]
        if answer == OK and ids_of_token != [event.data["task"]]:
            yield Violation(1, event.data["task"], f"was acknowledged and is there as {ids_of_token}")
        if answer == UNKNOWN and len(ids_of_token) > 1:
            yield Violation(1, ids_of_token[0], f"was submitted once and is there as {ids_of_token}")
        if answer in (REFUSED, DUPLICATE) and ids_of_token:
            yield Violation(1, ids_of_token[0], f"was {answer} and is there")
    for token, ids_of_token in ids.items():
        yield Violation(1, ids_of_token[0], f"has a token that no process submitted: {token}")


def _endings(evidence: Evidence) -> Iterator[Violation]:
    for task_id, times in Counter(row.id for row in evidence.dump.rows).items():
        if times > 1:
            yield Violation(2, task_id, f"is there {times} times")
    for row in evidence.dump.live:
        if row.state != State.WAITING or row.run_at < max((event.at for event in evidence.history), default=0.0):
            yield Violation(2, row.id, f"is {row.state} and due though all is at rest")
    for row in evidence.dump.history:
        if row.state == State.SUCCEEDED and any(attempt.fence == row.fence for attempt in evidence.attempts[row.id]):
            yield Violation(2, row.id, f"failed and succeeded under fence {row.fence}")


def _effects(evidence: Evidence) -> Iterator[Violation]:
    for row in evidence.dump.history:
        if row.state != State.SUCCEEDED:
            continue
        end = evidence.ends.get((row.id, row.fence))
        if end is None:
            yield Violation(3, row.id, f"succeeded, but its handler never ended under fence {row.fence}")
        elif row.finished_at is not None and end.at > row.finished_at + GRAIN:
            yield Violation(3, row.id, f"succeeded before its handler had ended under fence {row.fence}")


def _grants(evidence: Evidence) -> Iterator[Violation]:
    for (task_id, fence), times in Counter(map(run_of, evidence.starts)).items():
        if times > 1:
            yield Violation(4, task_id, f"was started {times} times under fence {fence}")
    for task_id in evidence.attempts:
        for (first, before), (second, after) in pairwise(evidence.claims(task_id)):
            if before > after + GRAIN:
                yield Violation(4, task_id, f"fence {first} was granted after fence {second}")


def _overlaps(evidence: Evidence) -> Iterator[Violation]:
    for task_id, attempts in evidence.attempts.items():
        for attempt in attempts:
            later = [at for fence, at in evidence.claims(task_id) if fence > attempt.fence]
            if any(at < attempt.ended_at - GRAIN for at in later):
                yield Violation(5, task_id, f"was claimed again before the run under fence {attempt.fence} was over")


def _zombies(evidence: Evidence) -> Iterator[Violation]:
    for task_id, row in evidence.rows.items():
        fences = evidence.started[task_id] | {attempt.fence for attempt in evidence.attempts[task_id]}
        if fences and max(fences) > row.fence:
            yield Violation(6, task_id, f"was ended under fence {row.fence} after fence {max(fences)} was granted")
    for event in evidence.starts:
        for attempt in evidence.attempts[event.data["task"]]:
            if attempt.fence < event.data["fence"] and attempt.ended_at > event.at + GRAIN:
                yield Violation(
                    6, attempt.task_id, f"the run under fence {attempt.fence} was settled after a later start"
                )


def _counts(evidence: Evidence) -> Iterator[Violation]:
    for task_id, row in evidence.rows.items():
        attempts, starts = evidence.attempts[task_id], evidence.started[task_id]
        limit = row.max_attempts
        counted = sum(attempt.verb != INTERRUPT for attempt in attempts) + (row.state == State.SUCCEEDED)
        if row.state in (State.SUCCEEDED, State.DEAD, State.WAITING) and row.attempt != counted:
            yield Violation(7, task_id, f"counts {row.attempt} attempts, of which {counted} ended")
        if len(starts) > row.attempt + _uncounted(row, attempts):
            yield Violation(7, task_id, f"was started {len(starts)} times and counts {row.attempt} attempts")
        if limit is not None and row.attempt > limit:
            yield Violation(7, task_id, f"counts {row.attempt} attempts, {limit} at most")
        for attempt in attempts:
            if attempt.error_type.endswith(FENCED_OUT):
                yield Violation(7, task_id, f"counts attempt {attempt.attempt} as fenced out, and its fence was valid")
            if attempt.verb in ("rescue", "retry") and limit is not None and attempt.attempt >= limit:
                yield Violation(7, task_id, f"may run again after attempt {attempt.attempt} of {limit}")


def _uncounted(row: Row, attempts: Sequence[Attempt]) -> int:
    """The most starts of a task that counted no attempt.

    A rescue that does not know that a task has started gives its attempt back. Each claim and each rescue raises the
    fence by one, so that such a rescue raises it by two above the attempt. After two of them in a row the claim of the
    task counts; a failure that a living runner settles begins a new row. A started task that gets no connection for its
    own transaction is released without counting an attempt.
    """
    lost = sum(attempt.error_type == RUNNER_LOST for attempt in attempts)
    retries = sum(attempt.verb == "retry" for attempt in attempts)
    stops = sum(attempt.verb == INTERRUPT for attempt in attempts)
    uncounted = min((row.fence - row.attempt - lost - row.releases - stops) // 2, UNCOUNTED * (1 + retries))
    return uncounted + stops + (row.releases if row.handler in PAYING else 0)


def _early(evidence: Evidence) -> Iterator[Violation]:
    wished = {token: event.data.get("run_at") for token, event in evidence.submits.items()}
    for event in evidence.starts:
        run_at = wished.get(event.data["token"])
        if run_at is not None and event.at < run_at - GRAIN:
            yield Violation(14, event.data["task"], f"was started {run_at - event.at:.3f} s early")
    for task_id, attempts in evidence.attempts.items():
        for attempt in attempts:
            due = attempt.ended_at + (attempt.delay or 0.0)
            next_claim = next((at for fence, at in evidence.claims(task_id) if fence > attempt.fence), None)
            if next_claim is not None and next_claim < due - GRAIN:
                yield Violation(14, task_id, f"was claimed again before the delay after fence {attempt.fence}")


def _changed(evidence: Evidence) -> Iterator[Violation]:
    digests = {token: event.data.get("digest") for token, event in evidence.submits.items()}
    for row in evidence.dump.rows:
        token = token_of(row)
        if token in digests and digest(json.loads(row.payload).get("data")) != digests[token]:
            yield Violation(15, row.id, "its payload differs from the submitted one")
    for event in evidence.starts:
        token = event.data["token"]
        if token in digests and event.data.get("digest") != digests[token]:
            yield Violation(15, event.data["task"], "its handler got another payload than was submitted")


def _payments(evidence: Evidence) -> Iterator[Violation]:
    paid = Counter(evidence.dump.paid)
    for row in evidence.dump.rows:
        due = int(row.handler in PAYING and row.state == State.SUCCEEDED)
        if paid[row.id] != due:
            yield Violation(18, row.id, f"is {row.state} and has {paid[row.id]} payments")
