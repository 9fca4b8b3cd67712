"""ShardStorm: random faults on runners that serve several databases, and on each of these."""

from collections.abc import Callable, Mapping
from functools import partial

from runner.model.shard import CURRENT_SHARD
from tests.chaos.deployment import Deployment
from tests.chaos.storm import Fault, PostgresFaults, Storm


class ShardStorm(Storm):
    """The faults of a storm on each shard; the first shard's storm has the runners.

    Args:
        deployments: each shard, with a fleet that has the runners of all.
        seed: as of a Storm.
        rate: tasks per second that the submitters of all shards offer together.
        postgres: the faults of the shards that are in PostgreSQL.
    """

    def __init__(
        self, deployments: Mapping[str, Deployment], seed: int, rate: float, postgres: Mapping[str, PostgresFaults]
    ) -> None:
        super().__init__(next(iter(deployments.values())), seed, rate, None)
        share = rate / len(deployments)
        self._storms = {
            name: Storm(deployment, seed + number, share, postgres.get(name))
            for number, (name, deployment) in enumerate(deployments.items())
        }
        for storm in self._storms.values():
            storm._frozen = self._frozen

    def _add_refusals(self) -> None:
        self._in_each(Storm._add_refusals)

    def _faults(self) -> list[tuple[str, Fault]]:
        return [
            (f"{name}: {what}", partial(self._in_shard, name, fault))
            for name, storm in self._storms.items()
            for what, fault in storm._faults()
        ]

    def _maintain(self) -> None:
        self._in_each(Storm._maintain)

    def _repair(self) -> None:
        self._in_each(Storm._calm)
        self._in_each(Storm._await_end)
        self.live_at_end = sum(storm.live_at_end for storm in self._storms.values())

    def _in_each(self, work: Callable[[Storm], None]) -> None:
        for name, storm in self._storms.items():
            self._in_shard(name, partial(work, storm))

    def _in_shard(self, name: str, fault: Fault) -> None:
        """Journal what happens as events of a shard."""
        token = CURRENT_SHARD.set(name)
        try:
            fault()
        finally:
            CURRENT_SHARD.reset(token)
