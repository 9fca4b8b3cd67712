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
"""The beginning of the names of the threads."""

MOST = 20
"""Maximum number of calls of one receiver at the same time. One whose server answers slowly may not end for long."""


class TooManyCalls(Exception):
    """Earlier calls of a receiver have not ended."""


async def in_own_thread(receiver: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread, and wait for it.

    The threads of the loop, which `asyncio.to_thread` takes, are few, and a process waits for them at its end.

    Args:
        receiver: the name of the receiver that it calls.

    Raises:
        Exception: that of the function.
        TooManyCalls: too many earlier calls have not ended.
        RuntimeError: the system allows no further thread.
    """
    name = f"{NAME} {receiver}"
    if sum(thread.name == name for thread in live_threads()) >= MOST:
        raise TooManyCalls(f"{MOST} earlier calls of {receiver} have not ended; its server may answer too slowly")
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # who waits for it may be cancelled, and the thread still sets its result

    def call() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    Thread(target=contextvars.copy_context().run, args=(call,), name=name, daemon=True).start()
    return await asyncio.wrap_future(done)
