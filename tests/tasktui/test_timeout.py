"""An operator waits for no answer for ever, and what nobody waits for any more is let end."""

import asyncio
from math import inf
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import DatabaseUnavailable
from tasktui.screens import live
from tasktui.session.cache import Timeout
from tests.store.rows import add_live
from tests.tasktui.conftest import ON_ONE_DATABASE, Watch

GONE = DatabaseUnavailable(url="postgresql://host/tasks", why="it has not answered")


async def test_an_answer_is_passed_on_and_so_is_an_error() -> None:
    async def fail() -> None:
        raise GONE

    patience = Timeout()
    assert await patience.wait(asyncio.sleep(0, "answer"), 60, ValueError()) == "answer"
    with pytest.raises(DatabaseUnavailable):
        await patience.wait(fail(), 60, ValueError())


async def test_after_a_long_silence_nobody_waits_but_the_transaction_goes_on_to_its_end() -> None:
    patience, thaws, ended = Timeout(), asyncio.Event(), asyncio.Event()

    async def frozen() -> None:
        await thaws.wait()
        ended.set()

    with pytest.raises(DatabaseUnavailable):
        await patience.wait(frozen(), 0, GONE)
    all_ended = asyncio.create_task(patience.ended())
    await asyncio.sleep(0)
    assert not all_ended.done()
    thaws.set()
    await all_ended
    assert ended.is_set()


@ON_ONE_DATABASE
async def test_a_screen_says_that_there_is_no_answer_yet(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    thaws = asyncio.Event()
    async with watch("tasks") as operator:
        read = operator.screen.read

        async def slowly() -> object:
            await thaws.wait()
            return await read()

        monkeypatch.setattr(live, "NO_ANSWER_AFTER", 0)
        monkeypatch.setattr(operator.screen, "read", slowly)
        await operator.sees("data is ", "no answer for")
        monkeypatch.setattr(live, "NO_ANSWER_AFTER", 60)
        thaws.set()
        await operator.until(lambda: "no answer for" not in operator.text)


@pytest.mark.both_databases
@pytest.mark.parametrize("mode", ["overview", "tasks", "reports"])
async def test_q_reads_nothing(database: Database, watch: Watch, mode: str) -> None:
    await add_live(database, "smtp.send")
    statements: list[str] = []

    def record(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    async with watch(mode) as operator:
        await operator.until(lambda: operator.console.session.ping is not None)
        feed = operator.screen.feed

        def rests() -> bool:
            if not feed.looking:
                feed.next = inf  # no poll is due any more
            return feed.next == inf and not feed.looking

        await operator.until(rests)
        console: Any = operator.console
        await operator.until(lambda: not [worker for worker in console.workers if worker.is_running])
        await console.session.ended()
        engine = console.session.database.engine.sync_engine
        sa.event.listen(engine, "before_cursor_execute", record)
        await operator.press("q")
        await operator.until(lambda: console._exit)
    assert statements == []
