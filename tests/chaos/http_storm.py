"""HttpStorm: random faults on servers for HTTP executors, on executors, and on the network between them."""

import signal
from typing import ClassVar

from tests.chaos.http_fleet import HttpFleet
from tests.chaos.proxy import Proxy
from tests.chaos.storm import SILENT_FOR, Fault, Storm


class HttpStorm(Storm):
    """Faults on one deployment with servers and executors; the arguments are those of a Storm."""

    mix: ClassVar[str] = "http"

    @property
    def _http(self) -> HttpFleet:
        assert isinstance(self._fleet, HttpFleet)
        return self._fleet

    def _faults(self) -> list[tuple[str, Fault]]:
        faults: list[tuple[str, Fault]] = [
            ("server killed with SIGKILL", self._kill_runner),
            ("server frozen with SIGSTOP", self._freeze_runner),
            ("server drained by SIGHUP", self._hang_up_runner),
            ("executor killed with SIGKILL", self._kill_executor),
            ("executor frozen with SIGSTOP", self._freeze_executor),
            ("executor drained by SIGTERM", self._drain_executor),
            ("connections of executors reset", lambda: self._proxy().cut_all()),
            ("answers to executors swallowed, then reset", lambda: self._proxy().swallow_all()),
            ("connections of executors armed to fail at random offsets", lambda: self._proxy().arm_some()),
            ("connections of executors half-open", lambda: self._proxy().hold_all(self._draw.uniform(*SILENT_FOR))),
        ]
        return faults if self._postgres is None else [*faults, ("PostgreSQL restarted", self._restart_server)]

    def _proxy(self) -> Proxy:
        return self._draw.choice(self._http.proxies)

    def _kill_executor(self) -> None:
        self._http.kill(self._draw.choice(self._http.executors))

    def _freeze_executor(self) -> None:
        self._freeze(self._draw.choice(self._http.executors))

    def _drain_executor(self) -> None:
        self._draw.choice(self._http.executors).send_signal(signal.SIGTERM)
