"""HttpFleet: servers for HTTP executors, and executors, as real processes; a proxy is in front of each server."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Self

from tests.chaos.deployment import Deployment
from tests.chaos.fleet import TIMEOUT, Fleet, Target
from tests.chaos.proxy import Proxy
from tests.ports import free_port
from tests.programs import Program

HANDLERS = ("chaos.work", "chaos.thread", "chaos.flaky")

SECRET = "correct-horse-battery"

PLACES = 3
"""Servers. Each has a port that a server in its place uses again."""

EXECUTORS = 2
"""Executors of each server."""


class HttpFleet(Fleet):
    """Servers as the runners of a database, and executors, which have no URL of it.

    Args:
        url: URL of the database for the servers.
        home: a folder for journals and logs.
        settings: settings of the processes by name.
    """

    def __init__(self, url: str, home: Path, **settings: str) -> None:
        tokens = f"chaos={SECRET}@{'+'.join(HANDLERS)}"
        super().__init__(url, home, serve_tokens=tokens, server_token=SECRET, **settings)
        self._places: dict[Program, int] = {}
        self._ports = [free_port() for _ in range(PLACES)]
        self.proxies = [Proxy(f"http://127.0.0.1:{port}", port) for port in self._ports]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for proxy in self.proxies:
            self._stack.enter_context(proxy)
        return self

    def __exit__(self, *error: object) -> None:
        for executor in self.executors:
            executor.kill()
            executor.wait()
        super().__exit__(*error)
        self._stack.close()

    @property
    def executors(self) -> list[Program]:
        """The executors that were started and not killed."""
        return [process for process in self._places if process not in self.runners]

    def start_runner(self, **environment: str) -> Program:
        """Start a server in a place without one."""
        taken = {self._places[process] for process in self.runners}
        place = next(place for place in range(PLACES) if place not in taken)
        server = self._start("runner", "serve", "--address", f"127.0.0.1:{self._ports[place]}", **environment)
        self._places[server] = place
        self.runners.append(server)
        return server

    def revive(self) -> None:
        """Start a process for each one that has ended, as a service manager does."""
        for process in [process for process in self._places if process.poll() is not None]:
            del self._places[process]
            if process in self.runners:
                self.runners.remove(process)
                self.start_runner()
        for place in range(PLACES):
            for _ in range(EXECUTORS - sum(self._places[process] == place for process in self.executors)):
                self._start_executor(place)

    def _start_executor(self, place: int) -> None:
        arguments = "-H", "tests.chaos.handlers", "--only", ",".join(HANDLERS)
        executor = self._start("runner", "work", "--server", self.proxies[place].url, *arguments)
        self._places[executor] = place

    def kill(self, process: Target) -> None:
        """Kill a process; `revive` starts another executor."""
        super().kill(process)
        self._places = {other: place for other, place in self._places.items() if other is not process}

    def stop(self) -> None:
        """Let the executors drain, then the servers, and wait until they are gone."""
        for executor in self.executors:
            executor.send_signal(signal.SIGTERM)
        for executor in self.executors:
            executor.wait(TIMEOUT)
        super().stop()


class HttpDeployment(Deployment):
    """A database with servers and executors."""

    make_fleet: ClassVar[type[Fleet]] = HttpFleet
