"""threads: those of the SQLite driver, which outlive their connections for a moment."""

import asyncio
import threading

DRIVER_THREAD = "_connection_worker_thread"

LONGEST_FAREWELL = 0.5
"""Seconds that a thread of the driver is waited for."""


async def driver_threads_ended() -> None:
    """Wait for threads of the SQLite driver, before the event loop is closed.

    One whose connection could not be opened still has something to say to the loop after it has said so; when the loop
    is closed by then, it complains on standard error.
    """
    for thread in threading.enumerate():
        if DRIVER_THREAD in thread.name:
            await asyncio.to_thread(thread.join, LONGEST_FAREWELL)
