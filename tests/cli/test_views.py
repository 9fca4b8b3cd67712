"""Saved filters, shared with the console."""

import pytest

from runner.cli.exit_codes import Exit
from runner.filter import saved
from runner.model.task import NewTask
from tests.cli.conftest import Call, Store


def test_a_filter_is_saved_listed_used_and_deleted(cli: Call, store: Store) -> None:
    first, _ = store.submit(NewTask("a.b", queue="mail", delay=60.0), NewTask("a.b", delay=60.0))
    assert "No filters are saved." in cli("views", "show").out
    assert cli("views", "save", "late mail", "queue:mail").out == "saved late mail: queue:mail\n"
    assert saved.load(saved.default_path()) == {"late mail": "queue:mail"}
    assert cli("views", "show", "--json").document == {"views": [{"name": "late mail", "filter": "queue:mail"}]}
    assert "queue:mail" in cli("views", "show", "late mail").out
    for words in (("@late mail",), ("@late mail", "state:scheduled")):
        assert [task["id"] for task in cli("tasks", *words, "--json").document["tasks"]] == [first]
    assert cli("delay", "@late mail", "--by", "1h", "--yes", 1, "--json").document["changed"] == [first]
    assert cli("views", "delete", "late mail").code == Exit.OK
    assert saved.load(saved.default_path()) == {}


@pytest.mark.parametrize(
    "words", [("tasks", "@x"), ("retry", "@x"), ("failures", "@x"), ("views", "show", "x"), ("views", "delete", "x")]
)
def test_a_missing_saved_filter_is_reported(cli: Call, words: tuple[str, ...]) -> None:
    result = cli(*words)
    assert result.code == Exit.BAD_INPUT
    assert "unknown view 'x'; saved views: none" in result.err


def test_an_invalid_filter_is_not_saved(cli: Call) -> None:
    assert cli("views", "save", "bad", "nofield:1").code == Exit.BAD_INPUT
    assert cli("views", "save", "a\x1b", "state:dead").code == Exit.BAD_INPUT
    assert cli("views", "show").out == "No filters are saved.\n"


@pytest.mark.parametrize("words", [("save",), ("delete",), ("show", "x", "y"), ("delete", "x", "y"), ("list",)])
def test_an_incomplete_call_is_rejected(cli: Call, words: tuple[str, ...]) -> None:
    assert cli("views", *words).code == Exit.BAD_INPUT
