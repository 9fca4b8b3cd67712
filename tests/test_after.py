"""What a task waits for, as applications say it."""

from typing import Any

import pytest

from runner import After
from runner.errors import InvalidTask
from runner.handlers import Handler
from runner.producer.ticket import Ticket
from runner.rules.after import edges

PAY = Handler("orders.pay", lambda: None)

SAID: list[tuple[Any, tuple[After, ...]]] = [
    (17, (After(17),)),
    ([17, 18], (After(17), After(18))),
    ((17, 18), (After(17), After(18))),
    (("orders.pay", "order-17"), (After(("orders.pay", "order-17")),)),
    ((PAY, "order-17"), (After(("orders.pay", "order-17")),)),
    ([(PAY, "o"), 17], (After(("orders.pay", "o")), After(17))),
    (After(17, "run"), (After(17, "run"),)),
    ([After(("orders.pay", "o"), "cancel")], (After(("orders.pay", "o"), "cancel"),)),
    ([17, After(17, "run"), 18], (After(17), After(18))),
    ([], ()),
    (None, ()),
]


@pytest.mark.parametrize(("said", "meant"), SAID)
def test_parents_are_said_by_number_or_by_handler_and_key(said: Any, meant: tuple[After, ...]) -> None:
    assert edges(said) == meant


def test_a_ticket_is_taken_for_its_number() -> None:
    ((parent, _),) = edges([Ticket(17)])
    assert type(parent) is int


@pytest.mark.parametrize("said", [["17"], [True], [("orders.pay",)], [("orders.pay", 17)], [None], [1.5]])
def test_what_is_no_task_is_refused(said: Any) -> None:
    with pytest.raises(InvalidTask, match=r"after may not be .*: it must be the id of a task, or the handler and"):
        edges(said)
