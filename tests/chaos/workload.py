"""Workload: the tasks that submitters and tests submit. The same seed gives the same tasks."""

import hashlib
import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from runner.model.task import BatchMember, DependsOn, NewTask, OnDuplicate, OrderKey, Scope, UniqueKey

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
    "http": {"work": 0.7, "thread": 0.1, "flaky": 0.1, "later": 0.05, "dependent": 0.05},
    "far": {"far": 0.7, "far_flaky": 0.1, "work": 0.1, "later": 0.05, "dependent": 0.05},
    "strategies": {
        "work": 0.5,
        "thread": 0.05,
        "narrow": 0.15,
        "brittle": 0.15,
        "flaky": 0.07,
        "doomed": 0.05,
        "debounce": 0.03,
    },
}
"""The share of each kind of task."""

ATTEMPTS = {
    "work": 20,
    "thread": 20,
    "flaky": 20,
    "far": 20,
    "far_flaky": 20,
    "narrow": 20,
    "brittle": 5_000,
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

WINDOW = "window-"
"""Begin of the tokens of debounced tasks: a later submit replaces the payload, and the token in it."""

TENANTS, ORDER_KEYS = 4, 8
HOSTS = ("h1", "h2", "h3")
EXPIRY = (0.2, 5.0)
"""Seconds until a task expires."""

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
            parents = [index for index, task in enumerate(chunk) if task.task.handler == "chaos.work"]
            if kind == "dependent" and not parents:
                kind = "work"
            token = f"{seed}-{number}"
            task = _draw_strategies(kind, token, draw) if mix == "strategies" else _draw_task(kind, token, draw)
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


def _draw_strategies(kind: str, token: str, draw: random.Random) -> PlannedTask:
    """Draw a task with random options of strategies."""
    if kind == "debounce":
        key = f"debounce-{draw.randrange(UNIQUE_KEYS)}"
        unique = UniqueKey(key, Scope.UNTIL_STARTED, None, OnDuplicate.REPLACE, 5.0)
        planned = plan("work", f"{WINDOW}{token}", draw.choice(DATA))
        return planned._replace(task=planned.task._replace(unique_key=unique, delay=1.0))
    if kind == "doomed":
        planned = plan("flaky", token, draw.choice(DATA), max_attempts=1, failures=1)
    else:
        planned = _draw_task(kind, token, draw)
    task = planned.task._replace(queue=draw.choice(["a", "b"]), priority=draw.choice([1, 1, 5, 9]))
    if draw.random() < 0.6:
        task = task._replace(tenant=f"t{draw.randrange(TENANTS)}")
    match draw.choices(["order", "unique", "expiry", "hosts", ""], [0.2, 0.15, 0.1, 0.15, 0.4])[0]:
        case "order":
            rule: Any = draw.choice(["wait", "run", "cancel"])
            task = task._replace(order_key=OrderKey(f"{rule}-{draw.randrange(ORDER_KEYS)}", rule))
        case "unique":
            task = task._replace(unique_key=_unique(draw))
        case "expiry":
            task = task._replace(expires=draw.uniform(*EXPIRY))
        case "hosts":
            hosts = ",".join(sorted(draw.sample(HOSTS, draw.randint(1, 2))))
            task = task._replace(hosts=hosts, hosts_for=draw.choice([None, 1.0, 5.0]))
    return planned._replace(task=task)


def _unique(draw: random.Random) -> UniqueKey:
    """A unique key whose name begins with its scope."""
    key = draw.randrange(UNIQUE_KEYS)
    match draw.choice(["finished", "started", "throttle"]):
        case "finished":
            return UniqueKey(f"finished-{key}")
        case "started":
            return UniqueKey(f"started-{key}", Scope.UNTIL_STARTED)
    return UniqueKey(f"throttle-2-{key}", Scope.FOR_A_TIME, 2.0)


def _draw_task(kind: str, token: str, draw: random.Random) -> PlannedTask:
    data = draw.choice(DATA)
    match kind:
        case "flaky" | "far_flaky":
            return plan(kind, token, data, failures=draw.randint(1, 2))
        case "pay" | "pay_thread" | "brittle":
            return plan(kind, token, data)
        case "later":
            return plan("work", token, data, run_at=time.time() + draw.uniform(*LATER))
        case "unique":
            task = plan("work", token, data, seconds=0.05)
            return task._replace(task=task.task._replace(unique_key=UniqueKey(f"key-{draw.randrange(UNIQUE_KEYS)}")))
        case "dependent":
            return plan("work", token, data)
    return plan(kind, token, data, seconds=draw.choice([0.0, 0.0, 0.0, 0.01, 0.1]))
