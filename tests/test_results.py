"""Results: what a handler returned, back where its task was submitted, or why there is nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import BaseModel

from runner import Context, Dead, Retry, Ticket, connect, disconnect, handler
from runner.door import waiting
from runner.door.door import door
from runner.door.waiting import LATEST, SOONEST, Waiting, Watched
from runner.engine.process import Runner
from runner.errors import (
    DatabaseAway,
    InvalidResult,
    ResultNotKept,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    TimedOut,
    WouldBlock,
)
from runner.handlers import REGISTRY
from runner.producer import ticket as ticket_module
from runner.settings.checking import checked
from runner.store.database import Database
from runner.store.intervene import By, Target, terminate
from runner.store.observe.endings import Ending
from runner.store.prune import prune
from runner.store.transaction import Transaction
from runner.task import State
from runner.urls import parse_url
from tests.engine.workshop import QUICK, at_work
from tests.store.rows import ahead

PATIENCE = 30
LIMIT = 200
"""Bytes of a result."""


class Invoice(BaseModel):
    number: int
    due: date


def _enter() -> SimpleNamespace:
    @handler("test.bill")
    async def bill(number: int) -> Invoice:
        return Invoice(number=number, due=date(2030, 1, number))

    @handler("test.crunch")
    def crunch(rows: int) -> int | Retry:
        return 2 * rows

    @handler("test.say")
    def say(size: int):  # type: ignore[no-untyped-def] # no annotation is what is tested
        return {"said": "x" * size}

    @handler("test.lie")
    def lie() -> int:
        return "not a number"  # type: ignore[return-value] # it is the lie

    @handler("test.fail", retry="1ms", max_attempts=3)
    async def fail(times: int, ctx: Context) -> str:
        if ctx.attempt <= times:
            raise LookupError(f"no shop in attempt {ctx.attempt}")
        return "found"

    @handler("test.refuse")
    async def refuse(why: str) -> Dead | None:
        return Dead(why) if why else None

    return SimpleNamespace(bill=bill, crunch=crunch, say=say, lie=lie, fail=fail, refuse=refuse)


@pytest.fixture
def handlers() -> Iterator[SimpleNamespace]:
    entered = _enter()
    yield entered
    for one in vars(entered).values():
        REGISTRY._handlers.pop(one.name)


@pytest.fixture(autouse=True)
def _connected(migrated_url: str) -> Iterator[None]:
    connect(url=parse_url(migrated_url))
    yield
    disconnect()


@pytest.fixture
async def at_it(migrated_url: str, handlers: SimpleNamespace) -> AsyncIterator[SimpleNamespace]:
    """The handlers, with a runner at work on their tasks."""
    settings = checked({"url": parse_url(migrated_url), "result_limit": LIMIT} | QUICK)
    async with at_work(Runner(settings, {one.name: one for one in vars(handlers).values()})):
        yield handlers


async def history(database: Database, task_id: int) -> Any:
    past = database.tables.history
    async with database.reading() as tx:
        return (await tx.rows(sa.select(past).where(past.c.id == task_id)))[0]


async def test_a_result_comes_back_as_the_type_that_the_handler_promises(at_it: SimpleNamespace) -> None:
    invoice = await (await at_it.bill.submit_async(number=7)).wait(timeout=PATIENCE)
    assert invoice == Invoice(number=7, due=date(2030, 1, 7))
    assert await (await at_it.crunch.submit_async(rows=3)).wait(timeout=PATIENCE) == 6


async def test_a_result_without_a_promise_is_what_its_json_says(at_it: SimpleNamespace) -> None:
    assert await (await at_it.say.submit_async(size=1)).wait(timeout=PATIENCE) == {"said": "x"}
    assert await (await at_it.refuse.submit_async(why="")).wait(timeout=PATIENCE) is None


async def test_a_result_of_a_handler_that_is_not_known_here_is_what_its_json_says(at_it: SimpleNamespace) -> None:
    ticket = await at_it.bill.submit_async(number=7)
    await ticket.wait(timeout=PATIENCE)
    REGISTRY._handlers.pop("test.bill")
    try:
        assert await ticket.wait(timeout=PATIENCE) == {"number": 7, "due": "2030-01-07"}
    finally:
        REGISTRY.add(at_it.bill)


async def test_threads_wait_for_results_without_an_event_loop(at_it: SimpleNamespace) -> None:
    def ask(rows: int) -> Any:
        return at_it.crunch.submit(rows=rows).result(timeout=PATIENCE)

    assert await asyncio.gather(*(asyncio.to_thread(ask, rows) for rows in range(8))) == [*range(0, 16, 2)]


async def test_waiting_on_an_event_loop_is_refused(handlers: SimpleNamespace) -> None:
    with pytest.raises(WouldBlock, match="await wait"):
        Ticket[int](17).result()


async def test_a_number_is_enough_to_get_the_result_later(at_it: SimpleNamespace) -> None:
    number = int(await at_it.bill.submit_async(number=7))
    assert (await at_it.bill.ticket(number).wait(timeout=PATIENCE)).number == 7


async def test_retries_are_waited_for(at_it: SimpleNamespace) -> None:
    assert await (await at_it.fail.submit_async(times=2)).wait(timeout=PATIENCE) == "found"


async def test_a_failure_carries_the_reason_from_there(at_it: SimpleNamespace) -> None:
    with pytest.raises(TaskFailed, match=r"in attempt 3: LookupError: no shop in attempt 3\.$") as failed:
        await (await at_it.fail.submit_async(times=9)).wait(timeout=PATIENCE)
    assert (failed.value.error_type, failed.value.message) == ("LookupError", "no shop in attempt 3")
    assert (failed.value.attempts, "raise LookupError" in failed.value.traceback) == (3, True)


async def test_giving_up_is_a_failure_with_the_reason_that_was_given(at_it: SimpleNamespace) -> None:
    with pytest.raises(TaskFailed, match=r"Dead: no \{such\} shop") as failed:
        await (await at_it.refuse.submit_async(why="no {such} shop")).wait(timeout=PATIENCE)
    assert (failed.value.error_type, failed.value.message) == ("Dead", "no {such} shop")


async def test_a_task_that_was_terminated_says_so(handlers: SimpleNamespace, database: Database) -> None:
    ticket = await handlers.bill.submit_async(number=1)
    await terminated(database, ticket)
    with pytest.raises(TaskCancelled, match=r"handler 'test\.bill' was cancelled"):
        await ticket.wait(timeout=PATIENCE)


async def terminated(database: Database, task_id: int) -> None:
    await database.write(terminate, [Target(task_id)], By("somebody", "somewhere", "it was a mistake"))


async def test_who_waits_too_long_is_told_and_may_wait_again(handlers: SimpleNamespace, migrated_url: str) -> None:
    ticket = await handlers.crunch.submit_async(rows=1)
    with pytest.raises(TimedOut, match=f"Task {ticket} had not ended after 10ms"):
        await ticket.wait(timeout="10ms")
    with pytest.raises(TimedOut):
        await asyncio.to_thread(ticket.result, timeout=0.01)
    settings = checked({"url": parse_url(migrated_url)} | QUICK)
    async with at_work(Runner(settings, {handlers.crunch.name: handlers.crunch})):
        assert await ticket.wait(timeout=PATIENCE) == 2


async def test_what_has_ended_is_told_without_time_to_wait(at_it: SimpleNamespace, database: Database) -> None:
    ticket = await at_it.crunch.submit_async(rows=1)
    await ticket.wait(timeout=PATIENCE)
    assert (await ticket.wait(timeout=0), await asyncio.to_thread(ticket.result, timeout=0)) == (2, 2)
    with pytest.raises(TaskNotFound):
        await Ticket[int](4711).wait(timeout=0)
    assert door().waiting._watched == {}


async def test_the_last_look_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        async def __call__(self, ids: Sequence[int]) -> Mapping[int, Ending | None]:
            await asyncio.Event().wait()
            return {}

    monkeypatch.setattr(ticket_module, "LAST_LOOK", 0.0)
    door().waiting._look = Silent()
    with pytest.raises(TimedOut):
        await Ticket[int](4711).wait(timeout=0)


async def test_a_task_that_never_was_is_not_found(database: Database) -> None:
    with pytest.raises(TaskNotFound, match="no task 4711"):
        await Ticket[int](4711).wait(timeout=PATIENCE)


@pytest.mark.parametrize("id", [0, 2**63])
async def test_a_number_that_no_task_can_have_does_not_disturb_the_others(at_it: SimpleNamespace, id: int) -> None:
    ticket = await at_it.crunch.submit_async(rows=1)
    others = [ticket.wait(timeout=PATIENCE), Ticket[Any](id).wait(timeout=PATIENCE)]
    answers = await asyncio.gather(*others, return_exceptions=True)
    assert [isinstance(answer, TaskNotFound) for answer in answers] == [False, True]
    assert not isinstance(answers[0], BaseException)
    with pytest.raises(TaskNotFound, match=f"no task {id}"):
        await Ticket[int](id).wait(timeout=PATIENCE)


async def test_a_task_that_was_pruned_is_not_found(at_it: SimpleNamespace, database: Database) -> None:
    ticket = await at_it.crunch.submit_async(rows=1)
    await ticket.wait(timeout=PATIENCE)
    await database.write(_aged, ticket)
    await database.write(prune, {State.SUCCEEDED: timedelta(days=7)})
    with pytest.raises(TaskNotFound, match="pruned"):
        await ticket.wait(timeout=PATIENCE)


async def _aged(tx: Transaction, task_id: int) -> None:
    past = tx.tables.history
    await tx.execute(sa.update(past).where(past.c.id == task_id).values(finished_at=ahead(-30 * 86_400)))


async def test_a_result_that_is_too_large_is_told_of_on_the_task(at_it: SimpleNamespace, database: Database) -> None:
    ticket = await at_it.say.submit_async(size=LIMIT)
    with pytest.raises(ResultNotKept, match="it has 211 bytes, more than the 200 of result_limit"):
        await ticket.wait(timeout=PATIENCE)
    row = await history(database, ticket)
    assert (row.state, row.result) == (State.SUCCEEDED, None)
    assert row.error == "the result was not kept: it has 211 bytes, more than the 200 of result_limit"


async def test_a_result_that_is_not_what_was_promised_is_told_of(at_it: SimpleNamespace) -> None:
    with pytest.raises(InvalidResult, match="valid integer"):
        await (await at_it.lie.submit_async()).wait(timeout=PATIENCE)


async def test_a_result_that_is_promised_and_missing_is_told_of(at_it: SimpleNamespace, database: Database) -> None:
    ticket = await at_it.bill.submit_async(number=3)
    await ticket.wait(timeout=PATIENCE)
    await database.write(_emptied, ticket)
    with pytest.raises(InvalidResult, match=r"promises: there is none; in ctx\.transaction\(\) it is given with"):
        await ticket.wait(timeout=PATIENCE)


async def _emptied(tx: Transaction, task_id: int) -> None:
    past = tx.tables.history
    await tx.execute(sa.update(past).where(past.c.id == task_id).values(result=None))


async def test_hundreds_wait_at_once_and_are_served_by_common_looks(at_it: SimpleNamespace) -> None:
    looks = Looks(door().waiting._look)
    door().waiting._look = looks
    numbers = range(500)
    tickets = await at_it.crunch.submit_many_async({"rows": number} for number in numbers)
    results = await asyncio.gather(*(ticket.wait(timeout=PATIENCE) for ticket in tickets))
    assert results == [2 * number for number in numbers]
    assert len(looks.sizes) < 250
    assert door().waiting._watched == {}


class Looks:
    """Counts looks."""

    def __init__(self, look: Callable[[Sequence[int]], Any]) -> None:
        self._look = look
        self.sizes: list[int] = []

    async def __call__(self, ids: Sequence[int]) -> Mapping[int, Ending | None]:
        self.sizes.append(len(ids))
        found: Mapping[int, Ending | None] = await self._look(ids)
        return found


async def test_who_waits_while_the_program_disconnects_is_told(handlers: SimpleNamespace) -> None:
    ticket = await handlers.crunch.submit_async(rows=1)
    looks = Looks(door().waiting._look)
    door().waiting._look = looks
    waits = asyncio.ensure_future(ticket.wait())
    while not looks.sizes:
        await asyncio.sleep(0.001)
    await asyncio.to_thread(disconnect)
    with pytest.raises(DatabaseAway, match="disconnected"):
        await waits


class Away:
    """A database that is away for so many looks; knows how often it was asked."""

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self.asked = asyncio.Semaphore(0)

    async def __call__(self, ids: Sequence[int]) -> Mapping[int, Ending | None]:
        self.asked.release()
        self._looks -= 1
        if self._looks >= 0:
            raise DatabaseAway(url="somewhere", why="it is restarted")
        return {id: Ending(id, "work", State.SUCCEEDED, 1, "1", None) for id in ids}


async def test_an_outage_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LATEST", SOONEST)
    place = Waiting(Away(3), asyncio.get_running_loop())
    ending = await asyncio.wait_for(asyncio.wrap_future(place.wait(1)), PATIENCE)
    assert (ending.result, place.trouble) == ("1", None)


async def test_an_outage_that_lasts_is_told_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LATEST", SOONEST)
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)
    place = Waiting(Away(1_000), asyncio.get_running_loop())
    waits = [asyncio.wrap_future(place.wait(number)) for number in (1, 2, 2)]
    errors = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), PATIENCE)
    assert ({type(error) for error in errors}, len({id(error) for error in errors})) == ({DatabaseAway}, 3)


async def test_nobody_looks_at_what_nobody_waits_for() -> None:
    away = Away(1_000)
    place = Waiting(away, asyncio.get_running_loop())
    given_up = asyncio.ensure_future(asyncio.wrap_future(place.wait(1)))
    await away.asked.acquire()
    given_up.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await given_up
    assert place._looking is not None
    await asyncio.wait_for(place._looking, PATIENCE)
    assert place._watched == {}


def test_looks_grow_seldom_with_the_time_that_is_waited() -> None:
    watched = Watched(since=100.0, due=100.0)
    gaps = []
    for now in (100.0, 100.1, 101.0, 110.0):
        watched.looked(now)
        gaps.append(round(watched.due - now, 3))
    assert gaps == [SOONEST, 0.05, 0.5, LATEST]
