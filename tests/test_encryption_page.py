"""The examples of docs/encryption.md work as they are written."""

import json
import re
import sys
from pathlib import Path

import pytest

from runner.model.codec_key import key_id
from runner.model.sealed import read_sealed
from tests.pages import DOCS, RUNNER, blocks, run

PAGE = DOCS / "encryption.md"

KMS_HANDLER = """
from runner import handler


@handler("pay.kms", codec="shop.codecs:kms")
def refund(card: str) -> str:
    return f"refunded {card}"
"""

PROGRAM = """
from runner import connect, results
from shop.tasks import charge
from shop.refunds import refund

print(int(charge.submit(card="4111-1111", cents=500)), int(refund.submit(card="4111-1111")))
"""


def shop_run(folder: Path, url: str, *words: object, **environment: str) -> str:
    """Run a command of the page in a shop, with the settings of its users."""
    variables = {"TASKTUI_URL": url, "PYTHONPATH": str(folder), "XDG_CONFIG_HOME": str(folder)}
    return run(folder, *words, **variables | environment)


@pytest.mark.slow
@pytest.mark.both_databases
def test_the_examples_encrypt_rotate_and_reveal(migrated_url: str, tmp_path: Path) -> None:
    (charge, codec), shop = (block.text for block in blocks(PAGE, "python")), tmp_path / "shop"
    shop.mkdir()
    for name, text in (("__init__", ""), ("tasks", charge), ("codecs", codec), ("refunds", KMS_HANDLER)):
        (shop / f"{name}.py").write_text(text)
    (code,) = re.findall(r'python -c "(.*)"', blocks(PAGE, "text")[0].text)
    old, new = (shop_run(tmp_path, migrated_url, sys.executable, "-c", code).strip() for _ in range(2))
    keys = tmp_path / "codec-keys"
    keys.write_text(f"{old}\n")
    with_keys = {"TASKTUI_CODEC_KEYS_FILE": str(keys)}
    ids = shop_run(tmp_path, migrated_url, sys.executable, "-c", PROGRAM, **with_keys).split()
    worker = (RUNNER, "work", "--until-idle", "-H", "shop.tasks", "-H", "shop.refunds")
    shop_run(tmp_path, migrated_url, *worker, **with_keys)
    shown = [json.loads(shop_run(tmp_path, migrated_url, RUNNER, "show", id, "--json")) for id in ids]
    assert [each["state"] for each in shown] == ["succeeded", "succeeded"]
    assert [each["payload"] for each in shown] == [
        f"encrypted (fernet, key {key_id(old)})",
        "encrypted (shop.codecs:kms, key kms-2026)",
    ]
    keys.write_text(f"{new}\n{old}\n")
    (text,) = re.findall(r"runner rekey '(.*?)' --dry-run", PAGE.read_text())
    rekey = (RUNNER, "rekey", f"{text} handler:pay.card")
    assert "1 task" in shop_run(tmp_path, migrated_url, *rekey, "--dry-run", **with_keys)
    shop_run(tmp_path, migrated_url, *rekey, "--yes", 1, **with_keys)
    keys.write_text(f"{new}\n")
    opened = json.loads(shop_run(tmp_path, migrated_url, RUNNER, "show", ids[0], "--reveal", "--json", **with_keys))
    assert (opened["payload"], opened["result"]) == ({"card": "4111-1111", "cents": 500}, "charged 500")


def test_the_stored_form_on_the_page_is_one() -> None:
    (stored,) = blocks(PAGE, "json")
    sealed = read_sealed(stored.text)
    assert sealed is not None
    assert (sealed.codec, sealed.key) == ("fernet", "3fa9c1d2")
