"""Shard: one of several databases that a profile names, as parts of a process know it."""

import contextvars
from typing import Any, Self

ROUTE = "route"
"""The header with the route of a task; only a profile with shards adds it."""

CURRENT_SHARD: contextvars.ContextVar[str | None] = contextvars.ContextVar("runner_shard", default=None)
"""The shard of the task that the current context executes."""


class ShardId(int):
    """The id of a task with its shard: other tasks of other shards have the same id."""

    shard: str

    def __new__(cls, shard: str, id: int) -> Self:
        """Make the id of a task of a shard."""
        own = super().__new__(cls, id)
        own.shard = shard
        return own

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the shard in copies."""
        return type(self), (self.shard, int(self))

    def __eq__(self, other: object) -> bool:
        """Compare the shards too; a plain id has none."""
        return int.__eq__(self, other) is True and getattr(other, "shard", self.shard) == self.shard

    def __ne__(self, other: object) -> bool:
        """Compare as `==` does; `int` has a comparison of its own."""
        return not self == other

    __hash__ = int.__hash__

    def __str__(self) -> str:
        """Return the id as commands take it, such as eu:17."""
        return f"{self.shard}:{int(self)}"

    __repr__ = __str__
