"""New tasks from the console: a form with the parameters of the handler, and copies of tasks."""

import json
import re
from typing import Any, Literal

import pytest

from runner.db.database import Database
from runner.handlers.parameters import stored_signatures
from runner.handlers.registry import Handler, Options
from runner.store.registration import Identity, register
from tests.store.rows import add_attempt, add_live, add_past, ahead, stored
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Operator, Watch
from tests.tasktui.test_actions import audited, confirm


def charge(
    order: int, amount: float, currency: Literal["EUR", "USD"] = "EUR", note: str = "", force: bool = False
) -> None:
    """Charge an order."""


@pytest.fixture
async def signed(database: Database) -> Database:
    """The database with the signature of a handler."""
    handler = Handler("payments.charge", charge, Options(queue="payments", priority=6))
    signatures = stored_signatures({handler.name: handler})
    await database.write(register, Identity("web-1", 1, "1", [handler.name], 4, signatures=signatures), 60.0)
    return database


async def fill(operator: Operator, **texts: str) -> None:
    """Type texts into the entries with these labels."""
    labels = {entry.label: name for name, entry in operator.screen._entries.items()}
    for label, text in texts.items():
        operator.screen.query_one(f"#{labels[label]}").value = text
    await operator.pilot.pause()


async def test_a_task_is_submitted_with_the_parameters_of_its_handler(signed: Database, watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.command("submit payments.charge")
        await operator.sees("New task of payments.charge", "required: a whole number", "EUR by default")
        await operator.sees("esc  cancel  ctrl+s continue")
        await fill(operator, order="seven", amount="1.5", currency="SEK")
        await operator.press("ctrl+s")
        await operator.sees("expected a whole number", "expected one of EUR, USD", "mend first: order, currency")
        assert await audited(signed) == []
        await fill(operator, order="7", currency="USD", force="yes")
        await operator.sees('payload: {"order": 7, "amount": 1.5, "currency": "USD", "force": true}')
        await operator.sees("esc  cancel  ctrl+s  continue")
        await operator.press("ctrl+s")
        await operator.sees("Submit a task of payments.charge")
        await confirm(operator, reason="by phone")
        await operator.sees_notice("Submitted task")
    (entry,) = await audited(signed)
    row = await stored(signed, entry.task_id or 0)
    assert (entry.verb, entry.reason, row.queue, row.priority) == ("submit", "by phone", "payments", 6)
    assert json.loads(row.payload) == {"order": 7, "amount": 1.5, "currency": "USD", "force": True}


async def test_a_typed_secret_is_masked_and_submitted(database: Database, watch: Watch) -> None:
    def pay(card_token: str, city: str) -> None: ...

    signatures = stored_signatures({"pay": Handler("pay", pay, Options())})
    await database.write(register, Identity("web-1", 1, "1", ["pay"], 4, signatures=signatures), 60.0)
    async with watch("tasks") as operator:
        await operator.command("submit pay")
        await operator.sees("card_token")
        await fill(operator, card_token="tok_live", city="Bonn")
        await operator.sees("••••••••", "Bonn", '"card_token": "***"')
        assert "tok_live" not in operator.text
        await operator.press("ctrl+s")
        await confirm(operator)
        await operator.sees_notice("Submitted task")
    (entry,) = await audited(database)
    payload = (await stored(database, entry.task_id or 0)).payload
    assert json.loads(payload) == {"card_token": "tok_live", "city": "Bonn"}


@pytest.mark.representatives(1)
@pytest.mark.parametrize("size", [NARROW, pytest.param(WIDE, marks=pytest.mark.slow)])
async def test_task_and_edit_name_the_plan_of_the_handler(
    database: Database, watch: Watch, size: tuple[int, int]
) -> None:
    handler = Handler("payments.charge", charge, Options(retry="2m,8m"))
    signatures = stored_signatures({handler.name: handler}, max_attempts=7, timeout=90.0)
    await database.write(register, Identity("web-1", 1, "1", [handler.name], 4, signatures=signatures), 60.0)
    fresh = await add_live(database, handler.name)
    async with watch("task", size, task_id=fresh) as operator:
        await operator.press("E")
        await operator.sees(f"Edit task {fresh}", "7, from the settings; 0 used", "1m30s, from the settings")
    task_id = await add_live(database, handler.name, state="waiting", attempt=1, max_attempts=3)
    unknown = await add_live(database, "old.job", state="waiting", attempt=1, max_attempts=3)
    for id in (task_id, unknown):
        await add_attempt(database, id, started_at=ahead(-2), ended_at=ahead(-1))
    for id, task, edit in (
        (task_id, "retry plan 2m,8m, from the handler", "2m,8m, from the handler"),
        (unknown, "retry plan of the handler", "the handler's own"),
    ):
        async with watch("task", size, task_id=id) as operator:
            await operator.sees(task)
            await operator.press("E")
            await operator.sees("Retry plan", "handler's", edit)
            assert re.search(r"Retry plan +handler's", operator.text)


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_without_a_signature_the_payload_is_json(database: Database, watch: Watch) -> None:
    await add_live(database, handler="old.job")
    async with watch("tasks", NARROW) as operator:
        await operator.sees("old.job")
        await operator.press("A")
        await operator.sees("No runner has stored its parameters")
        await fill(operator, Payload="[1]", Priority="12")
        await operator.sees("it must be a JSON object")
        await fill(operator, Payload='{"n": 1}', Priority="3", Key="order-9")
        await operator.press("ctrl+s")
        await confirm(operator)
        await operator.sees_notice("Submitted task")
    (entry,) = await audited(database)
    row = await stored(database, entry.task_id or 0)
    assert (row.handler, row.payload, row.priority, row.key) == ("old.job", '{"n": 1}', 3, "order-9")


@pytest.mark.slow
@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("handler", "payload", "label", "text", "expected"),
    [
        ("payments.charge", '{"order": 7, "amount": 2, "note": "token=hunter-22"}', "order", "8", {"order": 8}),
        ("old.job", '{"order": 7, "token": "hunter-22"}', "Payload", '{"order": 9, "token": "***"}', {"order": 9}),
        ("payments.charge", '{"order": 7,  "token": "hunter-22"}', "Queue", "slow", {}),
    ],
)
async def test_a_copy_keeps_unseen_secrets(
    handler: str, payload: str, label: str, text: str, expected: dict[str, Any], signed: Database, watch: Watch
) -> None:
    id = await add_past(signed, 900, handler=handler, queue="payments", payload=payload)
    async with watch("tasks") as operator:
        await operator.until(lambda: operator.screen.pages.listing.ids)
        await operator.press("N")
        await operator.sees(f"Copy task {id} of {handler}", "***")
        assert "hunter" not in operator.text
        await fill(operator, **{label: text})
        await operator.press("ctrl+s")
        await operator.sees(f"Submit a copy of task {id}")
        await operator.press("ctrl+y")
        await operator.sees(f"runner copy {id}")
        await confirm(operator)
        await operator.sees_notice(f"a copy of task {id}")
    origin, entry = await audited(signed)
    row = await stored(signed, entry.task_id or 0)
    assert json.loads(row.payload) == json.loads(payload) | expected
    assert (json.loads(origin.after or ""), origin.task_id) == ({"copy": entry.task_id}, id)
    assert row.queue == ("slow" if label == "Queue" else "payments")


@pytest.mark.slow
async def test_forms_refuse_a_payload_that_the_stored_signature_does_not_take(signed: Database, watch: Watch) -> None:
    copied = await add_past(signed, 900, handler="payments.charge", payload='{"order": 7, "token": "hunter-22"}')
    edited = await add_live(signed, handler="payments.charge", payload='{"order": 7, "amount": 1}')
    async with watch("task", task_id=copied) as operator:
        await operator.press("N")
        await operator.sees(f"Copy task {copied}")
        await fill(operator, Payload='{"order": 8, "token": "***"}')
        await operator.sees("token: the handler has no such argument", "mend first: Payload")
        await fill(operator, Payload='{"order": 8, "amount": 2}')
        await operator.until(lambda: "mend first" not in operator.text)
    async with watch("task", task_id=edited) as operator:
        await operator.press("E")
        await operator.sees("Payload")
        operator.screen.query_one("#payload").value = '{"order": "x", "amount": 1}'
        await operator.press("ctrl+s")
        await operator.sees("order: expected a whole number")
    assert await audited(signed) == []


@pytest.mark.slow
async def test_the_form_of_an_unknown_handler_names_the_one_that_was_probably_meant(
    signed: Database, watch: Watch
) -> None:
    async with watch("tasks", NARROW) as operator:
        await operator.command("submit payments.chrage")
        await operator.sees("no runner ever had handler payments.chrage, did you mean", "'payments.charge'")
        await operator.press("escape")
        await operator.command("submit payments.charge")
        await operator.sees("New task of payments.charge")
        assert "no runner ever had" not in operator.text
    assert await audited(signed) == []


@pytest.mark.slow
async def test_a_form_submits_what_the_signature_refuses_with_a_reason(signed: Database, watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.command("submit payments.charge")
        await operator.sees("New task of payments.charge", "More arguments", "Unchecked")
        await fill(operator, order="A-7", amount="1.5", **{"More arguments": '{"tenant": "li"}'})
        await operator.sees("expected a whole number", "its runners stored no such argument", "mend first: order, More")
        await fill(operator, Unchecked="v2 takes text")
        await operator.sees('"order": "A-7"', '"tenant": "li"', "its code may refuse it")
        await operator.press("ctrl+s")
        await operator.sees("Submit a task of payments.charge", "v2 takes text")
        await confirm(operator, reason="v2 takes text")
        await operator.sees_notice("Submitted task")
    (entry,) = await audited(signed)
    payload = json.loads((await stored(signed, entry.task_id or 0)).payload)
    assert payload == {"order": "A-7", "amount": 1.5, "tenant": "li"}
    assert entry.reason == "v2 takes text"


@pytest.mark.slow
async def test_more_arguments_may_not_name_an_argument_that_has_an_entry(signed: Database, watch: Watch) -> None:
    more = '{"order": 8, "tenant": "li", "note": "x"}'
    async with watch("tasks") as operator:
        await operator.command("submit payments.charge")
        await operator.sees("New task of payments.charge", "More arguments", "Unchecked")
        await fill(operator, order="7", amount="1.5", Unchecked="v2", **{"More arguments": more})
        await operator.sees("order, note: have entries of their own above", "mend first: More arguments")
        await operator.press("ctrl+s")
        await operator.sees("mend first: More arguments", "tenant", "1.5")
        assert await audited(signed) == []
        await fill(operator, **{"More arguments": '{"order": 8}'})
        await operator.sees("order: has an entry of its own above")
        await fill(operator, **{"More arguments": '{"tenant": "li"}'})
        await operator.press("ctrl+s")
        await confirm(operator, reason="v2")
        await operator.sees_notice("Submitted task")
    (entry,) = await audited(signed)
    payload = json.loads((await stored(signed, entry.task_id or 0)).payload)
    assert payload == {"order": 7, "amount": 1.5, "tenant": "li"}


@pytest.mark.slow
async def test_a_copy_keeps_a_refused_payload_with_a_reason(signed: Database, watch: Watch) -> None:
    copied = await add_past(signed, 900, handler="payments.charge", payload='{"order": 7, "token": "hunter-22"}')
    async with watch("task", task_id=copied) as operator:
        await operator.press("N")
        await operator.sees(f"Copy task {copied}")
        await fill(operator, Payload='{"order": 8, "token": "***"}')
        await operator.sees("mend first: Payload")
        await fill(operator, Unchecked="next release")
        await operator.until(lambda: "mend first" not in operator.text)
        await operator.press("ctrl+s")
        await operator.sees(f"Submit a copy of task {copied}")
        await operator.press("ctrl+y")
        await operator.sees("--unchecked")
        await confirm(operator, reason="next release")
        await operator.sees_notice(f"a copy of task {copied}")
    _, entry = await audited(signed)
    payload = json.loads((await stored(signed, entry.task_id or 0)).payload)
    assert payload == {"order": 8, "token": "hunter-22"}


@pytest.mark.slow
async def test_an_edit_saves_a_refused_payload_only_with_a_reason(signed: Database, watch: Watch) -> None:
    id = await add_live(signed, handler="payments.charge", payload='{"order": 7, "amount": 1}')
    async with watch("task", task_id=id) as operator:
        await operator.press("E")
        await operator.sees("Payload")
        operator.screen.query_one("#payload").value = '{"order": "x", "amount": 1}'
        await operator.press("ctrl+s")
        await operator.sees("order: expected a whole number", "If it is right, enter a reason; ctrl+s then saves it")
        await operator.press("ctrl+s")
        await operator.until(lambda: not [worker for worker in operator.console.workers if worker.group == "save"])
        assert await audited(signed) == []
        operator.screen.query_one("#reason").value = "next release"
        await operator.press("ctrl+s")
        await operator.sees_notice("Edit: 1 changed")
    (entry,) = await audited(signed)
    assert (json.loads((await stored(signed, id)).payload), entry.reason) == (
        {"order": "x", "amount": 1},
        "next release",
    )
