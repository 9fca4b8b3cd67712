"""RayFleet: runners, and a head node of Ray with its workers, as real processes."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.chaos.cluster_fleet import ClusterFleet
from tests.chaos.deployment import Deployment
from tests.chaos.fleet import FIRST_PAUSE, Fleet
from tests.ports import free_port
from tests.programs import ROOT, Program

WORKER, AGENT = b"ray::", b"Agent"
"""The command line of a worker begins with the first text. A node ends with its agents, which are no workers."""


@dataclass(frozen=True)
class RayWorker:
    """A worker process that a node started."""

    pid: int

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> None:
        """Its node waits for it."""


class RayFleet(ClusterFleet):
    """Runners whose handlers run on a node of Ray.

    Args:
        url: URL of the database for the runners; the workers have none.
        home: a folder for journals and logs.
        settings: settings of the runners by name.
    """

    head = "node"

    def __init__(self, url: str, home: Path, **settings: str) -> None:
        self._ports = free_port(), free_port()
        super().__init__(url, home, executors=f"far=ray:127.0.0.1:{self._ports[0]}", **settings)
        self._node: Program | None = None
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        """Its sockets need a short path."""

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._end_node()
        shutil.rmtree(self._folder, ignore_errors=True)

    def revive(self) -> None:
        """Start a process for each runner that has ended, and the node."""
        super().revive()
        if self._node is None or self._node.poll() is not None:
            self._end_node()
            client, port = self._ports
            quiet = "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={self._folder}"
            ports = f"--port={port}", f"--ray-client-server-port={client}", "--min-worker-port=0", "--max-worker-port=0"
            how = "start", "--head", "--block", "--num-cpus=2", *ports, *quiet
            self._node = self._start("tests.chaos.ray_node", *how, PYTHONPATH=str(ROOT))

    def workers(self) -> Sequence[RayWorker]:
        return [RayWorker(pid) for pid in self._processes() if _is_worker(pid)]

    def kill_head(self) -> None:
        for worker in self.workers():
            self.journal.write("kill", worker.pid)
        self._end_node()

    def _end_node(self) -> None:
        """Kill all processes of the node, as the loss of its machine does."""
        if self._node is None:
            return
        self._node.kill()
        self._node.wait()
        while pids := list(self._processes()):  # one may have started another meanwhile
            for pid in pids:
                RayWorker(pid).kill()
            time.sleep(FIRST_PAUSE)

    def _processes(self) -> Iterator[int]:
        """Yield the processes in the session of the node."""
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self._node is not None and os.getsid(pid := int(folder.name)) == self._node.pid:
                    yield pid


def _is_worker(pid: int) -> bool:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return command.startswith(WORKER) and AGENT not in command
    return False


class RayDeployment(Deployment):
    """A database with runners and a node of Ray."""

    make_fleet: ClassVar[type[Fleet]] = RayFleet
