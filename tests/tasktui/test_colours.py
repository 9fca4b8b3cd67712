"""Colours: none where NO_COLOR asks for none, few where the terminal has few, and always legible."""

import asyncio
import re
from collections.abc import Iterator

import pytest

from runner.db.database import Database
from tasktui.app import Console
from tasktui.screens import MODES
from tests import shop
from tests.conftest import SqliteDatabases
from tests.databases import database_at
from tests.picture import SCENES, Scene, shown
from tests.queries.test_recovery import end_outage
from tests.store.every_operation import LATER, arrange
from tests.tasktui.conftest import ON_ONE_DATABASE, WIDE, Watch
from tests.tasktui.terminal import Terminal

PIECE = re.compile(r"\x1b\[([0-9;]*)m([^\x1b]*)")
COLOURS = re.compile(r"\b(?:[34]8;[25];[\d;]+|[349][0-7]|10[0-7])\b")
MANY = re.compile(r"[34]8;")
PAIR = re.compile(r"38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)")
LEGIBLE = 3.0
"""The contrast that WCAG 2 requires of large text and of graphics."""


@pytest.fixture(scope="module")
def url(sqlite: SqliteDatabases, tmp_path_factory: pytest.TempPathFactory) -> str:
    url = sqlite.migrated(tmp_path_factory.mktemp("colours"))

    async def fill() -> None:
        async with database_at(url) as database:
            await arrange(database)

    asyncio.run(fill())
    return url


def pieces(url: str, environment: dict[str, str], *arguments: str) -> Iterator[tuple[str, str]]:
    """Every piece of text that a console writes on its screens, with its colours before it."""
    console = Terminal("--url", url, *arguments, size=(100, 30), environment=environment)
    try:
        console.sees("mail")
        console.answers(b":task %d\r" % LATER, f"{LATER}  ")
        console.drains(0.3)
        begin = len(console.output)  # what lies behind a dialog is darkened on purpose
        for mode in MODES.values():
            console.goes(mode.key, mode.title)
            console.drains(0.3)
        yield from PIECE.findall(console.output[begin:].decode())
    finally:
        console.close()


def contrast(*parts: int) -> float:
    """How much two colours differ, as WCAG 2 defines it: 1 to 21."""
    lights = sorted(_light(*parts[first : first + 3]) for first in (0, 3))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _light(*parts: int) -> float:
    linear = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.slow
def test_no_colour_means_none(url: str) -> None:
    written = list(pieces(url, {"NO_COLOR": "1"}))
    assert {colours for colours, _ in written if COLOURS.search(colours)} == set()
    assert any("7" in style.split(";") for style, _ in written)


@pytest.mark.slow
def test_a_terminal_of_sixteen_colours_gets_no_others(url: str) -> None:
    written = list(pieces(url, {"TERM": "xterm", "COLORTERM": ""}))
    assert {style for style, _ in written if MANY.search(style)} == set()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), pytest.param(("--read-only",), marks=pytest.mark.slow)])
def test_whatever_is_written_can_be_read_on_any_background(url: str, arguments: tuple[str, ...]) -> None:
    pale = {
        (style, text.strip())
        for style, text in pieces(url, {}, *arguments)
        if any(map(str.isalnum, text)) and not _legible(style)
    }
    assert pale == set()


@pytest.fixture(scope="module")
def shop_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("shop") / "shop.db"
    asyncio.run(shop.main(path))
    return f"sqlite:///{path}"


DIALOGS = {
    "attention": SCENES["alerts"],
    "changes": Scene("failures", (), ("NEW", "by rise", "Only version 4.12.0")),
    "canary": SCENES["canary"],
    "quiet list": Scene("tasks", ("?not succeeded", "s"), ("✓ succeeded", "new")),
    "copy": Scene("task", (":task 1", "?payments.charge", "y"), ("Copy of task 1", "a key copies")),
    "why": SCENES["why"],
    "runners": SCENES["runners"],
}
"""Dialogs, and screens whose colours depend on the age of their rows, at the shop in its outage."""


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("name", DIALOGS)
async def test_whatever_a_dialog_writes_can_be_read(shop_url: str, name: str, theme: str) -> None:
    async with shown(shop_url, DIALOGS[name], theme) as console:
        assert pale_texts(console) == {}


@pytest.mark.slow
@ON_ONE_DATABASE
@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_the_end_of_an_incident_can_be_read(database: Database, watch: Watch, theme: str) -> None:
    await end_outage(database)
    async with watch("overview", WIDE) as operator:
        await operator.command(f"theme {theme}")
        await operator.sees("was down 55m", "incident")
        await operator.until(lambda: pale_texts(operator.console) == {})


def pale_texts(console: Console) -> dict[str, float]:
    """The texts in front with less contrast than LEGIBLE; the screen behind a dialog is darkened on purpose."""
    region = console.screen.region
    for dialog in console.screen.query(".dialog"):
        region = dialog.region
    pale: dict[str, float] = {}
    rows = console.screen._compositor.render_strips()[region.y : region.bottom]
    for segment in (segment for row in rows for segment in row.crop(region.x, region.right)):
        colours = (segment.style.color, segment.style.bgcolor) if segment.style else (None, None)
        if any(map(str.isalnum, segment.text)):
            assert None not in colours, segment
            light = contrast(*(part for colour in colours if colour for part in colour.get_truecolor()))
            if light < LEGIBLE:
                pale[segment.text.strip()] = round(light, 1)
    return pale


def _legible(style: str) -> bool:
    """The ground is painted too, so that the terminal's does not matter, and the letters are legible on it."""
    pair = PAIR.search(style)
    return pair is not None and contrast(*map(int, pair.groups())) >= LEGIBLE
