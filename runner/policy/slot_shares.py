"""Slot shares: how many slots of a common pool each shard may use."""

from collections.abc import Mapping
from typing import NamedTuple


class SlotUse(NamedTuple):
    """The use of a pool by one shard.

    Args:
        used: slots in which its tasks run, or for which a claim is in progress.
        wants: True if it has more tasks for the pool.
        served: a number that was higher at the later start of a task.
    """

    used: int
    wants: bool
    served: int = 0


def slot_share(size: int, own: str, uses: Mapping[str, SlotUse], reserve: int = 0) -> int:
    """Return the number of slots that a shard may use now.

    The shards that want more divide the pool evenly, except that one keeps what it already uses. The odd slots go to
    those that have waited longest. A slot that no other shard wants is free for any.

    Args:
        size: slots of the pool.
        own: the shard, as if it wanted more.
        uses: the use by each shard, this one among them.
        reserve: slots that each shard without a task keeps free for its next one.
    """
    competing = {name: use for name, use in uses.items() if use.wants or name == own}
    rest = size - sum(max(use.used, reserve) for name, use in uses.items() if name not in competing)
    while over := [name for name, use in competing.items() if use.used * len(competing) > rest]:
        if own in over:
            return uses[own].used
        rest -= sum(competing.pop(name).used for name in over)
    rest = max(0, rest)
    order = sorted(competing, key=lambda name: (competing[name].used, competing[name].served))
    return rest // len(competing) + (order.index(own) < rest % len(competing))
