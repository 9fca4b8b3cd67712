"""Tickets: the numbers that submitting returns, and what more they are."""

import copy
import json
import pickle
from typing import Any

import pytest

from runner import Ticket
from runner.errors import TaskFailed
from runner.producer.ticket import tickets


def test_a_ticket_is_its_tasks_number() -> None:
    ticket: Ticket[int] = Ticket(17)
    assert (ticket, hash(ticket), f"{ticket}", json.dumps([ticket])) == (17, hash(17), "17", "[17]")
    assert {17: "found"}[ticket] == "found"


def test_a_ticket_says_whether_its_task_was_there_already() -> None:
    made: list[Ticket[int]] = tickets([17, 18, 19], duplicates={1})
    assert [(ticket, ticket.duplicate) for ticket in made] == [(17, False), (18, True), (19, False)]


@pytest.mark.parametrize("travel", [lambda ticket: pickle.loads(pickle.dumps(ticket)), copy.deepcopy])
def test_a_ticket_travels_to_other_processes(travel: Any) -> None:
    made: list[Ticket[int]] = tickets([17, 18], duplicates={1})
    for ticket in made:
        assert (type(travel(ticket)), travel(ticket)) == (type(ticket), ticket)


@pytest.mark.parametrize(
    ("said", "ending"), [("no shop", "no shop."), ("no shop.", "no shop."), ("wait...", "wait....")]
)
def test_a_reason_ends_with_one_full_stop(said: str, ending: str) -> None:
    failed = TaskFailed(id=1, handler="test.fail", attempts=3, reason=said)
    assert str(failed).endswith(f"in attempt 3: {ending}")
