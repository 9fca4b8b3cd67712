"""Readiness: whether a socket has something to read, on systems with and without `poll`."""

import select
from collections.abc import Callable


def readiness(descriptor: int) -> Callable[[float], bool]:
    """Return a function that waits until a socket has something to read, or takes what is written.

    Args:
        descriptor: the descriptor of the socket. `poll` takes any; `select`, all that Windows has, takes sockets.

    Returns:
        The function: its argument is the maximum wait in seconds.
    """
    return _waiting(descriptor, writes=False)


def write_readiness(descriptor: int) -> Callable[[float], bool]:
    """The form of `readiness` for writing."""
    return _waiting(descriptor, writes=True)


def _waiting(descriptor: int, *, writes: bool) -> Callable[[float], bool]:
    if not hasattr(select, "poll"):
        reads, written = ([], [descriptor]) if writes else ([descriptor], [])
        return lambda seconds: any(select.select(reads, written, [], seconds))
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT if writes else select.POLLIN)
    return lambda seconds: bool(poll.poll(seconds * 1000))
