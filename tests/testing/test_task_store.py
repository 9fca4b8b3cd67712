"""TaskStore, which applications use in their tests."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Context, DependsOn, Retry, TaskHandler, connect, disconnect, handler, injected, resource
from runner.client.client import connected_settings, get_client
from runner.errors import InvalidHandler, InvalidPayload, KeyMissing, UnknownHandler, WouldBlock
from runner.handlers.resources import RESOURCES
from runner.logs import TaskFilter
from runner.settings import load
from runner.testing import Ran, TaskStore

pytestmark = pytest.mark.usefixtures("own_handlers")

KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


@pytest.fixture
def store(migrated_url: str) -> Iterator[TaskStore]:
    with TaskStore(migrated_url, retry="1m,5m") as store:
        yield store


@pytest.fixture
def done() -> list[Any]:
    return []


@pytest.fixture
def welcome(done: list[Any]) -> TaskHandler[Any, Any, Any]:
    @handler("test.welcome")
    async def welcome(name: str) -> str:
        done.append(name)
        return f"welcome {name}"

    return welcome


def test_tasks_run_only_on_request(store: TaskStore, welcome: TaskHandler[Any, Any, Any], done: list[Any]) -> None:
    task = welcome.options(key="k").submit(name="ana")
    (stored,) = store.tasks()
    assert (stored.id, stored.handler, stored.key, stored.payload) == (task, "test.welcome", "k", {"name": "ana"})
    assert (stored.state, stored.result, done) == ("waiting", None, [])


def test_a_drain_runs_due_tasks_in_order(
    store: TaskStore, welcome: TaskHandler[Any, Any, Any], done: list[Any]
) -> None:
    later, *tasks = (
        welcome.options(delay="1h").submit(name="later"),
        welcome.submit(name="second"),
        welcome.options(priority=9).submit(name="first"),
    )
    assert store.drain() == [Ran(id, "test.welcome", "succeed", None) for id in reversed(tasks)]
    assert done == ["first", "second"]
    assert [(task.id, task.state, task.result) for task in store.tasks(welcome)] == [
        (later, "waiting", None),
        (tasks[0], "succeeded", "welcome second"),
        (tasks[1], "succeeded", "welcome first"),
    ]


def test_a_drain_runs_tasks_that_its_tasks_submit(store: TaskStore, done: list[Any]) -> None:
    @handler("test.count")
    async def count(n: int) -> None:
        done.append(n)
        if n:
            await count.submit_async(n - 1)

    count.submit(3)
    store.drain()
    assert done == [3, 2, 1, 0]


def test_a_drain_runs_tasks_that_depend_on_its_tasks(
    store: TaskStore, welcome: TaskHandler[Any, Any, Any], flaky: TaskHandler[Any, Any, Any], done: list[Any]
) -> None:
    child = welcome.options(after=("test.welcome", "k")).submit(name="child")
    parent = welcome.options(key="k").submit(name="parent")
    grandchild = welcome.options(after=[child, parent]).submit(name="grandchild")
    assert [ran.id for ran in store.drain(welcome)] == [parent, child, grandchild]
    assert done == ["parent", "child", "grandchild"]
    doomed = flaky.options(max_attempts=1).submit()
    never = welcome.options(after=DependsOn(doomed, "cancel")).submit(name="never")
    assert [ran.verb for ran in store.drain()] == ["die"]
    assert {task.id: task.state for task in store.tasks()}[never] == "cancelled"


def test_plain_functions_are_drained_too(store: TaskStore, done: list[Any]) -> None:
    @handler("test.plain")
    def plain(ctx: Context, n: int) -> int:
        done.append(ctx.attempt)
        if n:
            plain.submit(n - 1)
        return n

    plain.submit(1)
    assert [ran.verb for ran in store.drain()] == ["succeed", "succeed"]
    assert done == [1, 1]


async def test_a_drain_on_an_event_loop_must_be_awaited(
    store: TaskStore, welcome: TaskHandler[Any, Any, Any], done: list[Any]
) -> None:
    await welcome.submit_async(name="ana")
    with pytest.raises(WouldBlock, match=r"await drain_async\(\.\.\.\)"):
        store.drain()
    assert [ran.verb for ran in await store.drain_async()] == ["succeed"]
    assert done == ["ana"]


def test_only_the_named_handlers_are_drained(
    store: TaskStore, welcome: TaskHandler[Any, Any, Any], done: list[Any]
) -> None:
    @handler("test.other")
    def other() -> None:
        done.append("other")

    welcome.submit(name="ana")
    other.submit()
    assert [ran.handler for ran in store.drain("test.other")] == ["test.other"]
    assert [ran.handler for ran in store.drain(welcome)] == ["test.welcome"]
    with pytest.raises(UnknownHandler, match=r"Unknown handler 'test\.others'"):
        store.drain("test.others")


@pytest.fixture
def flaky() -> TaskHandler[Any, Any, Any]:
    @handler("test.flaky", max_attempts=3)
    async def flaky(ctx: Context) -> Any:
        return Retry(why=f"attempt {ctx.attempt}")

    return flaky


def test_a_retry_runs_after_time_has_passed(store: TaskStore, flaky: TaskHandler[Any, Any, Any]) -> None:
    flaky.submit()
    assert [(ran.verb, ran.reason) for ran in store.drain()] == [("retry", "attempt 1")]
    assert store.drain() == []
    store.advance("30s")
    assert store.drain() == []
    store.advance("31s")
    assert [ran.verb for ran in store.drain()] == ["retry"]
    store.advance("5m")
    assert [ran.verb for ran in store.drain()] == ["die"]
    assert [(task.state, task.attempt, task.error) for task in store.tasks()] == [("dead", 3, "Retry: attempt 3")]


def test_a_drain_can_advance_time(store: TaskStore, flaky: TaskHandler[Any, Any, Any]) -> None:
    flaky.submit()
    assert [ran.verb for ran in store.drain(ahead="2m")] == ["retry", "retry"]
    assert [ran.verb for ran in store.drain(ahead="5m")] == ["die"]


def test_advancing_time_makes_scheduled_tasks_due(
    store: TaskStore, welcome: TaskHandler[Any, Any, Any], done: list[Any]
) -> None:
    welcome.options(run_at=datetime.now(UTC) + timedelta(days=1)).submit(name="ana")
    store.advance("23h")
    assert store.drain() == []
    store.advance("1h")
    assert [ran.verb for ran in store.drain()] == ["succeed"]
    assert done == ["ana"]


def test_inline_mode_runs_a_task_at_its_submit(
    store: TaskStore, welcome: TaskHandler[Any, Any, Any], done: list[Any]
) -> None:
    with store.inline():
        welcome.submit(name="ana")
        assert done == ["ana"]
        welcome.submit_many([{"name": "bo"}, {"name": "cy"}])
        assert done == ["ana", "bo", "cy"]
        with pytest.raises(InvalidPayload):
            welcome.submit(nme="di")
    welcome.submit(name="ed")
    assert done == ["ana", "bo", "cy"]


async def test_log_records_after_a_drain_name_no_task(store: TaskStore, welcome: TaskHandler[Any, Any, Any]) -> None:
    await welcome.submit_async(name="ana")
    assert [ran.verb for ran in await store.drain_async()] == ["succeed"]
    record = logging.makeLogRecord({"msg": "the next step of the test"})
    TaskFilter().filter(record)
    assert not hasattr(record, "task")


async def test_inline_mode_runs_on_the_callers_event_loop(
    store: TaskStore, welcome: TaskHandler[Any, Any, Any], done: list[Any]
) -> None:
    with store.inline():
        await welcome.submit_async(name="ana")
    assert done == ["ana"]


def test_a_failure_in_inline_mode_is_stored(store: TaskStore, flaky: TaskHandler[Any, Any, Any]) -> None:
    with store.inline():
        flaky.submit()
    assert [(task.state, task.error) for task in store.tasks()] == [("waiting", "Retry: attempt 1")]


def test_the_application_can_have_tables_in_the_store(tmp_path: Path) -> None:
    @handler("test.pay")
    def pay(ctx: Context, order: int) -> int:
        own = ctx.transaction()
        with own as tx:
            own.result = tx.execute(sa.text("INSERT INTO paid(id) VALUES (:id)"), {"id": order}).rowcount
        return 1

    with TaskStore.in_folder(tmp_path) as store:
        engine = sa.create_engine(store.url)
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE paid(id integer PRIMARY KEY)"))
        handle = pay.submit(order=7)
        store.drain()
        assert handle.result(timeout=0) == 1
        with engine.connect() as connection:
            assert connection.execute(sa.text("SELECT id FROM paid")).all() == [(7,)]
        engine.dispose()


def test_closing_the_store_restores_the_applications_client(
    tmp_path: Path, welcome: TaskHandler[Any, Any, Any]
) -> None:
    connect(url=f"sqlite:///{tmp_path / 'app.db'}")
    before = get_client()
    try:
        with TaskStore.in_folder(tmp_path) as store:
            assert get_client() is not before
            welcome.submit(name="ana")
            assert len(store.tasks()) == 1
        assert get_client() is before
    finally:
        disconnect()
    assert not (tmp_path / "app.db").exists()


def test_an_application_that_connects_and_disconnects_stays_in_the_store(
    tmp_path: Path, welcome: TaskHandler[Any, Any, Any]
) -> None:
    disconnect()
    with TaskStore.in_folder(tmp_path) as store:
        connect(url=f"sqlite:///{tmp_path / 'app.db'}")
        welcome.submit(name="ana")
        disconnect()
        welcome.submit(name="bo")
        assert [task.payload["name"] for task in store.tasks()] == ["ana", "bo"]
    assert connected_settings() == load(url=f"sqlite:///{tmp_path / 'app.db'}")
    assert not (tmp_path / "app.db").exists()


class Mailer:
    """A client that a test must not open."""

    def __init__(self) -> None:
        self.sent: list[str] = []


def test_an_injected_parameter_without_a_resource_is_refused_as_by_a_runner(store: TaskStore) -> None:
    @handler("test.unplugged")
    def unplugged(mailer: object = injected) -> None: ...

    unplugged.submit()
    with pytest.raises(InvalidHandler, match="its parameter mailer is injected, but no @resource has its type or name"):
        store.drain()


def test_a_resource_is_opened_for_its_handlers_only_and_can_be_replaced(tmp_path: Path) -> None:
    opened: list[str] = []

    @resource
    def mailer() -> Iterator[Mailer]:
        opened.append("mailer")
        yield Mailer()

    @handler("test.mail")
    async def mail(to: str, mailer: Mailer = injected) -> int:
        mailer.sent.append(to)
        return len(mailer.sent)

    @handler("test.plain")
    def plain() -> None: ...

    try:
        with TaskStore.in_folder(tmp_path) as store:
            plain.submit()
            assert [ran.verb for ran in store.drain(plain)] == ["succeed"]
            assert opened == []
            mail.submit(to="ana")
            with store.replaced(mailer, Mailer()) as fake:
                assert [ran.verb for ran in store.drain(mail)] == ["succeed"]
            assert (fake.sent, opened) == (["ana"], [])
            mail.submit(to="ben")
            assert [ran.verb for ran in store.drain()] == ["succeed"]
            assert opened == ["mailer"]
    finally:
        RESOURCES.remove("mailer")


def test_the_tasks_of_an_encrypted_handler_are_decrypted(migrated_url: str) -> None:
    @handler("test.pay", codec="fernet", max_attempts=1)
    def pay(card: str) -> str:
        if not card:
            raise LookupError("no card")
        return f"paid with {card}"

    with TaskStore(migrated_url, codec_keys=KEY) as store:
        pay.submit(card="4111")
        pay.submit(card="")
        waiting, _ = store.tasks(pay)
        assert (waiting.payload, waiting.result) == ({"card": "4111"}, None)
        store.drain()
        done, dead = store.tasks()
        assert (done.result, dead.error) == ("paid with 4111", "LookupError: no card")
        assert done.id.result(timeout=0) == "paid with 4111"
    with TaskStore(migrated_url) as keyless, pytest.raises(KeyMissing, match=r"payload of handler test\.pay"):
        keyless.tasks()


def test_sleeps_and_waits_end_with_the_time_of_the_store(store: TaskStore) -> None:
    @handler("test.nap")
    async def nap(ctx: Context) -> str:
        await ctx.sleep("3d")
        return "approved" if await ctx.wait_for("approval", timeout="7d") else "nobody approved"

    task = nap.submit()
    assert [ran.reason for ran in store.drain(ahead="2d")] == ["sleeps for 3d"]
    assert [ran.verb for ran in store.drain(ahead="11d")] == ["snooze", "succeed"]
    assert task.result(timeout=0) == "nobody approved"
