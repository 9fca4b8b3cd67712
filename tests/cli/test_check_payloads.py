"""`runner check --against` names the waiting tasks that new code would fail."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.cli import handlers
from runner.handlers.registry import REGISTRY
from tests.cli.conftest import Call

OLD = """
from runner import handler

@handler("shop.charge")
def charge(order: int): ...

@handler("shop.gone")
def gone(): ...
"""
NEW = """
from runner import handler

@handler("shop.charge")
def charge(order: int, cents: int): ...
"""


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(REGISTRY)
    REGISTRY._handlers.clear()
    yield
    REGISTRY._handlers.clear()
    REGISTRY._handlers.update(before)
    for name in [name for name in sys.modules if name.startswith("shop_")]:
        del sys.modules[name]


def test_payloads_that_do_not_fit_are_named(cli: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, text in (("shop_before", OLD), ("shop_after", NEW)):
        package = Path(module)
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "tasks.py").write_text(text)
        (package / "_private.py").write_text("raise AssertionError('imported')")
    for payload in ('{"order": 1}', '{"order": 2}'):
        assert cli("submit", "shop.charge", payload, "-H", "shop_before").code == 0
    assert cli("submit", "shop.gone", "-H", "shop_before").code == 0
    REGISTRY._handlers.clear()
    outcome = cli("check", "--against", "shop_after")
    assert outcome.code == 1
    assert "✗ shop.charge: 2 of 2 payloads would fail" in outcome.out
    assert "task 1: cents: Field required" in outcome.out
    assert "✗ shop.gone: shop_after has no such handler, and 1 task would wait" in outcome.out
    monkeypatch.setattr(handlers, "MOST_PAYLOADS", 1)
    document = cli("check", "--against", "shop_after", "--json").document
    assert [(item["handler"], item["tasks"], item["failures"]) for item in document["handlers"]] == [
        ("shop.charge", 2, 2),
        ("shop.gone", 1, 0),
    ]


def test_tasks_that_fit_pass(cli: Call) -> None:
    Path("shop_same.py").write_text(OLD)
    assert cli("submit", "shop.charge", '{"order": 1}', "-H", "shop_same").code == 0
    outcome = cli("check", "--against", "shop_same")
    assert (outcome.code, outcome.out) == (0, "✓ shop.charge: 1 payload fit\n")
