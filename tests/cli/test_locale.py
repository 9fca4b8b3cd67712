"""Arguments and output under a locale that knows only ASCII."""

import json
import os
import subprocess
import sys

import pytest

from tests.cli.conftest import Store
from tests.conftest import on_sqlite

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def call(url: str, *words: object) -> str:
    """Run a command in an interpreter of its own, which begins with the locale; return its output."""
    environment = os.environ | ASCII | {"TASKTUI_URL": url}
    line = [sys.executable, "-m", "runner", *map(str, words)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, encoding="ascii", check=True)
    assert done.stderr == ""
    return done.stdout


@on_sqlite
@pytest.mark.parametrize("words", [("--key", "5 €"), pytest.param(("--tag", "5 €"), marks=pytest.mark.slow)])
def test_arguments_are_utf8_and_json_keeps_each_character(store: Store, words: tuple[str, str]) -> None:
    call(store.url, "submit", "a.b", '{"price": "5 €"}', *words)
    (task,) = store.tasks()
    assert json.loads(task["payload"]) == {"price": "5 €"}
    document = json.loads(call(store.url, "show", task["id"], "--json"))
    assert "5 €" in (document["key"], *document["tags"])
    assert "1 task" in call(store.url, "tasks", f'{words[0].removeprefix("--")}:"5 €"')
