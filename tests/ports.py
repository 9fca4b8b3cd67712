"""Ports for programs of tests."""

import random
import socket
from contextlib import suppress
from pathlib import Path

LOWEST = 10_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The kernel gives these ports to outgoing connections: one of them could be taken before a program listens on it."""


def free_port() -> int:
    """Return a port that no program uses now, and that no outgoing connection takes later."""
    end = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    chosen = random.SystemRandom()
    while True:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port := chosen.randrange(LOWEST, end)))
            return port
