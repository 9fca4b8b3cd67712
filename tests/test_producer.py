"""Submitting by calling: the door that applications come through."""

import asyncio
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from runner import Context, TaskHandler, connect, disconnect, handler
from runner.door.door import door
from runner.errors import (
    DuplicateHandler,
    InvalidHandler,
    InvalidPayload,
    InvalidRetryPlan,
    InvalidTask,
    PayloadTooLarge,
    WouldBlock,
)
from runner.handlers import REGISTRY
from runner.store.database import Database
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


async def test_a_call_becomes_a_row(database: Database, send_coupon: TaskHandler[Any, Any, Any]) -> None:
    task_id = await asyncio.to_thread(send_coupon.submit, user_id=7)
    (row,) = await stored(database)
    assert (row["id"], row["handler"], row["queue"], row["priority"]) == (task_id, "test.coupons", "mail", 3)
    assert row["payload"] == '{"user_id":7}'


async def test_the_async_door_leads_to_the_same_place(
    database: Database, send_coupon: TaskHandler[Any, Any, Any]
) -> None:
    ids = [await send_coupon.submit_async(user_id=number) for number in (1, 2)]
    ids += await send_coupon.submit_many_async([{"user_id": 3}, {"user_id": 4, "code": "X"}])
    assert [row["id"] for row in await stored(database)] == ids


async def test_options_are_those_of_one_task(database: Database, send_coupon: TaskHandler[Any, Any, Any]) -> None:
    later = datetime(2100, 1, 1, tzinfo=UTC)
    chosen = send_coupon.options(
        run_at=later, priority=9, key="order-17", queue="slow", max_attempts=2, retry="30s", timeout="1m", tags=["red"]
    )
    await chosen.submit_async(user_id=7)
    (row,) = await stored(database)
    assert (row["run_at"], row["priority"], row["key"], row["queue"]) == (later, 9, "order-17", "slow")
    assert (row["max_attempts"], row["retry"], row["timeout"], row["tags"]) == (2, "30s", 60.0, '["red"]')


async def test_a_delay_counts_from_the_databases_now(
    database: Database, send_coupon: TaskHandler[Any, Any, Any]
) -> None:
    await send_coupon.options(delay="10m").submit_async(user_id=7)
    (row,) = await stored(database)
    assert abs(row["run_at"] - row["submitted_at"] - timedelta(minutes=10)) < timedelta(milliseconds=2)


@pytest.mark.parametrize("call", [{}, {"user_id": "seven"}, {"user_id": 7, "unknown": 1}, {"user_id": 7, "ctx": 1}])
async def test_a_call_that_does_not_fit_is_refused_and_nothing_is_written(
    database: Database, send_coupon: TaskHandler[Any, Any, Any], call: dict[str, Any]
) -> None:
    with pytest.raises(InvalidPayload, match="call 1: "):
        await send_coupon.submit_many_async([{"user_id": 1}, call])
    assert await stored(database) == []


async def test_a_payload_beyond_the_limit_is_refused(
    database: Database, send_coupon: TaskHandler[Any, Any, Any]
) -> None:
    with pytest.raises(PayloadTooLarge, match="1000 allowed"):
        await send_coupon.submit_async(user_id=7, code="ü" * 600)
    assert await stored(database) == []


async def test_what_no_database_holds_is_refused(database: Database, send_coupon: TaskHandler[Any, Any, Any]) -> None:
    for text in ("\0", "\ud800"):
        with pytest.raises((InvalidTask, InvalidPayload)):
            await send_coupon.submit_async(user_id=7, code=text)
    assert await stored(database) == []


async def test_waiting_on_an_event_loop_is_refused(send_coupon: TaskHandler[Any, Any, Any]) -> None:
    with pytest.raises(WouldBlock, match="submit_async"):
        send_coupon.submit(user_id=7)


async def test_rich_arguments_come_back_as_their_types() -> None:
    @handler("test.rich")
    def rich(at: datetime, id: UUID, price: Decimal) -> None: ...

    REGISTRY._handlers.pop("test.rich")
    values = {"at": datetime(2030, 1, 1, tzinfo=UTC), "id": UUID(int=7), "price": Decimal("1.10")}
    assert rich.signature.decode(rich.signature.encode((), values)) == values


def test_a_handler_can_be_called_as_if_it_were_undecorated() -> None:
    @handler("test.plain")
    def double(number: int) -> int:
        return 2 * number

    REGISTRY._handlers.pop("test.plain")
    assert double(21) == 42


ODD: list[tuple[dict[str, Any], str]] = [
    ({"key": 17}, "key may not be 17: it must be text, and is of the type int"),
    ({"queue": ["mail"]}, r"queue may not be \['mail'\]: it must be text"),
    ({"tags": "slow"}, r"tags may not be 'slow': it must be a list of texts, such as \['slow'\]"),
    ({"tags": ["slow", 7]}, "tags may not be 7: it must be text"),
    ({"priority": "high"}, "priority may not be 'high': priorities go from 1 to 9"),
    ({"priority": 10}, "priority may not be 10: priorities go from 1 to 9"),
    ({"max_attempts": 2.5}, "max_attempts may not be 2.5: a task is tried at least once"),
    ({"bucket": -1}, "bucket may not be -1: buckets go from 0 to 999"),
    ({"run_at": "tomorrow"}, "run_at may not be 'tomorrow': it must be a datetime"),
    ({"run_at": datetime(2030, 1, 1)}, r"it has no time zone: take datetime\.now\(UTC\)"),  # noqa: DTZ001 - that is tested
    ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": "1m"}, "leave one of them out"),
]


async def test_options_that_no_row_holds_are_refused_by_name(send_coupon: TaskHandler[Any, Any, Any]) -> None:
    for said, why in ODD:
        with pytest.raises(InvalidTask, match=why):
            await send_coupon.options(**said).submit_async(user_id=7)


def test_a_handler_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidHandler, match=r"'work' cannot be registered: write @handler\(\"name\"\) above it"):

        @handler  # type: ignore[arg-type]
        def work() -> None: ...


def test_two_handlers_with_one_name_are_refused(send_coupon: TaskHandler[Any, Any, Any]) -> None:
    with pytest.raises(DuplicateHandler, match="other"):

        @handler(send_coupon.name)
        def other() -> None: ...


def test_a_retry_plan_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(InvalidRetryPlan):
        handler("test.never", retry="sometimes")


def test_what_is_under_way_ends_before_the_door_is_closed(
    migrated_url: str, send_coupon: TaskHandler[Any, Any, Any]
) -> None:
    futures = [door().submit([send_coupon.options().call(user_id=number)]) for number in range(5)]
    disconnect()  # also while the database is only just being opened
    assert len({future.result(timeout=0).ids[0] for future in futures}) == 5


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_opens_a_door_of_its_own(send_coupon: TaskHandler[Any, Any, Any]) -> None:
    first, parents = send_coupon.submit(user_id=1), door()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if door() is not parents and door().settings is parents.settings else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert send_coupon.submit(user_id=2) > first
