"""Ports for programs of tests."""

import socket


def free_port() -> int:
    """Return a port that no program uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
