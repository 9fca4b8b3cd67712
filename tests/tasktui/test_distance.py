"""A database far away: few round trips for each screen, and words that are true about the connection."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import clock
from runner.filter.parse import parse_filter
from runner.model.task import NewTask
from runner.queries.comparison import read_side
from runner.queries.overview import SHALLOW, read_overview
from runner.queries.task_list.search import page
from runner.queries.why.many import why_many
from runner.queries.why.why import why
from runner.settings import Settings
from runner.store.submit import submit
from runner.urls import parse_url
from tasktui.actions import perform
from tasktui.actions.actions import ACTIONS
from tasktui.app import Console
from tasktui.commands.syntax import SCREENS
from tasktui.session.cache import Timeout, TtlCache
from tasktui.session.session import ROUND_TRIPS, Session
from tasktui.session.write_lock import UNOPENED, WriteLock
from tests.conftest import on_postgresql
from tests.postgres.distance import DistantServer
from tests.shop import MINUTE, NOW, fill
from tests.store.rows import ahead
from tests.tasktui.conftest import WIDE, Operator

if TYPE_CHECKING:
    from tasktui.shell.live import LiveScreen

WAY = 0.02
CONNECTING = 2
"""Round trips of a connection without TLS and password, after that of TCP."""


def session_of(url: str, folder: Path, barrier: object = None) -> Session:
    values = Settings(url=parse_url(url))
    lock = WriteLock(inf, UNOPENED if barrier is UNOPENED else None)
    return Session(Database.of(values, read_only=True), values, lock, views=folder / "views.json")


@on_postgresql
@pytest.mark.slow
@pytest.mark.parametrize("size", [WIDE, (200, 60)])
async def test_a_screen_needs_few_round_trips(
    database: Database, migrated_url: str, tmp_path: Path, size: tuple[int, int]
) -> None:
    await fill(database)
    async with DistantServer(migrated_url, WAY).opened() as far:
        session = session_of(far.url, tmp_path)
        try:
            console = Console(session)
            async with console.run_test(size=size) as pilot:
                for mode in SCREENS:
                    await console.switch_mode(mode)
                    screen = cast("LiveScreen", console.screen)
                    screen.feed.next = inf
                    while screen.feed.read_at is None or screen.feed.looking:
                        await pilot.pause(0.02)
                        screen.feed.next = 0.0 if screen.feed.read_at is None else inf
                    for worker in screen.workers:
                        await worker.wait()
                    await screen.read()  # opens the connections
                    for cache in [each for each in vars(screen).values() if isinstance(each, TtlCache)]:
                        cache._entry = None
                    await session._reads.wait_idle()
                    before = list(far.round_trips)
                    await screen.read()
                    assert far.longest(before) <= ROUND_TRIPS, mode
            await session.finish()
        finally:
            await session.database.dispose()


QUEUE = parse_filter("queue:payments", NOW, UTC)
FAILED = [parse_filter(each, NOW, UTC) for each in ("handler:payments.charge state:dead", "state:dead")]

READS: dict[str, tuple[Callable[[Session, int], Awaitable[object]], int]] = {
    "why": (lambda session, task: session.read(why, task, UTC), 8),
    "why of many": (lambda session, _: session.read(why_many, QUEUE, UTC), 8),
    "retry": (lambda session, _: perform.previews(session, ACTIONS["retry"], FAILED), 8),
    "comparison with the past": (lambda session, _: session.read(read_side, "before", NOW - 20 * MINUTE), 12),
}
"""The reads of dialogs, and their maximum numbers of round trips."""


@on_postgresql
@pytest.mark.slow
@pytest.mark.parametrize("name", READS)
async def test_a_dialog_needs_few_round_trips(database: Database, migrated_url: str, tmp_path: Path, name: str) -> None:
    await fill(database)
    waiting = parse_filter("handler:payments.charge state:ready", NOW, UTC)
    (task, *_) = (await database.read(page, waiting, limit=1)).tasks
    read, most = READS[name]
    async with DistantServer(migrated_url, WAY).opened() as far:
        session = session_of(far.url, tmp_path)
        try:
            await session.read(clock)  # opens the connection
            before = list(far.round_trips)
            await read(session, task.id)
            assert 0 < far.longest(before) <= most
            await session.finish()
        finally:
            await session.database.dispose()


@on_postgresql
async def test_the_first_data_need_few_round_trips(database: Database, migrated_url: str, tmp_path: Path) -> None:
    async with database.writing() as tx:
        await submit(tx, NewTask("mail.send"))
    async with DistantServer(migrated_url, WAY).opened() as far:
        session = session_of(far.url, tmp_path, UNOPENED)
        try:
            first = session.start_read(read_overview)
            await session.open()
            overview = await first
            assert overview.queues
            assert len(far.round_trips) == 2
            assert far.longest() <= CONNECTING + ROUND_TRIPS
            assert session.round_trip >= 2 * WAY
            await session.finish()
        finally:
            await session.database.dispose()


@on_postgresql
@pytest.mark.usefixtures("database")
async def test_a_slow_query_does_not_make_its_server_distant(migrated_url: str, tmp_path: Path) -> None:
    session = session_of(migrated_url, tmp_path)
    try:
        ping = await session.pinged()
        await session.read(lambda tx: tx.gather(tx.rows(sa.text("SELECT pg_sleep(0.3)"))))
        assert session.round_trip >= 0.3
        assert session.distance == ROUND_TRIPS * ping.took
        await session.finish()
    finally:
        await session.database.dispose()


async def test_a_database_that_answers_statement_by_statement_is_not_lost() -> None:
    now, thaws = 100.0, asyncio.Event()
    reads = Timeout(lambda: now)
    pending = asyncio.create_task(reads.wait(thaws.wait(), 60, ValueError()))
    await asyncio.sleep(0)
    now += 4
    reads.hear()
    now += 4
    before = reads.is_lost
    now += 4
    assert (before, reads.is_lost) == (False, True)
    thaws.set()
    await pending


async def test_the_way_to_the_database_is_no_load() -> None:
    now = 0.0
    cache = TtlCache[float](3.0, lambda: now)

    async def load() -> float:
        nonlocal now
        now += 0.9
        return now

    await cache.get(None, load, 0.9)
    now += 3.1
    assert await cache.get(None, load, 0.9) > 4


@pytest.mark.slow
@on_postgresql
async def test_no_bound_is_shown_before_the_exact_count(database: Database, migrated_url: str, tmp_path: Path) -> None:
    async with database.writing() as tx:
        tasks = [{"handler": "mail.send", "queue": "mail", "submitted_at": ahead(-600)}] * (SHALLOW + 500)
        await tx.execute(sa.insert(tx.tables.task).values(tasks))
    async with DistantServer(migrated_url, WAY).opened() as far:
        session = session_of(far.url, tmp_path)
        try:
            console = Console(session)
            async with console.run_test(size=WIDE) as pilot:
                operator, texts = Operator(console, pilot), []
                while "1,500" not in operator.text:
                    await pilot.pause(0.01)
                    texts.append(operator.text)
                counts = {found for text in texts for found in re.findall(r"^ . mail +(\S+)", text, re.MULTILINE)}
                assert counts <= {"reading", "1,500"}
                await operator.press("exclamation_mark")
                await operator.sees("No runner is alive: 1,500 tasks wait")
            await session.finish()
        finally:
            await session.database.dispose()
