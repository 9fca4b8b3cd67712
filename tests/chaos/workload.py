"""Workload: the tasks that submitters and tests submit. The same seed gives the same tasks."""

import hashlib
import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from runner.model.task import BatchMember, DependsOn, NewTask, UniqueSpec

DATA: tuple[Any, ...] = (
    None,
    'naïve ☃ 🐍 \\ "quoted" \n line',
    {"nested": [1, 2.5, -0.0, 1e300, {"deep": [True, False, None]}]},
    12345678901234567890123,
    [[], {}, ""],
    "x" * 2_000,
)
"""Payloads: values that an encoding could change."""

MIXES: dict[str, dict[str, float]] = {
    "plain": {"work": 1.0},
    "gentle": {"work": 0.5, "thread": 0.1, "flaky": 0.15, "later": 0.05, "pay": 0.1, "pay_thread": 0.1},
    "storm": {
        "work": 0.72,
        "thread": 0.04,
        "flaky": 0.06,
        "later": 0.05,
        "pay": 0.02,
        "pay_thread": 0.01,
        "unique": 0.05,
        "dependent": 0.05,
    },
}
"""The share of each kind of task."""

ATTEMPTS = {
    "work": 20,
    "thread": 20,
    "flaky": 20,
    "wait": 5,
    "pay": 20,
    "pay_thread": 20,
    "kill": 3,
    "late_kill": 5,
    "innocent": 5,
}
"""Maximum attempts: enough for any storm, except for the tasks that kill their runner."""

UNIQUE_KEYS = 20
"""Unique keys that the tasks of one submitter share."""

LATER = (0.3, 4.0)
"""Seconds by which a task for later is delayed; operators change it before."""


class PlannedTask(NamedTuple):
    """A task to submit.

    Args:
        token: identifies the task in the journals.
        data: payload for its handler.
        run_at: earliest start in seconds of the epoch; None for now.
        task: the task for the store.
    """

    token: str
    data: Any
    run_at: float | None
    task: NewTask

    def described(self) -> dict[str, Any]:
        """The values that the journal records with a submit."""
        return {"token": self.token, "digest": digest(self.data), "run_at": self.run_at}


def digest(data: Any) -> str:
    """A short text that differs for different payloads."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def planned_chunks(mix: str, seed: int, size: int) -> Iterator[list[PlannedTask]]:
    """Draw chunks of tasks from a mix without end. A dependent task depends on an earlier one of its chunk."""
    draw = random.Random(seed)
    shares = MIXES[mix]
    number = 0
    while True:
        chunk: list[PlannedTask] = []
        for _ in range(size):
            kind = draw.choices(list(shares), list(shares.values()))[0]
            parents = [place for place, task in enumerate(chunk) if task.task.handler == "chaos.work"]
            if kind == "dependent" and not parents:
                kind = "work"
            task = _draw_task(kind, f"{seed}-{number}", draw)
            if kind == "dependent":
                dependency = DependsOn(BatchMember(draw.choice(parents)), "run")
                task = task._replace(task=task.task._replace(after=(dependency,)))
            chunk.append(task)
            number += 1
        yield chunk


def plan(
    kind: str,
    token: str,
    data: Any = None,
    run_at: float | None = None,
    max_attempts: int | None = None,
    **arguments: Any,
) -> PlannedTask:
    """Plan a task of a kind, with additional arguments for its handler."""
    payload = json.dumps({"token": token, "data": data} | arguments)
    due = None if run_at is None else datetime.fromtimestamp(run_at, UTC)
    limit = max_attempts or ATTEMPTS[kind]
    return PlannedTask(token, data, run_at, NewTask(f"chaos.{kind}", payload, run_at=due, max_attempts=limit))


def _draw_task(kind: str, token: str, draw: random.Random) -> PlannedTask:
    data = draw.choice(DATA)
    match kind:
        case "flaky":
            return plan(kind, token, data, failures=draw.randint(1, 2))
        case "pay" | "pay_thread":
            return plan(kind, token, data)
        case "later":
            return plan("work", token, data, run_at=time.time() + draw.uniform(*LATER))
        case "unique":
            task = plan("work", token, data, seconds=0.05)
            return task._replace(task=task.task._replace(unique=UniqueSpec(f"key-{draw.randrange(UNIQUE_KEYS)}")))
        case "dependent":
            return plan("work", token, data)
    return plan(kind, token, data, seconds=draw.choice([0.0, 0.0, 0.0, 0.01, 0.1]))
