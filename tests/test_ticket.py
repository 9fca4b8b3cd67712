"""Tickets: the numbers that submitting returns, and what more they are."""

import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from runner import TaskHandler, Ticket, handler
from runner.handlers import REGISTRY


@pytest.fixture
def double() -> Iterator[TaskHandler[Any, Any, Any]]:
    @handler("test.double")
    def double(number: int) -> int:
        return 2 * number

    yield double
    REGISTRY._handlers.pop(double.name)


def test_a_ticket_is_its_tasks_number(double: TaskHandler[Any, Any, Any]) -> None:
    (ticket,) = Ticket[int].each(double, [17])
    assert (ticket, hash(ticket), f"{ticket}", json.dumps([ticket])) == (17, hash(17), "17", "[17]")
    assert {17: "found"}[ticket] == "found"


def test_a_ticket_says_whether_its_task_was_there_already(double: TaskHandler[Any, Any, Any]) -> None:
    tickets = Ticket[int].each(double, [17, 18, 19], duplicates={1})
    assert [ticket.duplicate for ticket in tickets] == [False, True, False]


@pytest.mark.parametrize("travel", [lambda ticket: pickle.loads(pickle.dumps(ticket)), copy.deepcopy])
def test_a_ticket_travels_as_a_number(double: TaskHandler[Any, Any, Any], travel: Any) -> None:
    (ticket,) = Ticket[int].each(double, [17])
    assert travel([ticket]) == [17]
    assert type(travel(ticket)) is int
