"""within: wait for an event for a limited time."""

import asyncio


async def within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event; return False if it does not happen within the seconds, or wait without a limit for None."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
