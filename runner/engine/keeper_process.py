"""The runner's end of its lease keeper: starts the process, sends pings, and reports its actions."""

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

from runner.engine import lease_keeper
from runner.settings import Settings
from runner.text.sanitize import one_line

log = logging.getLogger("runner.watchdog")

SILENCE = 3.0
"""Longest time in seconds without a ping before the keeper renews."""

RESTART = 60.0
"""Seconds before a keeper that failed is started again."""

END_TIMEOUT = 2.0
"""Maximum wait in seconds for the end of the process."""

MESSAGES = {
    lease_keeper.RENEWED: "the lease keeper renewed the lease while this process did not respond",
    lease_keeper.FAILED: "the lease keeper could not renew the lease while this process did not respond",
    lease_keeper.EXPIRED: "the lease keeper renewed the lease while this process did not respond, up to the limit",
}


class KeeperProcess:
    """The lease keeper of a runner process; see runner.engine.lease_keeper.

    Args:
        settings: the database, the lease and the heartbeat interval.
        every: seconds between two pings.
        longest: longest time in seconds for which the keeper renews.
    """

    def __init__(self, settings: Settings, every: float, longest: float) -> None:
        lease = settings.lease_timeout.total_seconds()
        silence = max(1.5 * every, min(SILENCE, lease / 3))
        interval = settings.heartbeat_interval.total_seconds()
        self._limits = [str(value) for value in (silence, longest, min(interval, lease / 5))]
        # The package's folder too, because an editable install may find it through an import hook.
        path = [*sys.path, str(Path(__file__).parents[2])]
        self._header = f"{os.fsencode(chr(0).join(path)).hex()}\n{pickle.dumps(settings).hex()}\n".encode()
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0

    @property
    def pid(self) -> int | None:
        """The process id; None while no keeper is running."""
        return self._process.pid if self._process is not None else None

    def ping(self, runner_id: int, blocked: float) -> None:
        """Report that this process executes Python code; start the keeper if none is running.

        Args:
            runner_id: the id of the runner; 0 while it has none.
            blocked: seconds for which the event loop has been blocked.
        """
        if self._process is not None and (code := self._process.poll()) is not None:
            self._reap(code)
        if self._process is None and time.monotonic() >= self._start_at:
            self._start()
        self._send(b"%d %f\n" % (runner_id, blocked))

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", lease_keeper.__file__, str(os.getpid()), *self._limits]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, bufsize=0)  # noqa: S603
        except OSError as error:
            self._start_at = time.monotonic() + RESTART
            log.warning("could not start the lease keeper: %s", error.strerror)
            return
        self._send(self._header)
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)  # a keeper that is stopped must not block the watchdog

    def _send(self, data: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                self._process.stdin.write(data)

    def _reap(self, code: int) -> None:
        failure = self._failure()
        self.stop()
        if message := MESSAGES.get(code):
            log.warning("%s%s", message, failure)
        else:
            self._start_at = time.monotonic() + RESTART
            log.warning("the lease keeper ended with code %d%s: starting it again in %.0f s", code, failure, RESTART)

    def _failure(self) -> str:
        """Return the last failure that an ended keeper wrote, as the end of a message."""
        if self._process is None or self._process.stderr is None:
            return ""
        text = self._process.stderr.read().decode(errors="replace").strip()
        return f": {one_line(text[-lease_keeper.LONGEST_ERROR :])}" if text else ""

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        if process.stderr is not None:
            process.stderr.close()
        try:
            process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
