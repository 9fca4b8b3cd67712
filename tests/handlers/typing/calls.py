"""Calls that a type checker must accept or refuse: the comment `# refused:` has the code of its error."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypedDict, assert_type
from uuid import UUID

from runner import (
    Chunk,
    Context,
    Dead,
    Retry,
    Runner,
    TaskHandle,
    WorkflowTask,
    connect,
    find,
    find_async,
    handler,
    injected,
    results_async,
    unfinished,
    unfinished_async,
    workflow,
)
from runner.errors import RunnerError
from runner.model.task import PreparedTask
from runner.testing import StoredTask, TaskStore


class Receipt(TypedDict):
    """The result of a charge."""

    number: int


@handler("typing.charge")
async def charge(ctx: Context, order: int, at: datetime, code: str = "WELCOME") -> Receipt:
    """Take a context, which is not an argument of the call."""
    return Receipt(number=ctx.id)


@handler("typing.crunch")
def crunch(rows: int, owner: UUID | None = None) -> int:
    """Is a plain function without a context."""
    return rows


@handler("typing.sync")
async def sync(shop: str) -> Retry | Dead | None:
    """Name all outcomes in the return type."""
    return Retry("5m", shop)


@handler("typing.invoice")
def invoice(order: int) -> Receipt | Retry | Dead:
    """Return a result or an outcome."""
    return Receipt(number=order) if order else Dead("no order")


async def awaited() -> None:
    """The result of a task is never an outcome, which ends its attempt otherwise."""
    task = await invoice.submit_async(order=1)
    assert_type(await task.wait(), Receipt)
    assert_type(task.result(), Receipt)
    assert_type(await results_async([task, task]), list[Receipt])
    assert_type(await results_async([task], return_exceptions=True), list[Receipt | RunnerError])
    assert_type(await (await sync.submit_async("berlin")).wait(), None)
    assert_type(crunch.task_handle(1).result(), int)


async def called_from_a_task(ctx: Context, now: datetime) -> None:
    """A call of a task by another one has the type of the result."""
    assert_type(await ctx.call("charge", charge.new(order=1, at=now)), Receipt)
    assert_type(await ctx.call("invoice", invoice.new(order=1)), Receipt)
    assert_type(ctx.call("crunch", crunch.options(priority=9).new(rows=3)).result(), int)


async def called() -> None:
    """A call in place of a submit returns no outcome either: it raises Dead, and submits a task for the others."""
    assert_type(invoice.call_or_submit(order=1), Receipt | TaskHandle[Receipt])
    assert_type(await invoice.call_or_submit_async(order=1), Receipt | TaskHandle[Receipt])
    assert_type(crunch.options(priority=9).call_or_submit(rows=3), int | TaskHandle[int])
    invoice.call_or_submit(orders=1)  # refused: Unexpected keyword argument "orders" for "call_or_submit"


def submitted(now: datetime, owner: UUID) -> None:
    """Accepted calls: the arguments of the function, by name or by position, without its context."""
    assert_type(charge.submit(order=1, at=now), TaskHandle[Receipt])
    charge.submit(1, now, code="X")
    assert_type(crunch.submit(rows=3, owner=owner), TaskHandle[int])
    assert_type(crunch.submit_many([{"rows": 1}, {"rows": 2}]), list[TaskHandle[int]])
    assert_type(crunch.options(priority=9, delay="10m").submit(3), TaskHandle[int])
    assert_type(crunch.options(key="k").new(rows=3), PreparedTask[int])
    assert_type(crunch.submit_many(crunch.new(rows=n) for n in range(3)), list[TaskHandle[int]])
    assert_type(crunch(rows=3), int)
    number: int = crunch.submit(rows=3)
    print(number)


async def submitted_on_a_loop(now: datetime, ctx: Context) -> None:
    """The same, awaited."""
    assert_type(await charge(ctx, order=1, at=now), Receipt)
    assert_type(await results_async([crunch.task_handle(1)]), list[int])
    assert_type(await results_async([crunch.task_handle(1)], return_exceptions=True), list[int | RunnerError])
    assert_type(await charge.submit_async(order=1, at=now), TaskHandle[Receipt])
    assert_type(await sync.options(queue="mail").submit_async("berlin"), TaskHandle[Retry | Dead | None])
    assert_type(await sync("berlin"), Retry | Dead | None)


def refused(now: datetime, anything: Any) -> None:
    """Refused calls: arguments that the function does not have, or that a runner could not know."""
    charge.submit(order=1)  # refused: Missing positional argument "at"
    charge.submit(order="1", at=now)  # refused: Argument "order" to "submit" of "Submitter" has incompatible type
    charge.submit(order=1, at="today")  # refused: Argument "at" to "submit" of "Submitter" has incompatible type
    charge.submit(order=1, at=now, cod="X")  # refused: Unexpected keyword argument "cod" for "submit"
    charge.submit(1, now, "X", 4)  # refused: Too many arguments for "submit"
    charge.submit(anything, order=1, at=now)  # refused: gets multiple values for keyword argument "order"
    crunch.submit()  # refused: Missing positional argument "rows"
    crunch.options(priority="high")  # refused: Argument "priority" to "options" of "TaskHandler" has incompatible type
    crunch.options(priorty=9)  # refused: Unexpected keyword argument "priorty" for "options"
    crunch.options(key="k").submit(row=3)  # refused: Unexpected keyword argument "row" for "submit"
    asyncio.run(sync.submit_async(7))  # refused: Argument 1 to "submit_async" of "Submitter" has incompatible type
    handler("typing.bad", retries="1m")  # refused: Unexpected keyword argument "retries" for "handler"
    asyncio.run(charge(order=1, at=now))  # refused: Too few arguments
    crunch(row=3)  # refused: Unexpected keyword argument "row"
    crunch("3")  # refused: Argument 1 has incompatible type "str"; expected "int"
    crunch.submit_many([crunch.new(row=3)])  # refused: Unexpected keyword argument "row" for "new"
    crunch.submit_many([3])  # refused: List item 0 has incompatible type "int"
    text: str = crunch.submit(rows=3)  # refused: Incompatible types in assignment
    print(text)


@dataclass
class Mail:
    """The arguments of one task of a chunk."""

    to: str
    subject: str = "Welcome"


@handler("typing.mail", chunk=100, chunk_wait="200ms")
async def mail(chunk: Chunk[Mail, int]) -> None:
    """Take the tasks of a chunk, each with a result."""
    for task in chunk:
        assert_type(task.payload, Mail)
        assert_type(task.ctx, Context)
        task.succeed(task.ctx.id)
        task.succeed("1")  # refused: Argument 1 to "succeed" of "ChunkTask" has incompatible type "str"
        task.retry("5m", "busy")
    assert_type(chunk.payloads, list[Mail])


@handler("typing.post", chunk=10)
def post(chunk: Chunk[Mail], relay: str = injected) -> None:
    """Take tasks without results, and a resource."""
    for task in chunk[1:]:
        task.fail(ValueError(relay))
        task.succeed(1)  # refused: Argument 1 to "succeed" of "ChunkTask" has incompatible type "int"


async def submitted_to_a_chunk() -> None:
    """A submit takes the arguments of one task, and a direct call a chunk."""
    assert_type(mail.submit(Mail("ana")), TaskHandle[int])
    assert_type(await post.submit_async(Mail("ana")), TaskHandle[None])
    assert_type(mail.submit_many(mail.new(Mail("ana")) for _ in range(3)), list[TaskHandle[int]])
    assert_type(await mail.options(priority=9).submit_async(Mail("ana")), TaskHandle[int])
    await mail(Chunk[Mail, int].of(Mail("ana")))
    post(Chunk[Mail].of(Mail("ana")))
    mail.submit("ana")  # refused: Argument 1 to "submit" of "Submitter" has incompatible type "str"
    post(Mail("ana"))  # refused: Argument 1 has incompatible type "Mail"


def joined() -> None:
    """The tasks of a workflow know the results of their handlers."""
    with workflow("orders") as w:
        rows = w.add(crunch.new(rows=3))
        w.add(invoice.new(order=1), after=[rows, w.add(crunch.new(rows=4))])
    assert_type(rows, WorkflowTask[int])
    assert_type(rows.handle.result(), int)


def connected(folder: Path) -> None:
    """Settings are keywords with the names and types of the settings."""
    connect(url="sqlite:///tasks.db", poll_interval="5s", queues=["mail"], payload_limit="1mb", password=None)
    connect(max_interruptions="none", handlers="shop.tasks", codec_plain="accept")
    connect(pol_interval="5s")  # refused: Unexpected keyword argument "pol_interval" for "connect"
    connect(codec_plain="maybe")  # refused: Argument "codec_plain" to "connect" has incompatible type
    Runner([charge], poll_interval=0, url="sqlite:///tasks.db", concurrency=5)
    Runner(concurency=5)  # refused: Unexpected keyword argument "concurency" for "Runner"
    TaskStore("sqlite:///tasks.db", retry="1m", timeout=timedelta(seconds=3))
    TaskStore.in_folder(folder, retries="1m")  # refused: Unexpected keyword argument "retries" for "in_folder"


async def found(store: TaskStore, name: str) -> None:
    """The tasks that a search finds have the result of the handler, if it is given itself."""
    if (newest := find(invoice, "order-1")) is not None:
        assert_type(newest.result(), Receipt)
    assert_type(find(charge, "k"), TaskHandle[Receipt] | None)
    assert_type(await find_async(crunch, "k"), TaskHandle[int] | None)
    assert_type(unfinished(mail, "ana"), list[TaskHandle[int]])
    assert_type(await unfinished_async(crunch, "k"), list[TaskHandle[int]])
    assert_type(find(name, "k"), TaskHandle[Any] | None)
    assert_type(store.tasks(invoice)[0].id.result(), Receipt)
    assert_type(store.tasks(charge), list[StoredTask[Receipt]])
    assert_type(store.tasks(name), list[StoredTask[Any]])
    assert_type(store.tasks(), list[StoredTask[Any]])
