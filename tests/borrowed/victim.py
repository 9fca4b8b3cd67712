"""An application that comes to a certain point in its transactions and stays there, to be killed.

python -m tests.borrowed.victim POINT URL KIND [URL KIND ...]
"""

import asyncio
import sys
from contextlib import AsyncExitStack

from runner import handler
from tests.borrowed.applications import KINDS, Application

POINTS = ("written", "submitted", "committed")


@handler("test.victim")
def send(number: int) -> None: ...


async def main(point: str, *places: str) -> None:
    async with AsyncExitStack() as stack:
        for number, (url, kind) in enumerate(zip(places[::2], places[1::2], strict=True)):
            opened = KINDS[url.partition(":")[0]][kind](url)
            await come_to(point, await stack.enter_async_context(opened), number)
        print("here", flush=True)
        sys.stdin.read()


async def come_to(point: str, application: Application, number: int) -> None:
    await application.execute(f"INSERT INTO business VALUES ({number})")
    if point != "written":
        await application.submit(send, number)
    if point == "committed":
        await application.commit()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
