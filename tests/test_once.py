"""What makes calls unique, and where their tasks stand: as handlers' authors say it."""

import asyncio
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from runner import TaskHandler, connect, disconnect, handler
from runner.errors import DuplicateTask, InvalidHandler, InvalidPayload, InvalidTask
from runner.handlers import REGISTRY
from runner.rules.once import Lasting, parse_scope
from runner.store.database import Database
from runner.task import BUCKETS, Scope
from runner.urls import parse_url
from tests.store.table import count, standing
from tests.store.uniques import key_row

Welcome = TaskHandler[Any, Any, Any]


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    known = dict(REGISTRY._handlers)
    yield
    REGISTRY._handlers = known


@pytest.fixture
def connected(migrated_url: str) -> Iterator[None]:
    connect(url=parse_url(migrated_url))
    yield
    disconnect()


@pytest.fixture
def welcome(connected: None) -> Welcome:
    @handler("mail.welcome", unique_key=lambda user_id: f"user-{user_id}", unique="forever")
    async def send(user_id: int, day: date = date(2026, 11, 20), **more: str) -> None: ...

    return send


async def test_a_key_follows_from_the_arguments(database: Database, welcome: Welcome) -> None:
    first = await welcome.submit_async(user_id=7)
    again, other = await welcome.submit_many_async([{"user_id": 7, "note": "x"}, {"user_id": 8}])
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert (again == first, other == first) == (True, False)
    assert (await standing(database, first))["unique_key"] == "user-7"
    assert (await key_row(database, "user-7")).scope == "forever"


async def test_the_synchronous_door_tells_duplicates_too(database: Database, welcome: Welcome) -> None:
    first, again = [await asyncio.to_thread(welcome.submit, user_id=7) for _ in range(2)]
    assert (again, again.duplicate) == (first, True)


async def test_the_function_gets_what_the_handler_would_get(database: Database, connected: None) -> None:
    seen: list[Any] = []

    def key(**arguments: Any) -> str:
        seen.append(arguments)
        return "k"

    @handler("test.seen", unique_key=key)
    def work(day: date, times: int = 3, **rest: int) -> None: ...

    await work.submit_async(day="2026-11-20", extra="5")  # type: ignore[arg-type]
    assert seen == [{"day": date(2026, 11, 20), "times": 3, "extra": "5"}]


async def test_options_say_it_for_one_call_and_keep_the_rest(database: Database, welcome: Welcome) -> None:
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
    assert (await standing(database, first))["payload"] == '{"user_id":7,"note":"newer"}'


async def test_a_call_without_a_key_need_not_be_unique(database: Database, connected: None) -> None:
    @handler("test.some", unique_key=lambda user_id: f"user-{user_id}" if user_id else None)
    def work(user_id: int) -> None: ...

    assert len(set(await work.submit_many_async([{"user_id": number} for number in (0, 0, 1, 1)]))) == 3
    assert await count(database, database.tables.unique) == 1


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda user_id: 7, "returned int, and must return text"),
        (lambda user_id: "s3cret"[user_id], "raised IndexError"),
        (lambda user_id: "", "it is empty"),
    ],
    ids=["a number", "an exception", "nothing"],
)
async def test_a_function_that_makes_no_key_refuses_the_call(
    database: Database, connected: None, function: Any, why: str
) -> None:
    @handler("test.bad", unique_key=function)
    def work(user_id: int) -> None: ...

    with pytest.raises((InvalidPayload, InvalidTask), match=why) as caught:
        await work.submit_async(user_id=70)
    assert "s3cret" not in str(caught.value)
    assert await count(database, database.tables.task) == 0


@pytest.mark.parametrize("option", ["unique_key", "bucket"])
def test_a_function_that_asks_for_other_arguments_is_refused_at_once(option: str) -> None:
    for function, why in {lambda user: user: "asks for 'user'", lambda *args: args: "has no name"}.items():
        rule: Any = {option: function}
        with pytest.raises(InvalidHandler, match=why):

            @handler("test.misfit", **rule)
            def work(user_id: int) -> None: ...


def test_a_function_may_ask_for_anything_where_the_handler_takes_anything() -> None:
    @handler("test.any", unique_key=lambda user, note="": user)
    def work(**anything: str) -> None: ...


@pytest.mark.parametrize("said", [{"unique": "forever"}, {"on_duplicate": "error"}])
def test_how_to_be_unique_needs_a_key(said: Any) -> None:
    with pytest.raises(InvalidTask, match="not by which key"):

        @handler("test.keyless", **said)
        def work() -> None: ...


@pytest.mark.parametrize(
    ("text", "lasting"),
    [
        ("forever", Lasting(Scope.FOREVER)),
        (" until  finished ", Lasting(Scope.UNTIL_FINISHED)),
        ("for 1h", Lasting(Scope.FOR_A_TIME, 3_600.0)),
        ("for 1h 30m", Lasting(Scope.FOR_A_TIME, 5_400.0)),
    ],
)
def test_scopes_are_words(text: str, lasting: Lasting) -> None:
    assert parse_scope(text) == lasting


@pytest.mark.parametrize("text", ["", "for", "for ever", "for -1h", "until", "1h", "always"])
def test_other_scopes_are_refused(text: str) -> None:
    with pytest.raises(InvalidTask, match="write forever, until finished, or for and a length of time: for 1h"):
        parse_scope(text)


def test_a_key_that_is_no_text_is_refused_at_once() -> None:
    with pytest.raises(InvalidTask, match="unique_key may not be 17: it must be text, and is of the type int"):
        handler("test.odd", unique_key=17)  # type: ignore[arg-type]


def test_what_to_do_with_duplicates_is_one_of_three() -> None:
    with pytest.raises(InvalidTask, match="write skip, replace or error"):
        handler("test.odd", unique_key="k", on_duplicate="ignore")  # type: ignore[arg-type]


async def test_buckets_are_said_or_follow_or_are_any(database: Database, connected: None) -> None:
    @handler("test.bucket", bucket=lambda user_id: user_id)
    def follows(user_id: int) -> None: ...

    @handler("test.plain")
    def plain() -> None: ...

    ids = await follows.submit_many_async([{"user_id": number} for number in (7, 1_007, -1)])
    ids.append(await follows.options(bucket=999).submit_async(user_id=7))
    assert [(await standing(database, id))["bucket"] for id in ids] == [7, 7, 999, 999]
    spread = await plain.submit_many_async([{}] * 2_000)
    found = [(await standing(database, id))["bucket"] for id in spread[::20]]
    assert all(0 <= bucket < BUCKETS for bucket in found)
    assert len(set(found)) > 50
    with pytest.raises(InvalidTask, match="buckets go from 0 to 999"):
        await plain.options(bucket=BUCKETS).submit_async()
