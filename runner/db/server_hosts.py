"""Hosts: the servers of a connection, and their addresses."""

import os
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from ipaddress import ip_address
from typing import Any, NamedTuple

from runner.urls.libpq import read_service


class ServerHost(NamedTuple):
    """One address of a server.

    Args:
        name: host name or socket directory; empty for the default of libpq.
        address: network address; empty if there is none.
        port: port; empty for the default.
    """

    name: str
    address: str
    port: str

    def __str__(self) -> str:
        name = self.name or self.address or "the local socket"
        return f"{name}:{self.port}" if self.port else name

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of a connection to this address alone."""
        values = {"host": self.name, "hostaddr": self.address, "port": self.port}
        return {key: text for key, text in values.items() if text}


def host_list(parameters: Mapping[str, Any]) -> list[ServerHost]:
    """Return the hosts of a connection, from its parameters, its service or the environment, as libpq does."""
    name = parameters.get("service") or os.environ.get("PGSERVICE")
    service = read_service(str(name), os.environ) if name else {}

    def values(option: str) -> list[str]:
        text = parameters.get(option) or service.get(option) or os.environ.get(f"PG{option.upper()}") or ""
        return [value.strip() for value in str(text).split(",")]

    names, addresses, ports = values("host"), values("hostaddr"), values("port")
    count = max(len(names), len(addresses))
    if any(len(each) not in (1, count) for each in (names, addresses, ports)):
        return [ServerHost(",".join(names), ",".join(addresses), ",".join(ports))]  # libpq reports the mistake
    names, addresses, ports = (each * count if len(each) == 1 else each for each in (names, addresses, ports))
    return [ServerHost(*values) for values in zip(names, addresses, ports, strict=True)]


def look_up(hosts: list[ServerHost]) -> "list[tuple[ServerHost, Future[list[str]] | None]]":
    """Begin to look up the addresses of host names, each in a thread: the look-up has no time limit of its own."""
    lookups: list[tuple[ServerHost, Future[list[str]] | None]] = []
    for host in hosts:
        if host.address or host.name.startswith(("/", "@")) or not host.name or "," in host.name:
            lookups.append((host, None))
        elif _is_address(host.name):
            lookups.append((host._replace(address=host.name), None))
        else:
            future: Future[list[str]] = Future()
            threading.Thread(target=_look_up, args=(host, future), name="runner-look-up", daemon=True).start()
            lookups.append((host, future))
    return lookups


def looked_up(
    lookups: "list[tuple[ServerHost, Future[list[str]] | None]]", seconds: float
) -> tuple[list[ServerHost], list[str]]:
    """Return the hosts with their addresses, and the failures, of look-ups after their time.

    Args:
        lookups: the result of `look_up`.
    """
    hosts, failures = [], []
    for host, future in lookups:
        if future is None:
            hosts.append(host)
        elif not future.done() or future.cancelled():
            failures.append(f"no answer for {seconds:.1f} s from the name service for host {host.name!r}")
        elif (error := future.exception()) is not None:
            failures.append(f"failed to resolve host {host.name!r}: {error}")
        else:
            hosts += [host._replace(address=address) for address in future.result()]
    return hosts, failures


def _is_address(name: str) -> bool:
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _look_up(host: ServerHost, future: "Future[list[str]]") -> None:
    future.set_running_or_notify_cancel()
    try:
        found = socket.getaddrinfo(host.name, host.port or "5432", proto=socket.IPPROTO_TCP, type=socket.SOCK_STREAM)
        future.set_result(list(dict.fromkeys(str(each[4][0]) for each in found)))
    except Exception as error:
        future.set_exception(error)
