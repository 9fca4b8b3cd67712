"""An application that stops at a given point of its transactions, to be killed there.

python -m tests.client.external.victim POINT URL KIND [URL KIND ...]
"""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack

from runner import handler
from tests.client.external.applications import KINDS, Application

POINTS = ("written", "submitted", "committed")


@handler("test.victim")
def send(number: int) -> None: ...


async def main(point: str, *connections: str) -> None:
    async with AsyncExitStack() as stack:
        for number, (url, kind) in enumerate(zip(connections[::2], connections[1::2], strict=True)):
            connection = KINDS[url.partition(":")[0]][kind](url)
            await come_to(point, await stack.enter_async_context(connection), number)
        print("here", flush=True)
        signal.pause()


async def come_to(point: str, application: Application, number: int) -> None:
    await application.execute(f"INSERT INTO business VALUES ({number})")
    if point != "written":
        await application.submit(send, number)
    if point == "committed":
        await application.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
