"""The contexts of attempts: hooks and log lines see the values of their own attempt, and of no other."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Iterator

import pytest

from runner import AttemptEnd, Context, around_execute, on_dead, on_failure
from runner.handlers.registry import Handler, Options
from tests.conftest import sqlite_first
from tests.engine import process_handlers
from tests.engine.harness import WAIT_SECONDS, Harness

pytestmark = [sqlite_first, pytest.mark.usefixtures("own_hooks")]

NUMBER: contextvars.ContextVar[int | None] = contextvars.ContextVar("NUMBER", default=None)
TASKS = 8


class Seen(logging.Handler):
    """The value of NUMBER at each log line of a task, by task id."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[int, set[int | None]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.numbers.setdefault(vars(record)["task"], set()).add(NUMBER.get())


@pytest.fixture
def lines() -> Iterator[Seen]:
    seen, logger = Seen(), logging.getLogger("runner.outcome")
    logger.addHandler(seen)
    yield seen
    logger.removeHandler(seen)


@pytest.mark.parametrize("kind", ["async", "plain", "middleware", pytest.param("process", marks=pytest.mark.slow)])
async def test_each_hook_and_log_line_sees_the_values_of_its_attempt(harness: Harness, kind: str, lines: Seen) -> None:
    together, all_async = threading.Barrier(TASKS), asyncio.Barrier(TASKS)
    hooks: dict[int, set[int | None]] = {}
    ends: list[AttemptEnd] = []

    @on_failure
    async def fail(end: AttemptEnd) -> None:
        hooks.setdefault(end.id, set()).add(NUMBER.get())

    @on_dead
    def dead(end: AttemptEnd) -> None:
        hooks.setdefault(end.id, set()).add(NUMBER.get())
        ends.append(end)

    if kind in ("middleware", "process"):

        @around_execute
        def scope(ctx: Context) -> Iterator[None]:
            token = NUMBER.set(int(ctx.headers["number"]))
            try:
                yield
            finally:
                NUMBER.reset(token)

    if kind == "process":
        harness.handlers["work"] = Handler(
            "work", process_handlers.refuse.function, Options(executor="process", max_attempts=1)
        )

    elif kind == "plain":

        @harness.handler("work", max_attempts=1)
        def plain(number: int) -> None:
            NUMBER.set(number)
            together.wait(WAIT_SECONDS)
            raise ValueError(number)

    else:

        @harness.handler("work", max_attempts=1)
        async def coroutine(number: int) -> None:
            if kind == "async":
                NUMBER.set(number)
            await all_async.wait()
            raise ValueError(number)

    ids = {
        await harness.submit("work", {"number": n}, headers=f'{{"number": "{n}"}}', tenant="acme", tags='["red"]'): n
        for n in range(TASKS)
    }
    await harness.work(concurrency=TASKS, threads=TASKS, processes=2)
    own = {id: {number} for id, number in ids.items()}
    assert hooks == own
    assert lines.numbers == own
    assert {end.id: end.headers["number"] for end in ends} == {id: str(number) for id, number in ids.items()}
    assert {(end.tenant, end.tags, end.runner_id is not None) for end in ends} == {("acme", ("red",), True)}
    assert all(end.wait is not None and end.wait >= 0 for end in ends)
