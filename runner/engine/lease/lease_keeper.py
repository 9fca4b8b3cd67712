"""Lease keeper: a small process that renews the lease of its runner while C code holds the interpreter lock.

Such code stops every thread of the runner, and would cost all its tasks an attempt. The runner starts this file as a
script, without site-packages: it needs 4 MB and imports the database only when the runner falls silent.

The keeper ends with its runner. If the runner did not end by itself, such as after SIGKILL, the keeper ends its lease
first, and others rescue its tasks at once. It does not renew for a runner that is stopped (SIGSTOP, a debugger), which
must lose its lease, nor longer than the watchdog does for a blocked event loop.

Input: a line with the module search path, a line with the settings, both in hex; then one line per ping with the
runner's id and the seconds for which its event loop is blocked. Arguments: see `Limits`, after the runner's process id.
"""

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # without importing typing
    from runner.engine.lease.lease import BlockingRenewal
    from runner.store.heartbeat import LoopBlock

RENEWED, EXPIRED, FAILED = 3, 4, 5
"""Exit codes after a silence: the lease was renewed; it was renewed, and then expired because of the limit; no renewal
succeeded. Standard error has the last failure."""

LONGEST_ERROR = 1_000
"""Maximum length of the text of a failure, which fits into a pipe that is read at the end."""

TICK = 0.5
"""Seconds between two looks at the runner."""

ORPHANED = 5.0
"""Longest time in seconds from the end of the pipe until the process of the runner has ended."""


class Limits:
    """Times in seconds.

    Args:
        silence: time without a ping after which the keeper renews.
        longest: longest time for which it renews, including the time for which the event loop was blocked.
        interval: time between two renewals.
    """

    def __init__(self, silence: float, longest: float, interval: float) -> None:
        self.silence, self.longest, self.interval = silence, longest, interval


class Pings:
    """The runner's pings, with the time of the last one."""

    def __init__(self) -> None:
        self._input = b""
        self.path, self.settings = (bytes.fromhex(self._line().decode()) for _ in range(2))
        self.runner_id, self._blocked = 0, 0.0
        self._heard_at = time.monotonic()
        self._take()  # a ping may have come with the first lines

    def _take(self) -> None:
        while b"\n" in self._input:
            number, blocked = self._line().split()
            self.runner_id, self._blocked = int(number), float(blocked)

    def _line(self) -> bytes:
        while b"\n" not in self._input:
            if not self._read():
                raise SystemExit
        line, _, self._input = self._input.partition(b"\n")
        return line

    def _read(self) -> bool:
        data = os.read(0, 65_536)
        self._input += data
        return bool(data)

    def wait(self) -> bool | None:
        """Wait at most TICK seconds for a ping; return True after one, and None at the end of the pipe."""
        if not select.select([0], [], [], TICK)[0]:
            return False
        if not self._read():
            return None
        self._take()
        self._heard_at = time.monotonic()
        return True

    @property
    def silence(self) -> float:
        """Seconds since the last ping."""
        return time.monotonic() - self._heard_at

    @property
    def blocked(self) -> float:
        """Seconds for which the event loop has been blocked."""
        return self._blocked + self.silence


def is_stopped(pid: int) -> bool:
    """True if a process is stopped, has ended, or its state is unknown; false if it only is busy."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib would double the memory
            state = file.read().rpartition(b")")[2].split()[0]
    except OSError:  # macOS
        import subprocess

        command = ["ps", "-o", "state=", "-p", str(pid)]
        state = subprocess.run(command, capture_output=True, check=False).stdout.strip()[:1]  # noqa: S603 - a number
    return state not in (b"R", b"S", b"D", b"I", b"U")


STATES = {b"R": "runs", b"S": "sleeps", b"D": "waits for a device"}
"""States of a thread in /proc."""


def observe(pid: int) -> str:
    """Return the state of the thread that probably keeps the others of a process from running; empty without /proc.

    That is one that runs, or else the main thread: the others wait for it.
    """
    found = ""
    try:
        # The main thread comes first. A thread that runs holds the interpreter lock, or needs none.
        for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):  # noqa: PTH208 - pathlib would double the memory
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:  # noqa: PTH123
                state = file.read().rpartition(b")")[2].split()[0]
            if not found or state in (b"R", b"D"):
                with open(f"/proc/{pid}/task/{thread}/wchan", encoding="ascii", errors="replace") as file:  # noqa: PTH123
                    place = file.read()
                verb = STATES.get(state, f"is in state {state.decode(errors='replace')}")
                found = f"its thread {thread} {verb}{f' in {place}' if place not in ('', '0') else ''}"
            if state in (b"R", b"D"):
                break
    except (OSError, ValueError, IndexError):
        pass
    return found


def keep(runner_pid: int, limits: Limits) -> int:
    """Renew the lease during one silence of the runner.

    Returns:
        RENEWED, EXPIRED or FAILED after a silence, as soon as the runner sends a ping again; 0 when the runner has
        ended.
    """
    pings = Pings()
    renewal, tasks, renewed_at, lost, code, failure = None, None, 0.0, 0, 0, ""
    while True:
        heard = pings.wait()
        if heard and code:
            sys.stderr.write(failure[:LONGEST_ERROR])
            return code
        if heard is None or os.getppid() != runner_pid:  # another child may keep the pipe open
            if pings.runner_id not in (0, lost) and has_ended(runner_pid):
                end_lease(pings, renewal)
            return 0
        is_due = pings.silence >= limits.silence and time.monotonic() - renewed_at >= limits.interval
        if not is_due or pings.runner_id in (0, lost) or is_stopped(runner_pid):
            continue
        if pings.blocked > limits.longest:
            code = EXPIRED if code == RENEWED else code
            continue
        renewed_at = time.monotonic()
        try:
            renewal = renewal or _renewal(pings)
            if tasks is None:  # they do not change while no Python code runs
                tasks = renewal.suspects(pings.runner_id)
            if renewal.renew(pings.runner_id, _block(pings.blocked, tasks, observe(runner_pid))).alive:
                code = RENEWED
            else:
                lost = pings.runner_id
        except Exception as error:  # the next interval tries again
            code, failure = code or FAILED, _text(error)


def has_ended(runner_pid: int) -> bool:
    """Wait for the end of the runner, which may have closed the pipe without ending."""
    until = time.monotonic() + ORPHANED
    while os.getppid() == runner_pid and time.monotonic() < until:
        time.sleep(TICK / 10)
    return os.getppid() != runner_pid


def end_lease(pings: Pings, renewal: "BlockingRenewal | None") -> None:
    """End the lease of a runner whose process has ended; without the database, it ends at its time."""
    import contextlib

    with contextlib.suppress(Exception):
        (renewal or _renewal(pings)).end(pings.runner_id)


def _text(error: Exception) -> str:
    """Describe a failure without the values that a driver may show."""
    if "runner.db.errors" not in sys.modules:
        return repr(error)
    from runner.db.errors import translate

    return str(translate(error, "the database") or repr(error))


def _block(seconds: float, tasks: list[tuple[int, str]], fact: str) -> "LoopBlock":
    from runner.store.heartbeat import LoopBlock

    return LoopBlock(seconds, tasks, locked=True, fact=fact)


def _renewal(pings: Pings) -> "BlockingRenewal":
    import pickle

    sys.path[:] = os.fsdecode(pings.path).split("\0")
    from runner.db.database import Database
    from runner.engine.lease.lease import BlockingRenewal

    settings = pickle.loads(pings.settings)  # noqa: S301 - from the runner that started this process
    return BlockingRenewal(settings, Database.of(settings))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # sent to the whole group; the runner may drain
        signal.signal(number, signal.SIG_IGN)
    sys.exit(keep(int(sys.argv[1]), Limits(*map(float, sys.argv[2:]))))
