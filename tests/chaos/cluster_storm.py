"""ClusterStorm: random faults on runners, and on the workers and the head of their cluster."""

from collections.abc import Callable
from typing import ClassVar

from tests.chaos.cluster_fleet import ClusterFleet
from tests.chaos.fleet import Target
from tests.chaos.storm import Fault, Storm


class ClusterStorm(Storm):
    """Faults on one deployment with a cluster; the arguments are those of a Storm."""

    mix: ClassVar[str] = "far"

    @property
    def _cluster(self) -> ClusterFleet:
        assert isinstance(self._fleet, ClusterFleet)
        return self._fleet

    def _faults(self) -> list[tuple[str, Fault]]:
        faults: list[tuple[str, Fault]] = [
            ("runner killed with SIGKILL", self._kill_runner),
            ("runner frozen with SIGSTOP", self._freeze_runner),
            ("runner drained by SIGHUP", self._hang_up_runner),
            ("worker killed with SIGKILL", lambda: self._hit_worker(self._fleet.kill)),
            ("worker killed with SIGKILL", lambda: self._hit_worker(self._fleet.kill)),
            ("worker frozen with SIGSTOP", lambda: self._hit_worker(self._freeze)),
            (f"{self._cluster.head} killed with SIGKILL", self._cluster.kill_head),
        ]
        return faults if self._postgres is None else [*faults, ("PostgreSQL restarted", self._restart_server)]

    def _hit_worker(self, fault: Callable[[Target], None]) -> None:
        if workers := self._cluster.workers():
            fault(self._draw.choice(workers))


class RayStorm(ClusterStorm):
    """Faults on a node of Ray, which starts slowly."""

    pause: ClassVar[tuple[float, float]] = (2.0, 10.0)
