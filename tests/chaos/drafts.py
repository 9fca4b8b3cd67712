"""Drafts: tasks to submit, the same for the same seed."""

import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from runner.model.task import NewTask

DATA: tuple[Any, ...] = (
    None,
    'naïve ☃ 🐍 \\ "quoted" \n line',
    {"nested": [1, 2.5, -0.0, 1e300, {"deep": [True, False, None]}]},
    12345678901234567890123,
    [[], {}, ""],
    "x" * 2_000,
)
"""What travels in payloads."""

MIXES: dict[str, dict[str, float]] = {
    "plain": {"work": 1.0},
    "gentle": {"work": 0.5, "thread": 0.1, "flaky": 0.15, "later": 0.05, "pay": 0.1, "pay_thread": 0.1},
    "rough": {
        "work": 0.496,
        "thread": 0.1,
        "flaky": 0.15,
        "later": 0.05,
        "pay": 0.1,
        "pay_thread": 0.1,
        "kill": 0.004,
    },
}
"""How often each kind of task is drawn."""


class Draft(NamedTuple):
    """A task to submit.

    Args:
        token: unique token.
        data: payload for its handler.
        run_at: earliest start in seconds of the epoch; None for now.
        task: as the store takes it.
    """

    token: str
    data: Any
    run_at: float | None
    task: NewTask


def drafts(mix: str, count: int, seed: int) -> Iterator[Draft]:
    """Draw tasks from a mix."""
    draw = random.Random(seed)
    kinds = MIXES[mix]
    for number in range(count):
        kind = draw.choices(list(kinds), list(kinds.values()))[0]
        yield _of_kind(kind, f"{seed}-{number}", draw)


def draft(
    kind: str,
    token: str,
    data: Any = None,
    run_at: float | None = None,
    max_attempts: int | None = None,
    **arguments: Any,
) -> Draft:
    """A task of a kind, with arguments of its own."""
    payload = json.dumps({"token": token, "data": data} | arguments)
    due = None if run_at is None else datetime.fromtimestamp(run_at, UTC)
    most = max_attempts or ATTEMPTS[kind]
    return Draft(token, data, run_at, NewTask(f"chaos.{kind}", payload, run_at=due, max_attempts=most))


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
"""Enough for any storm, but for the tasks that kill their runner."""


def _of_kind(kind: str, token: str, draw: random.Random) -> Draft:
    data = draw.choice(DATA)
    match kind:
        case "flaky":
            return draft(kind, token, data, failures=draw.randint(1, 3))
        case "kill" | "pay" | "pay_thread":
            return draft(kind, token, data)
        case "later":
            return draft("work", token, data, run_at=time.time() + draw.uniform(0.2, 2.0))
    return draft(kind, token, data, seconds=draw.choice([0.0, 0.0, 0.01, 0.1]))
