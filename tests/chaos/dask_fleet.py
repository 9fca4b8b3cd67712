"""DaskFleet: runners, and the scheduler and the workers of a Dask cluster, as real processes."""

from pathlib import Path
from typing import ClassVar, Self

from tests.chaos.deployment import Deployment
from tests.chaos.fleet import Fleet
from tests.chaos.work import MODULE
from tests.ports import free_port
from tests.programs import Program

WORKERS = 2

HANDLERS = "tests.chaos.far_handlers"
"""Not imported here: a runner of another test has no cluster for them."""


class DaskFleet(Fleet):
    """Runners whose handlers run in a Dask cluster.

    Args:
        url: URL of the database for the runners; the workers have none.
        home: a folder for journals and logs.
        settings: settings of the runners by name.
    """

    def __init__(self, url: str, home: Path, **settings: str) -> None:
        self._address = f"tcp://127.0.0.1:{(port := free_port())}"
        super().__init__(url, home, executors=f"far=dask:{self._address}", **settings)
        self._port = str(port)
        self._scheduler: Program | None = None
        self.workers: list[Program] = []

    def __enter__(self) -> Self:
        self.revive()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for process in [*self.workers, *([self._scheduler] if self._scheduler else [])]:
            process.kill()
            process.wait()

    def start_runner(self, **environment: str) -> Program:
        return super().start_runner(**{MODULE: HANDLERS}, **environment)

    def revive(self) -> None:
        """Start a process for each one that has ended; workers end without their scheduler."""
        super().revive()
        if self._scheduler is None or self._scheduler.poll() is not None:
            place = "--host", "127.0.0.1", "--port", self._port
            self._scheduler = self._start("distributed.cli.dask_scheduler", *place, "--no-dashboard")
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < WORKERS:
            how = "--no-dashboard", "--no-nanny", "--nthreads", "2", "--death-timeout", "10"
            self.workers.append(self._start("distributed.cli.dask_worker", self._address, *how))

    def kill_scheduler(self) -> None:
        """Kill the scheduler, which loses every call."""
        assert self._scheduler is not None
        self.kill(self._scheduler)


class DaskDeployment(Deployment):
    """A database with runners and a Dask cluster."""

    make_fleet: ClassVar[type[Fleet]] = DaskFleet
