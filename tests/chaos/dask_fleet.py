"""DaskFleet: runners, and the scheduler and the workers of a Dask cluster, as real processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.chaos.cluster_fleet import ClusterFleet
from tests.chaos.deployment import Deployment
from tests.chaos.fleet import Fleet
from tests.ports import free_port
from tests.programs import Program

WORKERS = 2


class DaskFleet(ClusterFleet):
    """Runners whose handlers run in a Dask cluster.

    Args:
        url: URL of the database for the runners; the workers have none.
        home: a folder for journals and logs.
        settings: settings of the runners by name.
    """

    head = "scheduler"

    def __init__(self, url: str, home: Path, **settings: str) -> None:
        self._address = f"tcp://127.0.0.1:{(port := free_port())}"
        super().__init__(url, home, executors=f"far=dask:{self._address}", **settings)
        self._port = str(port)
        self._scheduler: Program | None = None
        self._workers: list[Program] = []

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for process in [*self._workers, *([self._scheduler] if self._scheduler else [])]:
            process.kill()
            process.wait()

    def revive(self) -> None:
        """Start a process for each one that has ended; workers end without their scheduler."""
        super().revive()
        if self._scheduler is None or self._scheduler.poll() is not None:
            place = "--host", "127.0.0.1", "--port", self._port
            self._scheduler = self._start("distributed.cli.dask_scheduler", *place, "--no-dashboard")
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        while len(self._workers) < WORKERS:
            how = "--no-dashboard", "--no-nanny", "--nthreads", "2", "--death-timeout", "10"
            self._workers.append(self._start("distributed.cli.dask_worker", self._address, *how))

    def workers(self) -> Sequence[Program]:
        return self._workers

    def kill_head(self) -> None:
        assert self._scheduler is not None
        self.kill(self._scheduler)


class DaskDeployment(Deployment):
    """A database with runners and a Dask cluster."""

    make_fleet: ClassVar[type[Fleet]] = DaskFleet
