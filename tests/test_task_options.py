"""Task options: signatures, fields, columns and errors agree with the one table."""

import inspect
import sys
import traceback
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import runner
from runner import TaskHandler, connect, disconnect, handler
from runner.cli.drafts import OPTIONS
from runner.cli.submit import TaskOptions
from runner.client.commit import Coalescer
from runner.client.submit import NamedTaskOptions
from runner.db.schema import tables
from runner.db.thread_connections import ThreadConnection, ThreadConnections
from runner.errors import InvalidHandler, InvalidTask
from runner.handlers.options import SCHEDULE_OPTIONS, SETTABLE, TASK_OPTIONS, ScheduledTaskOptions
from runner.handlers.registry import REGISTRY, Options
from runner.model.task import NewTask
from runner.store.validation import SUBMIT_COLUMNS, check

SOURCE = str(Path(runner.__file__).parent)
MOST_FRAMES = 5


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def test_the_signature_of_options_has_every_option() -> None:
    assert parameters(TaskHandler.options) - {"self", "tx"} == set(SETTABLE)


def test_the_docstring_of_options_describes_every_option() -> None:
    documented = inspect.getdoc(TaskHandler.options) or ""
    assert [name for name in SETTABLE if f"    {name}: " not in documented] == []


def test_the_signature_of_handler_has_every_option_with_a_default() -> None:
    defaults = {option.name for option in TASK_OPTIONS if option.default}
    limits = {"limit", "limit_per_tenant", "limit_per_runner", "rate", "executor", "memory_limit", "breaker", "codec"}
    limits |= {"chunk", "chunk_wait"}
    assert parameters(handler) - {"name", "after", "key", "on_error", "on_none"} - limits == defaults


OTHERS = {"on_error", "on_none", "call_options", "limits", "limit_per_runner", "executor", "memory_limit", "breaker"}
OTHERS |= {"codec", "chunk"}
"""The options of a handler that are no defaults for tasks."""


def test_a_handler_stores_every_default_that_is_not_derived() -> None:
    defaults = {option.name for option in TASK_OPTIONS if option.default in ("submit", "claim")}
    assert {field.name for field in fields(Options)} - OTHERS == defaults


def test_the_types_of_a_schedule_have_every_option_of_its_tasks() -> None:
    assert set(ScheduledTaskOptions.__annotations__) == set(SCHEDULE_OPTIONS)


def test_the_types_of_a_submit_by_name_have_every_option() -> None:
    assert get_type_hints(NamedTaskOptions).keys() == SETTABLE.keys()


def test_a_new_task_has_a_field_for_every_option() -> None:
    assert {option.field or option.name for option in TASK_OPTIONS} | {"handler", "payload"} == set(NewTask._fields)


def test_every_value_that_a_submit_carries_is_a_field_of_a_new_task() -> None:
    assert set(SUBMIT_COLUMNS) <= set(NewTask._fields)


def test_every_column_of_an_option_exists() -> None:
    columns = {option.column for option in TASK_OPTIONS if option.column}
    assert columns <= set(tables().task.c.keys())
    assert columns <= set(tables().history.c.keys())


def test_the_command_line_and_json_lines_take_every_option() -> None:
    flags = {option.flag or name for name, option in SETTABLE.items()}
    assert {field.name for field in fields(TaskOptions)} - {"on_failure", "unchecked"} == flags
    assert tuple(SETTABLE) == OPTIONS


BAD = {
    "run_at": "tomorrow",
    "delay": -1,
    "expires": 0,
    "expires_at": "tomorrow",
    "priority": 10,
    "key": "k" * 401,
    "queue": "",
    "max_attempts": 0,
    "timeout": 0,
    "tags": "red",
    "after": (),
    "bucket": 1_000,
    "headers": "\0",
    "submitted_by": "\0",
}


@pytest.mark.parametrize("field", sorted(BAD))
def test_a_submit_names_the_option_whose_value_is_not_valid(field: str) -> None:
    values: dict[str, Any] = {field: BAD[field]}
    with pytest.raises(InvalidTask, match=f"`{field}`"):
        check(NewTask("work", **values))


@pytest.mark.parametrize(
    "options", [{"priority": 10}, {"max_attempts": 0}, {"timeout": 0}, {"expires": 0}, {"queue": "q" * 201}]
)
def test_a_default_that_is_not_valid_is_rejected_when_the_handler_is_registered(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidHandler, match=next(iter(options))):
        handler("test.defaults", **options)(print)


@pytest.fixture
def work() -> Iterator[TaskHandler[Any, Any, Any]]:
    @handler("test.frames")
    def work(number: int) -> None: ...

    yield work
    disconnect()
    REGISTRY._handlers.pop("test.frames")


def frames_here() -> list[str]:
    """Our functions on the stack of the caller."""
    stack = traceback.walk_stack(sys._getframe(1))
    return [frame.f_code.co_name for frame, _ in stack if frame.f_code.co_filename.startswith(SOURCE)]


class CountingCursor:
    """Notes our functions on the stack of each INSERT, without the one that executes it.

    Args:
        cursor: the cursor.
        stacks: the functions of each.
    """

    def __init__(self, cursor: Any, stacks: list[list[str]]) -> None:
        self._cursor = cursor
        self._stacks = stacks

    def execute(self, sql: str, *arguments: Any) -> None:
        if sql.startswith("INSERT"):
            self._stacks.append(frames_here()[1:])
        self._cursor.execute(sql, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"unique_key": "k"}], ids=["plain", "options", "unique"])
def test_a_submit_passes_few_frames_before_the_driver(
    work: TaskHandler[Any, Any, Any], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(url=f"sqlite:///{tmp_path / 'tasks.db'}")
    stacks: list[list[str]] = []
    opened = ThreadConnections.open

    def watched(connections: ThreadConnections) -> ThreadConnection:
        connection = opened(connections)
        cursor = CountingCursor(connection.cursor, stacks)
        return connection._replace(cursor=cursor, by_position=cursor)

    monkeypatch.setattr(ThreadConnections, "open", watched)
    (work.options(**options) if options else work).submit(number=1)
    (work.options(**options) if options else work).submit_many([{"number": 2}, {"number": 3}])
    assert stacks
    assert [stack for stack in stacks if len(stack) > MOST_FRAMES] == []


def test_a_coalesced_submit_passes_few_frames_before_its_queue(
    work: TaskHandler[Any, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(url=f"sqlite:///{tmp_path / 'tasks.db'}", coalesce=True)
    stacks: list[list[str]] = []
    put = Coalescer.put

    def counted(coalescer: Coalescer, task: NewTask) -> Any:
        stacks.append(frames_here())
        return put(coalescer, task)

    monkeypatch.setattr(Coalescer, "put", counted)
    work.submit(number=1)
    work.options(key="k").submit(number=2)
    assert [len(stack) for stack in stacks] == [3, 3]
