"""Functions around attempts and after them: their view, their rights, and that their errors are contained."""

import asyncio
import contextvars
import re
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from runner import (
    AttemptEnd,
    Claimed,
    Context,
    Dead,
    Snooze,
    around_execute,
    on_dead,
    on_failure,
    on_retry,
    on_success,
    resource,
)
from runner.engine.hosting import hooks
from tests.conftest import on_sqlite
from tests.engine.harness import WAIT_SECONDS, Harness, until

pytestmark = [on_sqlite, pytest.mark.usefixtures("own_hooks")]
FRAME = re.compile(r", line \d+, in (\w+)")
TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("TENANT")


@pytest.fixture(params=["async", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def define(harness: Harness, kind: str, name: str, body: Any, **options: Any) -> None:
    """Register a handler of either kind with the same body."""

    def plain() -> Any:
        return body()

    async def coroutine() -> Any:
        return body()

    harness.handler(name, **options)(plain if kind == "plain" else coroutine)


async def test_the_first_is_the_outermost_and_sees_the_result(harness: Harness, kind: str) -> None:
    events: list[object] = []

    @around_execute
    async def outer(ctx: Context) -> AsyncIterator[None]:
        events.append(ctx.handler)
        events.append((yield))

    @around_execute
    def inner(ctx: Context) -> Iterator[None]:
        token = TENANT.set("acme")
        events.append((yield))
        TENANT.reset(token)

    define(harness, kind, "work", TENANT.get)
    task = await harness.run("work")
    assert events == ["work", "acme", "acme"]
    assert (await harness.row(task)).result == '"acme"'


async def test_an_exception_of_the_handler_passes_through(harness: Harness, kind: str) -> None:
    errors: list[BaseException] = []

    @around_execute
    async def watch(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        except ZeroDivisionError as error:  # without a raise of its own
            errors.append(error)

    define(harness, kind, "work", lambda: 1 / 0, max_attempts=1)
    task = await harness.run("work")
    assert [type(error) for error in errors] == [ZeroDivisionError]
    row = await harness.row(task)
    assert (row.state, row.error) == ("dead", "ZeroDivisionError: division by zero")


async def test_it_may_postpone_before_and_give_up_after(harness: Harness, kind: str) -> None:
    @around_execute
    async def gate(ctx: Context) -> AsyncIterator[None]:
        if ctx.queue == "closed":
            raise Snooze("1h", why="the shop is closed")
        try:
            yield
        except LookupError as error:
            raise Dead("no such shop") from error

    ran: list[str] = []

    def body() -> None:
        ran.append("body")
        raise KeyError("berlin")

    define(harness, kind, "work", body)
    closed, lost = await harness.submit("work", queue="closed"), await harness.submit("work")
    async with harness.running() as runner:
        await harness.wait_for(lost)
        await until(lambda: runner.metrics.verbs["snooze"] == 1)
    assert ran == ["body"]
    assert (await harness.row(closed)).error == "the shop is closed"
    assert (await harness.row(lost)).error == "KeyError: no such shop ('berlin')"
    slots = (runner.worker.in_flight.on_loop, runner.worker.in_flight.in_threads)
    assert [pool.in_use for pool in slots] == [0, 0]


async def test_its_own_errors_before_fail_the_attempt_and_after_are_logged(
    harness: Harness, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    @around_execute
    async def broken(ctx: Context) -> AsyncIterator[None]:
        if ctx.queue == "before":
            raise RuntimeError("no tenant")
        yield
        raise RuntimeError("metrics are away")

    define(harness, kind, "work", lambda: 7, max_attempts=1)
    before, after = await harness.submit("work", queue="before"), await harness.submit("work")
    await harness.work()
    row = await harness.row(before)
    assert (row.state, row.error) == ("dead", "RuntimeError: no tenant")
    assert (await harness.row(after)).state == "succeeded"
    assert "metrics are away" in caplog.text
    assert "broken failed after task" in caplog.text


async def test_a_timeout_reaches_it_while_the_thread_goes_on(harness: Harness) -> None:
    go_on, ends = threading.Event(), list[str]()

    @around_execute
    async def watch(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        finally:
            ends.append("around")

    @harness.handler("work", timeout=0.05, max_attempts=1)
    def work() -> None:
        go_on.wait(WAIT_SECONDS)

    task = await harness.submit("work")
    async with harness.running() as runner:
        await harness.wait_for(task)
        assert runner.worker.executor.stuck == 1
        assert ends == ["around"]
        go_on.set()
        await until(lambda: runner.worker.executor.stuck == 0)
    assert (await harness.row(task)).error.startswith("Timeout")


async def test_hooks_follow_every_end_with_its_reason(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[tuple[str, str, int, str | None]] = []

    @resource
    async def inbox() -> AsyncIterator[list[str]]:
        yield ["open"]

    def keep(event: str, end: AttemptEnd) -> None:
        calls.append((event, end.handler, end.attempt, end.reason))

    @on_success
    async def success(end: AttemptEnd, inbox: list[str]) -> None:
        assert inbox == ["open"]
        keep("success", end)

    @on_failure
    def failure(end: AttemptEnd) -> None:
        assert type(end.error).__name__ == "ValueError"
        keep("failure", end)

    @on_retry
    async def again(end: AttemptEnd) -> None:
        keep("retry", end)

    @on_dead
    async def dead(end: AttemptEnd) -> None:
        keep("dead", end)
        raise ConnectionError("pager is away")

    @harness.handler("fine")
    async def fine() -> None: ...

    @harness.handler("bad", max_attempts=2)
    async def bad(password: str) -> None:
        raise ValueError(f"wrong: {password}")

    tasks = [await harness.submit("fine"), await harness.submit("bad", {"password": "hunter2-secret"})]
    await harness.work()
    assert [await harness.state(task) for task in tasks] == ["succeeded", "dead"]
    reason = "ValueError: wrong: ***"
    assert sorted(calls, key=str) == sorted(
        [
            ("success", "fine", 1, None),
            ("failure", "bad", 1, reason),
            ("retry", "bad", 1, reason),
            ("failure", "bad", 2, reason),
            ("dead", "bad", 2, reason),
        ],
        key=str,
    )
    assert "pager is away" in caplog.text


async def test_a_runner_that_stops_waits_for_its_hooks(harness: Harness) -> None:
    ends: list[int] = []

    @on_success
    async def slow(end: AttemptEnd) -> None:
        await asyncio.sleep(0.1)
        ends.append(end.id)

    @harness.handler("work")
    async def work() -> None: ...

    task = await harness.run("work")
    assert ends == [task]


async def test_calls_of_hooks_that_are_too_slow_are_dropped_and_logged(
    harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "MOST_PENDING", 0)

    @on_success
    async def slow(end: AttemptEnd) -> None: ...

    @harness.handler("work")
    async def work() -> None: ...

    tasks = [await harness.submit("work") for _ in range(2)]
    async with harness.running():
        await harness.wait_for(*tasks)
        await until(lambda: "2 of its calls were dropped" in caplog.text)
    assert "slow is too slow: 1 of its calls were dropped" in caplog.text


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_traceback_of_a_failure_begins_with_the_handler(
    harness: Harness, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    @around_execute
    def outer(ctx: Context) -> Iterator[None]:
        yield

    @around_execute
    async def inner(ctx: Context) -> AsyncIterator[None]:
        if ctx.handler == "unprepared":
            raise OSError("no connection")
        yield

    if kind == "async":

        @harness.handler("work", max_attempts=1)
        async def coroutine() -> None:
            raise ValueError("bad")

    else:

        @harness.handler("work", max_attempts=1)
        def plain() -> None:
            raise ValueError("bad")

    harness.handlers["unprepared"] = harness.handlers["work"]
    failed, unprepared = await harness.submit("work"), await harness.submit("unprepared")
    async with harness.running():
        await harness.wait_for(failed, unprepared)
    name = "coroutine" if kind == "async" else "plain"
    ((by_handler,), (by_middleware,)) = await harness.attempts(failed), await harness.attempts(unprepared)
    assert FRAME.findall(by_handler.traceback) == [name]
    assert FRAME.findall(by_middleware.traceback)[-1] == "inner"
    logged = next(record.exc_text for record in caplog.records if "ValueError: bad" in record.message)
    assert FRAME.findall(logged or "") == [name]


async def test_an_attribute_of_the_context_that_is_set_is_named(harness: Harness) -> None:
    @harness.handler("work", max_attempts=1)
    async def work(ctx: Context, name: str) -> None:
        setattr(ctx, name, 1)

    names = ("checkpoint", "id", "other")
    tasks = [await harness.submit("work", {"name": name}) for name in names]
    async with harness.running():
        await harness.wait_for(*tasks)
    messages = [(await harness.attempts(task))[0].message for task in tasks]
    only = "a Context only has the values of its attempt"
    assert messages == [
        "ctx.checkpoint cannot be set: call it: ctx.checkpoint(...)",
        f"ctx.id cannot be set: {only}",
        f"ctx.other cannot be set: {only}",
    ]


async def test_middleware_that_yields_twice_is_logged_and_the_task_succeeds(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @around_execute
    async def twice(ctx: Context) -> AsyncIterator[None]:
        yield
        yield

    @harness.handler("work")
    async def work() -> None: ...

    task = await harness.submit("work")
    async with harness.running():
        await harness.wait_for(task)
    assert (await harness.row(task)).state == "succeeded"
    assert "it must yield once" in caplog.text


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_condition_selects_the_attempts_of_a_middleware(
    harness: Harness, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def is_mail(task: Claimed) -> bool:
        if task.queue == "odd":
            raise KeyError("no such queue")
        return task.queue == "mail"

    @around_execute(when=is_mail)
    async def watch(ctx: Context) -> AsyncIterator[None]:
        seen.append(ctx.queue)
        yield

    if kind == "async":

        @harness.handler("work")
        async def work() -> None: ...

    else:

        @harness.handler("work")
        def plain() -> None: ...

    tasks = [await harness.submit("work", queue=queue) for queue in ("mail", "other", "odd")]
    await harness.work()
    assert [await harness.state(task) for task in tasks] == ["succeeded"] * 3
    assert seen == ["mail"]
    assert is_mail.__qualname__ + " failed before task 3 (work)" in caplog.text
