"""Draw the picture of the documentation from the console as it is, at a demo that runs: `python -m tests.picture`."""

import argparse
import asyncio
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from runner.db.database import Database
from runner.queries.queues import counts
from tasktui.app import Console
from tasktui.startup.arguments import Arguments
from tasktui.startup.startup import opened

PICTURE = Path(__file__).parent.parent / "docs" / "console.svg"
SIZE = (112, 24)
SECONDS = 5.0
"""After which everything is there, also what is asked for with the second look."""

FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
"""In place of the one that would be fetched from a foreign host."""


async def drawn(url: str) -> str:
    """The overview as it is now."""
    arguments = Arguments(url=url)
    async with opened(arguments, arguments.settings()) as session:
        console = Console(session)
        async with console.run_test(size=SIZE):
            await asyncio.sleep(SECONDS)
            return plain(console.export_screenshot(title="tasktui"))


def plain(picture: str) -> str:
    """A picture that asks no other host for anything, and is the same text for the same screen."""
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = re.sub(r"terminal-\d+", "terminal", picture)
    return re.sub(r"font-family:\s*[^;]*;", f"font-family: {FONT};", picture)


async def made(url: str) -> None:
    """Create the tables."""
    database = Database.open(url)
    try:
        await database.migrate()
    finally:
        await database.dispose()


async def worked(url: str, tasks: int) -> None:
    """Wait until so many tasks have ended."""
    database = Database.open(url)
    try:
        ended = 0
        while ended < tasks:
            await asyncio.sleep(1)
            queues = await database.read(counts)
            ended = sum(queue.hour.ended for queue in queues)
    finally:
        await database.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.picture", description=__doc__)
    parser.add_argument("--tasks", type=int, default=15_000, help="to wait for until the picture is drawn")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shop.db"
        program = [str(Path(sys.executable).with_name("runner")), "demo", "--keep-running", "--url", url]
        asyncio.run(made(url))
        demo = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            asyncio.run(worked(url, given.tasks))
            picture = asyncio.run(drawn(url))
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait(30)
    PICTURE.write_text(picture, encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
