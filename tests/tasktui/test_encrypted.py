"""Encrypted tasks on the screens: described, and decrypted on a key of the keyboard by who has the key of the codec."""

import pytest

from runner.db.database import Database
from runner.handlers.keyring import Keyring
from runner.handlers.parameters import stored_signatures
from runner.handlers.registry import Handler, Options
from runner.model.codec_key import key_id, new_key
from runner.queries.audit import audit
from runner.settings import Settings
from runner.store.registration import Identity, register
from tests.store.rows import add_live
from tests.tasktui.conftest import ON_ONE_DATABASE, Watch

pytestmark = ON_ONE_DATABASE

KEY = new_key()
SHOWN = f"encrypted (fernet, key {key_id(KEY)})"


@pytest.fixture
async def task_id(database: Database) -> int:
    payload = Keyring(Settings(codec_keys=(KEY,))).seal("fernet", "pay.card", "payload", '{"card": "4111-1111"}')
    return await add_live(database, handler="pay.card", payload=payload)


async def test_an_encrypted_payload_is_decrypted_on_a_key_and_recorded(
    database: Database, task_id: int, watch: Watch
) -> None:
    async with watch("task", task_id=task_id, codec_keys=(KEY,)) as operator:
        await operator.sees(SHOWN, "v decrypts with the key")
        await operator.press("v")
        await operator.sees("4111-1111")
        await operator.press("v")
        await operator.sees(SHOWN)
        assert "4111-1111" not in operator.text
    (entry,) = await database.read(audit)
    assert (entry.verb, entry.task_id) == ("reveal", task_id)


async def test_without_the_key_the_screen_names_it(task_id: int, watch: Watch) -> None:
    async with watch("task", task_id=task_id) as operator:
        await operator.sees(SHOWN)
        await operator.press("v")
        await operator.sees_notice("is encrypted with key")
        assert "4111-1111" not in operator.text


@pytest.mark.slow
async def test_the_payload_of_an_encrypted_task_cannot_be_edited(task_id: int, watch: Watch) -> None:
    async with watch("task", task_id=task_id, size=(140, 50)) as operator:
        await operator.sees(SHOWN)
        await operator.press("E")
        await operator.sees("Payload", "runner edit ID --payload replaces it")


async def test_an_empty_list_names_the_handlers_whose_payloads_match_no_filter(
    database: Database, task_id: int, watch: Watch
) -> None:
    assert task_id
    signature = stored_signatures({"pay.card": Handler("pay.card", charge, Options(codec="fernet"))})
    identity = Identity("web-1", 1, "test", ["pay.card"], 1, signatures=signature)
    await database.write(register, identity, 60.0)
    async with watch("tasks", filter_text="payload.card:*") as operator:
        await operator.sees("encrypted payloads match no filter on payload.NAME: pay.card")


async def charge(card: str) -> None: ...
