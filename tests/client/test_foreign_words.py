"""Calls, options and commands of other task systems get the sentence that names ours."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from runner import handler
from runner.client.handler import TaskHandler
from runner.errors import InvalidHandler
from runner.handlers.foreign_words import CALLS, OPTIONS
from runner.handlers.options import SETTABLE
from runner.handlers.registry import REGISTRY
from tests.cli.conftest import Call, _alone, call

__all__ = ["_alone", "call"]

pytestmark = pytest.mark.one_database


@pytest.fixture
def pack() -> Iterator[Any]:
    @handler("words.pack")
    def pack(order: int) -> int:
        return order

    yield pack
    del REGISTRY._handlers["words.pack"]


@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "defer", "enqueue", "s"])
def test_a_call_of_another_system_names_ours(pack: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^handler 'words.pack' has no {name}\(\): write .*\(\.\.\.\)"):
        getattr(pack, name)
    assert not hasattr(pack, name)


def test_any_other_attribute_is_missing_as_usual(pack: Any) -> None:
    with pytest.raises(AttributeError, match=r"^handler 'words.pack' has no colour$"):
        pack.colour  # noqa: B018


def test_no_foreign_word_is_ours() -> None:
    assert not {name for name in CALLS if hasattr(TaskHandler, name)}
    assert not OPTIONS.keys() & set(SETTABLE)


@pytest.mark.parametrize(
    ("option", "value", "ours"),
    [
        ("countdown", 3, "write delay=3;"),
        ("eta", None, "write run_at=;"),
        ("max_retries", 3, "write max_attempts=4, which counts the first attempt too;"),
        ("time_limit", 30, "write timeout=30;"),
    ],
)
def test_an_option_of_another_system_names_ours(
    pack: Any,
    option: str,
    value: object,
    ours: str,
) -> None:
    decorator: Any = partial(handler, "words.other")
    for function in (pack.options, decorator):
        with pytest.raises(TypeError, match=rf"\(\) has no {option}: {ours} see docs/porting.md"):
            function(**{option: value})
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        pack.options(colour=1)


def test_a_decorator_without_a_name_asks_for_one() -> None:
    decorator: Any = handler
    for arguments in ((), (len,)):
        with pytest.raises(InvalidHandler, match=r'use @handler\("name"\), with the name under which tasks store it'):
            decorator(*arguments)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("tasks dead", "'dead' was searched in error, key and handler; by state: runner tasks state:dead"),
        ("tasks failed", "by state: runner tasks state:dead"),
        ("worker", "unknown command 'worker', write runner work -H shop.tasks"),
        ("beat", "schedules are part of runner work"),
        ("taskz", "unknown command 'taskz', did you mean 'tasks'"),
        ("work shop.tasks", "runner work -H shop.tasks"),
        ("work -A shop", "The module of the handlers follows -H"),
    ],
)
def test_a_command_of_another_system_names_ours(call: Call, words: str, sentence: str) -> None:
    call("migrate")
    assert sentence in call(*words.split()).err
