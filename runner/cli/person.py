"""The person at this terminal, as what is changed will name them."""

import getpass
import socket

from runner.store.intervene import By


def operator() -> str:
    """The name of the user who runs this."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a process of a user without a name
        return "unknown"


def by(reason: str | None) -> By:
    """Who intervenes, from where, and why."""
    return By(operator(), socket.gethostname(), reason)
