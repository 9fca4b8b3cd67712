"""Draw the pictures of the documentation from the console at the shop of `tests.shop`: `python -m tests.picture`."""

import asyncio
import re
import tempfile
from pathlib import Path

from runner.db.database import Database
from tasktui.app import Console
from tasktui.startup.arguments import Arguments
from tasktui.startup.startup import opened
from tests.shop import fill

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = {"console.svg": "overview"}
"""The screen of each picture."""

SIZE = (120, 40)
SECONDS = 2.0
"""Time until everything that was read is on the screen."""

FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
"""In place of the one that would be fetched from a foreign host."""


async def drawn(url: str, mode: str) -> str:
    """A screen of the console as it is now."""
    arguments = Arguments(url=url)
    settings = arguments.settings().model_copy(update={"production": True, "profile": "shop"})
    async with opened(arguments, settings) as session:
        session.lock.close()
        console: Console = type("Pictured", (Console,), {"DEFAULT_MODE": mode})(session, "dark")
        async with console.run_test(size=SIZE):
            while getattr(console.screen, "_slow", None) is None or session.ping is None:
                await asyncio.sleep(0.1)
            await asyncio.sleep(SECONDS)
            return plain(console.export_screenshot(title="tasktui"))


def plain(picture: str) -> str:
    """A picture that asks no other host for anything, keeps its blanks, and is the same text for the same screen."""
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = re.sub(r"terminal-\d+", "terminal", picture)
    picture = picture.replace("<text ", '<text xml:space="preserve" ').replace("&#160;", " ")
    return re.sub(r"font-family:\s*[^;]*;", f"font-family: {FONT};", picture)


async def main() -> None:
    """Draw every picture."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shop.db"
        database = Database.open(url)
        try:
            await database.migrate()
            await fill(database)
        finally:
            await database.dispose()
        for name, mode in PICTURES.items():
            (DOCS / name).write_text(await drawn(url, mode), encoding="utf-8")
            print(DOCS / name)


if __name__ == "__main__":
    asyncio.run(main())
