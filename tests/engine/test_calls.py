"""Calls: a task submits another one, and continues with its result in a later attempt."""

import asyncio
import json
from datetime import UTC, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.errors import TaskCancelled, TaskFailed
from runner.handlers.context import Context
from runner.model.task import BatchMember, DependsOn, NewTask, NewWorkflow, OrderKey, Scope, State, UniqueKey
from runner.operations.results import Actor, Target
from runner.operations.retry import retry_now
from runner.operations.rewind import forget_steps
from runner.operations.terminate import terminate
from runner.operations.unblock import unblock
from runner.operations.undo.undo import undo
from runner.policy.retention import Retention
from runner.queries.audit import audit
from runner.queries.task.detail import task_detail
from runner.queries.why.why import why
from runner.store.retention import prune
from runner.store.submit import submit_many
from tests.engine.harness import Harness, until

ANA = Actor("ana", "desk", "test")
ORDER = OrderKey("shop 7")


async def blocked(harness: Harness, task: int) -> None:
    """Wait until a task waits for its children."""

    async def is_blocked() -> bool:
        return await harness.state(task) == "blocked"

    await until(is_blocked)


async def children(harness: Harness, task: int) -> list[Any]:
    """The dependencies of a task on its children, in order."""
    table = harness.database.tables.dependency
    own = sa.select(table).where(table.c.task_id == task, table.c.step.is_not(None))
    return list(await harness.rows(own.order_by(table.c.id)))


async def operate(harness: Harness, operation: Any, task: int, *args: Any) -> None:
    """Change a task as an operator does."""
    row = await harness.row(task)
    result = await harness.database.write(operation, [Target(task, row.version)], *(*args, ANA))
    assert result.changed == [task], result


@pytest.mark.both_databases
async def test_a_call_returns_the_result_of_its_child_and_leaves_the_only_slot_to_it(harness: Harness) -> None:
    attempts: list[int] = []

    @harness.handler("invoice")
    async def invoice(order: int) -> str:
        return f"invoice {order}"

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context, order: int) -> str:
        attempts.append(ctx.fence)
        text = await ctx.call("invoice", NewTask("invoice", f'{{"order": {order}}}'))
        return f"sent {text}"

    @harness.handler("plain", max_attempts=1)
    def plain(ctx: Context) -> str:
        text = ctx.call("invoice", NewTask("invoice", '{"order": 18}')).result()
        return f"sent {text}"

    task, other = await harness.submit("order", {"order": 17}), await harness.submit("plain")
    await harness.work(concurrency=1, threads=1)
    row = await harness.row(task)
    assert (row.state, row.attempt, row.result, attempts) == ("succeeded", 1, '"sent invoice 17"', [1, 2])
    assert (await harness.row(other)).result == '"sent invoice 18"'
    assert len(await children(harness, task)) == 1


async def test_calls_in_a_gather_run_together_and_end_the_attempt_once(harness: Harness) -> None:
    both = asyncio.Barrier(2)
    fences: list[int] = []

    @harness.handler("part")
    async def part(number: int) -> int:
        async with asyncio.timeout(30):
            await both.wait()  # neither ends without the other
        return number

    @harness.handler("whole", max_attempts=1)
    async def whole(ctx: Context) -> int:
        fences.append(ctx.fence)
        calls = [ctx.call(f"part-{n}", NewTask("part", f'{{"number": {n}}}')) for n in (1, 2)]
        return sum(await asyncio.gather(*calls))

    task = await harness.run("whole")
    assert ((await harness.row(task)).result, fences) == ("3", [1, 2])


@pytest.mark.both_databases
async def test_a_failed_child_raises_until_it_is_retried(harness: Harness) -> None:
    errors: list[TaskFailed] = []
    works: list[bool] = []

    @harness.handler("invoice", max_attempts=1)
    async def invoice() -> str:
        if not works:
            raise ValueError("no address")
        return "invoice"

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> str:
        try:
            return await ctx.call("invoice", NewTask("invoice"))  # type: ignore[no-any-return]
        except TaskFailed as error:
            errors.append(error)
            raise

    task = await harness.run("order")
    assert await harness.state(task) == "dead"
    (child,) = [row.parent_id for row in await children(harness, task)]
    assert [(error.fields["id"], error.error_type, error.message) for error in errors] == [
        (child, "ValueError", "no address")
    ]
    detail = await harness.database.read(task_detail, task)
    (step,) = detail.steps
    assert (step.child, step.text(detail.at)) == (child, f"task {child} invoice is dead")
    works.append(True)
    await operate(harness, retry_now, child)
    await operate(harness, retry_now, task)
    await harness.work()
    assert (await harness.row(task)).result == '"invoice"'


async def test_a_caught_failure_is_stored_when_the_handler_goes_on(harness: Harness) -> None:
    seen: list[str] = []

    @harness.handler("invoice", max_attempts=1)
    async def invoice() -> None:
        raise ValueError("no address")

    async def mail() -> str:
        return "sent by mail"

    @harness.handler("order", max_attempts=2)
    async def order(ctx: Context) -> None:
        try:
            await ctx.call("invoice", NewTask("invoice"))
        except TaskFailed as error:
            seen.append(f"{error.error_type} {error.message}")
            await ctx.step("mail", mail)
        if len(seen) == 1:
            async with harness.database.writing() as tx:  # the child succeeds later, and the caller does not change
                await tx.execute(sa.update(tx.tables.history).values(state="succeeded"))
            raise ConnectionError

    task = await harness.run("order")
    assert await harness.state(task) == "succeeded"
    assert seen == ["ValueError no address"] * 2


@pytest.mark.both_databases
async def test_a_terminated_child_raises_and_a_terminated_caller_leaves_its_child(harness: Harness) -> None:
    errors: list[str] = []

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> None:
        try:
            await ctx.call("child", NewTask("later", delay=3600))
        except TaskCancelled as error:
            errors.append(str(error))

    @harness.handler("later")
    async def later() -> None: ...

    first, second = await harness.submit("order"), await harness.submit("order")
    async with harness.running():
        await blocked(harness, first)
        await blocked(harness, second)
        (child,), (other,) = await children(harness, first), await children(harness, second)
        await operate(harness, terminate, child.parent_id)
        await harness.wait_for(first)
        await operate(harness, terminate, second)
        await harness.wait_for(second)
    assert "was cancelled" in errors[0]
    assert [await harness.state(task) for task in (first, second)] == ["succeeded", "cancelled"]
    assert await harness.state(other.parent_id) == "waiting"


async def test_an_unblocked_caller_waits_again(harness: Harness) -> None:
    @harness.handler("later")
    async def later() -> str:
        return "late"

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> Any:
        return await ctx.call("child", NewTask("later", delay=3600))

    task = await harness.submit("order")
    async with harness.running():
        await blocked(harness, task)
        fence = (await harness.row(task)).fence
        await operate(harness, unblock, task)

        async def ran_again() -> bool:
            row = await harness.row(task)
            return bool(row.state == "blocked" and row.fence > fence)

        await until(ran_again)
        (child,) = await children(harness, task)
        assert (child.satisfied_at, child.satisfied_by) == (None, None)
        explanation = await harness.database.read(why, task, UTC)
        waits = f"It waits for task {child.parent_id} later (call child), which is scheduled."
        assert ([cause.text for cause in explanation.causes], explanation.remedies) == ([waits], ())
        detail = await harness.database.read(task_detail, task)
        assert detail.steps[0].state(detail.at) == f"waits for task {child.parent_id} later"
        await operate(harness, retry_now, child.parent_id)
        await harness.wait_for(task)
    assert (await harness.row(task)).result == '"late"'


async def test_a_call_of_another_handler_after_a_deploy_is_named(harness: Harness) -> None:
    handlers = ["invoice", "bill"]

    @harness.handler("invoice")
    async def invoice() -> int:
        return 7

    @harness.handler("order", max_attempts=2)
    async def order(ctx: Context) -> None:
        await ctx.call("paper", NewTask(handlers.pop(0)))

    task = await harness.run("order")
    row = await harness.row(task)
    assert (row.state, await harness.count(harness.database.tables.step)) == ("dead", 1)
    assert "step 'paper' calls bill now (function invoice)" in row.error


async def test_a_call_waits_for_the_task_that_holds_the_unique_key(harness: Harness) -> None:
    @harness.handler("rates")
    async def rates() -> int:
        return 7

    @harness.handler("order")
    async def order(ctx: Context) -> Any:
        return await ctx.call("rates", NewTask("rates", unique_key=UniqueKey("today", Scope.FOREVER)))

    first = await harness.submit("rates", unique_key=UniqueKey("today", Scope.FOREVER))
    task = await harness.run("order")
    again = await harness.run("order")
    assert [(await harness.row(each)).result for each in (task, again)] == ["7", "7"]
    assert {row.parent_id for each in (task, again) for row in await children(harness, each)} == {first}


@pytest.mark.parametrize("how", ["order key", "key", "itself", "in a step", "not a task"])
async def test_a_call_that_could_not_end_is_refused(harness: Harness, how: str) -> None:
    unique = UniqueKey("one", Scope.UNTIL_FINISHED)

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> Any:
        if how == "in a step":
            return await ctx.step("outer", lambda: ctx.call("child", NewTask("order")))
        if how == "not a task":
            return await ctx.call("child", "order")  # type: ignore[call-overload]
        return await ctx.call("child", NewTask("order", **same[how]))

    options: dict[str, dict[str, Any]] = {
        "itself": {"unique_key": unique},
        "order key": {"order_key": ORDER},
        "key": {"key": "d"},
    }
    same: dict[str, dict[str, Any]] = {**options, "key": {"after": (DependsOn(("order", "d")),)}}
    task = await harness.run("order", **options.get(how, {}))
    row = await harness.row(task)
    assert row.state == "dead"
    expected = {
        "order key": "which waits for this one: neither would ever start",
        "key": "which waits for this one: neither would ever start",
        "itself": "it calls the task itself",
        "in a step": "it is inside of step 'outer'",
        "not a task": "pass a task made with handler.new(...), not str",
    }[how]
    assert expected in row.error
    assert await harness.count(harness.database.tables.task) == 0


async def test_a_call_without_its_result_is_named(harness: Harness) -> None:
    @harness.handler("child")
    async def child() -> int:
        return 7

    @harness.handler("plain")
    def plain(ctx: Context) -> Any:
        return [ctx.call("child", NewTask("child"))]

    @harness.handler("async")
    async def without_await(ctx: Context) -> Any:
        return ctx.call("child", NewTask("child"))

    tasks = await harness.submit("plain"), await harness.submit("async")
    await harness.work()
    assert [((row := await harness.row(task)).state, row.error) for task in tasks] == [
        (
            "succeeded",
            "the result was not kept: it contains a call of the Context, not its result: return ctx.call(...).result()",
        ),
        ("dead", "Dead: the handler returned a call of its Context, which did not run: return await ctx.call(...)"),
    ]


@pytest.mark.both_databases
async def test_a_caller_that_waits_for_its_retry_does_not_wait_for_its_child(harness: Harness) -> None:
    @harness.handler("child", max_attempts=1)
    async def child() -> None:
        raise ValueError("no address")

    @harness.handler("order", retry="1h")
    async def order(ctx: Context) -> None:
        await ctx.call("child", NewTask("child"))

    task = await harness.submit("order")
    async with harness.running():

        async def has_failed() -> bool:
            row = await harness.row(task)
            return bool(row.state == "waiting" and row.attempt == 1)

        await until(has_failed)
    explanation = await harness.database.read(why, task, UTC)
    assert [cause.kind for cause in explanation.causes][:1] == ["due"], explanation.causes


@pytest.mark.both_databases
async def test_a_child_is_kept_until_its_caller_has_read_its_end(harness: Harness) -> None:
    @harness.handler("child")
    async def child() -> int:
        return 7

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> Any:
        return await ctx.call("child", NewTask("child", delay=3600))

    task = await harness.submit("order")
    async with harness.running():
        await blocked(harness, task)
    (row,) = await children(harness, task)
    caller = harness.handlers.pop("order")
    await operate(harness, retry_now, row.parent_id)
    await harness.work()
    assert await harness.state(task) == "waiting"
    everything = Retention({State.SUCCEEDED: timedelta(0)})
    assert not (await harness.database.write(prune, everything)).tasks[State.SUCCEEDED]
    harness.handlers["order"] = caller
    await harness.work()
    assert (await harness.row(task)).result == "7"
    assert (await harness.database.write(prune, everything)).tasks[State.SUCCEEDED] == 2


async def test_a_child_joins_the_workflow_and_is_no_parent_in_the_batch(harness: Harness) -> None:
    totals: list[Any] = []

    @harness.handler("part")
    async def part() -> int:
        return 1

    @harness.handler("whole", max_attempts=1)
    async def whole(ctx: Context) -> None:
        child = await ctx.call("part", NewTask("part"))
        assert ctx.batch is not None
        totals.append((child, ctx.batch.total, await ctx.batch.results_async()))

    flow = NewWorkflow("book")
    tasks = [
        NewTask("part", workflow=flow),
        NewTask("whole", workflow=flow, after=(DependsOn(BatchMember(0)),)),
    ]
    _, task = await harness.database.write(submit_many, tasks)
    await harness.work()
    assert totals == [(1, 1, [1])]
    (child,) = await children(harness, task)
    assert (await harness.row(child.parent_id)).workflow == (await harness.row(task)).workflow


@pytest.mark.both_databases
async def test_a_signal_reaches_a_task_that_waits_for_it_and_for_a_child(harness: Harness) -> None:
    @harness.handler("child", max_attempts=1)
    async def child(ctx: Context) -> str:
        await ctx.wait_for("answer")
        return "child"

    @harness.handler("parent", max_attempts=1)
    async def parent(ctx: Context) -> Any:
        async def answer() -> str:
            signal = await ctx.wait_for("question")
            assert signal is not None
            await ctx.step("answer", send, signal.payload)
            return "answered"

        return await asyncio.gather(ctx.call("child", NewTask("child")), answer())

    async def send(task: int) -> None:
        signal = harness.database.tables.signal
        await harness.change(sa.insert(signal).values(task_id=task, name="answer"))

    task = await harness.submit("parent")
    async with harness.running():
        await blocked(harness, task)
        (row,) = await children(harness, task)
        signal = harness.database.tables.signal
        question = sa.insert(signal).values(task_id=task, name="question", payload=str(row.parent_id))
        await harness.change(question)
        await harness.wait_for(task)
    assert json.loads((await harness.row(task)).result) == ["child", "answered"]


async def test_a_rewound_call_submits_another_child(harness: Harness) -> None:
    @harness.handler("later")
    async def later(number: int) -> int:
        return number

    delays = [3600.0, 0.0]

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> Any:
        return await ctx.call("child", NewTask("later", '{"number": 3}', delay=delays.pop(0) if ctx.fence < 3 else 0))

    task = await harness.submit("order")
    async with harness.running():
        await blocked(harness, task)
        (first,) = await children(harness, task)
        await operate(harness, forget_steps, task, "child")
        await harness.wait_for(task)
    (second,) = await children(harness, task)
    assert second.parent_id != first.parent_id
    assert (await harness.row(task)).result == "3"


async def _wait(ctx: Context) -> None:
    await ctx.wait_for("approved")


async def _sleep(ctx: Context) -> None:
    await ctx.sleep("1h")


async def _retry_later(ctx: Context) -> None:
    async def fail() -> None:
        raise ConnectionError

    await ctx.step("ask", fail, retry="1h")


@pytest.mark.parametrize("pause", [_wait, _sleep, _retry_later])
async def test_a_rewound_task_that_waits_starts_immediately(harness: Harness, pause: Any) -> None:
    async def charge() -> int:
        return len(charged)

    charged: list[int] = []

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> int:
        charged.append(await ctx.step("charge", charge))
        if ctx.fence == 1:
            await pause(ctx)
        return charged[-1]

    task = await harness.submit("order")
    async with harness.running():

        async def waits() -> bool:
            row = await harness.row(task)
            return bool(row.state == "waiting" and row.fence == 1)

        await until(waits)
        await operate(harness, forget_steps, task, "charge")
        await harness.wait_for(task)
    assert (await harness.row(task)).result == "1"


async def test_a_rewound_task_that_has_failed_waits_for_its_retry(harness: Harness) -> None:
    async def charge() -> None: ...

    @harness.handler("order", retry="1h")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", charge)
        raise ConnectionError

    task = await harness.submit("order")

    async def has_failed() -> bool:
        return bool(await harness.attempts(task))

    async with harness.running():
        await until(has_failed)
    before = await harness.row(task)
    await operate(harness, forget_steps, task, "charge")
    assert (await harness.row(task)).run_at == before.run_at


async def test_an_undone_termination_after_a_rewind_runs_the_task_again(harness: Harness) -> None:
    @harness.handler("later")
    async def later() -> int:
        return 3

    @harness.handler("order", max_attempts=1)
    async def order(ctx: Context) -> Any:
        return await ctx.call("child", NewTask("later", delay=3600.0 if ctx.fence == 1 else 0.0))

    task = await harness.submit("order")
    async with harness.running():
        await blocked(harness, task)
        await operate(harness, terminate, task)
        await operate(harness, forget_steps, task, "child")
        _, termination = await harness.database.read(audit, limit=2)
        assert (await harness.database.write(undo, [termination.id], ANA)).changed == [task]
        await harness.wait_for(task)
    assert (await harness.row(task)).result == "3"
