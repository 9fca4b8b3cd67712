"""A process without the code of a handler submits its tasks by name."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from runner import handler, submit, submit_async
from runner.db.database import Database
from runner.engine.runner import Engine
from runner.errors import InvalidPayload, InvalidTask, WouldBlock
from runner.handlers.registry import REGISTRY
from runner.settings import Settings
from runner.urls import parse_url
from tests.conftest import on_sqlite
from tests.engine.harness import QUICK, at_work

pytestmark = pytest.mark.usefixtures("connected")

WAIT_SECONDS = 90


@pytest.fixture
def export(own_handlers: None) -> Any:
    @handler("test.export", queue="slow", priority=7)
    async def export(user: int, at: datetime | None = None) -> str:
        return f"user {user}"

    return export


async def runs(migrated_url: str, export: Any) -> None:
    """Let a runner store the signature of the handler; then this process forgets the handler."""
    await submit_async("test.export", {"user": 1})
    async with at_work(Engine(Settings(url=parse_url(migrated_url), **QUICK), {export.name: export})):
        assert await (await export.submit_async(user=1)).wait(timeout=WAIT_SECONDS) == "user 1"
    REGISTRY._handlers.pop("test.export")


async def stored(database: Database, id: int) -> Any:
    async with database.reading() as tx:
        task = tx.tables.task
        return (await tx.rows(sa.select(task).where(task.c.id == id)))[0]


@pytest.mark.slow
@pytest.mark.both_databases
async def test_a_task_has_the_options_of_its_handler_and_of_the_call(
    export: Any, migrated_url: str, database: Database
) -> None:
    await runs(migrated_url, export)
    task = await submit_async("test.export", {"user": 2, "at": datetime(2030, 1, 1, tzinfo=UTC)}, key="user-2")
    row = await stored(database, task)
    assert (row.queue, row.priority, row.key) == ("slow", 7, "user-2")
    assert json.loads(row.payload) == {"user": 2, "at": "2030-01-01T00:00:00Z"}
    other = await submit_async("test.export", {"user": 3}, queue="fast", delay="1h", unique_key="u3")
    row = await stored(database, other)
    assert (row.queue, row.unique_key, (row.run_at - row.submitted_at).total_seconds()) == ("fast", "u3", 3600)
    again = await submit_async("test.export", {"user": 3}, unique_key="u3")
    assert (again, again.duplicate) == (other, True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"usr": 2}, "usr: the handler has no such argument"),
        ({"user": "two"}, "user"),
        ({"user": float("nan")}, "NaN"),
        ({"user": object()}, "cannot be written as JSON"),
        ([2], "pass the arguments by name"),
    ],
)
async def test_arguments_that_do_not_fit_the_stored_signature_are_refused(
    arguments: Any, why: str, export: Any, migrated_url: str
) -> None:
    await runs(migrated_url, export)
    with pytest.raises(InvalidPayload, match=why):
        await submit_async("test.export", arguments)


async def test_an_unknown_option_is_refused(export: Any) -> None:
    why = "'countdown' for `options`: there is no such option; for an argument, write {'countdown': ...}; "
    for _ in range(2):
        with pytest.raises(InvalidTask, match=why):
            await submit_async("test.export", {"user": 1}, countdown=3)  # type: ignore[call-arg] # it is the mistake
        REGISTRY._handlers.pop("test.export", None)


@pytest.mark.parametrize("arguments", [[1], '{"user": 1}', (("user", 1),)])
async def test_arguments_without_names_are_refused_also_by_a_loaded_handler(export: Any, arguments: Any) -> None:
    for name in (export.name, "test.unknown"):
        with pytest.raises(InvalidPayload, match="pass the arguments by name"):
            await submit_async(name, arguments)


async def test_a_text_that_no_handler_can_have_as_its_name_is_refused(export: Any) -> None:
    names: list[Any] = [export, "test export", "", 17]
    for name in names:
        with pytest.raises(InvalidTask, match="for `handler`: pass the name of a handler"):
            await submit_async(name, {"user": 1})


async def test_an_unknown_handler_is_accepted_with_a_warning(
    export: Any, migrated_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await runs(migrated_url, export)
    await submit_async("test.exprt", {"user": 1})
    assert "no runner ever had handler test.exprt, did you mean 'test.export'" in caplog.text


async def test_values_that_the_code_derives_are_named(migrated_url: str, caplog: pytest.LogCaptureFixture) -> None:
    @handler("test.export", unique_key=lambda user: f"user-{user}")
    async def export(user: int) -> str:
        return f"user {user}"

    await runs(migrated_url, export)
    await submit_async("test.export", {"user": 2}, unique_key="user-2")
    assert "derives" not in caplog.text
    await submit_async("test.export", {"user": 3})
    assert "the code of test.export derives unique_key from the arguments: pass it to submit" in caplog.text


@on_sqlite
def test_a_task_joins_the_transaction_of_the_application(migrated_url: str, databases: object) -> None:
    with closing(sqlite3.connect(migrated_url.removeprefix("sqlite:///"))) as connection:
        submit("test.elsewhere", {"user": 1}, tx=connection)
        assert connection.execute("SELECT count(*) FROM task").fetchone() == (1,)
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM task").fetchone() == (0,)


async def test_a_blocking_submit_on_an_event_loop_is_rejected() -> None:
    with pytest.raises(WouldBlock, match="await submit_async"):
        submit("test.elsewhere", {})
