"""Checks of promises between tasks and of operations: edits, unique keys, dependencies, terminations, reports."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.model.task import State
from tests.chaos.evidence import GRAIN, OK, REFUSED, Evidence, Violation

if TYPE_CHECKING:
    from tests.chaos.dump import Row

VERBS = {"rescue": "rescued", "retry": "retried"}
"""The statistics column for each verb of a failed attempt."""

STATES = {State.SUCCEEDED: "succeeded", State.DEAD: "died", State.CANCELLED: "cancelled"}
"""The statistics column for each final state."""


def edits(evidence: Evidence) -> Iterator[Violation]:
    """An acknowledged edit is in the row and once in the audit log; a refused one is in neither."""
    audited = Counter(evidence.dump.audited)
    for task_id, event in evidence.edits.items():
        row, entries, key = evidence.rows.get(task_id), audited["edit", task_id], event.data["key"]
        present = row is not None and row.key == key
        if event.data["answer"] == OK and (not present or entries != 1):
            yield Violation(9, task_id, f"was edited: present {present}, {entries} audit entries")
        if event.data["answer"] == REFUSED and (present or entries):
            yield Violation(9, task_id, f"was not edited: present {present}, {entries} audit entries")
        if present != bool(entries):
            yield Violation(9, task_id, f"edit and audit differ: present {present}, {entries} audit entries")


def terminations(evidence: Evidence) -> Iterator[Violation]:
    """A waiting task whose termination was acknowledged is cancelled and does not start afterwards."""
    audited = Counter(evidence.dump.audited)
    starts = first_starts(evidence, last=True)
    for task_id, event in evidence.terminations.items():
        row, entries = evidence.rows.get(task_id), audited["terminate", task_id]
        cancelled = row is not None and row.state == State.CANCELLED
        if event.data["answer"] == OK and (not cancelled or entries != 1):
            yield Violation(16, task_id, f"was terminated: cancelled {cancelled}, {entries} audit entries")
        if event.data["answer"] == OK and starts.get(task_id, 0.0) > event.at:
            yield Violation(16, task_id, f"started {starts[task_id] - event.at:.3f} s after its termination")
        if cancelled != bool(entries):
            yield Violation(16, task_id, f"state and audit differ: cancelled {cancelled}, {entries} audit entries")


def unique_keys(evidence: Evidence) -> Iterator[Violation]:
    """A task starts only after the earlier tasks with its unique key have ended."""
    tasks: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in evidence.rows.values():
        if row.unique_key is not None:
            tasks[row.handler, row.unique_key].append(row)
    starts = first_starts(evidence)
    for same_key in tasks.values():
        same_key.sort(key=lambda row: row.id)
        for earlier, later in itertools.pairwise(same_key):
            at = starts.get(later.id)
            if at is not None and (earlier.finished_at is None or at < earlier.finished_at - GRAIN):
                yield Violation(10, later.id, f"started before task {earlier.id} with the same unique key had ended")


def dependencies(evidence: Evidence) -> Iterator[Violation]:
    """A task starts only after its parents have ended."""
    starts = first_starts(evidence)
    for event in evidence.submits.values():
        for parent in event.data.get("parents", []):
            row, at = evidence.rows.get(parent), starts.get(event.data["task"])
            end = row.finished_at if row is not None else None
            if at is not None and (end is None or at < end - GRAIN):
                yield Violation(11, event.data["task"], f"started before its parent {parent} had ended")


def first_starts(evidence: Evidence, *, last: bool = False) -> dict[int, float]:
    """The time of the first start of each task, or of the last one."""
    starts: dict[int, float] = {}
    for event in evidence.starts:
        if last or event.data["task"] not in starts:
            starts[event.data["task"]] = event.at
    return starts


def outcomes(evidence: Evidence) -> Counter[str]:
    """The outcomes that were settled, by the column of the statistics that counts them."""
    settled = Counter(STATES[State(row.state)] for row in evidence.dump.history)
    settled.update(VERBS[attempt.verb] for attempt in evidence.dump.attempts if attempt.verb in VERBS)
    return settled


def reports(evidence: Evidence) -> Iterator[Violation]:
    """The minute statistics count every outcome once, and every task that has run or ended as submitted."""
    settled = outcomes(evidence)
    settled["submitted"] = len(evidence.dump.history) + sum(row.fence > 0 for row in evidence.dump.live)
    for name in ("submitted", "succeeded", "died", "retried"):
        reported = evidence.dump.reported.get(name, 0)
        if reported != settled[name]:
            yield Violation(19, None, f"reports count {reported} {name}, {settled[name]} were settled")
