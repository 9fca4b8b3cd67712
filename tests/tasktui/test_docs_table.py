"""Everything that the console does can be done on the command line: the table of the console page is complete."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.binding import Binding

from runner.cli.app import CLI_COMMANDS
from tasktui import screens
from tasktui.actions.actions import ACTIONS
from tasktui.app import Console
from tasktui.commands.syntax import COMMANDS
from tasktui.shell.live import LiveScreen
from tests.cli.conftest import Call, call
from tests.pages import DOCS

__all__ = ["call"]

PAGE = Path(DOCS / "console.md").read_text()
TABLE = PAGE[PAGE.index("| console | command line |") :].partition("\n\n")[0]
ROWS = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", TABLE, re.M))
DOCUMENTED_KEYS = PAGE.partition("\n## Keys\n")[2].partition("\n## ")[0]
CONSOLE = {word for row in ROWS for word in re.findall(r"`([^`]+)`", row)}
LINES = [line for here in ROWS.values() for line in re.findall(r"`(runner [^`]+)`", here)]
CHANGES = [verb.name for verb in CLI_COMMANDS if verb.group == "Operate"]
KEYS = {"question_mark": "?", "colon": ":", "slash": "/", "asterisk": "*", "backslash": "\\", "exclamation_mark": "!"}


def keys() -> Iterator[str]:
    """The keys of all screens that show something; those of dialogs answer a question."""
    kinds: list[type] = [Console]
    for module in pkgutil.iter_modules(screens.__path__):
        loaded = importlib.import_module(f"tasktui.screens.{module.name}")
        kinds += [kind for _, kind in inspect.getmembers(loaded, inspect.isclass) if issubclass(kind, LiveScreen)]
    for kind in kinds:
        for binding in kind.__dict__.get("BINDINGS", []):
            assert isinstance(binding, Binding)
            if not binding.action.startswith("go("):
                yield from (KEYS.get(key, key) for key in binding.key.split(","))


def test_every_command_key_and_action_of_the_console_is_in_the_table() -> None:
    assert {f":{name}" for name in COMMANDS} - CONSOLE == set()
    assert {action.key for action in ACTIONS.values()} - CONSOLE == set()
    assert set(keys()) - CONSOLE == set()
    assert {word for word in CONSOLE if word.startswith(":") and word != ":"} == {f":{name}" for name in COMMANDS}


def test_every_key_is_described_on_the_page_of_the_console() -> None:
    described = set(re.findall(r"`([^`]+)`", DOCUMENTED_KEYS))
    assert {*keys(), *(action.key for action in ACTIONS.values())} - described == set()


def test_every_action_is_a_command_or_an_option_of_the_same_name() -> None:
    for action in ACTIONS.values():
        lines = re.findall(r"`(runner [^`]+)`", ROWS[f"`{action.key}`"])
        words = {word.removeprefix("--") for word in action.name.split()}
        assert any(words <= {word.removeprefix("--") for word in line.split()} for line in lines), action.name


@pytest.mark.parametrize("verb", sorted({line.split()[1] for line in LINES} - {"--help"}))
def test_every_command_line_in_the_table_is_valid(verb: str, call: Call) -> None:
    help_text = call(verb, "--help").out
    options = {word for line in LINES if line.split()[1] == verb for word in line.split()[2:] if word.startswith("--")}
    assert {option for option in options if not re.search(rf"{option}\b", help_text)} == set()


@pytest.mark.parametrize("verb", CHANGES)
def test_every_verb_that_changes_something_can_be_tried_and_accounted_for(verb: str, call: Call) -> None:
    help_text = call(verb, "--help").out
    for option in ("--dry-run", "--reason", "--json"):
        assert option in help_text
