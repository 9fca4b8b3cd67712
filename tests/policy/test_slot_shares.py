"""The slots of a pool that each shard may use."""

from hypothesis import given
from hypothesis import strategies as st

from runner.policy.slot_shares import SlotUse, slot_share

IDLE = SlotUse(0, False)


def shares(size: int, reserve: int = 0, **uses: SlotUse) -> dict[str, int]:
    return {name: slot_share(size, name, uses, reserve) for name in uses}


def test_a_shard_alone_has_the_whole_pool() -> None:
    assert slot_share(100, "eu", {"eu": SlotUse(20, True), "us": IDLE}) == 100
    assert slot_share(100, "eu", {"eu": SlotUse(20, True), "us": SlotUse(30, False)}) == 70


def test_shards_that_want_more_divide_the_pool() -> None:
    assert shares(100, eu=SlotUse(0, True), us=SlotUse(40, True)) == {"eu": 50, "us": 50}


def test_a_shard_that_uses_more_keeps_its_slots_and_gets_no_others() -> None:
    assert shares(100, eu=SlotUse(100, True), us=SlotUse(0, True)) == {"eu": 100, "us": 0}
    assert shares(100, eu=SlotUse(99, True), us=SlotUse(0, True)) == {"eu": 99, "us": 1}


def test_the_rest_of_a_shard_without_more_tasks_goes_to_the_others() -> None:
    assert shares(90, eu=SlotUse(10, False), us=SlotUse(0, True), ap=SlotUse(0, True)) == {"eu": 30, "us": 40, "ap": 40}


def test_a_single_slot_goes_to_the_shard_that_has_waited_longest() -> None:
    assert shares(1, eu=SlotUse(0, True, served=7), us=SlotUse(0, True, served=3)) == {"eu": 0, "us": 1}
    assert shares(1, eu=SlotUse(1, True, served=7), us=SlotUse(0, True, served=3)) == {"eu": 1, "us": 0}


def test_an_idle_shard_keeps_a_slot_in_reserve() -> None:
    assert shares(100, reserve=1, eu=SlotUse(50, True), us=IDLE) == {"eu": 99, "us": 50}


@given(
    st.integers(1, 30),
    st.lists(st.builds(SlotUse, st.integers(0, 30), st.booleans(), st.integers(0, 5)), min_size=1, max_size=5),
)
def test_shares_never_exceed_the_pool_and_leave_no_wanted_slot_idle(size: int, uses: list[SlotUse]) -> None:
    named, used = {}, 0
    for number, use in enumerate(uses):
        named[str(number)] = use._replace(used=min(use.used, size - used), served=use.served * 10 + number)
        used += named[str(number)].used
    wanting = [name for name, use in named.items() if use.wants]
    growth = sum(slot_share(size, name, named) - named[name].used for name in wanting)
    assert growth == (size - used if wanting else 0)
