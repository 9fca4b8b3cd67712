"""A PostgreSQL server in a temporary directory, to be started, stopped and killed at will."""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

import psycopg

from tests.ports import free_port
from tests.postgres.programs import account, reachable
from tests.postgres.watcher import NO_SERVER, Watcher

Mode = Literal["fast", "immediate"]

WAIT_SECONDS = 120.0
PAUSE = 0.01
STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
READY_LINE = 7
READY = ("ready", "standby")
TEMPLATE: list[Path] = []
"""The folder with the data of a new server, for all processes of a run: `initdb` takes ten times longer than `cp`."""

LEFTOVERS = "pre-existing shared memory block"

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # The tests kill processes, never the machine.
    "fsync": "off",
    "autovacuum": "off",
    # 5 h 45 min off: a moment that lost its time zone on the way is plainly wrong.
    "timezone": "Asia/Kathmandu",
}


class ServerFailed(Exception):
    """PostgreSQL did not start. Its own words follow."""


class Server:
    """One server: the same port and the same data from its first start until `close()`."""

    def __init__(self, programs: Path, port: int | None = None, **settings: str) -> None:
        self.port = port or free_port()
        self._settings = SETTINGS | {"port": str(self.port)} | settings
        self.home = _new_home()
        self._data = self.home / "data"
        self._log = self.home / "log"
        self._watcher = Watcher(self.home)
        self._process: subprocess.Popen[bytes] | None = None
        self._hangs = False
        self._programs = reachable(programs, self.home)

    def __enter__(self) -> Self:
        try:
            self.initialise()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def log(self) -> str:
        """The log of the server since its last start."""
        return self._log.read_text(errors="replace")

    def initialise(self) -> None:
        """Make the data of a new server. The first one of a test run leaves a copy for the others."""
        if not TEMPLATE:
            self._make_data()
            return
        (template,) = TEMPLATE
        with template.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                self._make_data()
                _copy(self._data, unfinished := template.with_suffix(".new"))
                unfinished.rename(template)
                return
        _copy(template, self._data)

    def _make_data(self) -> None:
        self._fill("initdb", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8", "-U", "postgres")

    def start(self) -> None:
        """Return when the server takes connections; after a kill, too."""
        give_up = time.monotonic() + WAIT_SECONDS
        while not self._comes_up(give_up):
            # The children of a killed server let go of its memory a moment later.
            if LEFTOVERS not in self.log() or time.monotonic() > give_up:
                raise ServerFailed(self.log())
            time.sleep(PAUSE)

    def stop(self, mode: Mode = "fast") -> None:
        """Cut off every client; `immediate` leaves the clean-up to the next start, as a crash does."""
        self._end(STOP_SIGNALS[mode])

    def kill9(self) -> None:
        self._end(signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill every process, also of a server that hangs: stopped children would survive their postmaster."""
        self._signal_all(signal.SIGKILL)
        self._hangs = False
        self._end(signal.SIGKILL)

    def hang(self) -> None:
        """Stop every process of the server; the kernel still accepts connections, and acknowledges what arrives."""
        self._hangs = True
        self._signal_all(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the processes of a server that hangs continue."""
        self._signal_all(signal.SIGCONT)
        self._hangs = False

    def cpu(self) -> float:
        """The CPU seconds of all processes of the server, also of those that have ended."""
        assert self._process is not None
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                is_master = stat.parent.name == str(self._process.pid)
                if is_master or int(fields[1]) == self._process.pid:
                    ticks += sum(map(int, fields[11 : 15 if is_master else 13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _signal_all(self, number: signal.Signals) -> None:
        """Signal the postmaster and its children, which have another parent once it is dead."""
        assert self._process is not None
        if number == signal.SIGSTOP:
            self._process.send_signal(number)  # it starts no others
        children = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == self._process.pid:
                    children.append(int(folder.name))
        self._process.send_signal(number)
        for child in children:
            with suppress(OSError):
                os.kill(child, number)

    def restart(self, mode: Mode = "fast") -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server and remove everything that it wrote."""
        if self._process is not None and self._hangs:
            self.kill_all()
        self.stop("immediate")
        self._watcher.close()

    def _fill(self, program: str, *options: str) -> None:
        if self._launch(program, *options, "-D", str(self._data)).wait() != 0:
            raise ServerFailed(self.log())

    def _comes_up(self, give_up: float) -> bool:
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        self._process = self._launch("postgres", "-D", str(self._data), *options)
        self._watcher.follow(self._process.pid)
        while self._process.poll() is None and time.monotonic() < give_up:
            if self._is_ready(self._process.pid):
                return True
            time.sleep(PAUSE)
        return False

    def _is_ready(self, pid: int) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # A killed server leaves its file behind, with its own process id in it.
        return lines[:1] == [str(pid)] and len(lines) > READY_LINE and lines[READY_LINE].strip() in READY

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        self._process.wait(WAIT_SECONDS)
        self._process = None
        self._watcher.follow(NO_SERVER)

    def _launch(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [self._programs / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
                **account(),
            )


class Standby(Server):
    """A standby: it follows another server, and accepts no other changes."""

    def __init__(self, master: Server, programs: Path, port: int | None = None) -> None:
        super().__init__(programs, port)
        self._master = master

    def initialise(self) -> None:
        address = ["-h", "127.0.0.1", "-p", str(self._master.port), "-U", "postgres"]
        self._fill("pg_basebackup", *address, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")

    def promote(self) -> None:
        """Promote it: it accepts changes."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")


def _new_home() -> Path:
    # In memory, if the temporary folders of the tests are.
    home = Path(tempfile.mkdtemp(prefix="tasktui-postgres-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    if "user" in account():
        shutil.chown(home, account()["user"], account()["group"])
    return home


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)  # shutil keeps no owners


def _environment() -> dict[str, str]:
    """A client's settings (PGDATA, PGPORT, ...) must not reach the server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}
