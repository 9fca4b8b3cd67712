"""Claim orders by name, and their bounds."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.db.dialects import DIALECTS
from runner.errors import InvalidSettings
from runner.policy.claim_order import AgedOrder, StrictOrder, known_order, parse_order

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


class OwnOrder(StrictOrder):
    """An order of a user."""


class NoOrder:
    """A class that is not one."""


@pytest.mark.parametrize("text", ["strict", "fresh", "aged", "aged:10s"])
def test_an_order_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_order(text)) == text
    assert parse_order(text) == known_order(text)


def test_a_class_of_the_user_is_loaded_only_by_its_runner() -> None:
    text = f"{__name__}:OwnOrder"
    assert isinstance(parse_order(text), OwnOrder)
    assert known_order(text) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fair", "'fair': it is not known; use strict, fresh, aged, aged:10s"),
        ("aged:soon", "'soon' is not a duration"),
        ("aged:0s", "the step must be more than 0"),
        ("no.such.module:Order", "cannot be loaded: ModuleNotFoundError"),
        (f"{__name__}:Missing", "cannot be loaded: AttributeError"),
        (f"{__name__}:NoOrder", "lacks within_lane, of_lanes"),
    ],
)
def test_a_bad_order_is_refused_with_the_choices(text: str, why: str) -> None:
    with pytest.raises(InvalidSettings, match=why) as caught:
        parse_order(text)
    assert "package.module:Class" in str(caught.value)


def at(seconds: float, priority: int, as_text: bool) -> tuple[int, Any, int]:
    """Priority, due time and id of a claimed task of SQLite, or of PostgreSQL."""
    dialect = DIALECTS["sqlite" if as_text else "postgresql"]
    return priority, dialect.position(NOW + timedelta(seconds=seconds)), 1


@pytest.mark.parametrize("as_text", [True, False])
def test_a_priority_is_worth_one_step_of_waiting(as_text: bool) -> None:
    order = AgedOrder(timedelta(seconds=10))
    first = order.sort_key(*at(0, 1, as_text))
    assert order.sort_key(*at(79, 9, as_text)) < first < order.sort_key(*at(81, 9, as_text))
    assert order.lane_key(9, 79.0) < order.lane_key(1, 0.0) < order.lane_key(9, 81.0)
