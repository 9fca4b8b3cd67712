"""Everything that the console does is on its page, and its actions are commands of the same name."""

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
from tasktui.actions.action import Action
from tasktui.actions.actions import ACTIONS
from tasktui.app import Console
from tasktui.commands.syntax import COMMANDS
from tasktui.shell.live import LiveScreen
from tests.cli.conftest import Call, call
from tests.pages import DOCS

__all__ = ["call"]

PAGE = Path(DOCS / "console.md").read_text()
DOCUMENTED_KEYS = PAGE.partition("\n## Keys\n")[2].partition("\n## ")[0]
WORDS = {word.split()[0] for word in re.findall(r"`(:[^`]+)`", PAGE)}
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


def test_every_command_of_the_console_is_on_its_page() -> None:
    assert {f":{name}" for name in COMMANDS} == WORDS


def test_every_key_is_described_on_the_page_of_the_console() -> None:
    described = set(re.findall(r"`([^`]+)`", DOCUMENTED_KEYS))
    assert {*keys(), *(action.key for action in ACTIONS.values())} - described == set()


OWN_VERBS = {"breaker": "limit handler", "drain": "runners", "resize": "runners", "stack": "show"}
"""The commands of the actions whose name is an option, or comes after another word."""


@pytest.mark.parametrize("action", ACTIONS.values(), ids=lambda action: action.name)
def test_every_action_is_a_command_or_an_option_of_the_same_name(action: Action, call: Call) -> None:
    command = f"{OWN_VERBS.get(action.name, '')} {action.name}".split()
    assert command[0] in {verb.name for verb in CLI_COMMANDS}
    help_text = call(command[0], "--help").out + call(*command[:2], "--help").out
    assert [word for word in command[1:] if not re.search(rf"\b{word.lstrip('-')}\b", help_text)] == []


@pytest.mark.parametrize("verb", CHANGES)
def test_every_verb_that_changes_something_can_be_tried_and_accounted_for(verb: str, call: Call) -> None:
    help_text = call(verb, "--help").out
    for option in ("--dry-run", "--reason", "--json"):
        assert option in help_text
