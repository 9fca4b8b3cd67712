"""The pictures of the documentation, drawn from the console at the shop of `tests.shop`: `python -m tests.picture`.

A scene whose texts do not appear ends the program with an error, so `.ci/docs` draws all of them again.
"""

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, chdir
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Input

from tasktui.app import Console
from tasktui.startup.arguments import Arguments
from tasktui.startup.startup import opened
from tests import shop

DOCS = Path(__file__).parent.parent / "docs"


@dataclass(frozen=True)
class Scene:
    """A picture: the screen after some keys.

    Args:
        mode: the screen at the start.
        steps: keys, `:commands`, `=texts` for the focused input, and `?texts` for which the next step waits.
        sees: texts on the screen when it is drawn.
        production: a profile of production, which begins read-only.
    """

    mode: str
    steps: tuple[str, ...]
    sees: tuple[str, ...]
    production: bool = False


CAUSE = "?no answer from paygate"
RETRY = (CAUSE, "R", "?in stages")
CONFIRMED = (*RETRY, "=paygate answers again", "enter", "=shop", "enter", "?waiting for 1")
SCENES = {
    "console": Scene("overview", (), ("RUN TIME", "deploy 4.12.0", "WAIT, LAST HOUR"), production=True),
    "alerts": Scene(
        "overview", ("exclamation_mark",), ("▸ ✗ the breaker of payments.charge is open", "enter goes there")
    ),
    "why": Scene("overview", ("?WAIT, LAST HOUR", "w"), ("6,066 tasks are not running", "the breaker is open")),
    "failures": Scene("failures", (), ("deploy 4.12.0", "LATEST")),
    "task": Scene("failures", (CAUSE, "enter", "?order-", "enter"), ("GatewayTimeout", "TIMELINE")),
    "canary": Scene("failures", RETRY, ("◆ 1 ┄┄", "◆ 10", "in stages")),
    "stage": Scene("failures", CONFIRMED, ("1 of 1,890",)),
    "undo": Scene("failures", (*CONFIRMED, "ctrl+x", "8", "?paygate answers", "Z"), ("Undo retry of task",)),
    "runners": Scene("runners", (), ("web-2:2291", "SLOTS")),
    "workflows": Scene("workflows", (), ("close october", "GRAPH", "ledger.export")),
    "incident": Scene("overview", ("?WAIT, LAST HOUR", ":incident {begin} {end}"), ("Wrote", "incident-")),
}
"""The scene of each picture."""

SIZE = (120, 40)
SECONDS = 20.0
"""The longest wait for a text."""

QUIET = 0.5
"""Seconds without a change after which a screen is complete."""

FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
"""In place of the one that would be fetched from a foreign host."""


def _text(console: Console) -> str:
    return "\n".join(strip.text for strip in console.screen._compositor.render_strips())


async def _shown(console: Console, texts: tuple[str, ...]) -> None:
    """Wait until the screen has these texts."""
    try:
        async with asyncio.timeout(SECONDS):
            while not all(text in _text(console) for text in texts):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{texts} are not on the screen:\n{_text(console)}") from None


async def _type(console: Console, pilot: Pilot[None], text: str) -> None:
    field = console.screen.focused
    assert isinstance(field, Input), _text(console)
    field.value = text
    await pilot.pause()


async def _step(console: Console, pilot: Pilot[None], step: str) -> None:
    """Do a step of a scene."""
    match step[0], step[1:]:
        case "?", text:
            await _shown(console, (text,))
        case "=", text:
            await _type(console, pilot, text)
        case ":", text:
            times = {"begin": f"{shop.NOW - 50 * shop.MINUTE:%H:%M}", "end": f"{shop.NOW:%H:%M}"}
            await pilot.press("colon")
            await pilot.pause()
            await _type(console, pilot, text.format(**times))
            await pilot.press("enter")
        case _:
            await pilot.press(step)


async def drawn(url: str, scene: Scene) -> str:
    """The screen of a scene."""
    async with shown(url, scene) as console:
        return plain(console.export_screenshot(title="tasktui"))


@asynccontextmanager
async def shown(url: str, scene: Scene, theme: str = "dark") -> AsyncIterator[Console]:
    """A console that shows a scene."""
    arguments = Arguments(url=url)
    settings = arguments.settings().model_copy(update={"production": scene.production, "profile": "shop"})
    async with opened(arguments, settings) as session:
        if scene.production:
            session.lock.close()
        console: Console = type("Pictured", (Console,), {"DEFAULT_MODE": scene.mode})(session, theme)
        async with console.run_test(size=SIZE) as pilot:
            while session.ping is None:
                await asyncio.sleep(0.05)
            for step in scene.steps:
                await _step(console, pilot, step)
            await _shown(console, scene.sees)
            await _settled(console)
            yield console


async def _settled(console: Console) -> None:
    """Wait until the screen does not change, apart from its clocks."""
    quiet, last = 0.0, ""
    while quiet < QUIET:
        text = re.sub(r"\d", "", _text(console))
        quiet, last = (quiet + 0.1 if text == last else 0.0), text
        await asyncio.sleep(0.1)


RECT = re.compile(r'<rect fill="(#\w+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" [^>]*/>')


def plain(picture: str) -> str:
    """A small picture that asks no other host for anything, keeps its blanks, and depends on the screen alone."""
    picture = re.sub(r"@font-face \{.*?\}\s*|<clipPath.*?</clipPath>\s*", "", picture, flags=re.DOTALL)
    picture = re.sub(r' clip-path="[^"]*"', "", picture).replace("&#160;", " ").replace("terminal-", "")
    picture = re.sub(r"\b\d+-(?=r\d|matrix|title)", "", picture)
    picture = picture.replace("<svg ", '<svg xml:space="preserve" shape-rendering="crispEdges" ', 1)
    picture = picture.replace("<style>", "<style>text { white-space: pre }", 1)
    picture = re.sub(rf"(?:{RECT.pattern})+", lambda match: _merged(match[0]), picture)
    return re.sub(r"font-family:\s*[^;]*;", f"font-family: {FONT};", picture)


def _merged(cells: str) -> str:
    """Rectangles, of which neighbours in a line with one colour are one."""
    runs: list[list[str | float]] = []
    for colour, x, y, width, height in RECT.findall(cells):
        last = runs[-1] if runs else None
        touches = last is not None and float(x) - float(last[1]) - float(last[3]) < 1
        if last and last[0] == colour and last[2] == y and touches:
            last[3] = float(x) + float(width) - float(last[1])
        else:
            runs.append([colour, x, y, float(width), height])
    return "".join(
        f'<rect fill="{colour}" x="{x}" y="{y}" width="{width:.1f}" height="{height}"/>'
        for colour, x, y, width, height in runs
    )


async def main(folder: Path, names: list[str]) -> None:
    """Draw pictures, all of them unless some are named."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chdir(scratch):
        for name in names or SCENES:
            shop.NOW = datetime.now(UTC)
            await shop.main(Path(f"{name}.db"))
            picture = await drawn(f"sqlite:///{scratch}/{name}.db", SCENES[name])
            (folder / f"{name}.svg").write_text(picture.replace(f"{scratch}/", ""), encoding="utf-8")
            print(folder / f"{name}.svg")


if __name__ == "__main__":
    os.environ |= {"LOGNAME": "ana", "TZ": "UTC"}
    time.tzset()
    asyncio.run(main(Path(sys.argv[1]).absolute() if sys.argv[1:] else DOCS / "pictures", sys.argv[2:]))
