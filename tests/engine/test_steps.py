"""Durable steps: the function of a step runs once, and later attempts use its stored result."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from runner import FailedRun, LineLogged, StateChanged, connect, disconnect, handle, retry_plan
from runner.errors import InvalidStep
from runner.handlers.context import Context
from runner.model.task import NewTask
from runner.operations.results import Actor, Target
from runner.operations.retry import retry_now
from runner.policy.own_retry_plan import PLANS
from tests.engine.harness import Harness, until


async def steps(harness: Harness, task: int) -> list[Any]:
    """The steps of a task, in order."""
    table = harness.database.tables.step
    return list(await harness.rows(sa.select(table).where(table.c.task_id == task).order_by(table.c.at, table.c.name)))


async def operate(harness: Harness, operation: Any, task: int) -> None:
    """Change a task as an operator does."""
    result = await harness.database.write(operation, [Target(task)], Actor("ana", "desk"))
    assert result.changed == [task]


async def signal(harness: Harness, task: int, name: str, payload: str | None = None) -> None:
    """Insert a signal as a database client may."""
    await harness.change(sa.insert(harness.database.tables.signal).values(task_id=task, name=name, payload=payload))


@dataclass
class Receipt:
    order: int
    cents: int


@pytest.mark.both_databases
async def test_a_step_runs_once_and_later_attempts_use_its_result(harness: Harness) -> None:
    calls: list[str] = []
    receipts: list[Receipt] = []

    async def charge(order: int, *, cents: int) -> Receipt:
        calls.append("charge")
        return Receipt(order, cents)

    async def ship(receipt: Receipt) -> None:
        calls.append("ship")
        if calls.count("ship") < 3:
            raise ConnectionError("no truck")

    @harness.handler("order", max_attempts=5)
    async def order(ctx: Context, order: int) -> str:
        receipt = await ctx.step("charge", charge, order, cents=500)
        receipts.append(receipt)
        await ctx.step("ship", ship, receipt)
        return "shipped"

    task = await harness.run("order", {"order": 17})
    row = await harness.row(task)
    assert (row.state, row.attempt, row.result) == ("succeeded", 3, '"shipped"')
    assert calls == ["charge", "ship", "ship", "ship"]
    assert receipts == [Receipt(17, 500)] * 3
    stored = await steps(harness, task)
    assert [(step.name, step.kind, step.number, step.attempt) for step in stored] == [
        ("charge", "function", 1, 1),
        ("ship", "function", 2, 3),
    ]
    assert all(step.done_at for step in stored)
    assert stored[0].function.endswith("charge")


async def test_the_steps_of_a_plain_function_block(harness: Harness) -> None:
    calls: list[int] = []

    def add(value: int) -> int:
        calls.append(value)
        return value + 1

    @harness.handler("sum", max_attempts=3)
    def total(ctx: Context) -> int:
        value = 0
        for number in range(3):
            value = ctx.step(f"add-{number}", add, value)
        if ctx.attempt == 1:
            raise ValueError("once more")
        return value

    task = await harness.run("sum")
    assert ((await harness.row(task)).result, calls) == ("3", [0, 1, 2])


async def test_a_failed_step_retries_by_its_own_plan_without_an_attempt(harness: Harness) -> None:
    calls: list[str] = []

    async def charge() -> str:
        calls.append("charge")
        return "paid"

    async def ship() -> None:
        calls.append("ship")
        if calls.count("ship") < 3:
            raise ConnectionError("no truck")

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step("charge", charge)
        await ctx.step("ship", ship, retry="1ms,1ms")

    task = await harness.run("order")
    row = await harness.row(task)
    assert (row.state, row.attempt, calls) == ("succeeded", 1, ["charge", "ship", "ship", "ship"])
    assert [(one.verb, one.error_type) for one in await harness.attempts(task)] == [("retry", "ConnectionError")] * 2


async def test_a_step_whose_plan_is_used_up_fails_the_attempt(harness: Harness) -> None:
    async def ship() -> None:
        raise ConnectionError("no truck")

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step("ship", ship, retry="1ms")

    task = await harness.run("order")
    row = await harness.row(task)
    assert (row.state, row.error) == ("dead", "ConnectionError: no truck")
    assert [step.failures for step in await steps(harness, task)] == [1]


async def test_a_spread_plan_of_a_step_has_as_many_retries_as_stages(harness: Harness) -> None:
    calls: list[None] = []

    async def ship() -> None:
        calls.append(None)
        raise ConnectionError("no truck")

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step("ship", ship, retry="1ms,1ms~10%")

    await harness.submit("order")
    await harness.work()
    assert len(calls) == 3


@pytest.fixture
def runs() -> Iterator[list[FailedRun]]:
    runs: list[FailedRun] = []

    @retry_plan("test.by_error")
    def decide(run: FailedRun) -> float | None:
        runs.append(run)
        return 0.001 if run.error_type == "ConnectionError" else None

    yield runs
    del PLANS["test.by_error"]


async def test_an_own_plan_of_a_step_receives_its_error(harness: Harness, runs: list[FailedRun]) -> None:
    errors: list[Exception] = [ConnectionError("no truck"), ConnectionError("no driver"), ValueError("no such order")]

    async def ship() -> None:
        raise errors[len(runs)]

    @harness.handler("order", max_attempts=9, retry="never")
    async def order(ctx: Context) -> None:
        await ctx.step("ship", ship, retry="test.by_error")

    task = await harness.run("order")
    place = (task, "order", "default")
    assert [(run.attempt, run.error_type, run.error_message) for run in runs] == [
        (1, "ConnectionError", "no truck"),
        (2, "ConnectionError", "no driver"),
        (3, "ValueError", "no such order"),
    ]
    assert {(run.task_id, run.handler, run.queue) for run in runs} == {place}
    rules = [str(attempt.rule) for attempt in await harness.attempts(task)]
    assert [rule.startswith("retried, by retry plan test.by_error") for rule in rules] == [True, True, False]
    assert (await harness.row(task)).error == "ValueError: no such order"


class Patient:
    """A plan that a step names by its path."""

    def delay(self, run: FailedRun) -> str | None:
        return "1ms" if run.attempt < 3 else None


async def test_a_step_loads_the_own_plan_that_it_names_by_its_path(harness: Harness) -> None:
    calls: list[None] = []

    def ship() -> None:
        calls.append(None)
        raise ConnectionError("no truck")

    @harness.handler("order", max_attempts=9, retry="never")
    def order(ctx: Context) -> None:
        ctx.step("ship", ship, retry=f"{__name__}:Patient")

    await harness.submit("order")
    await harness.work()
    assert len(calls) == 3


async def test_a_step_waits_for_its_own_retry_while_another_starts_attempts(harness: Harness) -> None:
    calls: list[str] = []

    async def ask() -> None:
        calls.append("ask")
        raise ConnectionError("no answer")

    async def ship() -> None:
        calls.append("ship")
        if calls.count("ship") < 3:
            raise ConnectionError("no truck")

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> None:
        await asyncio.gather(ctx.step("ship", ship, retry="1ms,1ms"), ctx.step("ask", ask, retry="1h,1h"))

    async def has_shipped() -> bool:
        return bool((await harness.row(task)).state == "waiting" and calls.count("ship") == 3)

    task = await harness.submit("order")
    async with harness.running():
        await until(has_shipped)
    row = await harness.row(task)
    assert (calls.count("ask"), row.error) == (1, "step ask waits for its retry 1 of 2")
    assert row.run_at - row.submitted_at > timedelta(minutes=59)


@pytest.mark.parametrize("plain", [False, True])
async def test_a_step_runs_before_its_retry_is_due_only_if_an_operator_retries_its_task(
    harness: Harness, plain: bool
) -> None:
    fences: list[int] = []

    async def ask(fence: int) -> None:
        fences.append(fence)
        raise ConnectionError("no answer")

    def ask_plain(fence: int) -> None:
        fences.append(fence)
        raise ConnectionError("no answer")

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step("ask", ask, ctx.fence, retry="1h")

    @harness.handler("plain", max_attempts=1)
    def order_plain(ctx: Context) -> None:
        ctx.step("ask", ask_plain, ctx.fence, retry="1h")

    async def waits(fence: int) -> bool:
        row = await harness.row(task)
        return bool((row.state, row.fence) == ("waiting", fence))

    table = harness.database.tables.task
    task = await harness.submit("plain" if plain else "order")
    async with harness.running():
        await until(lambda: waits(1))
        await harness.change(sa.update(table).values(run_at=table.c.submitted_at))
        await until(lambda: waits(2))
        await operate(harness, retry_now, task)
        await until(lambda: waits(3))
    assert fences == [1, 3]


@pytest.mark.both_databases
async def test_a_retry_by_an_operator_gives_a_failed_step_all_its_retries(harness: Harness) -> None:
    calls: list[str] = []

    async def charge() -> None:
        calls.append("charge")

    async def ship() -> None:
        calls.append("ship")
        raise ConnectionError("no truck")

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.step("charge", charge)
        await ctx.step("ship", ship, retry="1ms,1ms")

    task = await harness.run("order")
    await operate(harness, retry_now, task)
    await harness.work()
    assert calls == ["charge", *["ship"] * 6]


@pytest.mark.both_databases
async def test_a_step_in_a_transaction_commits_with_its_record(harness: Harness) -> None:
    await harness.change(sa.text("CREATE TABLE payment (number integer)"))
    calls: list[int] = []

    async def pay(tx: AsyncConnection, number: int) -> int:
        calls.append(number)
        await tx.execute(sa.text("INSERT INTO payment VALUES (:number)"), {"number": number})
        if len(calls) == 1:
            raise ConnectionError("after the insert")
        return number

    @harness.handler("pay", max_attempts=3)
    async def handle(ctx: Context) -> int:
        paid = await ctx.step("pay", pay, 7, transaction=True)
        if ctx.attempt < 3:
            raise ValueError("after the step")
        return paid

    @harness.handler("pay.plain", max_attempts=3)
    def handle_plain(ctx: Context) -> int:
        def pay(tx: sa.Connection) -> int:
            tx.execute(sa.text("INSERT INTO payment VALUES (8)"))
            return 8

        paid = ctx.step("pay", pay, transaction=True)
        if ctx.attempt < 3:
            raise ValueError("after the step")
        return paid

    task, plain = await harness.submit("pay"), await harness.submit("pay.plain")
    await harness.work()
    rows = [await harness.row(task), await harness.row(plain)]
    assert [(row.state, row.result) for row in rows] == [("succeeded", "7"), ("succeeded", "8")]
    numbers = [row.number for row in await harness.rows(sa.text("SELECT number FROM payment ORDER BY number"))]
    assert (numbers, len(calls)) == ([7, 8], 2)


async def test_a_sleep_frees_the_slot_and_costs_no_attempt(harness: Harness) -> None:
    seen: list[str] = []

    @harness.handler("nap", max_attempts=1)
    async def nap(ctx: Context) -> None:
        seen.append("start")
        await ctx.sleep("100ms")
        await ctx.sleep("1ms")
        seen.append("end")

    @harness.handler("other")
    async def other() -> None:
        seen.append("other")

    task, _ = await harness.submit("nap"), await harness.submit("other")
    async with harness.running(concurrency=1):
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.attempt, seen) == ("succeeded", 1, ["start", "other", "start", "start", "end"])
    assert [step.name for step in await steps(harness, task)] == ["sleep 1", "sleep 2"]


@pytest.mark.both_databases
@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_a_task_waits_for_a_signal(harness: Harness, plain: bool) -> None:
    if plain:

        @harness.handler("order", max_attempts=1)
        def order(ctx: Context) -> Any:
            found = ctx.wait_for("approved").result()
            return found and [found.payload, found.by]
    else:

        @harness.handler("order", max_attempts=1)
        async def order(ctx: Context) -> Any:
            found = await ctx.wait_for("approved")
            return found and [found.payload, found.by]

    task = await harness.submit("order")
    async with harness.running():

        async def is_waiting() -> bool:
            row = await harness.row(task)
            return bool(row.state == "waiting" and row.error)

        await until(is_waiting)
        assert (await harness.row(task)).error == "waits for signal approved"
        await signal(harness, task, "other")
        await signal(harness, task, "approved", '{"by": "ana"}')
        await harness.wait_for(task)
    row = await harness.row(task)
    assert (row.state, row.attempt, row.result.replace(" ", "")) == ("succeeded", 1, '[{"by":"ana"},null]')


@pytest.mark.both_databases
async def test_signals_before_their_waits_are_kept_in_order(harness: Harness) -> None:
    @harness.handler("order")
    async def order(ctx: Context) -> list[Any]:
        found = [await ctx.wait_for("item") for _ in range(2)]
        return [each and each.payload for each in found]

    task = await harness.submit("order")
    for number in ("1", "2", "3"):
        await signal(harness, task, "item", number)
    await harness.work()
    assert (await harness.row(task)).result.replace(" ", "") == "[1,2]"


async def test_a_timeout_is_an_outcome(harness: Harness) -> None:
    @harness.handler("order")
    async def order(ctx: Context) -> str:
        return "late" if await ctx.wait_for("approved", timeout="20ms") is None else "approved"

    task = await harness.submit("order")
    async with harness.running():
        await harness.wait_for(task)
    assert (await harness.row(task)).result == '"late"'


@pytest.mark.both_databases
async def test_events_name_what_a_task_waits_for(harness: Harness, migrated_url: str) -> None:
    @harness.handler("child")
    async def child() -> int:
        return 7

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.wait_for("approved")
        await ctx.call("invoice", NewTask("child", delay=3600))
        await ctx.sleep("1h")

    connect(url=migrated_url)
    task, seen = await harness.submit("order"), list[tuple[str, str | None, str | None]]()
    log = list[str]()
    try:
        async with harness.running():
            async for event in handle(task).events(kinds=["state", "log"]):
                match event:
                    case LineLogged():
                        log.append(event.line)
                    case StateChanged(waits_for="invoice"):
                        (called,) = await harness.rows(sa.select(harness.database.tables.dependency))
                        await handle(called.parent_id).retry_async(by="ana")
                    case StateChanged(waits_for=str(name)):
                        assert (await handle(task).status_async()).waits_for == name
                        await handle(task).signal_async(name, by="ana")
                if isinstance(event, StateChanged) and event.state in ("waiting", "blocked", "succeeded"):
                    seen.append((event.state, event.waits_for, event.error))
    finally:
        disconnect()
    waits = [each for each in seen if each[1] is not None]
    assert waits == [("waiting", "approved", None), ("blocked", "invoice", None), ("waiting", "sleep 1", None)]
    assert seen[-1] == ("succeeded", None, None)
    assert log == [f"{name}: received signal {name} from ana via python" for name in ("approved", "sleep 1")]


@pytest.mark.parametrize(
    ("deployed", "reason"),
    [
        (["charge", "reserve", "ship", "bill"], "step 2 was 'ship' and is 'reserve' now (function sleep)"),
        (["charge", "send", "bill"], "step 2 was 'ship' and is 'send' now (function sleep)"),
        (["charge", "bill"], "step 'bill' was number 3 and is number 2 now"),
        (["ship", "charge", "bill"], "step 'ship' was number 2 and is number 1 now"),
        (["charge", "ship", "call bill"], "step 'bill' was a function and is a call now (function sleep)"),
        (["call child", "ship", "bill"], "step 1 was 'charge' and is 'child' now (function sleep)"),
        (["charge", "ship", "bill", "remind"], None),
    ],
)
async def test_changed_steps_end_the_task_by_name(harness: Harness, deployed: list[str], reason: str | None) -> None:
    names, ran = ["charge", "ship", "bill"], list[str]()

    @harness.handler("order", max_attempts=5)
    async def order(ctx: Context) -> None:
        for name in names:
            if name.startswith("call "):
                await ctx.call(name.removeprefix("call "), NewTask("child"))
            await ctx.step(name, asyncio.sleep, 0)
            ran.append(name)
        if ctx.attempt == 1:
            names[:] = deployed
            raise ValueError("deploy")

    task = await harness.run("order")
    row = await harness.row(task)
    if reason is None:
        assert (row.state, ran) == ("succeeded", ["charge", "ship", "bill", "charge", "ship", "bill", "remind"])
        return
    assert row.state == "dead"
    assert re.search(rf"differ from those of attempt 1, stored at [\d: -]+ UTC: {re.escape(reason)}", row.error)
    assert f"runner rewind {task} --step" in row.error
    assert await harness.count(harness.database.tables.step) == 3


async def test_a_success_names_the_stored_steps_that_it_did_not_call(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("order", max_attempts=5)
    async def order(ctx: Context) -> None:
        await ctx.step("charge", asyncio.sleep, 0)
        if ctx.attempt == 1:
            await ctx.step("bill", asyncio.sleep, 0)
            raise ValueError("deploy")

    task = await harness.run("order")
    assert (await harness.row(task)).state == "succeeded"
    text = "stored steps that attempt 2 did not call: bill (attempt 1, sleep)"
    assert f"task {task} (order) succeeded: {text}" in caplog.text
    lines = await harness.rows(sa.select(harness.database.tables.log.c.line))
    assert [row.line for row in lines] == [text]


async def test_steps_of_concurrent_tasks_may_end_in_any_order(harness: Harness) -> None:
    calls: list[int] = []

    async def fetch(number: int, pause: float) -> int:
        await asyncio.sleep(pause)
        calls.append(number)
        return number

    @harness.handler("fan")
    async def fan(ctx: Context) -> list[int]:
        pauses = [0.02, 0.01, 0.0] if ctx.attempt == 1 else [0.0, 0.01, 0.02]
        found = await asyncio.gather(
            *(asyncio.create_task(_step(ctx, number, pause)) for number, pause in enumerate(pauses))
        )
        if ctx.attempt == 1:
            raise ValueError("again")
        return list(found)

    async def _step(ctx: Context, number: int, pause: float) -> int:
        return await ctx.step(f"fetch-{number}", fetch, number, pause)

    task = await harness.run("fan")
    assert ((await harness.row(task)).result.replace(" ", ""), sorted(calls)) == ("[0,1,2]", [0, 1, 2])


async def test_a_sleep_waits_for_the_steps_beside_it(harness: Harness) -> None:
    calls: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.05)
        calls.append("slow")

    @harness.handler("both")
    async def both(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_as_coroutine(ctx.step("slow", slow)))
            group.create_task(_as_coroutine(ctx.sleep("1ms")))

    async def _as_coroutine(work: Any) -> Any:
        return await work

    task = await harness.submit("both")
    async with harness.running():
        await harness.wait_for(task)
    assert ((await harness.row(task)).state, calls) == ("succeeded", ["slow"])


async def _double(ctx: Context) -> None:
    await ctx.step("one", asyncio.sleep, 0)
    await ctx.step("one", asyncio.sleep, 0)


async def _nested(ctx: Context) -> None:
    async def inner() -> None:
        await ctx.sleep(1)

    await ctx.step("outer", inner)


async def _unserializable(ctx: Context) -> None:
    async def make() -> object:
        return object()

    await ctx.step("make", make)


async def _plain_function(ctx: Context) -> None:
    plain: Any = dict
    await ctx.step("make", plain)


async def _called_function(ctx: Context) -> None:
    work: Any = asyncio.sleep(0)
    try:
        await ctx.step("make", work)
    finally:
        work.close()


async def _bad_plan(ctx: Context) -> None:
    await ctx.step("make", asyncio.sleep, 0, retry="often")


async def _empty_name(ctx: Context) -> None:
    await ctx.step("", asyncio.sleep, 0)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_double, "Task ID, step 'one': the name is used twice"),
        (_nested, "Task ID, step 'sleep 1': it is inside of step 'outer'"),
        (_unserializable, "Task ID, step 'make': its result of type object is not stored"),
        (_plain_function, "Task ID, step 'make': dict is a plain function"),
        (_called_function, "Task ID, step 'make': pass the function and then its arguments, not coroutine"),
        (_bad_plan, "Task ID, step 'make': "),
        (_empty_name, "Task ID, step '': a name has 1 to 200 printable characters"),
    ],
)
async def test_a_step_that_is_not_valid_is_refused(harness: Harness, function: Any, reason: str) -> None:
    harness.handler("wrong", max_attempts=1)(function)
    task = await harness.run("wrong")
    row = await harness.row(task)
    assert row.state == "dead"
    assert f"{InvalidStep.__name__}: {reason.replace('ID', str(task))}" in row.error
