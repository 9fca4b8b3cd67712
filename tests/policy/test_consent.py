"""What has to be said before something is done."""

from runner.policy.consent import Demand, demand


def test_more_is_demanded_of_more() -> None:
    assert demand(1, production=False, name="db") == Demand("y")
    assert demand(20, production=False, name="db") == Demand("y")
    assert demand(21, production=False, name="db") == Demand("21")
    assert demand(1_001, production=False, name="db") == Demand("db", reason=True)
    assert demand(1, production=True, name="db") == Demand("db", reason=True)
