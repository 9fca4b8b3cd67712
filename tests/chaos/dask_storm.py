"""DaskStorm: random faults on runners, and on the scheduler and the workers of their cluster."""

from typing import ClassVar

from tests.chaos.dask_fleet import DaskFleet
from tests.chaos.storm import Fault, Storm


class DaskStorm(Storm):
    """Faults on one deployment with a cluster; the arguments are those of a Storm."""

    mix: ClassVar[str] = "dask"

    @property
    def _cluster(self) -> DaskFleet:
        assert isinstance(self._fleet, DaskFleet)
        return self._fleet

    def _faults(self) -> list[tuple[str, Fault]]:
        faults: list[tuple[str, Fault]] = [
            ("runner killed with SIGKILL", self._kill_runner),
            ("runner frozen with SIGSTOP", self._freeze_runner),
            ("runner drained by SIGHUP", self._hang_up_runner),
            ("worker killed with SIGKILL", self._kill_worker),
            ("worker killed with SIGKILL", self._kill_worker),
            ("worker frozen with SIGSTOP", self._freeze_worker),
            ("scheduler killed with SIGKILL", self._cluster.kill_scheduler),
        ]
        return faults if self._postgres is None else [*faults, ("PostgreSQL restarted", self._restart_server)]

    def _kill_worker(self) -> None:
        self._cluster.kill(self._draw.choice(self._cluster.workers))

    def _freeze_worker(self) -> None:
        self._freeze(self._draw.choice(self._cluster.workers))
