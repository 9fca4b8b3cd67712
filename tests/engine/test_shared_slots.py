"""A pool of slots that two shards share."""

import pytest

from runner.engine import shared_slots
from runner.engine.shared_slots import SharedSlots
from runner.engine.slots import ProcessSlots, Slots
from tests.engine.harness import until


def yes() -> bool:
    return True


def pools(size: int = 4) -> tuple[Slots, Slots]:
    slots = SharedSlots()
    made = [slots.make(shard, Slots, "async", size, 0) for shard in ("eu", "us")]
    for own in made:
        vars(own).update(may_claim=yes, may_start=yes)
    return made[0], made[1]


async def test_a_free_slot_waits_for_the_shard_that_asked_for_it() -> None:
    eu, us = pools()
    eu.in_use = 4
    us.ask(yes)
    assert (eu.size, us.size) == (4, 0)
    eu.release()
    assert (eu.size, us.size) == (3, 1)
    us.ask(lambda: False)
    assert (eu.size, us.size) == (4, 1)


async def test_a_shard_that_does_not_claim_loses_its_turn_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_slots, "PATIENCE", 0.05)
    eu, us = pools()
    calls: list[int] = []
    vars(eu).update(on_room=lambda: calls.append(eu.size))
    eu.in_use = 4
    us.ask(yes)
    eu.ask(yes)
    eu.release()
    assert (eu.size, us.size) == (3, 1)
    await until(lambda: bool(calls))
    assert calls[-1] == 4
    us.ask(yes)
    assert (eu.size, us.size) == (3, 1)


async def test_the_slots_of_a_claim_in_progress_are_taken_while_the_shard_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eu, us = pools()
    us.claiming = 3
    assert eu.size == 1
    monkeypatch.setattr(shared_slots, "PATIENCE", 0.0)
    assert eu.size == 4
    us.claiming = 0
    assert eu.size == 4


async def test_a_shard_that_may_not_claim_has_no_turn() -> None:
    eu, us = pools()
    us.ask(yes)
    vars(us).update(may_claim=lambda: False)
    assert eu.size == 4


def test_a_resize_is_for_all_shards() -> None:
    eu, us = pools()
    eu.size = 10
    assert (eu.limit, us.limit, us.size) == (10, 10, 10)


def test_each_kind_of_pool_is_shared() -> None:
    slots = SharedSlots()
    eu = slots.make("eu", ProcessSlots, "processes", 2, 0)
    us = slots.make("us", ProcessSlots, "processes", 2, 0)
    eu.in_use = 1
    assert (isinstance(eu, ProcessSlots), us.size) == (True, 1)


def test_a_new_runner_of_a_shard_takes_the_place_of_the_earlier_one() -> None:
    slots = SharedSlots()
    slots.make("eu", Slots, "async", 4, 0).in_use = 3
    us = slots.make("us", Slots, "async", 4, 0)
    assert us.size == 1
    slots.make("eu", Slots, "async", 4, 0)
    assert us.size == 4
