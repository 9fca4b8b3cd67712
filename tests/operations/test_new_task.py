"""Operators submit tasks and copies: as other submits, in the audit of both tasks, and undone before they start."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.db.database import Database
from runner.errors import InvalidEdit, InvalidTask, PayloadTooLarge, RunnerError, TaskNotFound
from runner.handlers.option_values import Clock
from runner.handlers.parameters import stored_signatures
from runner.handlers.registry import Handler, Options
from runner.model.task import NewTask, State
from runner.operations.new_task import SubmitOptions, copy_task, submit_task
from runner.operations.results import Actor, Skipped
from runner.operations.undo.undo import undo
from runner.queries.audit import audit
from runner.queries.signatures import stored_signature
from runner.store.registration import Identity, register
from tests.store.rows import add_live, add_past, history_row, stored

ANA = Actor("ana", "desk-1", "customer asked")
FIRST: dict[str, Any] = {
    "queue": "mail",
    "handler": "mail.send",
    "key": "order-7",
    "payload": '{"to": "ana", "token": "hunter-22-x", "n": 1}',
    "priority": 5,
    "max_attempts": 4,
    "retry": "1m,5m",
    "timeout": 30.0,
    "bucket": 77,
    "tenant": "acme",
    "hosts": "web-3",
    "tags": '["vip"]',
    "headers": '{"user": "ana"}',
}


@pytest.mark.parametrize("finished", [False, True])
async def test_a_copy_takes_over_the_options_and_links_both_tasks(finished: bool, database: Database) -> None:
    more: dict[str, Any] = {"unique_key": "u", "order_key": "o", "attempt": 2, "fence": 3}
    if finished:
        id = await add_past(database, 900, State.DEAD, **FIRST, **more)
    else:
        id = await add_live(database, **FIRST, **more)
    copy = await database.write(copy_task, id, {}, ANA)
    row = await stored(database, copy)
    assert {name: getattr(row, name) for name in FIRST} == FIRST
    assert (row.unique_key, row.order_key, row.attempt, row.fence, row.submitted_by) == (None, None, 0, 0, "ana")
    assert (row.state, row.expires_at) == (State.WAITING, None)
    entries = [(entry.verb, entry.task_id, json.loads(entry.after or "")) for entry in await database.read(audit)]
    assert entries == [
        ("copy", id, {"copy": copy}),
        ("submit", copy, {"handler": "mail.send", "copy_of": id}),
    ]


async def test_a_copy_with_another_payload_keeps_the_secrets_unseen(database: Database) -> None:
    id = await add_past(database, 900, **FIRST)
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    values = {"payload": '{"to": "ben", "token": "***", "n": 2}', "queue": "slow", "run_at": later}
    row = await stored(database, await database.write(copy_task, id, values, ANA))
    assert json.loads(row.payload) == {"to": "ben", "token": "hunter-22-x", "n": 2}
    assert (row.queue, row.run_at, row.priority) == ("slow", later, 5)
    assert "hunter" not in str(await database.read(audit))


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"payload": "[1]"}, InvalidEdit),
        ({"payload": '{"to": "***"}'}, InvalidEdit),
        ({"payload": json.dumps({"to": "x" * 90})}, PayloadTooLarge),
        ({"priority": 12}, InvalidTask),
        ({"queue": ""}, InvalidTask),
    ],
)
async def test_values_that_no_runner_could_use_are_refused(
    values: dict[str, Any], error: type[RunnerError], database: Database
) -> None:
    id = await add_past(database, 900, **FIRST)
    with pytest.raises(error):
        await database.write(copy_task, id, values, ANA, SubmitOptions(payload_limit=80))
    with pytest.raises(TaskNotFound):
        await database.write(copy_task, 77, {}, ANA)
    assert await database.read(audit) == []


async def test_a_submit_is_undone_until_it_starts(database: Database) -> None:
    first, second = [await database.write(submit_task, NewTask("h", '{"n": 1}'), ANA) for _ in range(2)]
    entries = {entry.task_id: entry.id for entry in await database.read(audit)}
    result = await database.write(undo, [entries[first]], ANA)
    assert (result.changed, (await history_row(database, first)).state) == ([first], State.CANCELLED)
    again = await database.write(undo, [entries[first]], ANA)
    assert again.skipped == [Skipped(first, "it is already undone")]
    async with database.writing() as tx:
        await tx.execute(tx.tables.task.update().values(fence=1, attempt=1))
    late = await database.write(undo, [entries[second]], ANA)
    assert late.skipped == [Skipped(second, "it has started since; terminate it instead")]


async def test_only_the_submit_of_a_copy_is_undone(database: Database) -> None:
    id = await add_past(database, 900, **FIRST)
    copy = await database.write(copy_task, id, {}, ANA)
    (origin,) = await database.read(audit, task_id=id)
    result = await database.write(undo, [origin.id], ANA)
    why = f"it submitted task {copy}, and only the submit of that task can be undone"
    assert result.skipped == [Skipped(id, why)]


async def test_runners_store_the_signatures_of_their_handlers(database: Database) -> None:
    def send(to: str, amount: int = 3, when: datetime | None = None) -> None: ...

    handler = Handler("mail.send", send, Options(queue="mail", priority=7))
    assert await database.read(stored_signature, "mail.send") is None
    signatures = stored_signatures({"mail.send": handler})
    await database.write(register, Identity("web-1", 1, "1", ["mail.send"], 4, signatures=signatures), 60.0)
    # A runner that cannot describe the handler leaves the description of the others.
    await database.write(register, Identity("web-1", 2, "1", ["mail.send"], 4), 60.0)
    signature = await database.read(stored_signature, "mail.send")
    assert signature is not None
    assert [(field.name, field.required, field.default) for field in signature.fields] == [
        ("to", True, ""),
        ("amount", False, "3"),
        ("when", False, ""),
    ]
    assert signature.options == {"queue": "mail", "priority": 7}
    arguments, errors = signature.arguments({"to": "ana", "amount": "x"}, Clock(datetime.now(UTC), UTC))
    assert (arguments, list(errors)) == ({"to": "ana"}, ["amount"])
