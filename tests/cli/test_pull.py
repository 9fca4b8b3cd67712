"""`runner pull`, and `runner work --pdb` on its file."""

import io
from pathlib import Path
from textwrap import dedent

import pytest

from runner.cli.exit_codes import Exit
from runner.handlers.hooks import LIFE_CYCLE
from runner.handlers.registry import REGISTRY
from runner.model.outcome import Dead, Failure
from runner.model.task import NewTask, NewWorkflow
from tests.cli.conftest import Call, Store

SECRET = "tok-1234567890"

SHOP = """
from runner import handler

@handler("a.b", timeout="1s")
def pay(amount: int, token: str) -> int:
    raise ValueError(f"amount {amount}")
"""


@pytest.fixture
def failed(store: Store) -> int:
    """A dead task whose error has its secret."""
    (id,) = store.submit(NewTask("a.b", payload=f'{{"amount": 7, "token": "{SECRET}"}}', hosts="web-1"))
    failure = Failure("ValueError", f"refused {SECRET}", f"Traceback {SECRET}")
    store.claim("a.b", outcome=Dead("no", failure=failure))
    return id


def test_a_redacted_copy_has_the_task_without_its_secrets(cli: Call, failed: int, tmp_path: Path) -> None:
    file = tmp_path / "case.db"
    assert cli("pull", "state:dead", "--to", file, "--redact").out == f"copied 1 task to {file}\n"
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("case.db*"))
    shown = cli("show", failed, "--url", f"sqlite:///{file}", "--json").document
    assert (shown["payload"], shown["attempt"], len(shown["attempts"])) == ({"amount": 7, "token": "***"}, 1, 1)
    assert "reveal" not in cli("audit").out


def test_a_copy_with_secrets_is_recorded(cli: Call, failed: int, tmp_path: Path) -> None:
    file = tmp_path / "case.db"
    assert cli("pull", failed, "--to", file).code == Exit.OK
    assert SECRET in cli("show", failed, "--url", f"sqlite:///{file}", "--json", "--reveal").out
    assert f"task {failed}" in cli("audit").out


def test_a_copy_has_the_name_of_the_workflow(cli: Call, store: Store, tmp_path: Path) -> None:
    (id,) = store.submit(NewTask("a.b", workflow=NewWorkflow("order 17")))
    file = tmp_path / "case.db"
    cli("pull", id, "--to", file, "--redact")
    assert "order 17" in cli("workflows", "--url", f"sqlite:///{file}").out
    assert "order 17" in cli("show", id, "--url", f"sqlite:///{file}").out


def test_nothing_is_overwritten_and_missing_tasks_are_named(cli: Call, failed: int, tmp_path: Path) -> None:
    file = tmp_path / "case.db"
    assert cli("pull", 99, "--to", file).code == Exit.NOT_FOUND
    assert cli("pull", "state:waiting", "--to", file).out == "No tasks match.\n"
    assert not file.exists()
    assert cli("pull", failed, 99, "--to", file, "--redact").code == Exit.PARTIAL
    assert cli("pull", failed, "--to", file).code == Exit.BAD_INPUT


@pytest.mark.slow
@pytest.mark.one_database
def test_the_debugger_opens_where_a_copied_task_fails(
    cli: Call, failed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "debugged_shop.py").write_text(dedent(SHOP))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(REGISTRY, "_handlers", {})  # the handler of this test stays here, and so does its debugger
    monkeypatch.setattr(LIFE_CYCLE, "callbacks", {})
    url = f"sqlite:///{tmp_path / 'case.db'}"
    cli("pull", failed, "--to", tmp_path / "case.db", "--redact")
    assert cli("retry", failed, "--url", url).code == Exit.OK
    monkeypatch.setattr("sys.stdin", io.StringIO("p amount * 6\nq\n"))
    result = cli("work", "-H", "debugged_shop", "--url", url, "--pdb")
    assert "(Pdb) 42" in result.out
    assert f"task {failed} (a.b):" in result.out
    assert "ValueError: amount 7" in result.err
    assert cli("work", "-H", "debugged_shop", "--url", url, "--pdb").code == Exit.OK
