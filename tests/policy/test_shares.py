"""Shares of queues by their weights."""

from collections import Counter

import pytest

from runner.errors import InvalidSettings
from runner.policy.claim_order import WeightedOrder, known_order, parse_order
from runner.policy.lanes import Lane
from runner.policy.queue_shares import QueueShares

MAIL, SMS, REPORTS = (Lane(queue, "work", 1) for queue in ("mail", "sms", "reports"))
ORDER = WeightedOrder((("mail", 3.0), ("sms", 1.0)))


def take(shares: QueueShares, lanes: list[Lane], slots: int, rounds: int = 1) -> Counter[str]:
    """Claim all that is asked for, and count it by queue."""
    counts: Counter[str] = Counter()
    for _ in range(rounds):
        for lanes_of_queue, tasks in shares.divide(lanes, slots):
            queue = lanes_of_queue[0].queue
            shares.record([queue] * tasks)
            counts[queue] += tasks
    return counts


@pytest.mark.parametrize(("slots", "rounds"), [(400, 1), (1, 400), (7, 400)])
def test_queues_divide_the_slots_by_weight(slots: int, rounds: int) -> None:
    counts = take(QueueShares(ORDER.weight), [MAIL, SMS, REPORTS], slots, rounds)
    assert abs(counts["mail"] - 3 * counts["sms"]) <= 3
    assert abs(counts["sms"] - counts["reports"]) <= 1, "a queue that is not named has the weight 1"


def test_a_queue_alone_gets_all_slots() -> None:
    assert take(QueueShares(ORDER.weight), [SMS], 10) == {"sms": 10}


def test_a_queue_that_was_empty_gets_no_more_for_the_past() -> None:
    shares = QueueShares(ORDER.weight)
    take(shares, [SMS], 1_000)
    assert take(shares, [SMS, MAIL], 1, 40) == {"mail": 30, "sms": 10}


def test_a_queue_that_returned_less_than_its_share_keeps_its_claim() -> None:
    shares = QueueShares(ORDER.weight)
    shares.divide([MAIL, SMS], 4)
    shares.record(["sms"])
    assert [share.lanes for share in shares.divide([MAIL, SMS], 3)] == [[MAIL]]


def test_weights_are_written_as_they_are_read() -> None:
    text = "weighted:mail=3,sms=0.5"
    assert str(parse_order(text)) == text
    assert known_order(text) == WeightedOrder((("mail", 3.0), ("sms", 0.5)))


@pytest.mark.parametrize("weights", ["", "mail", "mail=0", "mail=-1", "mail=many", "=3", "mail=inf", "mail=nan"])
def test_a_bad_weight_is_refused_with_an_example(weights: str) -> None:
    with pytest.raises(InvalidSettings, match="such as mail=3"):
        parse_order(f"weighted:{weights}")
