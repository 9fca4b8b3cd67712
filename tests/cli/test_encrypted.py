"""Commands about encrypted tasks: what they show, and what they refuse without the key."""

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.cli.exit_codes import Exit
from runner.db.transaction import Transaction
from runner.engine.lease.identity import release
from runner.handlers.keyring import Keyring
from runner.handlers.parameters import stored_signatures
from runner.handlers.registry import Handler, Options
from runner.model.codec_key import key_id, new_key
from runner.model.outcome import Dead, Failure
from runner.model.sealed import read_sealed
from runner.model.task import NewTask
from runner.settings import Settings
from runner.store.registration import Identity, register
from tests.cli.conftest import Call, Store

pytestmark = pytest.mark.both_databases

KEY, OTHER = new_key(), new_key()
CARD = "4111-1111"
NAME = "pay.card"
SHOWN = f"encrypted (fernet, key {key_id(KEY)})"


async def charge(card: str) -> None: ...


HANDLER = Handler(NAME, charge, Options(codec="fernet"))


@pytest.fixture
def keyring() -> Keyring:
    return Keyring(Settings(codec_keys=(KEY,)))


@pytest.fixture
def dead(store: Store, keyring: Keyring) -> int:
    """A dead task of a handler with a codec, whose runner has stored the signature."""
    identity = Identity("web-1", 1, release(), [NAME], 1, signatures=stored_signatures({NAME: HANDLER}))

    async def enter(tx: Transaction) -> None:
        await register(tx, identity, 60.0)

    store.write(enter)
    payload = keyring.seal("fernet", NAME, "payload", f'{{"card": "{CARD}"}}')
    (id,) = store.submit(NewTask(NAME, payload))
    text = keyring.seal("fernet", NAME, "text", f"no bank for {CARD}")
    store.claim(NAME, outcome=Dead(failure=Failure("LookupError", text, text)))
    return id


def payload_of(store: Store, id: int) -> str:
    async def read(tx: Transaction) -> str:
        for table in (tx.tables.task, tx.tables.history):
            if (found := await tx.scalar(sa.select(table.c.payload).where(table.c.id == id))) is not None:
                return str(found)
        raise LookupError(id)

    return store.write(read)


@pytest.mark.slow
def test_show_decrypts_only_with_the_flag_and_the_key(cli: Call, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_flag = cli("show", dead, "--reveal")
    assert key_id(KEY) in with_flag.err
    monkeypatch.setenv("TASKTUI_CODEC_KEYS", KEY)
    without = cli("show", dead)
    for shown in (with_flag.out, without.out, cli("show", dead, "--json").out, cli("failures", "--json").out):
        assert SHOWN in shown
        assert CARD not in shown
    opened = cli("show", dead, "--reveal", "--json").document
    assert opened["payload"] == {"card": CARD}
    assert opened["error"] == f"LookupError: no bank for {CARD}"
    assert opened["attempts"][0]["traceback"] == f"no bank for {CARD}"
    assert cli("audit", "--json").out.count('"reveal"') == 2


def test_a_filter_on_the_payload_matches_no_encrypted_task_and_says_so(cli: Call, dead: int) -> None:
    for text in ("payload.card:*", "payload.key:*", "payload.data:*", "!payload.card:7"):
        listed = cli("tasks", text)
        assert "No tasks match" in listed.out, text
        assert f"encrypted payloads match no filter on payload.NAME: {NAME}" in listed.err
    assert str(dead) in cli("tasks", f"handler:{NAME}").out
    assert cli("tasks", f"handler:{NAME}").err == ""


@pytest.mark.parametrize(
    "command",
    [
        lambda id: ("edit", id, "--payload", '{"card": "5"}', "--requeue"),
        lambda id: ("copy", id, '{"card": "5"}'),
        lambda _: ("submit", NAME, '{"card": "5"}'),
    ],
)
def test_a_new_payload_needs_the_key_and_is_stored_encrypted(
    cli: Call,
    store: Store,
    dead: int,
    keyring: Keyring,
    command: Callable[[int], tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = cli(*command(dead))
    assert refused.code == Exit.CONFIGURATION, refused
    assert "this process has no key" in refused.err
    assert len(store.tasks()) == 0
    monkeypatch.setenv("TASKTUI_CODEC_KEYS", KEY)
    done = cli(*command(dead))
    assert done.code == Exit.OK, done
    (row,) = store.tasks()
    assert keyring.opened(row["payload"], NAME, "payload") == '{"card": "5"}'
    assert '"card' not in cli("audit", "--json").out


def test_a_copy_without_a_new_payload_needs_no_key(cli: Call, store: Store, dead: int) -> None:
    assert cli("copy", dead).code == Exit.OK
    assert store.tasks()[0]["payload"] == payload_of(store, dead)


@pytest.mark.slow
def test_a_pulled_copy_and_the_sql_of_a_change_stay_encrypted(cli: Call, dead: int, tmp_path: Path) -> None:
    file = tmp_path / "case.db"
    for flags in (("--redact",), ()):
        assert cli("pull", dead, "--to", file, *flags).code == Exit.OK
        assert CARD.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("case.db*"))
        shown = cli("show", dead, "--url", f"sqlite:///{file}", "--json").document
        assert shown["payload"] == SHOWN
        for path in tmp_path.glob("case.db*"):
            path.unlink()
    script = cli("retry", dead, "--sql")
    assert script.code == Exit.OK
    assert CARD not in script.out


def test_why_names_the_codec_of_a_handler_that_no_runner_takes(cli: Call, store: Store, dead: int) -> None:
    assert cli("retry", dead).code == Exit.OK

    async def leave(tx: Transaction) -> None:
        await tx.execute(sa.delete(tx.tables.runner))

    store.write(leave)
    assert "Its codec is fernet: a runner without the key does not" in cli("why", dead).out


def test_a_key_in_a_profile_is_refused_and_its_command_is_used(
    cli: Call, dead: int, migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TASKTUI_URL")
    config = tmp_path / "tasktui.toml"
    config.write_text(f'[profiles.shop]\nurl = "{migrated_url}"\ncodec_keys = "{KEY}"\n')
    config.chmod(0o600)
    refused = cli("show", dead, "--profile", "shop", "--config", config)
    assert refused.code == Exit.CONFIGURATION
    assert "must not contain keys" in refused.err
    assert KEY not in refused.err
    keys = tmp_path / "keys"
    keys.write_text(f"{OTHER}\n{KEY}\n")
    config.write_text(f'[profiles.shop]\nurl = "{migrated_url}"\ncodec_keys_command = "cat {keys}"\n')
    opened = cli("show", dead, "--profile", "shop", "--config", config, "--reveal", "--json")
    assert opened.document["payload"] == {"card": CARD}
    keys.write_text("not a key\n")
    monkeypatch.setenv("TASKTUI_CODEC_KEYS", "no-key-at-all")
    bad = cli("show", dead, "--url", migrated_url)
    assert bad.code == Exit.CONFIGURATION
    assert "no-key-at-all" not in bad.err
    assert read_sealed(KEY) is None
