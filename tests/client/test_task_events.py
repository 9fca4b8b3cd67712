"""The events of a task: each once, in order, from any cursor, whatever happens to its runner or to the connection."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from runner import Context, TaskHandle, connect, disconnect, handle, handler
from runner.client import event_poller
from runner.client.client import get_client
from runner.client.event_position import EventPosition, next_page, read_cursor, request_of
from runner.db.database import Database
from runner.db.transaction import clock
from runner.db.types import db_later, db_now
from runner.engine.runner import Engine
from runner.errors import DatabaseUnavailable, InvalidTask, TaskNotFound, WouldBlock
from runner.handlers.registry import REGISTRY
from runner.model.outcome import Failure, Retry
from runner.model.task import Claimed, State
from runner.model.task_event import (
    EVENT_KINDS,
    AttemptFailed,
    LineLogged,
    ProgressReported,
    StateChanged,
    TaskEvent,
)
from runner.operations.delay import delay
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.erase import erase
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor, Target
from runner.operations.resume import resume
from runner.operations.retry import requeue, retry_now
from runner.operations.terminate import terminate
from runner.operations.unblock import unblock
from runner.operations.undo.undo import undo
from runner.queries.task import event_facts
from runner.queries.task.event_facts import AttemptFact, EventFacts, EventRequest, LineFact
from runner.settings import Settings
from runner.store.notes import LogLine, Progress, write_notes
from runner.urls import parse_url
from tests.conftest import on_postgresql
from tests.engine.harness import QUICK, at_work, until
from tests.shards import Sharded
from tests.store.dependencies import put_after
from tests.store.runners import Runner
from tests.store.table import change, expire, live, put

pytestmark = pytest.mark.both_databases

FAR = datetime(2099, 1, 1, tzinfo=UTC)
ANA = Actor("ana", "desk", "it was a mistake")


@pytest.fixture(autouse=True)
def _connected(request: pytest.FixtureRequest) -> Iterator[None]:
    if {"database", "migrated_url"}.intersection(request.fixturenames):
        connect(url=parse_url(request.getfixturevalue("migrated_url")))
    yield
    disconnect()


class Follower:
    """A caller that follows the events of a task, and connects again with the cursor of the last one."""

    def __init__(self, id: int, after: str | None = "start", **options: Any) -> None:
        self.events: list[TaskEvent] = []
        self._id, self._options = id, options
        self._task = asyncio.ensure_future(self._follow(after))

    async def _follow(self, after: str | None) -> None:
        async for event in handle(self._id).events(after, **self._options):
            self.events.append(event)

    async def until(self, *lines: str) -> None:
        """Wait until the lines of all events are these."""
        async with asyncio.timeout(90):
            while self.lines[: len(lines)] != [*lines]:
                assert not self._task.done() or self._task.exception() is None, self._task.exception()
                await asyncio.sleep(0.01)
        assert self.lines == [*lines]

    async def again(self) -> None:
        """Leave and come again."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = asyncio.ensure_future(self._follow(self.events[-1].cursor if self.events else "start"))

    async def end(self) -> list[str]:
        """Wait for the end of the events."""
        await asyncio.wait_for(self._task, 90)
        return self.lines

    @property
    def lines(self) -> list[str]:
        return [*map(line, self.events)]


def line(event: TaskEvent) -> str:
    """An event as text."""
    match event:
        case StateChanged():
            return f"{event.state} {event.attempt}{' asked' if event.cancel_requested else ''}"
        case AttemptFailed():
            return f"failed {event.attempt}: {event.error_type}: {event.message}"
        case ProgressReported():
            return f"progress {event.done:g}/{event.total:g} {event.unit}"
        case LineLogged():
            return f"{event.level} {event.attempt}: {event.line}"
    raise AssertionError(event)


async def log(runner: Runner, task: Claimed, *numbers: int, done: float | None = None) -> None:
    """Write log lines and the progress of an attempt."""
    at = datetime.now(UTC)
    lines = [LogLine(task.id, task.fence, number, task.attempt, at, "info", f"line {number}") for number in numbers]
    progress = [] if done is None else [Progress(task.id, task.fence, done, 9, "rows", None)]
    await runner.database.write(write_notes, runner.id, progress, lines)


async def claimed(runner: Runner) -> Claimed:
    [task] = await runner.claim()
    return task


FAILURE = Failure("LookupError", "no shop", "")


async def test_a_caller_receives_each_event_once_also_with_pauses(database: Database, runner: Runner) -> None:
    id = await put(database, max_attempts=2)
    follower = Follower(id)
    await follower.until(*(expected := ["waiting 0"]))
    task = await claimed(runner)
    await follower.until(*(expected := [*expected, "running 1"]))
    await log(runner, task, 1, 2, done=1)
    await follower.until(*(expected := [*expected, "info 1: line 1", "info 1: line 2", "progress 1/9 rows"]))
    await follower.again()
    await log(runner, task, 3)
    await follower.until(*(expected := [*expected, "info 1: line 3"]))
    await follower.again()
    await runner.end(task, Retry(failure=FAILURE, delay=0))
    await follower.until(*(expected := [*expected, "failed 1: LookupError: no shop", "waiting 1"]))
    assert follower.events[-1].retrying  # type: ignore[attr-defined]
    await follower.again()
    task = await claimed(runner)
    await runner.end(task)
    await log(runner, task, 1, done=9)  # a runner writes the last lines after the end
    lines = await follower.end()
    assert lines[: len(expected)] == expected
    assert sorted(lines[len(expected) :]) == ["info 2: line 1", "progress 9/9 rows", "running 2", "succeeded 2"]
    assert follower.events[-1].time is not None
    assert await Follower(id, follower.events[-1].cursor).end() == []


async def ended(database: Database, runner: Runner, attempts: int = 3) -> int:
    """A task that has failed some times and then succeeded, some time ago."""
    id = await put(database, max_attempts=attempts + 1)
    for number in range(1, attempts + 1):
        task = await claimed(runner)
        await log(runner, task, 1, 2)
        await runner.end(task, Retry(failure=Failure("Error", f"{number}", ""), delay=0) if number < attempts else None)
    past = database.tables.history
    await change(database, sa.update(past).values(finished_at=db_later(db_now(), -60)))
    return id


ALL = [
    *("running 1", "info 1: line 1", "info 1: line 2", "failed 1: Error: 1"),
    *("running 2", "info 2: line 1", "info 2: line 2", "failed 2: Error: 2"),
    *("running 3", "info 3: line 1", "info 3: line 2", "succeeded 3"),
]


async def test_the_events_of_a_finished_task_are_those_of_its_life(database: Database, runner: Runner) -> None:
    id = await ended(database, runner)
    follower = Follower(id)
    assert await follower.end() == ALL
    for number, event in enumerate(follower.events):
        assert await Follower(id, event.cursor).end() == ALL[number + 1 :]
    assert await Follower(id, None).end() == ["succeeded 3", "info 3: line 1", "info 3: line 2"]
    assert await Follower(id, None, kinds=["state"]).end() == ["succeeded 3"]
    assert await Follower(id, kinds=["attempt"]).end() == ["failed 1: Error: 1", "failed 2: Error: 2"]
    assert await Follower(id, kinds="log").end() == [text for text in ALL if text.startswith("info")]
    assert get_client().following._waits == {}


async def test_a_page_has_a_bounded_number_of_rows(
    database: Database, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, other = await ended(database, runner), await ended(database, runner)
    monkeypatch.setattr(event_facts, "MOST_ROWS", 1)
    event_facts._lines.cache_clear()
    event_facts._attempts.cache_clear()
    try:
        followers = [Follower(id), Follower(other), Follower(id, None), Follower(other, kinds=["state", "attempt"])]
        lines = [await follower.end() for follower in followers]
    finally:
        event_facts._lines.cache_clear()
        event_facts._attempts.cache_clear()
    assert lines[:2] == [ALL, ALL]
    assert lines[2] == ["succeeded 3", "info 3: line 1", "info 3: line 2"]
    assert lines[3] == [text for text in ALL if not text.startswith("info")]


@pytest.mark.parametrize("named", [True, False], ids=["of the task", "of any task"])
async def test_a_change_during_a_query_reaches_a_caller_that_comes_back(
    database: Database, migrated_url: str, runner: Runner, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    connect(url=parse_url(migrated_url), notify=False)  # the only news are those of the test
    monkeypatch.setattr(event_poller, "EVERY", 3600.0)
    poller, ours = get_client().following, asyncio.get_running_loop()
    look, id = poller._look, await put(database)

    async def look_before_a_claim(requests: Sequence[EventRequest]) -> Mapping[int, EventFacts]:
        facts = await look(requests)
        monkeypatch.setattr(poller, "_look", look)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(claimed(runner), ours))
        poller.hear([id] if named else None)
        return facts

    monkeypatch.setattr(poller, "_look", look_before_a_claim)
    follower = Follower(id)
    await follower.until("waiting 0", "running 1")
    await follower.again()


async def test_a_lost_runner_is_a_failed_attempt(database: Database, runner: Runner, other: Runner) -> None:
    id = await put(database)
    follower = Follower(id)
    await log(runner, await claimed(runner), 1)
    await expire(database, runner.id)
    assert await other.rescue() == {id: "rescue"}
    await follower.again()
    await other.end(await claimed(other))
    lines = await follower.end()
    assert [text for text in lines if not text.startswith("waiting")] == [
        *(
            "running 1",
            "info 1: line 1",
            "failed 1: runner lost: the lease of its runner expired while the task was running",
        ),
        *("running 2", "succeeded 2"),
    ]


async def test_a_cancelled_task_ends_its_events(database: Database, runner: Runner) -> None:
    id = await put(database, delay=3600)
    follower = Follower(id)
    await follower.until("waiting 0")
    await database.write(terminate, [Target(id)], ANA)
    assert await follower.end() == ["waiting 0", "cancelled 0"]
    running = await put(database)
    follower = Follower(running)
    task = await claimed(runner)
    await database.write(terminate, [Target(running)], ANA)
    await until(lambda: "running 1 asked" in follower.lines)
    await runner.end(task, Retry(failure=FAILURE))
    assert (await follower.end())[-1] == "cancelled 1"


@pytest.mark.slow
async def test_changes_of_operators_are_events(database: Database, runner: Runner) -> None:
    id = await put(database, delay=3600, max_attempts=1)
    follower, expected = Follower(id), ["waiting 0"]
    await follower.until(*expected)

    async def sees(line: str, verb: Callable[..., Awaitable[object]], *arguments: Any, **options: Any) -> StateChanged:
        """Change the task, and return the next event."""
        async with database.reading() as tx:
            at = await clock(tx)
        await database.write(verb, *arguments, **options)
        expected.append(line)
        await follower.until(*expected)
        event = follower.events[-1]
        assert isinstance(event, StateChanged)
        assert event.time is not None
        assert event.time >= at
        return event

    later = (await sees("waiting 0", delay, [Target(id)], seconds=60, by=ANA)).run_at
    assert later is not None
    assert (await sees("waiting 0", edit, id, None, Changes(run_at=FAR), ANA)).run_at == FAR
    await database.write(edit, id, None, Changes(priority=9), ANA)  # no change of the state
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "default"), ANA)
    assert (await sees("waiting 0", retry_now, [Target(id)], ANA)).run_at < later  # type: ignore[operator]
    await database.write(resume, PauseTarget(PauseKind.QUEUE, "default"), ANA)
    held = await claimed(runner)
    await follower.until(*(expected := [*expected, "running 1"]))
    await sees("running 1 asked", terminate, [Target(id)], ANA)
    async with database.reading() as tx:
        last = await tx.scalar(sa.select(sa.func.max(database.tables.audit.c.id)))
    await sees("running 1", undo, [last], ANA)
    await runner.end(held, Retry(failure=FAILURE))
    expected += ["failed 1: LookupError: no shop", "dead 1"]
    assert await follower.end() == expected
    await database.write(requeue, [Target(id)], ANA)
    await follower.again()
    await follower.until(*(expected := [*expected, "waiting 0"]))
    await sees("cancelled 0", terminate, [Target(id)], ANA)
    assert await follower.end() == expected


async def test_an_unblocked_task_is_an_event(database: Database, runner: Runner) -> None:
    child = await put_after(database, await put(database))
    follower = Follower(child)
    await follower.until("blocked 0")
    await database.write(unblock, [Target(child)], ANA)
    await follower.until("blocked 0", "waiting 0")


async def test_an_erased_task_has_its_states_only(database: Database, runner: Runner) -> None:
    id = await ended(database, runner)
    first = Follower(id)
    await first.end()
    await database.write(erase, [Target(id)], ANA)
    lines = await Follower(id).end()
    assert lines == [
        *("running 1", "failed 1: Error: erased", "running 2", "failed 2: Error: erased"),
        *("running 3", "succeeded 3"),
    ]
    assert await Follower(id, first.events[4].cursor).end() == ["failed 2: Error: erased", "running 3", "succeeded 3"]


async def test_a_task_that_vanishes_is_not_found(database: Database) -> None:
    id = await put(database, delay=3600)
    follower = Follower(id)
    await follower.until("waiting 0")
    await change(database, sa.delete(database.tables.task))
    for missing in (follower, Follower(4711), Follower(0), Follower(2**63)):
        with pytest.raises(TaskNotFound):
            await missing.end()


async def test_a_caller_in_a_thread_and_one_on_an_event_loop_get_the_same(database: Database, runner: Runner) -> None:
    id = await ended(database, runner)
    with pytest.raises(
        WouldBlock, match=r"^for event in events\(\) would .* instead: async for event in events\(\)\.$"
    ):
        [*handle(id).events()]
    with pytest.raises(WouldBlock, match=r"instead: async for text in stream\(\)\.$"):
        [*handle(id).events().stream()]
    assert await asyncio.to_thread(lambda: [*map(line, handle(id).events("start"))]) == ALL
    chunks = await asyncio.to_thread(lambda: [*handle(id).events("start").stream()])
    assert [chunk async for chunk in handle(id).events("start").stream()] == chunks


@pytest.mark.parametrize(
    "after", ["", "1", "1.2.3", "1.1.0.1-2.1-2.x\n", f"{2**63}.0.0...", "0.0.0.٣-1..", "0.0.0...running-1-0-0;x", 7]
)
async def test_what_is_no_cursor_is_refused(after: Any) -> None:
    with pytest.raises(InvalidTask, match="pass the cursor of an event"):
        TaskHandle[Any](17).events(after)


async def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidTask, match="the kinds of events are state, attempt, progress, log"):
        TaskHandle[Any](17).events(kinds=["states"])


async def test_a_stream_has_cursors_pings_and_an_end_and_masks_secrets(database: Database, runner: Runner) -> None:
    id = await put(database)
    stream, chunks = aiter(handle(id).events().stream(ping="10ms")), list[str]()

    async def chunk() -> str:
        while (text := await anext(stream)) == ": ping\n\n":
            pass
        chunks.append(text)
        return text

    assert (await chunk()).startswith("id: 0.0.0...waiting-0-")
    assert await anext(stream) == ": ping\n\n"
    task = await claimed(runner)
    await runner.end(task, Retry(failure=Failure("Error", "at postgresql://ana:s3cret@db/shop", ""), delay=3600))
    while '"waiting"' not in await chunk():
        pass
    await database.write(terminate, [Target(id)], ANA)
    while not (await chunk()).startswith("event: end"):
        pass
    assert "s3cret" not in "".join(chunks)
    events = [dict(part.split(": ", 1) for part in chunk.strip().split("\n")) for chunk in chunks[:-1]]
    assert [event["event"] for event in events][-1] == "state"
    assert json.loads(events[-1]["data"])["state"] == "cancelled"
    assert await Follower(id, events[-1]["id"]).end() == []
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_closed_stream_leaves_nothing(database: Database) -> None:
    id = await put(database, delay=3600)
    poller = get_client().following
    for ping in ("1h", "10ms"):
        stream = aiter(handle(id).events().stream(ping=ping))
        await anext(stream)
        following = asyncio.ensure_future(anext(stream))
        await until(lambda: poller.watched == [id])
        following.cancel()
        await asyncio.wait([following])
        await stream.aclose()  # type: ignore[attr-defined]
    await until(lambda: poller._waits == {})
    await until(lambda: poller._poller is not None and poller._poller.done())


class LookCounter:
    """Counts the queries of the poller, and the tasks of each."""

    def __init__(self) -> None:
        self._poller = get_client().following
        self._look = self._poller._look
        self._poller._look = self
        self.sizes: list[int] = []

    async def __call__(self, requests: Sequence[EventRequest]) -> Any:
        self.sizes.append(len(requests))
        return await self._look(requests)


async def test_callers_share_queries(database: Database, runner: Runner) -> None:
    counter = LookCounter()
    ids = [await put(database) for _ in range(10)]
    followers = [Follower(id) for id in ids for _ in range(20)]
    await until(lambda: all(follower.lines == ["waiting 0"] for follower in followers))
    for task in await runner.claim():
        await runner.end(task)
    for follower in followers:
        assert (await follower.end())[-1] == "succeeded 1"
    assert max(counter.sizes) <= 10
    assert sum(counter.sizes) < 20 * 10


@pytest.mark.slow
async def test_a_caller_that_pauses_keeps_nothing_in_memory_and_misses_nothing(
    database: Database, runner: Runner
) -> None:
    id = await put(database)
    task = await claimed(runner)
    events = aiter(handle(id).events("start", kinds=["log"]))
    await log(runner, task, 1)
    assert line(await anext(events)) == "info 1: line 1"
    for number in range(2, 400):
        await log(runner, task, number)
    assert get_client().following._waits == {}
    await runner.end(task)
    assert [line(event) async for event in events] == [f"info 1: line {number}" for number in range(2, 400)]


@on_postgresql
async def test_a_cut_connection_loses_no_event(database: Database, runner: Runner, migrated_url: str) -> None:
    id = await put(database)
    task = await claimed(runner)
    follower = Follower(id)
    expected = ["running 1"]
    await follower.until(*expected)
    for number in range(1, 4):
        await log(runner, task, number)
        with psycopg.connect(migrated_url, autocommit=True) as connection:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
        expected.append(f"info 1: line {number}")
        await follower.until(*expected)
        with contextlib.suppress(DatabaseUnavailable):  # the pool of the test notices that its connections are gone
            await live(database, id)


async def test_callers_receive_an_error_when_the_database_stays_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await put(database, delay=3600)
    follower = Follower(id)
    await follower.until("waiting 0")
    monkeypatch.setattr(event_poller, "WAIT_SECONDS", 0.0)

    async def fail(_: object) -> Any:
        raise DatabaseUnavailable(url="postgresql://away", why="it is away")

    get_client().following._look = fail
    with pytest.raises(DatabaseUnavailable, match="it is away"):
        await follower.end()


async def test_disconnecting_ends_the_events_with_an_error(database: Database) -> None:
    follower = Follower(await put(database, delay=3600))
    await follower.until("waiting 0")
    await until(lambda: bool(get_client().following.watched))
    await asyncio.to_thread(disconnect)
    with pytest.raises(DatabaseUnavailable, match="has disconnected"):
        await follower.end()


async def test_runners_notify_the_followers_of_a_task(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_poller, "EVERY", 3600.0)
    go = asyncio.Event()

    @handler("events.work", retry="1ms", max_attempts=2)
    async def work(ctx: Context) -> None:
        await go.wait()
        go.clear()
        ctx.logger.warning("no shop")
        if ctx.attempt == 1:
            raise LookupError("no shop")
        ctx.progress(2, 2, "rows")
        await go.wait()

    engine = Engine(Settings(url=parse_url(migrated_url), **QUICK), {"events.work": work})
    try:
        follower = Follower(await work.submit_async())
        await follower.until("waiting 0")
        async with at_work(engine):
            await until(lambda: "running 1" in follower.lines)
            go.set()
            await until(lambda: "running 2" in follower.lines)
            await until(lambda: "warning 1: no shop" in follower.lines)
            go.set()
            await until(lambda: "progress 2/2 rows" in follower.lines)
            go.set()
            await until(lambda: "succeeded 2" in follower.lines)
            follower._task.cancel()
    finally:
        REGISTRY._handlers.pop("events.work")
    assert sorted(follower.lines) == sorted(
        [
            *("waiting 0", "running 1", "warning 1: no shop", "failed 1: LookupError: no shop"),
            *("running 2", "warning 2: no shop", "progress 2/2 rows", "succeeded 2"),
            *(["waiting 1"] if "waiting 1" in follower.lines else []),
        ]
    )


@pytest.fixture
async def sharded(profile: Sharded) -> Sharded:
    connect(profile.settings())
    return profile


async def test_the_events_of_shards_do_not_mix(sharded: Sharded) -> None:
    databases = {name: Database.open(url) for name, url in sharded.urls.items()}
    ids = {name: await put(database, delay=3600) for name, database in databases.items()}
    assert len({*ids.values()}) == 1
    followers = {name: Follower(handle(f"{name}:{id}")) for name, id in ids.items()}
    for follower in followers.values():
        await follower.until("waiting 0")
    name, *others = ids
    await databases[name].write(terminate, [Target(ids[name])], ANA)
    assert await followers[name].end() == ["waiting 0", "cancelled 0"]
    assert [followers[other].lines for other in others] == [["waiting 0"]] * len(others)
    for other in others:
        await databases[other].write(terminate, [Target(ids[other])], ANA)
        await followers[other].end()
    for database in databases.values():
        await database.dispose()


class Life:
    """A task whose facts grow at random."""

    def __init__(self, steps: Sequence[int]) -> None:
        at = datetime(2026, 11, 28, tzinfo=UTC)
        self.facts = EventFacts("h", State.WAITING, 0, 0, None, at, at, None, None, False, 0, None, None, 0, at)
        self.attempts: list[AttemptFact] = []
        self.lines: list[LineFact] = []
        self.at = at
        for step in steps:
            self.do(step)

    def do(self, step: int) -> None:
        facts = self.facts
        if facts.state is State.WAITING:
            facts.state, facts.fence, facts.attempt, facts.claimed_at = (
                State.RUNNING,
                facts.fence + 1,
                facts.attempt + 1,
                self.at,
            )
        elif step == 0:
            facts.state, facts.last_attempt = State.WAITING, facts.fence
            self.attempts.append(AttemptFact(facts.fence, facts.attempt, self.at, self.at, "Error", "no", 0.0))
        else:
            fence = max(1, facts.fence - step + 1)  # also lines of earlier attempts, which their runner writes late
            number = sum(line.fence == fence for line in self.lines) + 1
            self.lines.append(LineFact(fence, number, fence, self.at, "info", f"{number}"))

    def read(self, request: EventRequest, most: int) -> EventFacts:
        """The facts for a request, with at most some rows of each kind."""
        facts = copy(self.facts)
        failures = [each for each in self.attempts if each.fence > (request.attempt or 0)]
        lines = sorted(
            each
            for each in self.lines
            if any(low <= each.fence <= high and each.number > after for low, high, after in request.lines)
        )
        facts.attempts, facts.complete_attempts = failures[:most], len(failures) < most
        facts.lines, facts.complete_lines = lines[:most], len(lines) < most
        return facts


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=40), st.integers(2, 6))
def test_readers_with_random_pauses_miss_nothing_and_see_nothing_twice(
    steps: list[tuple[int, bool, bool]], most: int
) -> None:
    life, others = Life([]), EventPosition()
    positions, seen = [EventPosition(), EventPosition()], [list[TaskEvent](), list[TaskEvent]()]

    def look(readers: Sequence[int]) -> bool:
        facts = life.read(request_of(1, [(positions[reader], EVENT_KINDS) for reader in readers]), most)
        short = False
        for reader in readers:
            page = next_page(positions[reader], facts, EVENT_KINDS)
            seen[reader] += page.events
            cursor = page.events[-1].cursor if page.events else positions[reader].cursor
            assert page.position.cursor == cursor
            positions[reader] = read_cursor(cursor) or others
            short |= page.is_short
        return short

    for step, first, second in steps:
        life.do(step)
        if readers := [number for number, reads in enumerate((first, second)) if reads]:
            look(readers)
    for _ in itertools.takewhile(lambda _: look([0, 1]), range(1_000)):
        pass
    for events in seen:
        lines = [event for event in events if isinstance(event, LineLogged)]
        assert sorted((event.attempt, int(event.line)) for event in lines) == sorted(
            (each.attempt, each.number) for each in life.lines
        )
        failures = [event.attempt for event in events if isinstance(event, AttemptFailed)]
        assert failures == [each.attempt for each in life.attempts]
        starts = [event.attempt for event in events if isinstance(event, StateChanged) and event.state == "running"]
        assert starts == [*range(1, life.facts.attempt + 1)]
        states = [event for event in events if isinstance(event, StateChanged)]
        assert not states or states[-1].state is life.facts.state
