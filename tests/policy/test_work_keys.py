"""An exporter lists the first pairs of queue and handler, and counts the others."""

import pytest

from runner.policy import work_keys
from runner.policy.work_keys import MOST_COUNTED, MOST_LISTED, OTHERS, WorkKeys


def test_10000_queues_have_100_names_and_a_count_of_the_others() -> None:
    names = WorkKeys()
    first = [names.name((f"queue{number}", "send")) for number in range(10_000)]
    assert len(set(first)) == MOST_LISTED + 1
    assert first == [names.name((f"queue{number}", "send")) for number in range(10_000)]
    assert first[MOST_LISTED - 1 : MOST_LISTED + 1] == [("queue99", "send"), OTHERS]
    assert names.left_out == 9_900


def test_the_count_of_the_others_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_keys, "MOST_LISTED", 1)
    names = WorkKeys()
    for number in range(MOST_COUNTED + 7):
        names.name((f"queue{number}", "send"))
    assert names.left_out == MOST_COUNTED
