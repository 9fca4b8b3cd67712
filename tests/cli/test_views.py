"""Filters under a name: the same file and the same words as in the console."""

import pytest

from runner.cli.ending import Exit
from runner.people import views
from runner.task import NewTask
from tests.cli.conftest import Call, Store


def test_a_view_is_saved_listed_used_and_forgotten(called: Call, store: Store) -> None:
    first, _ = store.submit(NewTask("a.b", queue="mail", delay=60.0), NewTask("a.b", delay=60.0))
    assert "no view is saved" in called("view").out
    assert called("save", "late mail", "queue:mail").out == "saved as late mail: queue:mail\n"
    assert views.load(views.default_path()) == {"late mail": "queue:mail"}
    assert called("view", "--json").document == {"views": [{"name": "late mail", "filter": "queue:mail"}]}
    assert "queue:mail" in called("view", "late mail").out
    for words in (("@late mail",), ("@late mail", "state:scheduled")):
        assert [task["id"] for task in called("tasks", *words, "--json").document["tasks"]] == [first]
    assert called("delay", "@late mail", "--by", "1h", "--yes", 1, "--json").document["changed"] == [first]
    assert called("forget", "late mail").code == Exit.OK
    assert views.load(views.default_path()) == {}


@pytest.mark.parametrize(
    "words", [("tasks", "@x"), ("retry", "@x"), ("failures", "@x"), ("view", "x"), ("forget", "x")]
)
def test_a_view_that_is_not_there_is_said_so(called: Call, words: tuple[str, ...]) -> None:
    told = called(*words)
    assert told.code == Exit.BAD_INPUT
    assert "there is no view 'x'. Saved are: none" in told.err


def test_a_filter_that_is_none_is_not_saved(called: Call) -> None:
    assert called("save", "bad", "nofield:1").code == Exit.BAD_INPUT
    assert called("save", "a\x1b", "state:dead").code == Exit.BAD_INPUT
    assert called("view").out == "no view is saved\n"
