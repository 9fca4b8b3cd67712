"""Results: a handler's return value where its task was submitted, or the reason why there is none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from pydantic import BaseModel

from runner import Context, Dead, Retry, TaskHandle, connect, disconnect, handler, results, results_async
from runner.client import result_poller
from runner.client import results as results_module
from runner.client.client import get_client
from runner.client.result_poller import LATEST, LONGEST_REST, SOONEST, PolledTask, ResultPoller
from runner.db.database import Database
from runner.db.transaction import Transaction
from runner.engine.runner import Engine
from runner.errors import (
    DatabaseUnavailable,
    InvalidResult,
    InvalidTask,
    ResultNotKept,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    TimedOut,
    WouldBlock,
)
from runner.handlers.registry import REGISTRY
from runner.model.task import State
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.policy.retention import Retention
from runner.queries.task.results import TaskResult
from runner.settings import Settings
from runner.store.retention import prune
from runner.urls import parse_url
from tests.engine.harness import QUICK, at_work
from tests.store.rows import ahead

pytestmark = pytest.mark.usefixtures("connected")

WAIT_SECONDS = 90
LIMIT = 200
"""Most bytes of a result."""


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
    def say(size: int):  # type: ignore[no-untyped-def] # the missing annotation is the test
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
def handlers(own_handlers: None) -> SimpleNamespace:
    return _enter()


@pytest.fixture
async def running_handlers(migrated_url: str, handlers: SimpleNamespace) -> AsyncIterator[SimpleNamespace]:
    """The handlers, with a runner that executes their tasks."""
    settings = Settings(url=parse_url(migrated_url), **QUICK | {"result_limit": LIMIT})
    async with at_work(Engine(settings, {one.name: one for one in vars(handlers).values()})):
        yield handlers


async def history(database: Database, task_id: int) -> Any:
    past = database.tables.history
    async with database.reading() as tx:
        return (await tx.rows(sa.select(past).where(past.c.id == task_id)))[0]


async def test_a_result_has_the_type_of_the_return_annotation(running_handlers: SimpleNamespace) -> None:
    invoice = await (await running_handlers.bill.submit_async(number=7)).wait(timeout=WAIT_SECONDS)
    assert invoice == Invoice(number=7, due=date(2030, 1, 7))
    assert await (await running_handlers.crunch.submit_async(rows=3)).wait(timeout=WAIT_SECONDS) == 6


async def test_a_result_without_an_annotation_is_plain_json(running_handlers: SimpleNamespace) -> None:
    assert await (await running_handlers.say.submit_async(size=1)).wait(timeout=WAIT_SECONDS) == {"said": "x"}
    assert await (await running_handlers.refuse.submit_async(why="")).wait(timeout=WAIT_SECONDS) is None


async def test_a_result_of_an_unknown_handler_is_plain_json(running_handlers: SimpleNamespace) -> None:
    handle = await running_handlers.bill.submit_async(number=7)
    await handle.wait(timeout=WAIT_SECONDS)
    REGISTRY._handlers.pop("test.bill")
    try:
        assert await handle.wait(timeout=WAIT_SECONDS) == {"number": 7, "due": "2030-01-07"}
    finally:
        REGISTRY.add(running_handlers.bill)


async def test_a_thread_can_wait_without_an_event_loop(running_handlers: SimpleNamespace) -> None:
    def ask(rows: int) -> Any:
        return running_handlers.crunch.submit(rows=rows).result(timeout=WAIT_SECONDS)

    assert await asyncio.gather(*(asyncio.to_thread(ask, rows) for rows in range(8))) == [*range(0, 16, 2)]


async def test_a_blocking_wait_on_an_event_loop_is_rejected(handlers: SimpleNamespace) -> None:
    with pytest.raises(WouldBlock, match="await wait"):
        TaskHandle[int](17).result()


async def test_the_id_is_enough_to_get_the_result_later(running_handlers: SimpleNamespace) -> None:
    number = int(await running_handlers.bill.submit_async(number=7))
    assert (await running_handlers.bill.task_handle(number).wait(timeout=WAIT_SECONDS)).number == 7


async def test_a_wait_includes_retries(running_handlers: SimpleNamespace) -> None:
    assert await (await running_handlers.fail.submit_async(times=2)).wait(timeout=WAIT_SECONDS) == "found"


async def test_a_failure_has_the_error_of_the_handler(running_handlers: SimpleNamespace) -> None:
    with pytest.raises(TaskFailed, match=r"after attempt 3: LookupError: no shop in attempt 3\.$") as failed:
        await (await running_handlers.fail.submit_async(times=9)).wait(timeout=WAIT_SECONDS)
    assert (failed.value.error_type, failed.value.message) == ("LookupError", "no shop in attempt 3")
    assert (failed.value.attempts, "raise LookupError" in failed.value.traceback) == (3, True)


async def test_dead_is_a_failure_with_its_reason(running_handlers: SimpleNamespace) -> None:
    with pytest.raises(TaskFailed, match=r"Dead: no \{such\} shop") as failed:
        await (await running_handlers.refuse.submit_async(why="no {such} shop")).wait(timeout=WAIT_SECONDS)
    assert (failed.value.error_type, failed.value.message) == ("Dead", "no {such} shop")


async def test_waiting_for_a_terminated_task_raises_task_cancelled(
    handlers: SimpleNamespace, database: Database
) -> None:
    handle = await handlers.bill.submit_async(number=1)
    await terminated(database, handle)
    with pytest.raises(TaskCancelled, match=r"handler 'test\.bill' was cancelled"):
        await handle.wait(timeout=WAIT_SECONDS)


async def terminated(database: Database, task_id: int) -> None:
    await database.write(terminate, [Target(task_id)], Actor("somebody", "somewhere", "it was a mistake"))


async def test_after_a_timeout_a_caller_can_wait_again(handlers: SimpleNamespace, migrated_url: str) -> None:
    handle = await handlers.crunch.submit_async(rows=1)
    with pytest.raises(TimedOut, match=f"Task {handle} did not finish within 10ms"):
        await handle.wait(timeout="10ms")
    with pytest.raises(TimedOut):
        await asyncio.to_thread(handle.result, timeout=0.01)
    settings = Settings(url=parse_url(migrated_url), **QUICK)
    async with at_work(Engine(settings, {handlers.crunch.name: handlers.crunch})):
        assert await handle.wait(timeout=WAIT_SECONDS) == 2


async def test_a_finished_task_returns_its_result_with_timeout_0(
    running_handlers: SimpleNamespace, database: Database
) -> None:
    handle = await running_handlers.crunch.submit_async(rows=1)
    await handle.wait(timeout=WAIT_SECONDS)
    assert (await handle.wait(timeout=0), await asyncio.to_thread(handle.result, timeout=0)) == (2, 2)
    with pytest.raises(TaskNotFound):
        await TaskHandle[int](4711).wait(timeout=0)
    assert get_client().waiting._watched == {}


async def test_the_final_query_has_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        async def __call__(self, ids: Sequence[int]) -> Mapping[int, TaskResult | None]:
            await asyncio.Event().wait()
            return {}

    monkeypatch.setattr(results_module, "LAST_LOOK", 0.0)
    get_client().waiting._look = Silent()
    with pytest.raises(DatabaseUnavailable, match="did not answer within 0 seconds"):
        await TaskHandle[int](4711).wait(timeout=0)


async def test_a_task_that_does_not_exist_is_not_found(database: Database) -> None:
    with pytest.raises(TaskNotFound, match="Task 4711 does not exist"):
        await TaskHandle[int](4711).wait(timeout=WAIT_SECONDS)


@pytest.mark.parametrize("id", [0, 2**63])
async def test_an_impossible_id_does_not_affect_other_waits(running_handlers: SimpleNamespace, id: int) -> None:
    handle = await running_handlers.crunch.submit_async(rows=1)
    others = [handle.wait(timeout=WAIT_SECONDS), TaskHandle[Any](id).wait(timeout=WAIT_SECONDS)]
    answers = await asyncio.gather(*others, return_exceptions=True)
    assert [isinstance(answer, TaskNotFound) for answer in answers] == [False, True]
    assert not isinstance(answers[0], BaseException)
    with pytest.raises(TaskNotFound, match=f"Task {id} does not exist"):
        await TaskHandle[int](id).wait(timeout=WAIT_SECONDS)


async def test_a_pruned_task_is_not_found(running_handlers: SimpleNamespace, database: Database) -> None:
    handle = await running_handlers.crunch.submit_async(rows=1)
    await handle.wait(timeout=WAIT_SECONDS)
    await database.write(_aged, handle)
    await database.write(prune, Retention({State.SUCCEEDED: timedelta(days=7)}))
    with pytest.raises(TaskNotFound, match="pruned"):
        await handle.wait(timeout=WAIT_SECONDS)


async def _aged(tx: Transaction, task_id: int) -> None:
    past = tx.tables.history
    await tx.execute(sa.update(past).where(past.c.id == task_id).values(finished_at=ahead(-30 * 86_400)))


async def test_a_result_that_is_too_large_is_reported_on_the_task(
    running_handlers: SimpleNamespace, database: Database
) -> None:
    handle = await running_handlers.say.submit_async(size=LIMIT)
    with pytest.raises(ResultNotKept, match="211 bytes exceed the result_limit of 200"):
        await handle.wait(timeout=WAIT_SECONDS)
    row = await history(database, handle)
    assert (row.state, row.result) == (State.SUCCEEDED, None)
    assert row.error == "the result was not kept: 211 bytes exceed the result_limit of 200"


async def test_a_result_that_does_not_match_the_annotation_is_reported(running_handlers: SimpleNamespace) -> None:
    with pytest.raises(InvalidResult, match="valid integer"):
        await (await running_handlers.lie.submit_async()).wait(timeout=WAIT_SECONDS)


async def test_a_missing_result_is_reported(running_handlers: SimpleNamespace, database: Database) -> None:
    handle = await running_handlers.bill.submit_async(number=3)
    await handle.wait(timeout=WAIT_SECONDS)
    await database.write(_emptied, handle)
    with pytest.raises(InvalidResult, match=r"annotation: there is none; inside ctx\.transaction\(\), set its result"):
        await handle.wait(timeout=WAIT_SECONDS)


async def _emptied(tx: Transaction, task_id: int) -> None:
    past = tx.tables.history
    await tx.execute(sa.update(past).where(past.c.id == task_id).values(result=None))


@pytest.mark.slow
async def test_hundreds_of_waits_share_queries(running_handlers: SimpleNamespace) -> None:
    looks = QueryCounter(get_client().waiting._look)
    get_client().waiting._look = looks
    numbers = range(500)
    handles = await running_handlers.crunch.submit_many_async({"rows": number} for number in numbers)
    results = await asyncio.gather(*(handle.wait(timeout=WAIT_SECONDS) for handle in handles))
    assert results == [2 * number for number in numbers]
    assert len(looks.sizes) < 250
    assert get_client().waiting._watched == {}


class QueryCounter:
    """Counts queries."""

    def __init__(self, look: Callable[[Sequence[int]], Any]) -> None:
        self._look = look
        self.sizes: list[int] = []

    async def __call__(self, ids: Sequence[int]) -> Mapping[int, TaskResult | None]:
        self.sizes.append(len(ids))
        endings: Mapping[int, TaskResult | None] = await self._look(ids)
        return endings


async def test_one_query_reads_many_results(running_handlers: SimpleNamespace) -> None:
    handles = await running_handlers.crunch.submit_many_async({"rows": number} for number in range(20))
    await results_async(handles, timeout=WAIT_SECONDS)
    looks = QueryCounter(get_client().waiting._look)
    get_client().waiting._look = looks
    expected = [2 * number for number in range(20)]
    assert await results_async(handles, timeout=WAIT_SECONDS) == expected
    assert await asyncio.to_thread(lambda: results(reversed(handles), timeout=0)) == expected[::-1]
    assert (looks.sizes, await results_async([])) == ([20, 20], [])


async def test_many_results_raise_the_first_error_or_return_all_errors(running_handlers: SimpleNamespace) -> None:
    handles = [
        await running_handlers.refuse.submit_async(why="no shop"),
        await running_handlers.refuse.submit_async(why=""),
        TaskHandle[None](4711),
    ]
    with pytest.raises(TaskFailed, match="no shop"):
        await results_async(handles, timeout=WAIT_SECONDS)
    answers = await results_async(handles, timeout=WAIT_SECONDS, return_exceptions=True)
    assert [type(answer) for answer in answers] == [TaskFailed, type(None), TaskNotFound]


async def test_many_results_have_one_timeout(running_handlers: SimpleNamespace) -> None:
    quick = await running_handlers.crunch.submit_async(rows=1)
    later = await running_handlers.crunch.options(delay="1h").submit_async(rows=1)
    await quick.wait(timeout=WAIT_SECONDS)
    answers = await results_async([later, quick], timeout="10ms", return_exceptions=True)
    assert (type(answers[0]), answers[1]) == (TimedOut, 2)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        (TaskHandle[int](17), "17 for `handles`: pass a list of task handles; result and wait of a handle"),
        (["17"], "'17' for `handles`: submit, handle and task_handle return task handles"),
    ],
)
async def test_only_a_list_of_handles_has_results(argument: Any, reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        await results_async(argument, timeout=0)
    with pytest.raises(InvalidTask, match=reason):
        await asyncio.to_thread(lambda: results(argument, timeout=0))


async def test_many_results_on_an_event_loop_are_rejected(handlers: SimpleNamespace) -> None:
    with pytest.raises(WouldBlock, match="await results_async"):
        results([TaskHandle[int](17)])


@pytest.mark.slow
async def test_a_timeout_does_not_include_opening_the_database(
    running_handlers: SimpleNamespace, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await running_handlers.crunch.submit_async(rows=1)
    await handle.wait(timeout=WAIT_SECONDS)
    open_when_asked = []
    ask = ResultPoller.wait

    def spy(poller: ResultPoller, ids: Iterable[int], **options: Any) -> Any:
        opening = get_client()._database
        open_when_asked.append(opening is not None and opening.done())
        return ask(poller, ids, **options)

    monkeypatch.setattr(ResultPoller, "wait", spy)
    for wait in (lambda: handle.wait(timeout=0), lambda: asyncio.to_thread(handle.result, 0)):
        connect(url=parse_url(migrated_url))
        assert await wait() == 2
    assert len(open_when_asked) >= 2
    assert all(open_when_asked)


class SlowClock:
    """A clock on which every query takes 100 seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def look(self, ids: Sequence[int]) -> Mapping[int, TaskResult | None]:
        self.now += 100
        return {id: TaskResult(id, "work", State.SUCCEEDED, 1, "1", None) if id else None for id in ids}


async def test_a_new_caller_does_not_wait_for_the_rest_after_a_slow_query(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SlowClock()
    monkeypatch.setattr(result_poller, "time", clock)
    poller = ResultPoller(clock.look, asyncio.get_running_loop())
    for number in (1, 2, 3):
        await asyncio.wait_for(asyncio.wrap_future(poller.wait([number])), WAIT_SECONDS)
    assert clock.now == 300


async def test_repeated_queries_rest_longer_after_a_slow_query_within_a_limit() -> None:
    watched = PolledTask(since=0.0, due=0.0)
    watched.start_query()
    watched.schedule_next(0.0, rest=0.04)
    assert (watched.due, LONGEST_REST) == (0.04, 0.05)


async def test_a_caller_that_comes_during_a_query_gets_the_answer_of_the_next() -> None:
    began, answer = asyncio.Event(), asyncio.Event()

    async def look(ids: Sequence[int]) -> Mapping[int, TaskResult | None]:
        if began.is_set():
            return {1: TaskResult(1, "work", State.SUCCEEDED, 1, "1", None)}
        began.set()
        await answer.wait()
        return {}

    poller = ResultPoller(look, asyncio.get_running_loop())
    early = asyncio.wrap_future(poller.wait([1]))
    await began.wait()
    late = asyncio.wrap_future(poller.wait([1]))
    await asyncio.sleep(0)
    answer.set()
    assert isinstance((await early)[1], TaskNotFound)
    assert isinstance((await late)[1], TaskResult)


async def test_disconnecting_fails_pending_waits(handlers: SimpleNamespace) -> None:
    handle = await handlers.crunch.submit_async(rows=1)
    counter = QueryCounter(get_client().waiting._look)
    get_client().waiting._look = counter
    waits = asyncio.ensure_future(handle.wait())
    while not counter.sizes:
        await asyncio.sleep(0.001)
    await asyncio.to_thread(disconnect)
    with pytest.raises(DatabaseUnavailable, match="disconnected"):
        await waits


class Outage:
    """A database that fails a number of queries, and counts them."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self.queried = asyncio.Semaphore(0)

    async def __call__(self, ids: Sequence[int]) -> Mapping[int, TaskResult | None]:
        self.queried.release()
        self._failures -= 1
        if self._failures >= 0:
            raise DatabaseUnavailable(url="somewhere", why="it is restarted")
        return {id: TaskResult(id, "work", State.SUCCEEDED, 1, "1", None) for id in ids}


async def test_a_wait_survives_a_short_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_poller, "LATEST", SOONEST)
    poller = ResultPoller(Outage(3), asyncio.get_running_loop())
    endings = await asyncio.wait_for(asyncio.wrap_future(poller.wait([1])), WAIT_SECONDS)
    assert (endings, poller.trouble) == ({1: TaskResult(1, "work", State.SUCCEEDED, 1, "1", None)}, None)


async def test_a_single_query_reports_an_outage_immediately() -> None:
    poller = ResultPoller(Outage(1_000), asyncio.get_running_loop())
    endings = await asyncio.wait_for(asyncio.wrap_future(poller.wait([1], until_finished=False)), WAIT_SECONDS)
    assert isinstance(endings[1], DatabaseUnavailable)


async def test_a_long_outage_fails_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_poller, "LATEST", SOONEST)
    monkeypatch.setattr(result_poller, "WAIT_SECONDS", 0.0)
    poller = ResultPoller(Outage(1_000), asyncio.get_running_loop())
    waits = [asyncio.wrap_future(poller.wait([number])) for number in (1, 2, 2)]
    answers = await asyncio.wait_for(asyncio.gather(*waits), WAIT_SECONDS)
    errors = [error for answer in answers for error in answer.values()]
    assert ({type(error) for error in errors}, len({id(error) for error in errors})) == ({DatabaseUnavailable}, 3)


async def test_cancelled_waits_stop_the_queries() -> None:
    outage = Outage(1_000)
    poller = ResultPoller(outage, asyncio.get_running_loop())
    cancelled = asyncio.ensure_future(asyncio.wrap_future(poller.wait([1])))
    await outage.queried.acquire()
    cancelled.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await cancelled
    assert poller._poller is not None
    await asyncio.wait_for(poller._poller, WAIT_SECONDS)
    assert poller._watched == {}


def test_the_interval_between_queries_grows_with_the_wait() -> None:
    watched = PolledTask(since=100.0, due=100.0)
    gaps = []
    for now in (100.0, 100.1, 101.0, 110.0):
        watched.start_query()
        watched.schedule_next(now)
        gaps.append(round(watched.due - now, 3))
    assert gaps == [SOONEST, 0.05, 0.5, LATEST]
