"""The rig: an empty database for each measurement, and the processes of one system."""

import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import psycopg

from benchmarks import contract
from benchmarks.systems import Home, System
from tests.postgres.server import Server

CALL_SECONDS = 900.0
STOP_SECONDS = 60.0
POLL = 0.005
"""Seconds between two looks at the files of the workers."""
QUIET = 1.0
"""Seconds without a start after which the database is asked."""


class BenchmarkFailed(Exception):
    """A system did not do what the contract demands."""


class Usage(NamedTuple):
    """The resources of a worker until its end."""

    cpu: float
    """Seconds."""
    memory: float
    """MiB at most."""


class Rig:
    """The databases of one system, and its commands.

    Args:
        folder: for the SQLite database, the files of the workers, and error output.
    """

    def __init__(self, system: System, folder: Path, server: Server | None, home: Home, part: str) -> None:
        self.system, self._folder, self._server, self._home = system, folder, server, home
        self._part = part
        self._name = f"bench_{time.monotonic_ns()}"

    def __enter__(self) -> Self:
        if self._server is not None:
            self._administrate(f"CREATE DATABASE {self._name}")
        self.call("setup")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._server is not None:
            self._administrate(f"DROP DATABASE {self._name} WITH (FORCE)")

    @property
    def url(self) -> str:
        """The database, as the contract names it."""
        return str(self._folder / f"{self._name}.db") if self._server is None else self._server.url(self._name)

    def call(self, verb: str, *numbers: int) -> float:
        """Execute a verb to its end, and return the seconds that it reports."""
        command = [*self._home.command(self.system), verb, *map(str, numbers)]
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, timeout=CALL_SECONDS, check=False
        )
        if done.returncode:
            raise BenchmarkFailed(f"{self.system.name} {verb}: {done.stderr.strip()[-1_000:]}")
        return float(done.stdout.split()[-1])

    def analyze(self) -> None:
        """Vacuum and analyze the tables, as PostgreSQL would within a minute, and write a checkpoint."""
        if self._server is not None:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
                connection.execute("CHECKPOINT")

    def server_cpu(self) -> float:
        """The CPU seconds of the server until now; 0 for a file."""
        return 0.0 if self._server is None else self._server.cpu()

    @contextmanager
    def old_snapshot(self) -> Iterator[None]:
        """Hold a snapshot of the database, so that no dead row can be removed."""
        if self._server is None:
            reader: Any = sqlite3.connect(self.url, isolation_level=None)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
        else:
            reader = psycopg.connect(self.url)
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reader.execute("SELECT 1")
        try:
            yield
        finally:
            reader.close()

    def start(self, verb: str, *numbers: int, **options: Any) -> "subprocess.Popen[str]":
        """Start a verb that does not end by itself."""
        environment = self._environment() | options.pop("variables", {})
        with (self._folder / "errors.txt").open("ab") as errors:
            command = [*self._home.command(self.system), verb, *map(str, numbers)]
            return subprocess.Popen(command, env=environment, stderr=errors, text=True, **options)

    def errors(self) -> str:
        """The end of the error output of workers."""
        return (self._folder / "errors.txt").read_text(errors="replace").strip()[-1_000:]

    def file(self, worker: int) -> Path:
        """The file of a worker."""
        return self._folder / f"worker{worker}.bin"

    def _environment(self) -> dict[str, str]:
        own = {"BENCH_URL": self.url, "BENCH_PART": self._part}
        return os.environ | self._home.environment(self.system) | own

    def _administrate(self, statement: str) -> None:
        assert self._server is not None
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            connection.execute(statement)


class Workers:
    """The worker processes of one measurement."""

    def __init__(self, rig: Rig, count: int, tasks: int) -> None:
        self._rig, self._tasks = rig, tasks
        self._files = [rig.file(number) for number in range(count)]
        for file in self._files:
            contract.prepare(file, tasks)
        self._processes: list[subprocess.Popen[str]] = []
        self._usages: list[Usage] = []

    def __enter__(self) -> Self:
        for file in self._files:
            output = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            self._processes.append(self._rig.start("worker", variables={"BENCH_FILE": str(file)}, **output))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                process.wait()

    @property
    def starts(self) -> int:
        """Started tasks."""
        return sum(contract.starts(file) for file in self._files)

    def wait_for_starts(self, tasks: int, seconds: float) -> None:
        """Wait until so many tasks have started."""
        deadline = time.monotonic() + seconds
        while self.starts < tasks:
            self._check(deadline)
            time.sleep(POLL)

    def wait_until_done(self, seconds: float) -> float:
        """Wait until the database has no unfinished task, and return the time in monotonic seconds.

        The database is asked only when all tasks have started, or when no other one starts: a question costs it time.
        """
        deadline = time.monotonic() + seconds
        starts, changed_at = 0, time.monotonic()
        left = self._rig.start("left", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._ask(left)
            while True:
                now = time.monotonic()
                if (count := self.starts) != starts:
                    starts, changed_at = count, now
                if (starts >= self._tasks or now - changed_at > QUIET) and not self._ask(left):
                    return time.monotonic()
                self._check(deadline)
                time.sleep(POLL)
        finally:
            left.kill()
            left.communicate()

    def stop(self) -> tuple[list[contract.Reading], list[Usage]]:
        """Stop all workers, and return their records and what they used."""
        for process in self._processes:
            process.terminate()
        usages = [self._wait(process) for process in self._processes]
        return [contract.read(file) for file in self._files], usages

    def _wait(self, process: "subprocess.Popen[str]") -> Usage:
        deadline = time.monotonic() + STOP_SECONDS
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return Usage(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1_024)
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{self._rig.system.name}: a worker does not end after SIGTERM")
            time.sleep(POLL)

    def _ask(self, left: "subprocess.Popen[str]") -> int:
        assert left.stdin is not None
        assert left.stdout is not None
        left.stdin.write("\n")
        left.stdin.flush()
        if not (line := left.stdout.readline()):
            raise BenchmarkFailed(f"{self._rig.system.name} left: {self._rig.errors()}")
        return int(line)

    def _check(self, deadline: float) -> None:
        if any(process.poll() is not None for process in self._processes):
            raise BenchmarkFailed(f"{self._rig.system.name}: a worker ended: {self._rig.errors()}")
        if time.monotonic() > deadline:
            why = f"{self.starts:,} of {self._tasks:,} tasks started in time"
            raise BenchmarkFailed(f"{self._rig.system.name}: {why}: {self._rig.errors()}")


def resume_after_kill(rig: Rig, lease: int, alive: float, *, standby: bool) -> float:
    """Kill the process of a workflow in its second step; return the seconds until another one runs this step.

    Args:
        lease: seconds after which a killed process counts as lost; 0 for the default.
        alive: seconds for which the process has lived.
        standby: the other process works already; otherwise it starts after the kill.
    """
    file, deadline = rig.file(0), time.monotonic() + CALL_SECONDS
    crew: list[subprocess.Popen[str]] = []

    def start(verb: str) -> None:
        output: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        crew.append(rig.start(verb, lease, variables={"BENCH_FILE": str(file)}, **output))

    def wait_for(place: str, times: int) -> float:
        while len(found := contract.arrivals(file, place)) < times:
            if crew[-1].poll() is not None or time.monotonic() > deadline:
                raise BenchmarkFailed(f"{rig.system.name}: {place} was reached {len(found)} times: {rig.errors()}")
            time.sleep(POLL)
        return found[-1]

    try:
        start("begin")
        wait_for("second", 1)
        if standby:
            start("resume")
            wait_for("ready", 2)
        time.sleep(alive)
        if len(contract.arrivals(file, "second")) > 1:
            raise BenchmarkFailed(f"{rig.system.name}: another process runs the step although the first one is alive")
        crew[0].kill()
        killed = time.monotonic()
        crew[0].wait()
        if not standby:
            start("resume")
        seconds = wait_for("second", 2) - killed
        if (count := len(contract.arrivals(file, "first"))) != 1:
            raise BenchmarkFailed(f"{rig.system.name}: the first step ran {count} times")
        return seconds
    finally:
        for process in crew:
            process.kill()
            process.wait()
        file.unlink(missing_ok=True)
