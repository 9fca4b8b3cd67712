"""ServiceManager: receives the pings of a runner, through a file that is touched or the socket of systemd."""

import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger("runner.probes")

NOTIFY_SOCKET = "NOTIFY_SOCKET"
"""The variable in which systemd passes its socket to a service of `Type=notify`."""

INTERVAL = 1.0
"""Seconds between two signs."""


class ServiceManager:
    """A supervisor of the process; a failure to reach it is logged once and stops nothing.

    Args:
        file: the health file; None without one.
        environment: the variables of the process, among them those of systemd.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, file: Path | None, environment: Mapping[str, str]) -> None:
        self._file = file
        if file is not None:
            file.touch()
        address = environment.get(NOTIFY_SOCKET, "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        if self._socket is not None:
            self._socket.setblocking(False)
        self._watchdog = _watchdog_seconds(environment)
        self._sent = set[str]()
        self._logged = set[str]()

    @property
    def interval(self) -> float | None:
        """Seconds between two signs; None if nothing receives them."""
        if self._file is None and self._socket is None:
            return None
        return min(INTERVAL, self._watchdog / 2) if self._watchdog else INTERVAL

    def send(self, *, live: bool, ready: bool, stopping: bool) -> None:
        """Send the signs of a moment: the file and the watchdog while the runner is live, each state once."""
        if live and self._file is not None:
            try:
                self._file.touch()
            except OSError as error:
                self._log(str(self._file), error)
        if ready:
            self._notify_once("READY=1")
        if stopping:
            self._notify_once("STOPPING=1")
        if live and self._watchdog:
            self._notify("WATCHDOG=1")

    def close(self) -> None:
        """Remove the file: the runner has ended."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()
        if self._socket is not None:
            self._socket.close()

    def _notify_once(self, state: str) -> None:
        if state not in self._sent:
            self._sent.add(state)
            self._notify(state)

    def _notify(self, state: str) -> None:
        if self._socket is not None:
            try:
                self._socket.sendto(state.encode(), self._address)
            except OSError as error:
                self._log(self._address.replace("\0", "@"), error)

    def _log(self, place: str, error: OSError) -> None:
        if place not in self._logged:
            self._logged.add(place)
            log.warning("%s: %s (errno %s): no ping for the service manager", place, error.strerror, error.errno)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """The time in which systemd expects a ping; 0 for none, or if another process must send it."""
    process = environment.get("WATCHDOG_PID", "")
    if process and process != str(os.getpid()):
        return 0.0
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0
