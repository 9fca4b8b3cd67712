"""rekey: after a rotation, every value of a task has the first key, and no other value changes."""

from functools import partial

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.handlers.keyring import Keyring
from runner.model.codec_key import key_id, new_key
from runner.model.task import State
from runner.operations.bulk import BulkOptions, to_all
from runner.operations.preview import preview
from runner.operations.rekey import rekey, rekey_objections
from runner.operations.results import Actor, Target
from runner.queries.audit import audit
from runner.settings import Settings
from runner.store.task_records import line_of, read_records
from tests.cli.conftest import Call, _alone, call, cli  # noqa: F401 - fixtures
from tests.store.rows import add_attempt, add_live, add_past, filtered, history_row, stored

pytestmark = pytest.mark.both_databases

BY = Actor("ana", "desk", "rotation")
CARD = "4111-1111"
OLD_KEY, NEW_KEY = new_key(), new_key()
OLD, BOTH, NEW = (Keyring(Settings(codec_keys=keys)) for keys in ((OLD_KEY,), (NEW_KEY, OLD_KEY), (NEW_KEY,)))


def sealed(use: str, text: str, keyring: Keyring = OLD) -> str:
    return keyring.seal("fernet", "h", use, text)  # type: ignore[arg-type] # a use


async def add_dead(database: Database, id: int) -> None:
    """A dead task with every value that a codec encrypts."""
    message, json = sealed("text", f"no bank for {CARD}"), f'{{"card": "{CARD}"}}'
    values = {"payload": sealed("payload", json), "result": sealed("result", json), "error": f"LookupError: {message}"}
    await add_past(database, id, State.DEAD, **values)
    await add_attempt(database, id, message=message, traceback=message)
    await add_attempt(database, id, fence=2, message="the task took longer than 1s", traceback=None)
    row = {"task_id": id, "number": 1, "fence": 1, "attempt": 1}
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.checkpoint).values(**row, state=sealed("checkpoint", json)))
        step = {"name": "bank", "kind": "function", "signal": None, "result": sealed("checkpoint", json)}
        waits = {"name": "paid", "kind": "wait", "signal": "paid", "result": '{"payload": 1}'}
        fence = {"task_id": id, "fence": 1, "attempt": 1}
        await tx.execute(sa.insert(tx.tables.step), [fence | step, fence | waits])
        line = {"level": "info", "line": message, "at": sa.func.current_timestamp()}
        await tx.execute(sa.insert(tx.tables.log).values(**row, **line))


async def record_of(database: Database, id: int) -> str:
    async with database.reading() as tx:
        return line_of((await read_records(tx, tx.tables.history, [id]))[0])


async def test_every_value_of_a_task_gets_the_first_key(database: Database) -> None:
    await add_dead(database, 1)
    assert key_id(OLD_KEY) in await record_of(database, 1)
    result = await database.write(rekey, [Target(1)], BY, BOTH)
    assert result.changed == [1]
    row, text = await history_row(database, 1), await record_of(database, 1)
    assert text.count(key_id(OLD_KEY)) == 1, "only the audit names the old key"
    assert NEW.opened(row.payload, "h", "payload") == NEW.opened(row.result, "h", "result") == f'{{"card": "{CARD}"}}'
    assert NEW.open_text(row.error, "h") == f"LookupError: no bank for {CARD}"
    tables = database.tables
    async with database.reading() as tx:
        (message, trace), (plain, _) = await tx.rows(
            sa.select(tables.attempt.c.message, tables.attempt.c.traceback).order_by(tables.attempt.c.fence)
        )
        (state,) = (await tx.rows(sa.select(tables.checkpoint.c.state)))[0]
        ((result,), (waited,)) = await tx.rows(sa.select(tables.step.c.result).order_by(tables.step.c.name))
        (line,) = (await tx.rows(sa.select(tables.log.c.line)))[0]
    assert NEW.open_text(message, "h") == NEW.open_text(trace, "h") == NEW.open_text(line, "h") == f"no bank for {CARD}"
    assert NEW.opened(state, "h", "checkpoint") == f'{{"card": "{CARD}"}}'
    assert (NEW.opened(result, "h", "checkpoint"), waited) == (f'{{"card": "{CARD}"}}', '{"payload": 1}')
    assert plain == "the task took longer than 1s"
    (entry,) = await database.read(audit)
    assert (entry.verb, entry.task_id, entry.operator) == ("rekey", 1, "ana")
    assert (key_id(OLD_KEY) in str(entry.before), key_id(NEW_KEY) in str(entry.after)) == (True, True)
    again = await database.write(rekey, [Target(1)], BY, BOTH)
    assert [skipped.why for skipped in again.skipped] == ["it is encrypted with the first key already"]


async def test_a_changed_version_is_a_conflict_and_a_running_task_is_skipped(database: Database) -> None:
    payload = sealed("payload", "{}")
    waiting = await add_live(database, payload=payload, version=7)
    running = await add_live(database, payload=payload, state=State.RUNNING.value, runner_id=1)
    result = await database.write(rekey, [Target(waiting, 6), Target(running)], BY, BOTH)
    assert (result.changed, [each.id for each in result.conflicts]) == ([], [waiting])
    assert [each.id for each in result.skipped] == [running]
    assert (await database.write(rekey, [Target(waiting, 7)], BY, BOTH)).changed == [waiting]
    row = await stored(database, waiting)
    assert (row.version, NEW.opened(row.payload, "h", "payload")) == (8, "{}")


async def test_a_value_without_its_key_or_with_changed_data_stays_and_is_named(database: Database) -> None:
    foreign = await add_live(database, payload=sealed("payload", "{}", Keyring(Settings(codec_keys=(new_key(),)))))
    good = sealed("payload", "{}")
    broken = await add_live(database, payload=good.replace('=="}', 'AA"}').replace("gAAAA", "gAAAB"))
    plain = await add_live(database, payload='{"card": "1"}')
    result = await database.write(rekey, [Target(foreign), Target(broken), Target(plain)], BY, BOTH)
    assert result.changed == []
    reasons = {each.id: each.why for each in result.skipped}
    assert "which is not here" in reasons[foreign]
    assert "cannot be decrypted with key" in reasons[broken]
    assert reasons[plain] == "it is not encrypted, and its handler has no codec"
    assert await database.read(rekey_objections, [foreign, plain], BOTH) == {
        foreign: reasons[foreign],
        plain: reasons[plain],
    }


async def test_plain_payloads_of_a_handler_with_a_codec_are_encrypted(database: Database) -> None:
    keyring = Keyring(Settings(codec="fernet", codec_keys=(NEW_KEY,)))
    task = await add_live(database, payload='{"card": "1"}', error="ValueError: plain")
    assert (await database.write(rekey, [Target(task)], BY, keyring)).changed == [task]
    row = await stored(database, task)
    assert (NEW.opened(row.payload, "h", "payload"), row.error) == ('{"card": "1"}', "ValueError: plain")


async def test_the_preview_counts_the_tasks_that_the_operation_changes_in_chunks(database: Database) -> None:
    for key in (OLD, OLD, OLD, NEW):
        await add_live(database, payload=sealed("payload", "{}", key))
    every, objections = filtered(""), partial(rekey_objections, keyring=BOTH)
    expected = await database.read(preview, every, "rekey", objections=objections)
    assert (expected.eligible, sum(expected.skipped.values())) == (3, 1)
    result = await to_all(database, partial(rekey, by=BY, keyring=BOTH), every, BulkOptions(chunk=2))
    assert (len(result.changed), len(result.skipped)) == (3, 1)


@pytest.mark.slow
def test_the_command_shows_and_then_encrypts(
    cli: Call,  # noqa: F811 - a fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TASKTUI_CODEC_KEYS", OLD_KEY)
    monkeypatch.setenv("TASKTUI_CODEC", "fernet")
    for _ in range(2):
        assert cli("submit", "h", '{"card": "1"}').code == 0
    monkeypatch.setenv("TASKTUI_CODEC_KEYS", f"{NEW_KEY},{OLD_KEY}")
    assert "2 tasks" in cli("rekey", "handler:h", "--dry-run").out
    assert "rekey: 2 changed" in cli("rekey", "handler:h", "--yes", 2).out
    monkeypatch.setenv("TASKTUI_CODEC_KEYS", NEW_KEY)
    assert cli("show", 1, "--reveal", "--json").document["payload"] == {"card": "1"}
    nothing = cli("rekey", "handler:h", "--dry-run").out
    assert "it is encrypted with the first key already" in nothing
    monkeypatch.delenv("TASKTUI_CODEC_KEYS")
    refused = cli("rekey", "handler:h", "--dry-run")
    assert (refused.code, "has no key" in refused.err) == (3, True)
