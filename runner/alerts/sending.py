"""Sending: calls a server in a thread of its own, which may outlive the task that waits for it."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_own_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread, and wait for it.

    A server that answers one byte at a time holds its thread for any time. The threads of the loop, which
    `asyncio.to_thread` takes, are few, and a process waits for them at its end.

    Raises:
        Exception: that of the function.
        RuntimeError: the system allows no further thread.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # who waits for it may be cancelled, and the thread still sets its result

    def call() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    Thread(target=contextvars.copy_context().run, args=(call,), name="runner-send", daemon=True).start()
    return await asyncio.wrap_future(done)
