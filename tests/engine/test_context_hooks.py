"""Middleware sets headers for later attempts, and hears of the end of its attempt, through the Context."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from runner import AttemptEnd, Context, around_execute, on_retry
from runner.engine.event_log import EventLog
from runner.engine.events import Events, TasksRescued
from runner.engine.hosting.hooks import Hooks
from runner.errors import InvalidTask
from runner.handlers.hooks import LIFE_CYCLE
from runner.handlers.registry import Handler, Options
from runner.model.headers import MOST_HEADERS
from runner.model.task import DependsOn, NewTask
from runner.policy.schedule_ticks import task_of
from runner.store.rescue import Rescued
from tests.conftest import on_sqlite, sqlite_first
from tests.engine import process_handlers
from tests.engine.harness import WAIT_SECONDS, Harness

pytestmark = pytest.mark.usefixtures("own_hooks")

HANDLER = Handler("process.value", process_handlers.value.function, Options(executor="process"))


@sqlite_first
@pytest.mark.parametrize("has_headers", [True, False])
async def test_a_header_of_a_failed_attempt_reaches_the_next_one(harness: Harness, has_headers: bool) -> None:
    seen: list[dict[str, str]] = []

    @around_execute
    def mark(ctx: Context) -> Iterator[None]:
        ctx.set_header("tries", f"{ctx.headers.get('tries', '')}{ctx.attempt}")
        yield

    @harness.handler("work", max_attempts=3)
    async def work(ctx: Context) -> None:
        seen.append(dict(ctx.headers))
        if ctx.attempt < 3:
            raise ValueError

    first = {"request-id": "a1"} if has_headers else {}
    task = await harness.run("work", headers=json.dumps(first) if first else None)
    assert seen == [{**first, "tries": tries} for tries in ("1", "12", "123")]
    stored = (await harness.row(task)).headers
    assert (json.loads(stored) if isinstance(stored, str) else stored) == {**first, "tries": "12"}


@on_sqlite
async def test_a_header_that_is_not_valid_is_refused(harness: Harness) -> None:
    errors: list[str] = []

    @harness.handler("work")
    async def work(ctx: Context) -> None:
        with pytest.raises(InvalidTask, match="unprintable"):
            ctx.set_header("name", "a\nb")
        for number in range(MOST_HEADERS):
            ctx.set_header(f"h{number}", "")
        with pytest.raises(InvalidTask, match="at most"):
            ctx.set_header("more", "")
        errors.append("both")

    await harness.submit("work")
    await harness.work()
    assert errors == ["both"]


@on_sqlite
async def test_an_attempt_with_a_new_header_can_be_cancelled_from_inside_and_by_no_other(harness: Harness) -> None:
    @harness.handler("work", max_attempts=1)
    async def work(ctx: Context) -> None:
        ctx.set_header("a", "b")
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(0)

    task = await harness.run("work")
    assert (await harness.row(task)).error.startswith("asyncio.exceptions.CancelledError")


@on_sqlite
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_functions_of_an_attempt_get_its_end_after_it_is_written(
    harness: Harness, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[AttemptEnd] = []
    states: list[tuple[float | None, bool]] = []

    def broken(_: AttemptEnd) -> None:
        raise ConnectionError("collector is away")

    @around_execute
    async def watch(ctx: Context) -> AsyncIterator[None]:
        ctx.after_settle(broken)
        ctx.after_settle(ends.append)
        states.append((ctx.wait, ctx.wait is not None and ctx.wait >= 0))
        yield

    if kind == "async":

        @harness.handler("work", max_attempts=2)
        async def work(fails: bool) -> None:
            assert not fails

    else:

        @harness.handler("work", max_attempts=2)
        def plain(fails: bool) -> None:
            assert not fails

    good, bad = await harness.submit("work", {"fails": False}), await harness.submit("work", {"fails": True})
    await harness.work()
    assert {(end.id, end.verb) for end in ends} == {(good, "succeed"), (bad, "retry"), (bad, "die")}
    assert all(is_known for _, is_known in states)
    assert caplog.text.count("broken failed after task") == 3


async def test_the_hooks_and_the_log_line_of_a_rescued_task_get_its_values(caplog: pytest.LogCaptureFixture) -> None:
    ends: list[AttemptEnd] = []
    events = Events()

    @on_retry
    async def again(end: AttemptEnd) -> None:
        ends.append(end)

    hooks, _ = Hooks({}, events), EventLog(events)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = json.dumps({"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    task = Rescued("rescue", "mail", "work", 1, "k", False, 7, "acme", '["red"]', headers, 999)
    events.publish(TasksRescued({17: task}))
    await hooks.drain(WAIT_SECONDS)
    (end,) = ends
    assert (end.id, end.verb, end.max_attempts, end.tenant, end.tags, end.runner_id) == (
        *(17, "rescue", 7, "acme", ("red",), 999),
    )
    assert end.headers["traceparent"].split("-")[1] == trace
    assert [vars(record)["trace_id"] for record in caplog.records] == [trace]


@sqlite_first
async def test_the_headers_of_parents_can_be_read(harness: Harness) -> None:
    headers: list[Any] = []

    @harness.handler("parent")
    async def parent() -> None: ...

    @harness.handler("child")
    async def child(ctx: Context) -> None:
        assert ctx.batch is not None
        headers.extend(await ctx.batch.headers_async())
        headers.append(len(await ctx.batch.headers_async(1)))

    first = await harness.submit("parent", headers='{"a": "1"}')
    second = await harness.submit("parent")
    await harness.submit("child", after=(DependsOn(first), DependsOn(second)))
    await harness.work()
    assert headers == [{"a": "1"}, {}, 1]


@pytest.mark.slow
@on_sqlite
async def test_a_function_around_processes_runs_in_the_worker(harness: Harness) -> None:
    assert process_handlers.VALUE.get() == "none"
    LIFE_CYCLE.clear()
    harness.handlers["process.value"] = HANDLER
    task = await harness.submit("process.value", headers='{"number": "7"}')
    await harness.work(processes=1)
    assert json.loads((await harness.row(task)).result) == "7"


def test_the_tasks_of_a_schedule_name_it_in_a_header() -> None:
    task = task_of(NewTask("work", headers='{"a": "1"}'), "nightly", datetime(2026, 1, 1, tzinfo=UTC), 0)
    assert json.loads(task.headers or "") == {"a": "1", "schedule": "nightly"}
