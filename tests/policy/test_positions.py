from itertools import count

import pytest

from runner.policy import positions
from runner.policy.positions import POSITION_LAG, KnownTenant, LanePosition, TenantPositions, Visit

START = LanePosition(-1, 0)


def at(time: int, id: int = 0) -> LanePosition:
    return LanePosition(time, id)


def visits(**first: int) -> list[Visit]:
    return [Visit(tenant, True, at(time, 1)) for tenant, time in first.items()]


def known(tenants: TenantPositions, now: float, after: str = "", most: int = 9) -> dict[str, LanePosition]:
    return {each.tenant: each.old for each in tenants.following(after, most, now)}


def test_a_tenant_continues_before_its_first_waiting_task_after_a_lag() -> None:
    tenants = TenantPositions(START)
    tenants.meet(visits(bolt=5, acme=7), 0.0)
    assert tenants.following("", 9, 0.5 * POSITION_LAG) == [KnownTenant("acme", START), KnownTenant("bolt", START)]
    assert tenants.following("", 9, POSITION_LAG) == [KnownTenant("acme", at(7)), KnownTenant("bolt", at(5))]
    assert tenants.following("ada", 9, POSITION_LAG) == [KnownTenant("bolt", at(5))]
    assert [each.tenant for each in tenants.following("", 1, POSITION_LAG)] == ["acme"]
    assert (tenants.has_after("acme"), tenants.has_after("bolt")) == (True, False)


def test_the_position_of_a_tenant_lags_and_moves_on_with_the_time() -> None:
    tenants = TenantPositions(START)
    tenants.meet(visits(acme=0), POSITION_LAG)
    for tenth in range(40):
        now = (1 + tenth / 10) * POSITION_LAG
        tenants.advance("acme", at(tenth), now)
        (old,) = known(tenants, now).values()
        assert tenth - 20 <= old.run_at <= max(0, tenth - 10), tenth
    assert known(tenants, 6 * POSITION_LAG) != known(tenants, 7 * POSITION_LAG) == {"acme": at(39)}, (
        "without further tasks"
    )
    tenants.advance("acme", at(5), 8 * POSITION_LAG)
    assert known(tenants, 10 * POSITION_LAG) == {"acme": at(39)}, "a claim moves no position back"


def test_a_task_before_the_old_position_moves_it_back() -> None:
    tenants = TenantPositions(START)
    tenants.meet(visits(acme=5), 0.0)
    assert known(tenants, POSITION_LAG) == {"acme": at(5)}
    tenants.meet(visits(acme=3), POSITION_LAG)
    assert known(tenants, POSITION_LAG) == {"acme": at(3)}


def test_the_tenants_without_a_task_for_the_longest_time_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "MOST_TENANTS", 2)
    tenants = TenantPositions(START)
    time = count(1)
    for name in ("cube", "bolt", "cube", "acme"):
        tenants.meet(visits(**{name: next(time)}), 0.0)
    assert list(known(tenants, 0.0)) == ["acme", "cube"]
    tenants.advance("bolt", at(9), 0.0)
    assert list(known(tenants, 0.0)) == ["acme", "cube"], "a claim of a forgotten tenant"
