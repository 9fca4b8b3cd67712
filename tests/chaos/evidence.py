"""Evidence: the journals and the final tables, arranged for the checks."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from runner.model.task import State
from tests.chaos.dump import Attempt, Dump, Row
from tests.chaos.journal import Event

PROMISES = {
    1: "no loss",
    2: "one ending",
    3: "effect at least once",
    4: "fences increase and are granted once",
    5: "no overlap",
    6: "no zombie write",
    7: "attempts count crashes",
    8: "bounded recovery",
    9: "edits survive",
    10: "unique keys",
    11: "dependencies",
    14: "not early",
    15: "fidelity",
    16: "terminate",
    18: "effect exactly once in one's own transaction",
    19: "reports count every outcome once",
}
"""The invariants by number. Progress (17) is checked with 2: at rest every due task has ended."""

GRAIN = 0.005
"""Seconds by which two times may seem to be in the wrong order: SQLite keeps milliseconds."""

OK, UNKNOWN, REFUSED, DUPLICATE = "ok", "unknown", "refused", "duplicate"
"""The answer to a submit or an operation: done, unknown, not done, not done because the unique key is taken."""

RUNNER_LOST = "runner lost"
INTERRUPT = "interrupt"
"""The move of an attempt that its runner interrupted; it does not count."""


FAULTS = ("kill", "freeze", "thaw", "outage")
"""Events that delay the recovery of work."""

Run = tuple[int, int]
"""A task's id and a fence."""


class Violation(NamedTuple):
    """A promise that was broken."""

    promise: int
    task: int | None
    why: str

    def __str__(self) -> str:
        return f"promise {self.promise} ({PROMISES[self.promise]}), task {self.task}: {self.why}"


class Evidence:
    """The events of all processes and the content of the database, by task.

    Args:
        history: the events by time.
        dump: the database at rest.
    """

    def __init__(self, history: Sequence[Event], dump: Dump) -> None:
        self.history = history
        self.dump = dump
        self.submitted_at: dict[Any, float] = {}
        """When the submit of each token began."""
        for event in history:
            if event.what == "submit":
                self.submitted_at.setdefault(event.data["token"], event.at)
        self.submits = _final_answers(history, "submit", "token")
        self.edits = _final_answers(history, "edit", "task")
        self.terminations = _final_answers(history, "terminate", "task")
        self.starts = [event for event in history if event.what == "start"]
        self.ends = {run_of(event): event for event in history if event.what == "end"}
        self.rows = {row.id: row for row in dump.rows}
        self.attempts: dict[int, list[Attempt]] = defaultdict(list)
        for attempt in sorted(dump.attempts, key=lambda attempt: attempt.fence):
            self.attempts[attempt.task_id].append(attempt)
        self.started: dict[int, set[int]] = defaultdict(set)
        for event in self.starts:
            self.started[event.data["task"]].add(event.data["fence"])

    def claims(self, task_id: int) -> list[tuple[int, float]]:
        """The claims of a task whose end is known, by fence, each with its time."""
        starts = {attempt.fence: attempt.started_at for attempt in self.attempts[task_id]}
        row = self.rows.get(task_id)
        if row is not None and row.state == State.SUCCEEDED:
            starts[row.fence] = row.claimed_at
        return sorted((fence, at) for fence, at in starts.items() if at is not None)


def run_of(event: Event) -> Run:
    """The task and the fence of a start or an end."""
    return event.data["task"], event.data["fence"]


def token_of(row: Row) -> Any:
    """The token in the payload of a task."""
    return json.loads(row.payload).get("token")


def _final_answers(history: Iterable[Event], what: str, name: str) -> dict[Any, Event]:
    """The final answer to each request: an unknown one may be resolved later.

    After an operator is killed, the next one can choose the same task. It is refused, as nothing is left to change.
    """
    answers: dict[Any, Event] = {}
    for event in history:
        if event.what == what:
            earlier = answers.get(event.data[name])
            if earlier is None or earlier.data["answer"] != OK or event.data["answer"] not in (UNKNOWN, REFUSED):
                answers[event.data[name]] = event
    return answers
