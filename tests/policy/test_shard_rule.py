"""The shard of a route."""

from collections import Counter

import pytest

from runner.errors import InvalidSettings, InvalidTask
from runner.policy.shard_rule import by_hash, load_shard_rule

ROUTES = [f"customer-{number}" for number in range(3_000)]


def to_us(route: str) -> str:
    return "us" if route.startswith("us") else "nowhere"


def test_the_shard_of_a_route_stays_the_same_in_each_release() -> None:
    assert [by_hash(route, ("eu", "us")) for route in ROUTES[:6]] == ["us", "us", "us", "eu", "us", "eu"]


def test_each_shard_has_its_part_of_the_routes() -> None:
    counts = Counter(by_hash(route, ("eu", "us", "ap")) for route in ROUTES)
    assert all(900 < count < 1_100 for count in counts.values())


def test_the_order_of_the_shards_does_not_matter() -> None:
    assert [by_hash(route, ("eu", "us")) for route in ROUTES] == [by_hash(route, ("us", "eu")) for route in ROUTES]


def test_a_new_shard_takes_routes_and_moves_no_others() -> None:
    moved = {
        (before, after)
        for route in ROUTES
        if (before := by_hash(route, ("eu", "us"))) != (after := by_hash(route, ("eu", "us", "ap")))
    }
    assert moved == {("eu", "ap"), ("us", "ap")}


def test_a_function_of_the_application_chooses_the_shard() -> None:
    rule = load_shard_rule(f"{__name__}:to_us", ("eu", "us"))
    assert rule("us-1") == "us"
    with pytest.raises(InvalidTask, match=r"`route`: the shard_rule .*:to_us returned 'nowhere'.* are eu, us"):
        rule("eu-1")


@pytest.mark.parametrize(
    ("text", "why"),
    [("round-robin", "use hash"), ("missing.module:rule", "No module named"), (f"{__name__}:ROUTES", "not a function")],
)
def test_a_rule_that_cannot_be_loaded_is_an_error_of_the_settings(text: str, why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        load_shard_rule(text, ("eu", "us"))


def test_a_rule_that_raises_refuses_the_route() -> None:
    with pytest.raises(InvalidTask, match="raised TypeError"):
        load_shard_rule("time:sleep", ("eu", "us"))("eu-1")
