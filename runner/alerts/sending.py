"""Sending: calls a server in a thread of its own, which may outlive the task that waits for it."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from threading import enumerate as live_threads
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


NAME = "runner-send"

MOST = 20
"""Maximum number of calls at the same time. A server that answers one byte at a time may hold one for any time."""


class TooManyCalls(Exception):
    """Earlier calls of servers have not ended."""


async def in_own_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread, and wait for it.

    The threads of the loop, which `asyncio.to_thread` takes, are few, and a process waits for them at its end.

    Raises:
        Exception: that of the function.
        TooManyCalls: too many earlier calls have not ended.
        RuntimeError: the system allows no further thread.
    """
    if sum(thread.name == NAME for thread in live_threads()) >= MOST:
        raise TooManyCalls(f"{MOST} earlier calls of receivers have not ended; a server may answer too slowly")
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # who waits for it may be cancelled, and the thread still sets its result

    def call() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    Thread(target=contextvars.copy_context().run, args=(call,), name=NAME, daemon=True).start()
    return await asyncio.wrap_future(done)
