"""A caller that waits for a task learns of its end without a poll, on one connection of its process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from runner import Context, DependsOn, connect, handler, results_async
from runner.client import result_poller, task_news
from runner.client.client import get_client
from runner.client.result_poller import Ending, PolledTask
from runner.db import listener
from runner.db.schema import tables
from runner.db.watch_request import MOST_IDS, Watch, WatchRequest, read_request
from runner.engine.events import Events, TasksCancelled
from runner.engine.runner import Engine
from runner.engine.settling import watched_tasks
from runner.engine.settling.watched_tasks import WatchedTasks
from runner.errors import TaskCancelled, TaskFailed
from runner.handlers.registry import REGISTRY
from runner.model.task import State
from runner.settings import Settings
from runner.store.dependencies.resolve import FinishedParent
from runner.urls import parse_url
from tests.conftest import on_postgresql
from tests.engine.harness import QUICK, at_work, until

pytestmark = [pytest.mark.both_databases, pytest.mark.usefixtures("connected")]

WAIT_SECONDS = 90


@pytest.fixture
def handlers(own_handlers: None) -> SimpleNamespace:
    release = asyncio.Event()

    @handler("news.held")
    async def held(number: int) -> int:
        await release.wait()
        return number

    @handler("news.fail", retry="1ms", max_attempts=2)
    async def fail() -> None:
        await release.wait()
        raise LookupError("no shop")

    @handler("news.write")
    async def write(ctx: Context) -> str:
        await release.wait()
        own = ctx.transaction()
        async with own as tx:
            await tx.execute(sa.text("SELECT 1"))
            own.result = "written"
        return "written"

    @handler("news.later")
    async def later() -> str:
        return "later"

    return SimpleNamespace(held=held, fail=fail, write=write, later=later, release=release)


@pytest.fixture
async def running(migrated_url: str, handlers: SimpleNamespace) -> AsyncIterator[Engine]:
    engine = Engine(Settings(url=parse_url(migrated_url), **QUICK), dict(REGISTRY.items()))
    async with at_work(engine):
        await until(lambda: engine.claimer.open)
        yield engine


@pytest.fixture
def without_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first query of a task is the last one, unless there are news."""
    monkeypatch.setattr(result_poller, "SOONEST", 3600.0)
    monkeypatch.setattr(result_poller, "LATEST", 3600.0)


async def waiting(*handles: Any) -> "list[asyncio.Future[Any]]":
    """Begin to wait for tasks, and return after the first query of each."""
    waits = [asyncio.ensure_future(each.wait(timeout=WAIT_SECONDS)) for each in handles]

    def are_queried() -> bool:
        watched = get_client().waiting._watched
        return all(int(each) in watched and watched[int(each)].queried for each in handles)

    await until(are_queried)
    return waits


async def news_arrive() -> None:
    """Wait until the client hears of changes."""
    news = get_client()._news
    if get_client().settings.url.file is None:
        await until(lambda: news._listener is not None and news._listener.connected)


@pytest.mark.usefixtures("running", "without_polls")
async def test_a_waiting_caller_learns_of_the_end_of_its_task(handlers: SimpleNamespace) -> None:
    held, failing, writing = [
        await handlers.held.submit_async(number=7),
        await handlers.fail.submit_async(),
        await handlers.write.submit_async(),
    ]
    waits = await waiting(held, failing, writing)
    await news_arrive()
    handlers.release.set()
    assert await waits[0] == 7
    with pytest.raises(TaskFailed, match="after attempt 2: LookupError: no shop"):
        await waits[1]
    assert await waits[2] == "written"


@pytest.mark.usefixtures("running", "without_polls")
async def test_a_task_that_ends_during_its_query_is_queried_again(
    handlers: SimpleNamespace, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(url=parse_url(migrated_url), notify=False)  # the only news are those of the test
    poller, ours = get_client().waiting, asyncio.get_running_loop()
    look, held = poller._look, await handlers.held.submit_async(number=7)

    async def end() -> None:
        handlers.release.set()
        while (await held.status_async()).state != State.SUCCEEDED:
            await asyncio.sleep(0.01)

    async def look_before_the_end(ids: Sequence[int]) -> Mapping[int, Ending]:
        endings = await look(ids)
        monkeypatch.setattr(poller, "_look", look)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(end(), ours))
        poller.hear([*ids])
        return endings

    monkeypatch.setattr(poller, "_look", look_before_the_end)
    assert await asyncio.wait_for(held.wait(), WAIT_SECONDS) == 7


@pytest.mark.slow
@pytest.mark.usefixtures("running", "without_polls")
async def test_a_caller_learns_of_a_task_that_is_cancelled_with_its_parent(handlers: SimpleNamespace) -> None:
    parent = await handlers.fail.submit_async()
    child = await handlers.later.options(after=DependsOn(parent, on_failure="cancel")).submit_async()
    waits = await waiting(child)
    await news_arrive()
    handlers.release.set()
    with pytest.raises(TaskCancelled, match=f"{int(parent)}"):
        await waits[0]


@pytest.mark.slow
@pytest.mark.usefixtures("running", "without_polls")
async def test_the_end_of_a_task_counts_although_the_request_comes_after_it(handlers: SimpleNamespace) -> None:
    """Else each short task would be found by a poll."""
    handlers.release.set()
    first = await handlers.later.submit_async()
    [wait] = await waiting(await handlers.held.options(delay="1h").submit_async(number=1))
    await news_arrive()
    for _ in range(20):
        assert await (await handlers.later.submit_async()).wait(timeout=WAIT_SECONDS) == "later"
    assert await first.wait(timeout=WAIT_SECONDS) == "later"
    wait.cancel()


def listeners(url: str) -> list[int]:
    """The processes of the server that have listened or notified last."""
    of_database = "datname = current_database() AND pid <> pg_backend_pid()"
    sql = (
        f"SELECT pid FROM pg_stat_activity WHERE {of_database} AND (query LIKE 'LISTEN%' OR query LIKE '%pg_notify(c%')"
    )
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(sql)]


@pytest.mark.slow
@on_postgresql
@pytest.mark.usefixtures("running")
async def test_a_thousand_callers_share_one_connection_which_ends_after_them(
    handlers: SimpleNamespace, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_news, "REQUEST_EVERY", 0.05)
    handles = await handlers.held.submit_many_async({"number": number} for number in range(1_000))
    waits = await waiting(*handles)
    await news_arrive()
    assert len(listeners(migrated_url)) == 2  # of the client, and of the runner
    handlers.release.set()
    assert await asyncio.gather(*waits) == [*range(1_000)]
    following = get_client()._news._following
    assert following is not None
    await until(following.done)
    assert await results_async(handles[:1], timeout=WAIT_SECONDS) == [0]


@on_postgresql
@pytest.mark.usefixtures("running", "without_polls")
async def test_a_client_whose_connection_is_cut_connects_again_and_loses_no_end(
    handlers: SimpleNamespace, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "RECONNECT_DELAY", 0.01)
    [wait] = await waiting(await handlers.held.submit_async(number=7))
    await news_arrive()
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        for pid in listeners(migrated_url):
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
    handlers.release.set()
    assert await wait == 7


@on_postgresql
@pytest.mark.usefixtures("running")
async def test_without_notifications_polls_find_the_end(handlers: SimpleNamespace, migrated_url: str) -> None:
    connect(url=parse_url(migrated_url), notify=False)
    [wait] = await waiting(await handlers.held.submit_async(number=7))
    assert get_client()._news._following is None
    handlers.release.set()
    assert await wait == 7


async def test_writes_that_concern_other_tasks_make_a_long_wait_look_rarely() -> None:
    watched = PolledTask(since=0.0, due=0.0)
    watched.start_query()
    watched.schedule_next(100.0)
    watched.advance(100.0, certain=False)
    assert watched.due == 101.0
    watched.start_query()
    watched.schedule_next(100.0)
    watched.advance(100.5, certain=True)
    assert watched.due == 100.5
    watched = PolledTask(since=99.0, due=99.0)
    watched.start_query()
    watched.advance(99.9, certain=False)
    watched.schedule_next(100.0, rest=0.04)
    assert watched.due == 100.04, "after a rest, although the news came during the query"


class Sent:
    """The texts that a runner sends, by channel."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def __call__(self, channel: str, text: str) -> None:
        self.texts.append((channel, text))

    def take(self) -> list[tuple[str, str]]:
        texts, self.texts = self.texts, []
        return texts


CLIENT = "0123456789abcdef"
CHANNEL = "task_0123456789abcdef"


def cancelled(*ids: int) -> TasksCancelled:
    return TasksCancelled([FinishedParent(id, "work", None) for id in ids], expired=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1_000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(watched_tasks, "time", clock)
    return clock


@pytest.fixture
def watched(clock: SimpleNamespace) -> Iterator[tuple[WatchedTasks, Callable[[object], None], Sent]]:
    events, sent = Events(), Sent()
    watched = WatchedTasks(tables(), events)
    with watched.sending(sent):
        yield watched, events.publish, sent


def test_a_runner_reports_the_ends_of_watched_tasks_once(watched: Any) -> None:
    tasks, publish, sent = watched
    publish(cancelled(17))
    tasks.receive(f"{CLIENT} end 17,18")
    assert sent.take() == []  # the change was before any request
    publish(cancelled(17, 19))
    assert sent.take() == [(CHANNEL, "17")]
    publish(cancelled(17))
    assert sent.take() == []
    tasks.receive(f"{CLIENT} end 17,19,20")
    assert [set(text.split(",")) for _, text in sent.take()] == [{"17", "19"}]


def test_a_runner_forgets_requests_that_are_not_repeated(watched: Any, clock: SimpleNamespace) -> None:
    tasks, publish, sent = watched
    tasks.receive(f"{CLIENT} end 17,18")
    clock.now += watched_tasks.KEEP_SECONDS
    tasks.receive(f"{CLIENT} end 18")
    clock.now += watched_tasks.KEEP_SECONDS + 1
    tasks.receive(f"{CLIENT} end 18")
    clock.now += 1
    publish(cancelled(17, 18))
    assert sent.take() == [(CHANNEL, "18")]
    clock.now += 2 * watched_tasks.KEEP_SECONDS + 1
    publish(cancelled(18))
    assert (sent.take(), tasks._until, [*tasks._recent]) == ([], 0.0, [])


def test_a_runner_keeps_a_bounded_number_of_watched_tasks(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, publish, sent = watched
    monkeypatch.setattr(watched_tasks, "MOST_WATCHED", 2)
    tasks.receive(f"{CLIENT} end 1,2,3")
    publish(cancelled(1, 2, 3))
    assert [set(text.split(",")) for _, text in sent.take()] == [{"1", "2"}]


@pytest.mark.parametrize(
    "text", ["", "end 17", f"{CLIENT} other 17", "0123456789ABCDEF end 17", 'x"; DROP TABLE task; -- end 17', "\x1b[2J"]
)
def test_a_text_that_is_no_request_is_ignored(watched: Any, text: str) -> None:
    tasks, publish, sent = watched
    tasks.receive(text)
    publish(cancelled(17))
    assert sent.take() == []


def test_the_ids_of_a_request_fit_into_its_notifications() -> None:
    ids = [2**63 - number for number in range(1, 2 * MOST_IDS + 2)]
    texts = [*WatchRequest(CLIENT, Watch.END, ids).texts()]
    assert (len(texts), max(map(len, texts)) < 8_000) == (3, True)
    assert [id for text in texts for id in read_request(text).ids] == ids  # type: ignore[union-attr]
    request = read_request(f"{CLIENT} end 17,,x,-3,٣,{10**30}")
    assert request is not None
    assert request.ids == [17]
