"""Annotations may name types that are defined later, or that only type checkers import."""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

from runner.errors import InvalidHandler
from runner.handlers.discovery import discover
from runner.handlers.registry import REGISTRY
from runner.handlers.resources import RESOURCES
from runner.testing import TaskStore

TEXT = "from __future__ import annotations\n"
DEFERRED = ""  # Python 3.14 evaluates an annotation when it is first read

LATER = '''
from runner import Context, handler

@handler("late.take", unique_key=lambda line: line.sku)
def take(ctx: Context, line: Line, others: list[Line] | None = None) -> Line:
    """Take a line."""
    return line

REPR = repr(take)

from dataclasses import dataclass

@dataclass
class Line:
    sku: str
'''

CHECKED = """
from collections.abc import Iterator
from typing import TYPE_CHECKING
from runner import handler, injected, resource
from runner.errors import RunnerError

if TYPE_CHECKING:
    from decimal import Decimal
    import missing
    from runner import Context, Retry

@resource
def pool() -> Iterator[Pool]:
    yield Pool()

class Pool: ...

@handler("checked.add", on_error=lambda error: None)
def add(context: Context, count: int, *, own: Pool = injected, pool: missing.Pool = injected) -> int | Retry:
    return count + context.attempt

def judge(attempt: Context, error: Decimal) -> Retry | None:
    return None

@handler("checked.judged", on_error=judge)
def judged(count: int) -> int:
    return count
"""

BROKEN = """
import datetime
from typing import TYPE_CHECKING
from runner import handler

if TYPE_CHECKING:
    from decimal import Decimal

@handler("broken.name")
def name(cents: Decimal) -> None: ...

@handler("broken.member")
def member(day: datetime.day) -> None: ...
"""


@pytest.fixture(
    params=[TEXT, pytest.param(DEFERRED, marks=pytest.mark.skipif(sys.version_info < (3, 14), reason="3.14"))]
)
def define(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that imports a module with this source."""
    monkeypatch.syspath_prepend(tmp_path)
    handlers, resources = dict(REGISTRY._handlers), dict(RESOURCES._resources)

    def imported(source: str) -> ModuleType:
        (tmp_path / "annotated.py").write_text(request.param + source)
        return importlib.import_module("annotated")

    yield imported
    sys.modules.pop("annotated", None)
    REGISTRY._handlers = handlers
    RESOURCES._resources = resources


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TaskStore]:
    with TaskStore(f"sqlite:///{tmp_path}/tasks.db") as store:
        yield store


def test_an_argument_may_have_a_type_that_is_defined_below_its_handler(
    define: Callable[[str], ModuleType], store: TaskStore
) -> None:
    module = define(LATER)
    line = module.Line("a1")
    task = module.take.submit(line, others=[line])
    store.drain()
    assert task.result(timeout=0) == line
    assert module.REPR.startswith("<handler 'late.take': annotated.take(ctx: ")
    assert get_type_hints(module.take) == get_type_hints(module.take.__wrapped__)
    assert inspect.signature(module.take) == inspect.signature(module.take.__wrapped__)


def test_a_handler_without_any_argument_of_a_type_may_import_it_for_type_checkers_alone(
    define: Callable[[str], ModuleType], store: TaskStore
) -> None:
    module = define(CHECKED)
    handle = module.add.submit(count=3)
    judged = module.judged.submit(count=3)
    store.drain()
    assert (handle.result(timeout=0), judged.result(timeout=0)) == (4, 3)


@pytest.mark.parametrize("name", ["name", "member"])
def test_an_argument_whose_type_is_missing_at_run_time_is_refused(
    name: str, define: Callable[[str], ModuleType], store: TaskStore
) -> None:
    module = define(BROKEN)
    with pytest.raises(InvalidHandler, match=f"broken.{name}.*its annotations cannot be read: .* outside"):
        getattr(module, name).submit()
    with pytest.raises(InvalidHandler, match="its annotations cannot be read"):
        discover(installed=False)
