"""ClusterFleet: runners whose handlers run in the workers of a cluster, as real processes."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

from tests.chaos.fleet import Fleet, Target
from tests.chaos.work import MODULE
from tests.programs import Program

HANDLERS = "tests.chaos.far_handlers"
"""Not imported here: a runner of another test has no cluster for them."""


class ClusterFleet(Fleet):
    """Runners and a cluster. The arguments are those of a Fleet."""

    head: ClassVar[str]
    """The name of the part of the cluster that every call needs."""

    def __enter__(self) -> Self:
        self.revive()
        return self

    def start_runner(self, **environment: str) -> Program:
        return super().start_runner(**{MODULE: HANDLERS}, **environment)

    @abstractmethod
    def workers(self) -> Sequence[Target]:
        """Return the workers that are there, to be killed or frozen."""

    @abstractmethod
    def kill_head(self) -> None:
        """Kill the part of the cluster that every call needs; `revive` starts another one."""
