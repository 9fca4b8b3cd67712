"""Task handles: ids that can wait for results."""

import copy
import json
import pickle
from typing import Any

import pytest

from runner import TaskHandle
from runner.client.results import handles
from runner.errors import TaskFailed


def test_a_task_handle_is_an_int() -> None:
    handle: TaskHandle[int] = TaskHandle(17)
    assert (handle, hash(handle), f"{handle}", json.dumps([handle])) == (17, hash(17), "17", "[17]")
    assert {17: "found"}[handle] == "found"


def test_a_task_handle_reports_a_duplicate() -> None:
    results: list[TaskHandle[int]] = handles([17, 18, 19], duplicates={1})
    assert [(handle, handle.duplicate) for handle in results] == [(17, False), (18, True), (19, False)]


@pytest.mark.parametrize("copied", [lambda handle: pickle.loads(pickle.dumps(handle)), copy.deepcopy])
def test_a_task_handle_can_be_pickled_and_copied(copied: Any) -> None:
    results: list[TaskHandle[int]] = handles([17, 18], duplicates={1})
    for handle in results:
        assert (type(copied(handle)), copied(handle)) == (type(handle), handle)


@pytest.mark.parametrize(
    ("reason", "ending"), [("no shop", "no shop."), ("no shop.", "no shop."), ("wait...", "wait....")]
)
def test_a_reason_ends_with_one_full_stop(reason: str, ending: str) -> None:
    failed = TaskFailed(id=1, handler="test.fail", attempts=3, reason=reason)
    assert str(failed).endswith(f"after attempt 3: {ending}")
