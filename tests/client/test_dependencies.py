"""Dependencies as applications write them."""

from typing import Any

import pytest

from runner import DependsOn
from runner.client.results import TaskHandle
from runner.errors import InvalidTask
from runner.handlers.dependencies import dependencies
from runner.handlers.registry import Handler
from runner.model.task import NewTask

PAY = Handler("orders.pay", lambda: None)

CASES: list[tuple[Any, tuple[DependsOn, ...]]] = [
    (17, (DependsOn(17),)),
    ([17, 18], (DependsOn(17), DependsOn(18))),
    ((17, 18), (DependsOn(17), DependsOn(18))),
    (("orders.pay", "order-17"), (DependsOn(("orders.pay", "order-17")),)),
    ((PAY, "order-17"), (DependsOn(("orders.pay", "order-17")),)),
    ([(PAY, "o"), 17], (DependsOn(("orders.pay", "o")), DependsOn(17))),
    (DependsOn(17, "run"), (DependsOn(17, "run"),)),
    ([DependsOn(("orders.pay", "o"), "cancel")], (DependsOn(("orders.pay", "o"), "cancel"),)),
    ([17, DependsOn(17, "run"), 18], (DependsOn(17), DependsOn(18))),
    ([], ()),
    (None, ()),
]


@pytest.mark.parametrize(("after", "expected"), CASES)
def test_a_parent_is_an_id_or_a_handler_and_a_key(after: Any, expected: tuple[DependsOn, ...]) -> None:
    assert dependencies(after) == expected


def test_a_task_handle_is_converted_to_a_plain_id() -> None:
    ((parent, _),) = dependencies([TaskHandle(17)])
    assert type(parent) is int


@pytest.mark.parametrize("after", ["orders.pay", ["orders.pay", "orders.ship"], NewTask("orders.pay")])
def test_a_name_or_a_task_that_is_not_submitted_is_rejected_as_a_whole(after: Any) -> None:
    with pytest.raises(InvalidTask, match=r"'?orders\.pay'? for `after`: expected a task id, or a handler and a key"):
        dependencies(after)


@pytest.mark.parametrize("after", [["17"], [True], [("orders.pay",)], [("orders.pay", 17)], [None], [1.5]])
def test_an_object_that_is_not_a_task_is_rejected(after: Any) -> None:
    with pytest.raises(InvalidTask, match=r"Invalid value .* for `after`: expected a task id, or a handler and a key"):
        dependencies(after)
