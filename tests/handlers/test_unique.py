"""Unique keys and buckets, as authors of handlers set them."""

import asyncio
from datetime import date
from typing import Any

import pytest

from runner import TaskHandler, handler
from runner.db.database import Database
from runner.errors import DuplicateTask, InvalidHandler, InvalidPayload, InvalidTask
from runner.handlers.call_options import UniqueFor, parse_scope
from runner.model.task import BUCKETS, Scope
from tests.store.table import count, row_of
from tests.store.unique_tasks import key_row

pytestmark = pytest.mark.usefixtures("own_handlers")

Welcome = TaskHandler[Any, Any, Any]


@pytest.fixture
def welcome(connected: None) -> Welcome:
    @handler("mail.welcome", unique_key=lambda user_id: f"user-{user_id}", unique="forever")
    async def send(user_id: int, day: date = date(2026, 11, 20), **more: str) -> None: ...

    return send


async def test_a_key_is_computed_from_the_arguments(database: Database, welcome: Welcome) -> None:
    first = await welcome.submit_async(user_id=7)
    again, other = await welcome.submit_many_async([{"user_id": 7, "note": "x"}, {"user_id": 8}])
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert (again == first, other == first) == (True, False)
    assert (await row_of(database, first))["unique_key"] == "user-7"
    assert (await key_row(database, "user-7")).scope == "forever"


async def test_a_sync_submit_reports_duplicates_too(database: Database, welcome: Welcome) -> None:
    first, again = [await asyncio.to_thread(welcome.submit, user_id=7) for _ in range(2)]
    assert (again, again.duplicate) == (first, True)


async def test_the_function_receives_the_same_arguments_as_the_handler(database: Database, connected: None) -> None:
    received: list[Any] = []

    def key(**arguments: Any) -> str:
        received.append(arguments)
        return "k"

    @handler("test.seen", unique_key=key)
    def work(day: date, times: int = 3, **rest: int) -> None: ...

    await work.submit_async(day="2026-11-20", extra="5")  # type: ignore[arg-type]
    assert received == [{"day": date(2026, 11, 20), "times": 3, "extra": 5}]


async def test_options_override_single_values_of_the_handler(database: Database, welcome: Welcome) -> None:
    await welcome.submit_async(user_id=7)
    with pytest.raises(DuplicateTask, match=r"'user-7' of handler 'mail\.welcome'"):
        await welcome.options(on_duplicate="error").submit_async(user_id=7)
    await welcome.options(unique="for 1h").submit_async(user_id=8)
    assert (await key_row(database, "user-8")).scope == "for a time"
    fixed = welcome.options(unique_key="order-17")
    assert (await fixed.submit_async(user_id=1)) == (await fixed.submit_async(user_id=2))
    assert (await key_row(database, "order-17")).scope == "forever"


async def test_a_waiting_call_is_replaced(database: Database, welcome: Welcome) -> None:
    first = await welcome.options(delay="1h").submit_async(user_id=7)
    again = await welcome.options(on_duplicate="replace").submit_async(user_id=7, note="newer")
    assert (again, again.duplicate) == (first, True)
    assert (await row_of(database, first))["payload"] == '{"user_id":7,"note":"newer"}'


async def test_a_call_without_a_key_need_not_be_unique(database: Database, connected: None) -> None:
    @handler("test.some", unique_key=lambda user_id: f"user-{user_id}" if user_id else None)
    def work(user_id: int) -> None: ...

    assert len(set(await work.submit_many_async([{"user_id": number} for number in (0, 0, 1, 1)]))) == 3
    assert await count(database, database.tables.unique) == 1


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda user_id: 7, "returned int, not text or None"),
        (lambda user_id: "s3cret"[user_id], "raised IndexError"),
        (lambda user_id: "", "must not be empty"),
    ],
    ids=["a number", "an exception", "nothing"],
)
async def test_a_function_that_returns_no_valid_key_rejects_the_call(
    database: Database, connected: None, function: Any, why: str
) -> None:
    @handler("test.bad", unique_key=function)
    def work(user_id: int) -> None: ...

    with pytest.raises((InvalidPayload, InvalidTask), match=why) as caught:
        await work.submit_async(user_id=70)
    assert "s3cret" not in str(caught.value)
    assert await count(database, database.tables.task) == 0


@pytest.mark.parametrize("option", ["unique_key", "bucket"])
def test_a_function_with_unknown_parameters_is_rejected_at_registration(option: str) -> None:
    complaints = {
        lambda user: user: "takes 'user', which is not an argument",
        lambda *args: args: "arguments have names",
    }
    for function, why in complaints.items():
        rule: Any = {option: function}
        with pytest.raises(InvalidHandler, match=why):

            @handler("test.misfit", **rule)
            def work(user_id: int) -> None: ...


def test_a_function_can_take_any_argument_if_the_handler_does() -> None:
    @handler("test.any", unique_key=lambda user, note="": user)
    def work(**anything: str) -> None: ...


@pytest.mark.parametrize("options", [{"unique": "forever"}, {"on_duplicate": "error"}])
def test_unique_options_need_a_key(options: Any) -> None:
    with pytest.raises(InvalidTask, match="need a unique_key"):

        @handler("test.keyless", **options)
        def work() -> None: ...


@pytest.mark.parametrize(
    ("text", "unique_for"),
    [
        ("forever", UniqueFor(Scope.FOREVER)),
        (" until  finished ", UniqueFor(Scope.UNTIL_FINISHED)),
        ("for 1h", UniqueFor(Scope.FOR_A_TIME, 3_600.0)),
        ("for 1h 30m", UniqueFor(Scope.FOR_A_TIME, 5_400.0)),
    ],
)
def test_a_scope_is_parsed(text: str, unique_for: UniqueFor) -> None:
    assert parse_scope(text) == unique_for


@pytest.mark.parametrize("text", ["", "for", "for ever", "for -1h", "until", "1h", "always"])
def test_an_invalid_scope_is_rejected(text: str) -> None:
    with pytest.raises(InvalidTask, match="use until finished, until started, forever, for 1h, debounce 5s"):
        parse_scope(text)


def test_a_key_that_is_not_text_is_rejected_immediately() -> None:
    with pytest.raises(InvalidTask, match="Invalid value 17 for `unique_key`: expected text, got int"):
        handler("test.odd", unique_key=17)  # type: ignore[arg-type]


def test_an_invalid_on_duplicate_is_rejected() -> None:
    with pytest.raises(InvalidTask, match="use skip, replace or error"):
        handler("test.odd", unique_key="k", on_duplicate="ignore")  # type: ignore[arg-type]


async def test_a_bucket_is_fixed_computed_or_random(database: Database, connected: None) -> None:
    @handler("test.bucket", bucket=lambda user_id: user_id)
    def follows(user_id: int) -> None: ...

    @handler("test.plain")
    def plain() -> None: ...

    ids = await follows.submit_many_async([{"user_id": number} for number in (7, 1_007, -1)])
    ids.append(await follows.options(bucket=999).submit_async(user_id=7))
    assert [(await row_of(database, id))["bucket"] for id in ids] == [7, 7, 999, 999]
    spread = await plain.submit_many_async([{}] * 2_000)
    buckets = [(await row_of(database, id))["bucket"] for id in spread[::20]]
    assert all(0 <= bucket < BUCKETS for bucket in buckets)
    assert len(set(buckets)) > 50
    with pytest.raises(InvalidTask, match="buckets range from 0 to 999"):
        await plain.options(bucket=BUCKETS).submit_async()


async def test_debounce_delays_the_task_and_replaces_it(database: Database, connected: None) -> None:
    @handler("test.index", unique_key=lambda page: page, unique="debounce 5s up to 1m")
    def index(page: str, text: str) -> None: ...

    first = await index.submit_async(page="a", text="old")
    again = await index.submit_async(page="a", text="new")
    assert (again, again.duplicate) == (first, True)
    row = await row_of(database, first)
    assert row["payload"] == '{"page":"a","text":"new"}'
    assert row["run_at"] > row["submitted_at"]
    with pytest.raises(InvalidTask, match="omit run_at and delay"):
        await index.options(delay="1m").submit_async(page="a", text="new")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"unique": "debounce 0s"}, "more than 0"),
        ({"unique": "debounce soon"}, "debounce 5s up to 1m"),
        ({"unique": "debounce 1m up to 5s"}, "must not be below the window"),
        ({"unique": "debounce 5s", "on_duplicate": "skip"}, "omit on_duplicate"),
    ],
)
def test_a_debounce_that_makes_no_sense_is_rejected(options: Any, why: str) -> None:
    with pytest.raises(InvalidTask, match=why):
        handler("test.nonsense", unique_key="k", **options)(lambda: None)


async def test_an_order_key_is_computed_from_the_arguments_and_options_override_its_rule(
    database: Database, connected: None
) -> None:
    @handler("orders.ship", order_key=lambda order: f"order-{order}", order_on_failure="cancel")
    async def ship(order: int) -> None: ...

    computed = await ship.submit_async(order=7)
    overridden = await ship.options(order_on_failure="run").submit_async(order=7)
    fixed = await ship.options(order_key="all").submit_async(order=8)
    rows = [await row_of(database, task) for task in (computed, overridden, fixed)]
    assert [(row["order_key"], row["order_on_failure"]) for row in rows] == [
        ("order-7", "cancel"),
        ("order-7", "run"),
        ("all", "cancel"),
    ]
