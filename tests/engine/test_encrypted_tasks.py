"""Encrypted tasks: what the database has of them, and what their handlers and callers see."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC
from typing import Any, cast

import pytest
import sqlalchemy as sa

from runner import (
    Chunk,
    Context,
    Dead,
    Retry,
    batch_async,
    connect,
    disconnect,
    handler,
    schedule,
    schedules,
    submit_async,
)
from runner.db.database import Database
from runner.engine.runner import Engine
from runner.errors import InvalidHandler, InvalidSettings, KeyMissing, ResultEncrypted, TaskFailed
from runner.handlers.keyring import Keyring
from runner.handlers.parameters import read_signature
from runner.handlers.registry import REGISTRY
from runner.handlers.schedules import SCHEDULES
from runner.model.codec_key import key_id, new_key
from runner.model.outcome import ErrorWord
from runner.model.sealed import read_sealed
from runner.queries.task.detail import task_detail
from runner.queries.task.opened_detail import opened_detail
from runner.queries.why.why import why as why_task
from runner.settings import Settings
from runner.urls import parse_url
from tests.engine.codecs import SECRET, in_process, xor
from tests.engine.harness import Harness, until
from tests.engine.serving import served

OLD, NEW = new_key(), new_key()


@dataclass
class Payment:
    card: str


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    before = dict(REGISTRY._handlers)
    yield
    REGISTRY._handlers.clear()
    REGISTRY._handlers.update(before)


@pytest.fixture
async def client(migrated_url: str) -> AsyncIterator[None]:
    connect(url=migrated_url, codec_keys=(OLD,))
    yield
    disconnect()


async def work(harness: Harness, **settings: Any) -> Engine:
    """Run all tasks with the handlers of the registry."""
    harness.handlers = dict(REGISTRY)
    return await harness.work(**{"codec_keys": (OLD,)} | settings)


async def everything(database: Database) -> str:
    """All texts of all rows of all tables."""
    texts: list[str] = []
    async with database.reading() as tx:
        for table in tx.tables.metadata.sorted_tables:
            texts += [str(tuple(row)) for row in await tx.rows(sa.select(table))]
    return "\n".join(texts)


def charge_with(codec: str = "fernet") -> Any:
    @handler("pay.card", codec=codec, unique_key=lambda card: f"card-{card[-4:]}")
    async def charge(ctx: Context, card: str) -> dict[str, str]:
        await ctx.checkpoint({"card": card})
        ctx.logger.info("charging %s", card)
        if ctx.attempt == 1:
            raise LookupError(f"no bank for {card}")
        return {"charged": card}

    return charge


@pytest.mark.both_databases
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("codec", ["fernet", "tests.engine.codecs:xor"])
async def test_no_table_has_a_value_of_an_encrypted_task(harness: Harness, codec: str) -> None:
    handle = await charge_with(codec).submit_async(card=SECRET)
    sealed = read_sealed((await harness.row(handle)).payload)
    assert sealed is not None
    assert (sealed.codec, sealed.key) == (codec, key_id(OLD) if codec == "fernet" else "xor-1")
    await work(harness)
    assert await handle.wait() == {"charged": SECRET}
    assert len(await harness.attempts(handle)) == 1
    assert SECRET not in await everything(harness.database)


@pytest.mark.usefixtures("client")
async def test_a_record_of_the_log_describes_an_encrypted_error(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """A program with a Runner of its own has handlers of the log that hide nothing."""
    await charge_with().submit_async(card=SECRET)
    await work(harness)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "runner.outcome"]
    assert message.endswith(f"failed, retrying: LookupError: encrypted (fernet, key {key_id(OLD)})")


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("decides", [True, False])
@pytest.mark.parametrize("case", ["timeout", "chunk", "none"])
async def test_the_texts_of_a_rule_for_a_timeout_or_none_are_encrypted(
    harness: Harness, case: str, decides: bool
) -> None:
    def rule(result: Any) -> Dead:
        raise Dead(f"no bank for {SECRET}") if decides else LookupError(f"no bank for {SECRET}")

    if case == "none":

        @handler("pay", codec="fernet", on_none=rule, max_attempts=1)
        async def pay(card: str) -> str:
            return cast("str", None)

        handle: int = await pay.submit_async(card=SECRET)
    elif case == "timeout":

        @handler("pay", codec="fernet", on_error=rule, timeout="10ms", max_attempts=1)
        async def slow(card: str) -> None:
            await asyncio.Event().wait()

        handle = await slow.submit_async(card=SECRET)
    else:

        @handler("pay", codec="fernet", on_error=rule, timeout="10ms", max_attempts=1, chunk=5, chunk_wait="1ms")
        async def several(chunk: Chunk[Payment]) -> None:
            await asyncio.Event().wait()

        handle = await several.submit_async(Payment(SECRET))
    await work(harness)
    (attempt,) = await harness.attempts(handle)
    assert attempt.error_type == ("NoResult" if case == "none" else "Timeout")
    assert read_sealed(attempt.message) is not None
    assert SECRET not in await everything(harness.database)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("rule", ["retry", "dead"])
async def test_the_message_of_a_timeout_without_a_text_of_a_rule_is_plain(harness: Harness, rule: ErrorWord) -> None:
    @handler("pay", codec="fernet", on_error=rule, timeout="10ms", max_attempts=1)
    async def pay(card: str) -> None:
        await asyncio.Event().wait()

    handle = await pay.submit_async(card=SECRET)
    await work(harness)
    (attempt,) = await harness.attempts(handle)
    assert attempt.message == "the task took longer than 10ms"


@pytest.mark.usefixtures("client")
async def test_a_result_and_an_error_reach_a_caller_with_the_key_alone(harness: Harness, migrated_url: str) -> None:
    @handler("pay.refund", codec="fernet", max_attempts=1)
    def refund(card: str) -> str:
        raise LookupError(f"no bank for {card}")

    charge = charge_with()
    handle, failed = await charge.submit_async(card=SECRET), await refund.submit_async(card=SECRET)
    await work(harness)
    with pytest.raises(TaskFailed, match=f"no bank for {SECRET}") as error:
        await failed.wait()
    assert f"LookupError: no bank for {SECRET}" in error.value.fields["traceback"]
    connect(url=migrated_url)
    with pytest.raises(ResultEncrypted, match=key_id(OLD)):
        await charge.task_handle(handle).wait()
    with pytest.raises(TaskFailed) as error:
        await refund.task_handle(failed).wait()
    assert SECRET not in str(error.value)


@pytest.mark.both_databases
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("codec", ["fernet", "none"])
async def test_calls_read_encrypted_children_and_store_nothing_of_them(harness: Harness, codec: str) -> None:
    seen: list[Any] = []
    charge = charge_with()

    @handler("pay.refund", codec="fernet", max_attempts=1)
    async def refund(card: str) -> None:
        raise LookupError(f"no bank for {card}")

    @handler("pay.order", codec=codec, max_attempts=1)
    async def order(ctx: Context) -> None:
        seen.append(await ctx.call("charge", charge.new(card=SECRET)))
        try:
            await ctx.call("refund", refund.new(card=SECRET))
        except TaskFailed as error:
            seen.append(error.message)
        await ctx.step("receipt", lambda: asyncio.sleep(0))
        await ctx.sleep(0)
        await ctx.call("again", refund.new(card=SECRET))

    handle = await order.submit_async()
    await work(harness, retry="0s")
    own = [step for step in await harness.rows(sa.select(harness.database.tables.step)) if step.name == "charge"]
    assert [step.done_at is not None for step in own] == [codec == "fernet"]
    hidden = f"encrypted (fernet, key {key_id(OLD)})"
    failure = f"no bank for {SECRET}" if codec == "fernet" else hidden
    assert {str(value) for value in seen} == {str({"charged": SECRET}), failure}
    assert await harness.state(handle) == "dead"
    assert SECRET not in await everything(harness.database)


@pytest.mark.slow
@pytest.mark.usefixtures("client")
async def test_threads_processes_batches_and_parents_get_plain_values(harness: Harness) -> None:
    seen: list[Any] = []

    @handler("pay.thread", codec="fernet")
    def in_thread(card: str) -> str:
        return f"charged {card}"

    @handler("pay.report", codec="fernet")
    async def report(ctx: Context) -> str:
        assert ctx.batch is not None
        seen.extend(await ctx.batch.results_async())
        return "done"

    made = await batch_async([in_thread.new(card=SECRET), in_process.new(card=SECRET)], callback=report.new())
    await work(harness, processes=1)
    assert seen == [f"charged {SECRET}"] * 2
    assert made.callback is not None
    assert await made.callback.wait() == "done"
    assert SECRET not in await everything(harness.database)


@pytest.mark.both_databases
@pytest.mark.usefixtures("client")
async def test_many_tasks_and_those_in_a_transaction_of_the_application_are_encrypted(harness: Harness) -> None:
    charge = charge_with()
    await charge.submit_many_async([{"card": f"{SECRET}-{n}"} for n in range(3)])
    async with harness.database.writing() as tx:
        connection = tx.connection.for_application()
        await charge.options(tx=connection).submit_async(card=f"{SECRET}-3")
        await charge.options(tx=connection).submit_many_async([{"card": f"{SECRET}-4"}, charge.new(card="5")])
    rows = await harness.rows(sa.select(harness.database.tables.task.c.payload))
    assert len(rows) == 6
    assert all(read_sealed(row.payload) for row in rows)


@pytest.mark.both_databases
@pytest.mark.usefixtures("client")
async def test_a_result_inside_the_own_transaction_of_a_handler_is_encrypted(harness: Harness) -> None:
    @handler("pay.own", codec="fernet")
    async def own(ctx: Context, card: str) -> None:
        transaction = ctx.transaction()
        async with transaction:
            transaction.result = f"charged {card}"

    handle = await own.submit_async(card=SECRET)
    await work(harness)
    assert read_sealed((await harness.row(handle)).result) is not None


@pytest.mark.usefixtures("client")
async def test_reasons_that_a_handler_gives_are_encrypted(harness: Harness) -> None:
    @handler("pay.reason", codec="fernet")
    async def reason(ctx: Context, card: str) -> Retry | Dead:
        return Retry("1ms", f"later {card}") if ctx.attempt == 1 else Dead(f"never {card}")

    handle = await reason.submit_async(card=SECRET)
    await work(harness)
    assert (await harness.row(handle)).state == "dead"
    assert SECRET not in await everything(harness.database)


@pytest.mark.usefixtures("client")
async def test_the_default_codec_concerns_every_handler_without_its_own(harness: Harness, migrated_url: str) -> None:
    @handler("pay.default")
    async def default(card: str) -> str:
        return card

    @handler("pay.open", codec="none")
    async def plain(card: str) -> str:
        return card

    connect(url=migrated_url, codec_keys=(OLD,), codec="fernet")
    hidden, shown = await default.submit_async(card=SECRET), await plain.submit_async(card="1")
    await work(harness, codec="fernet")
    assert (await hidden.wait(), await shown.wait()) == (SECRET, "1")
    assert read_sealed((await harness.row(hidden)).payload) is not None
    assert json.loads((await harness.row(shown)).payload) == {"card": "1"}


@pytest.mark.parametrize("accepts", [False, True])
async def test_a_plain_payload_of_a_handler_with_a_codec_is_refused_unless_a_setting_accepts_it(
    harness: Harness, accepts: bool
) -> None:
    cards: list[str] = []

    @handler("pay.card", codec="fernet")
    async def charge(card: str) -> str:
        cards.append(card)
        return card

    task = await harness.submit("pay.card", {"card": SECRET})
    await work(harness, codec_plain="accept" if accepts else "refuse")
    row = await harness.row(task)
    assert cards == ([SECRET] if accepts else [])
    if accepts:
        assert read_sealed(row.result) is not None
    else:
        assert (row.state, row.error.partition(":")[0]) == ("dead", "PlainPayload")
        assert "runner rekey" in row.error


@pytest.mark.usefixtures("client")
async def test_a_runner_without_the_key_of_a_task_leaves_its_attempts(harness: Harness) -> None:
    handle = await charge_with().submit_async(card=SECRET)
    async with harness.running(codec_keys=(NEW,), handlers=()) as runner:
        pass
    harness.handlers = dict(REGISTRY)
    async with harness.running(codec_keys=(NEW,)) as runner:
        await _until_error(harness, handle)
    row = await harness.row(handle)
    assert (row.state, row.attempt) == ("waiting", 0)
    assert key_id(OLD) in row.error
    assert key_id(NEW) in row.error
    assert runner.stopping


async def _until_error(harness: Harness, task: int) -> None:
    async def has_error() -> bool:
        return (await harness.row(task)).error is not None

    await until(has_error)


@pytest.mark.slow
@pytest.mark.usefixtures("client")
async def test_a_second_key_decrypts_and_the_first_one_encrypts(harness: Harness, migrated_url: str) -> None:
    charge = charge_with()
    old = await charge.submit_async(card=SECRET)
    connect(url=migrated_url, codec_keys=(NEW, OLD))
    new = await charge.submit_async(card=f"{SECRET}-2")
    await work(harness, codec_keys=(NEW, OLD))
    assert await old.wait() == {"charged": SECRET}
    assert await new.wait() == {"charged": f"{SECRET}-2"}
    keys = [read_sealed((await harness.row(each)).payload) for each in (old, new)]
    assert [each and each.key for each in keys] == [key_id(OLD), key_id(NEW)]


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("change", ["data", "handler", "key"])
async def test_changed_data_is_dead_with_the_codec_and_the_key_and_never_the_data(
    harness: Harness, change: str
) -> None:
    handle, task = await charge_with().submit_async(card=SECRET), harness.database.tables.task
    sealed = read_sealed((await harness.row(handle)).payload)
    assert sealed is not None
    match change:
        case "data":
            sealed = sealed._replace(data=f"{sealed.data[:-8]}AAAAAAA=")
        case "handler":

            @handler("pay.refund", codec="fernet")
            async def refund(card: str) -> None: ...

            sealed = read_sealed((await harness.row(await refund.submit_async(card=SECRET))).payload)
        case "key":
            pass
    assert sealed is not None
    await harness.change(sa.update(task).where(task.c.id == handle).values(payload=sealed.text))
    keys = (OLD,) if change != "key" else (NEW,)
    if change == "key":
        forged = sealed._replace(key=key_id(NEW))
        await harness.change(sa.update(task).where(task.c.id == handle).values(payload=forged.text))
    await work(harness, codec_keys=keys)
    row = await harness.row(handle)
    assert row.state == "dead"
    assert row.error.startswith("Undecodable: The payload of handler pay.card")
    assert key_id(keys[0]) in row.error
    assert sealed.data[:20] not in row.error


@pytest.mark.usefixtures("client")
async def test_an_own_codec_that_does_not_work_costs_no_attempt(harness: Harness) -> None:
    handle = await charge_with("tests.engine.codecs:xor").submit_async(card=SECRET)
    harness.handlers = dict(REGISTRY)
    xor.broken = ConnectionError(f"the key service refuses {SECRET}")
    try:
        async with harness.running():
            await _until_error(harness, handle)
    finally:
        xor.broken = None
    row = await harness.row(handle)
    assert (row.state, row.attempt) == ("waiting", 0)
    assert "decode raised ConnectionError" in row.error
    assert SECRET not in row.error


@pytest.mark.usefixtures("client")
async def test_a_value_never_names_a_module_to_import(harness: Harness) -> None:
    handle, task = await charge_with().submit_async(card=SECRET), harness.database.tables.task
    forged = '{"$codec":"antigravity:fly","key":"","data":"x"}'
    await harness.change(sa.update(task).where(task.c.id == handle).values(payload=forged))
    harness.handlers = dict(REGISTRY)
    async with harness.running(codec_keys=(OLD,)):
        await _until_error(harness, handle)
    assert "no codec of this name" in (await harness.row(handle)).error
    import sys

    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("codec", "why"),
    [
        ("fernett", "is not a codec"),
        ("tests.engine.codecs:missing", "cannot be loaded"),
        ("tests.engine.codecs:NoCodec", "lacks the method encode and decode"),
        ("no_such_module:codec", "ModuleNotFoundError"),
    ],
)
def test_an_unknown_codec_is_refused_when_its_handler_is_registered(codec: str, why: str) -> None:
    with pytest.raises(InvalidHandler, match=why):

        @handler("pay.unknown", codec=codec)
        def unknown() -> None: ...


async def test_a_submit_without_a_key_stores_nothing(harness: Harness, migrated_url: str) -> None:
    connect(url=migrated_url)
    try:
        with pytest.raises(KeyMissing, match="this process has no key"):
            await charge_with().submit_async(card=SECRET)
    finally:
        disconnect()
    assert await harness.count(harness.database.tables.task) == 0


def test_the_list_of_settings_shows_the_ids_of_keys_alone(migrated_url: str) -> None:
    settings = Settings(url=parse_url(migrated_url), codec_keys=(OLD, NEW))
    text = repr(settings) + str(settings.describe())
    assert OLD not in text
    assert f"key {key_id(OLD)}, key {key_id(NEW)}" in text


@pytest.mark.both_databases
@pytest.mark.usefixtures("client")
async def test_a_schedule_submits_encrypted_tasks(harness: Harness) -> None:
    cards: list[str] = []

    @schedule(id="pay-daily", every="1h", arguments={"card": SECRET})
    @handler("pay.daily", codec="fernet")
    async def daily(card: str) -> None:
        cards.append(card)

    harness.handlers = {"pay.daily": REGISTRY["pay.daily"]}
    try:
        async with harness.running(codec_keys=(OLD,)):
            await until(lambda: _has(harness, harness.database.tables.schedule))
            await schedules.run_async("pay-daily")
            await until(lambda: bool(cards))
    finally:
        SCHEDULES._schedules.pop("pay-daily")
    (row,) = await harness.rows(sa.select(harness.database.tables.history))
    assert (row.state, read_sealed(row.payload) is not None) == ("succeeded", True)
    assert cards == [SECRET]


async def _has(harness: Harness, table: sa.Table, *conditions: Any) -> bool:
    return await harness.count(table, *conditions) == 1


@pytest.mark.usefixtures("client")
async def test_a_submit_by_name_uses_the_codec_that_the_runners_stored(harness: Harness, migrated_url: str) -> None:
    charge_with()
    harness.handlers = dict(REGISTRY)
    handlers = harness.database.tables.handler
    async with harness.running(codec_keys=(OLD,)):
        await until(lambda: _has(harness, handlers, handlers.c.name == "pay.card"))
    REGISTRY._handlers.pop("pay.card")
    task = await submit_async("pay.card", {"card": SECRET}, unique_key="card-1111")
    assert read_sealed((await harness.row(task)).payload) is not None
    connect(url=migrated_url)
    with pytest.raises(KeyMissing):
        await submit_async("pay.card", {"card": SECRET}, unique_key="card-1111")


@pytest.mark.usefixtures("client")
async def test_a_runner_without_any_key_leaves_the_handlers_and_stores_their_codec(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @handler("pay.open")
    async def plain() -> None: ...

    handle = await charge_with().submit_async(card=SECRET)
    harness.handlers = dict(REGISTRY)
    open_task = await plain.submit_async()
    async with harness.running() as runner:
        await harness.wait_for(open_task)
        assert "pay.card" not in runner.handlers
    assert (await harness.row(handle)).fence == 0
    assert "codec fernet of codecs.process, pay.card has no key here" in caplog.text
    registry = harness.database.tables.handler.c
    (row,) = await harness.rows(sa.select(registry.signature).where(registry.name == "pay.card"))
    stored = read_signature(row.signature)
    assert stored is not None
    assert stored.codec == "fernet"
    why = await harness.database.read(why_task, handle, UTC)
    assert "Its codec is fernet" in why.causes[0].text


def test_a_runner_that_could_decrypt_nothing_does_not_start(harness: Harness) -> None:
    charge_with()
    harness.handlers = {"pay.card": REGISTRY["pay.card"]}
    with pytest.raises(InvalidSettings, match="this runner could execute nothing"):
        harness.runner()


async def test_an_http_executor_gets_plain_values_and_its_result_is_encrypted(harness: Harness) -> None:
    keyring = Keyring(Settings(codec_keys=(OLD,)))
    payload = keyring.seal("fernet", "mail.send", "payload", json.dumps({"card": SECRET}))
    task = await harness.submit("mail.send", json.loads(payload))
    async with served(harness, codec="fernet", codec_keys=(OLD,)) as (_, executor):
        (pulled,) = await executor.pull()
        assert pulled["payload"] == {"card": SECRET}
        assert (await executor.settle(pulled, result=f"sent {SECRET}"))["status"] == "settled"
    result = (await harness.row(task)).result
    assert keyring.opened(result, "mail.send", "result") == f'"sent {SECRET}"'


@pytest.mark.slow
@pytest.mark.usefixtures("client")
async def test_the_tasks_of_a_chunk_are_decrypted_and_each_leaves_encrypted_values(harness: Harness) -> None:
    seen: list[str] = []

    @handler("pay.chunk", codec="fernet", chunk=10, max_attempts=1)
    async def charge(chunk: Chunk[Payment, str]) -> None:
        for task in chunk:
            seen.append(task.payload.card)
            if task.payload.card.endswith("3"):
                task.retry(why=f"no bank for {task.payload.card}")
            else:
                task.succeed(f"charged {task.payload.card}")

    handles = await charge.submit_many_async([{"card": f"{SECRET}-{n}"} for n in range(4)])
    plain = await harness.submit("pay.chunk", {"card": "7"})
    await work(harness)
    assert sorted(seen) == [f"{SECRET}-{n}" for n in range(4)]
    assert [await each.wait() for each in handles[:3]] == [f"charged {SECRET}-{n}" for n in range(3)]
    assert (await handles[3].status_async()).error == f"Retry: no bank for {SECRET}-3"
    assert (await harness.row(plain)).error.startswith("PlainPayload")
    assert SECRET not in await everything(harness.database)


@pytest.mark.both_databases
@pytest.mark.usefixtures("client")
async def test_the_results_of_steps_are_encrypted_and_used_by_later_attempts(harness: Harness) -> None:
    calls: list[str] = []

    async def bank(card: str) -> dict[str, str]:
        calls.append(card)
        return {"card": card}

    @handler("pay.steps", codec="fernet")
    async def charge(ctx: Context, card: str) -> str:
        found = await ctx.step("bank", bank, card)
        if ctx.attempt == 1:
            raise LookupError(f"no bank for {card}")
        return found["card"]

    handle = await charge.submit_async(card=SECRET)
    await work(harness)
    assert (await handle.wait(), calls) == (SECRET, [SECRET])
    (row,) = await harness.rows(sa.select(harness.database.tables.step.c.result))
    assert read_sealed(row.result) is not None
    assert SECRET not in await everything(harness.database)
    detail = await harness.database.read(task_detail, handle)
    opened, reasons = opened_detail(detail, Keyring(Settings(codec_keys=(OLD,))))
    assert (json.loads(opened.steps[0].result or ""), reasons) == ({"card": SECRET}, [])
