"""Submitting tasks by calling handlers."""

import asyncio
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from runner import Context, TaskHandler, connect, disconnect, handler
from runner.client.client import get_client
from runner.db.database import Database
from runner.errors import (
    DuplicateHandler,
    InvalidHandler,
    InvalidPayload,
    InvalidRetryPlan,
    InvalidTask,
    PayloadTooLarge,
    WouldBlock,
)
from runner.handlers.registry import REGISTRY
from runner.urls import parse_url


@pytest.fixture(autouse=True)
def _connected(migrated_url: str) -> Iterator[None]:
    connect(url=parse_url(migrated_url), payload_limit=1000)
    yield
    disconnect()


@pytest.fixture
def send_coupon() -> Iterator[TaskHandler[Any, Any, Any]]:
    @handler("test.coupons", queue="mail", priority=3)
    async def send(ctx: Context, user_id: int, code: str = "WELCOME") -> str:
        return f"{code} to {user_id} by {ctx.id}"

    yield send
    REGISTRY._handlers.pop("test.coupons")


async def stored(database: Database) -> list[dict[str, Any]]:
    table = database.tables.task
    async with database.reading() as tx:
        return [dict(row._mapping) for row in await tx.rows(sa.select(table).order_by(table.c.id))]


async def test_a_submit_inserts_a_row(database: Database, send_coupon: TaskHandler[Any, Any, Any]) -> None:
    task_id = await asyncio.to_thread(send_coupon.submit, user_id=7)
    (row,) = await stored(database)
    assert (row["id"], row["handler"], row["queue"], row["priority"]) == (task_id, "test.coupons", "mail", 3)
    assert row["payload"] == '{"user_id":7}'


async def test_an_async_submit_inserts_a_row(database: Database, send_coupon: TaskHandler[Any, Any, Any]) -> None:
    ids = [await send_coupon.submit_async(user_id=number) for number in (1, 2)]
    ids += await send_coupon.submit_many_async([{"user_id": 3}, {"user_id": 4, "code": "X"}])
    assert [row["id"] for row in await stored(database)] == ids


async def test_options_apply_to_one_task(database: Database, send_coupon: TaskHandler[Any, Any, Any]) -> None:
    later = datetime(2100, 1, 1, tzinfo=UTC)
    submission = send_coupon.options(
        run_at=later, priority=9, key="order-17", queue="slow", max_attempts=2, retry="30s", timeout="1m", tags=["red"]
    )
    await submission.submit_async(user_id=7)
    (row,) = await stored(database)
    assert (row["run_at"], row["priority"], row["key"], row["queue"]) == (later, 9, "order-17", "slow")
    assert (row["max_attempts"], row["retry"], row["timeout"], row["tags"]) == (2, "30s", 60.0, '["red"]')


async def test_a_delay_starts_at_the_databases_clock(
    database: Database, send_coupon: TaskHandler[Any, Any, Any]
) -> None:
    await send_coupon.options(delay="10m").submit_async(user_id=7)
    (row,) = await stored(database)
    assert abs(row["run_at"] - row["submitted_at"] - timedelta(minutes=10)) < timedelta(milliseconds=2)


@pytest.mark.parametrize("call", [{}, {"user_id": "seven"}, {"user_id": 7, "unknown": 1}, {"user_id": 7, "ctx": 1}])
async def test_an_invalid_call_is_rejected_and_nothing_is_written(
    database: Database, send_coupon: TaskHandler[Any, Any, Any], call: dict[str, Any]
) -> None:
    with pytest.raises(InvalidPayload, match="call 1: "):
        await send_coupon.submit_many_async([{"user_id": 1}, call])
    assert await stored(database) == []


async def test_a_payload_over_the_limit_is_rejected(
    database: Database, send_coupon: TaskHandler[Any, Any, Any]
) -> None:
    with pytest.raises(PayloadTooLarge, match="the limit is 1000"):
        await send_coupon.submit_async(user_id=7, code="ü" * 600)
    assert await stored(database) == []


async def test_a_value_that_a_database_cannot_store_is_rejected(
    database: Database, send_coupon: TaskHandler[Any, Any, Any]
) -> None:
    for text in ("\0", "\ud800"):
        with pytest.raises((InvalidTask, InvalidPayload)):
            await send_coupon.submit_async(user_id=7, code=text)
    assert await stored(database) == []


async def test_a_sync_submit_on_an_event_loop_is_rejected(send_coupon: TaskHandler[Any, Any, Any]) -> None:
    with pytest.raises(WouldBlock, match="submit_async"):
        send_coupon.submit(user_id=7)


async def test_the_handler_receives_arguments_as_their_types() -> None:
    @handler("test.rich")
    def rich(at: datetime, id: UUID, price: Decimal) -> None: ...

    REGISTRY._handlers.pop("test.rich")
    values = {"at": datetime(2030, 1, 1, tzinfo=UTC), "id": UUID(int=7), "price": Decimal("1.10")}
    assert rich.signature.decode(rich.signature.encode((), values)) == values


def test_a_handler_can_be_called_as_a_function() -> None:
    @handler("test.plain")
    def double(number: int) -> int:
        return 2 * number

    REGISTRY._handlers.pop("test.plain")
    assert double(21) == 42


ODD: list[tuple[dict[str, Any], str]] = [
    ({"key": 17}, "17 for `key`: expected text, got int"),
    ({"queue": ["mail"]}, r"\['mail'\] for `queue`: expected text, got list"),
    ({"tags": "slow"}, r"'slow' for `tags`: expected a list of strings, such as \['slow'\]"),
    ({"tags": {"slow": 7}}, "for `tags`: expected a list of strings"),
    ({"tags": 7}, "7 for `tags`: expected a list of strings"),
    ({"hosts": 7}, "7 for `hosts`: name a host"),
    ({"hosts": ["web-1", 7]}, "7 for `hosts`: expected text, got int"),
    ({"after": 1.5}, "1.5 for `after`: expected a task id"),
    ({"unique": 7}, "7 for `unique`: use until finished"),
    ({"priority": True}, "True for `priority`: priorities range from 1 to 9"),
    ({"max_attempts": True}, "True for `max_attempts`: it must be a whole number from 1 to 2,147,483,647"),
    ({"tags": ["slow", 7]}, "7 for `tags`: expected text, got int"),
    ({"priority": "high"}, "'high' for `priority`: priorities range from 1 to 9"),
    ({"priority": 10}, "10 for `priority`: priorities range from 1 to 9"),
    ({"max_attempts": 2.5}, "2.5 for `max_attempts`: it must be a whole number from 1 to 2,147,483,647"),
    ({"bucket": -1}, "-1 for `bucket`: buckets range from 0 to 999"),
    ({"run_at": "tomorrow"}, "'tomorrow' for `run_at`: it must be a datetime"),
    ({"run_at": datetime(2030, 1, 1)}, r"it has no time zone: use datetime\.now\(UTC\)"),  # noqa: DTZ001 - a naive time is the test
    ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": "1m"}, "omit one of them"),
]


async def test_an_invalid_option_is_rejected_by_name(send_coupon: TaskHandler[Any, Any, Any]) -> None:
    for options, why in ODD:
        with pytest.raises(InvalidTask, match=why):
            await send_coupon.options(**options).submit_async(user_id=7)


def test_a_handler_without_a_name_is_rejected() -> None:
    with pytest.raises(InvalidHandler, match=r"'work' cannot be registered: use @handler\(\"name\"\)"):

        @handler  # type: ignore[arg-type]
        def work() -> None: ...


def test_two_handlers_with_the_same_name_are_rejected(send_coupon: TaskHandler[Any, Any, Any]) -> None:
    with pytest.raises(DuplicateHandler, match="other"):

        @handler(send_coupon.name)
        def other() -> None: ...


def test_an_invalid_retry_plan_is_rejected_at_registration(send_coupon: TaskHandler[Any, Any, Any]) -> None:
    with pytest.raises(InvalidRetryPlan):
        handler("test.never", retry="sometimes")
    number: Any = 7
    with pytest.raises(InvalidRetryPlan, match="7 is not a retry plan: expected text"):
        handler("test.number", retry=number)
    with pytest.raises(InvalidRetryPlan, match="7 is not a retry plan: expected text"):
        send_coupon.options(retry=number).submit(user_id=7)


async def test_closing_the_client_waits_for_running_submits(
    migrated_url: str, send_coupon: TaskHandler[Any, Any, Any]
) -> None:
    submits = [asyncio.ensure_future(send_coupon.submit_async(user_id=number)) for number in range(5)]
    await asyncio.sleep(0)
    await asyncio.to_thread(disconnect)  # also while the database is being opened
    assert len(set(await asyncio.gather(*submits))) == 5


def test_a_submit_after_closing_the_client_goes_to_the_same_database(
    send_coupon: TaskHandler[Any, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKTUI_URL", f"sqlite:///{tmp_path}/other.db")
    ids = [send_coupon.submit(user_id=1)]
    disconnect()
    ids.append(send_coupon.submit(user_id=2))
    assert ids[1] > ids[0]
    assert not (tmp_path / "other.db").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_opens_its_own_client(send_coupon: TaskHandler[Any, Any, Any]) -> None:
    first, parents = send_coupon.submit(user_id=1), get_client()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if get_client() is not parents and get_client().settings is parents.settings else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert send_coupon.submit(user_id=2) > first


def test_the_first_submit_to_a_new_file_reports_it_once(
    send_coupon: TaskHandler[Any, Any, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connect(url=parse_url(f"sqlite:///{tmp_path}/typo.db"))
    send_coupon.submit(7)
    send_coupon.submit(8)
    new = f"created the tables of the new database sqlite:///{tmp_path}/typo.db"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [new]
