"""A decorated function keeps its name, documentation, signature and kind."""

import asyncio
import copy
import inspect
import json
import pickle
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest

from runner import Context, disconnect, handler
from runner.errors import InvalidTask
from runner.handlers.registry import REGISTRY


async def charge(ctx: Context, order: int, cents: int = 5) -> str:
    """Charge an order."""
    return f"{order}: {cents}"


def count(rows: int) -> int:
    return rows


charge_handler = handler("decorator.charge", queue="money")(charge)
count_handler = handler("decorator.count")(count)


@pytest.fixture(autouse=True, scope="module")
def _forgotten() -> Iterator[None]:
    yield
    disconnect()
    for one in (charge_handler, count_handler):
        REGISTRY._handlers.pop(one.name)


def test_a_handler_looks_like_its_function() -> None:
    names = ("__name__", "__qualname__", "__module__", "__doc__")
    assert [getattr(charge_handler, name) for name in names] == [getattr(charge, name) for name in names]
    assert charge_handler.__wrapped__ is charge
    assert inspect.signature(charge_handler) == inspect.signature(charge)
    assert inspect.getdoc(charge_handler) == "Charge an order."
    assert inspect.getsource(charge_handler) == inspect.getsource(charge)
    assert get_type_hints(charge_handler) == get_type_hints(charge)


def test_a_handler_is_async_if_its_function_is() -> None:
    assert [inspect.iscoroutinefunction(one) for one in (charge_handler, count_handler)] == [True, False]
    assert asyncio.run(charge_handler(None, order=1)) == "1: 5"  # type: ignore[arg-type] # it does not use its context
    assert count_handler(rows=3) == 3


def test_the_repr_names_the_handler_its_kind_and_its_function() -> None:
    place = f"{__name__}.charge(ctx: runner.handlers.context.Context, order: int, cents: int = 5) -> str"
    assert repr(charge_handler) == f"<handler 'decorator.charge': async {place}>"
    assert repr(count_handler) == f"<handler 'decorator.count': {__name__}.count(rows: int) -> int>"


def test_many_calls_are_tasks_that_call_has_made() -> None:
    calls: list[Any] = [count_handler.options(priority=9).new(rows=1), {"rows": 2}]
    tasks = count_handler.options().tasks_each(calls)
    assert [(json.loads(task.payload), task.priority) for task in tasks] == [({"rows": 1}, 9), ({"rows": 2}, None)]


def test_a_call_of_another_handler_is_rejected() -> None:
    with pytest.raises(InvalidTask, match=r"it is a call of decorator\.charge; submit calls of several .* with batch"):
        count_handler.options().tasks_each([charge_handler.new(order=1)])


@handler("decorator.pack")
def pack(order: int) -> int:
    return order


def test_a_handler_is_copied_and_pickled_by_its_name_as_a_function_is() -> None:
    assert copy.copy(pack) is copy.deepcopy(pack) is pickle.loads(pickle.dumps(pack)) is pack
