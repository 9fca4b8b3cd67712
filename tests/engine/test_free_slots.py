"""Free slots of HTTP executors: each is one slot over all handlers of its executor."""

from collections import Counter

import pytest

from runner.engine.serving.free_slots import FreeSlots, HttpSession
from runner.policy.slot_shares import SlotUse


class Places:
    """Executors with free slots, and claimed tasks."""

    def __init__(self, **executors: int) -> None:
        self.pending, self.held = Counter[str](), Counter[str]()
        self.slots = FreeSlots(self.uses, self.held.__getitem__)
        self.sessions = {handlers: HttpSession("token", handlers) for handlers in executors}
        for handlers, free in executors.items():
            self.slots.change(self.sessions[handlers], free, frozenset(handlers))

    def uses(self, handlers: frozenset[str]) -> dict[str, SlotUse]:
        return {"": SlotUse(sum(self.pending[name] for name in handlers), False)}

    def room(self, handler: str) -> int:
        return self.slots.room("", handler, is_short=False)

    def rooms(self) -> str:
        """The room of each handler, such as a3 b0."""
        return " ".join(f"{name}{self.room(name)}" for name in "abcd" if self.room(name))


@pytest.mark.parametrize(
    ("executors", "pending", "rooms"),
    [
        ({"ab": 3}, "", "a3 b3"),
        ({"ab": 3}, "aab", ""),
        ({"ab": 3}, "bb", "a1 b1"),
        ({"ab": 5, "c": 5}, "aaaaa", "c5"),
        ({"ab": 5, "c": 5}, "ccccc", "a5 b5"),
        ({"ab": 2, "bc": 2}, "aa", "b2 c2"),
        ({"ab": 2, "bc": 2}, "bb", "a2 b2 c2"),
        ({"ab": 2, "bc": 2}, "bbb", "a1 b1 c1"),
        ({"ab": 2, "bcd": 2}, "cd", "a2 b2"),
        ({"abcd": 4, "ab": 2}, "abab", "a2 b2 c2 d2"),
        ({"abcd": 4, "ab": 2}, "cccc", "a2 b2"),
    ],
)
def test_a_free_slot_has_room_for_one_task_of_any_handler(executors: dict[str, int], pending: str, rooms: str) -> None:
    places = Places(**executors)
    places.pending.update(pending)
    assert places.rooms() == rooms


def test_short_tasks_are_claimed_before_a_slot_is_free() -> None:
    places = Places(ab=2)
    places.held.update("ab")
    assert places.slots.room("", "a", is_short=True) == 6
    places.pending.update("abab")
    assert places.slots.room("", "b", is_short=True) == 2


def test_an_executor_that_is_gone_or_changes_its_handlers_has_no_slots_for_the_earlier_ones() -> None:
    places = Places(ab=2, bc=1)
    places.slots.change(places.sessions["bc"], 1, frozenset("d"))
    assert places.rooms() == "a2 b2 d1"
    places.slots.remove(places.sessions["ab"])
    assert places.rooms() == "d1"
    assert places.slots.free == 1


def test_databases_that_want_slots_share_them() -> None:
    session, uses = HttpSession("token", "a"), {"eu": SlotUse(0, True, 1), "us": SlotUse(0, False, 2)}
    slots = FreeSlots(lambda _: uses, lambda _: 0)
    slots.change(session, 5, frozenset("a"))
    assert slots.room("eu", "a", is_short=False) == 5
    uses["us"] = SlotUse(0, True, 2)
    assert [slots.room(shard, "a", is_short=False) for shard in uses] == [3, 2], "the odd one by the longest wait"
    uses["us"] = SlotUse(4, True, 2)
    assert [slots.room(shard, "a", is_short=False) for shard in uses] == [1, 0]
