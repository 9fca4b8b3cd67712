"""Themes: contrast, signs of one cell, the choice by the terminal, and `:theme`."""

import os
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual.css.stylesheet import Stylesheet

from runner.errors import InvalidInput
from runner.model.task import Shown
from runner.text.formatting import SIGNS
from tasktui.render import theme
from tasktui.render.rows import cap, plain
from tasktui.render.theme import DARK, GRADIENTS, LIGHT, SIGN_PAIRS, SIXTEEN, STATES, THEMES, suitable
from tasktui.shell.heading import Heading, front_spec
from tests.tasktui.conftest import ON_ONE_DATABASE, Watch
from tests.tasktui.test_colours import contrast

PALETTES = {"dark": DARK, "light": LIGHT}


def ratio(one: str, other: str) -> float:
    return contrast(*(int(colour[at : at + 2], 16) for colour in (one, other) for at in (1, 3, 5)))


@pytest.mark.parametrize("name", PALETTES)
def test_every_text_has_the_contrast_that_its_role_needs(name: str) -> None:
    palette = PALETTES[name]
    least = {"text": 12.0, "strong": 12.0, "muted": 5.5, "faint": 4.0, "accent": 5.0} | dict.fromkeys(STATES, 5.0)
    assert {
        role: ratio(palette[role], palette["bg"]) for role in least if ratio(palette[role], palette["bg"]) < least[role]
    } == {}
    on_cursor = {state: ratio(palette[state], palette["sel"]) for state in STATES}
    assert min(on_cursor.values()) >= 4.0, on_cursor
    for badge in ("production", "write", "locked"):
        assert ratio(palette[f"{badge}_text"], palette[badge]) >= 7.0
    for state in STATES:
        if f"tint_{state}" in palette:
            assert ratio(palette[state], palette[f"tint_{state}"]) >= 4.0


def test_no_handler_has_the_colour_of_trouble() -> None:
    for name, palette in (("dark", DARK), ("light", LIGHT), ("sixteen", SIXTEEN)):
        trouble = {palette[role] for role in ("retrying", "dead", "lost", "blocked", "paused")}
        assert not trouble & set(GRADIENTS[name]["handler"]), name


def test_sixteen_colours_and_none_reverse_the_title_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sixteen", "none"):
        monkeypatch.setattr(theme._Current, "palette", THEMES[name])
        style = theme.style(front_spec())
        assert (style.reverse, style.bgcolor) == (True, None), name


def test_every_theme_has_every_role() -> None:
    assert set(SIXTEEN) <= set(DARK) == set(LIGHT)
    assert {name for name, shades in GRADIENTS.items() if set(shades) != set(GRADIENTS["dark"])} == set()


def test_every_sign_takes_one_cell_and_has_an_ascii_character() -> None:
    assert {pair for pair in SIGN_PAIRS if cell_len(pair[0]) != 1 or not pair[1].isascii()} == set()
    replaced = {pair[0] for pair in SIGN_PAIRS}
    assert {SIGNS[shown] for shown in Shown} <= replaced
    assert len({SIGNS[shown].translate(dict(map(_code, SIGN_PAIRS))) for shown in Shown}) == len(Shown)


def test_enter_has_a_name_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain([cap("↵", "open")]) == " ↵  open"
    monkeypatch.setattr(theme._Current, "ascii_signs", True)
    assert plain([cap("↵", "open"), cap("w", "why")]) == " enter  open\n w  why"


def _code(pair: str) -> tuple[int, str]:
    return ord(pair[0]), pair[1]


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"COLORTERM": "truecolor"}, "dark"),
        ({"TERM": "xterm-256color", "COLORFGBG": "0;15"}, "light"),
        ({"TERM": "xterm"}, "sixteen"),
        ({"TERM": "xterm-kitty"}, "dark"),
        ({"COLORTERM": "truecolor", "NO_COLOR": "1"}, "none"),
    ],
)
def test_the_terminal_chooses_the_theme(environment: dict[str, str], name: str) -> None:
    assert suitable(environment) == name


def test_a_theme_of_attributes_has_no_colours() -> None:
    style = THEMES["none"].style("bold dead on sel")
    assert (style.color, style.bgcolor, style.bold, style.reverse) == (None, None, True, True)
    assert THEMES["sixteen"].style("dead").color is not None
    with pytest.raises(InvalidInput, match="dark, light, sixteen, none"):
        theme.use("pink")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_theme_is_kept_for_the_profile(watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "COLORTERM", "truecolor")
    settings: dict[str, Any] = {"profile": "orders"}
    async with watch(**settings) as operator:
        assert theme.current().name == "dark"
        await operator.command("theme light")
        await operator.until(lambda: theme.current().name == "light")
    async with watch(**settings):
        assert theme.current().name == "light"
    async with watch(profile="other"):
        assert theme.current().name == "dark"
    async with watch(**settings) as operator:
        await operator.command("theme auto")
        await operator.until(lambda: theme.current().name == "dark")
        await operator.command("theme pink")
        await operator.sees_notice("unknown theme 'pink'; the themes are auto, dark")
    async with watch(**settings):
        assert theme.current().name == "dark"


@ON_ONE_DATABASE
async def test_a_theme_reaches_screens_that_were_opened_before(watch: Watch) -> None:
    async with watch("tasks") as operator:
        tasks = operator.screen
        await operator.press("1")
        await operator.until(lambda: operator.screen is not tasks)
        await operator.command("theme light")
        await operator.until(lambda: operator.screen.styles.background.hex == LIGHT["bg"])
        await operator.press("2")
        await operator.until(lambda: operator.screen is tasks)
        await operator.until(lambda: tasks.styles.background.hex == LIGHT["bg"])
        assert {each.styles.background.hex for each in tasks.query(Heading)} == {LIGHT["bg"]}


@ON_ONE_DATABASE
async def test_only_a_theme_parses_all_styles_again(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    sheets, reparse = list[Stylesheet](), Stylesheet.reparse

    def noted(sheet: Stylesheet) -> None:
        sheets.append(sheet)
        reparse(sheet)

    monkeypatch.setattr(Stylesheet, "reparse", noted)
    async with watch("overview") as operator:
        await operator.press("2")
        await operator.until(lambda: operator.console.current_mode == "tasks")
        await operator.press("question_mark")
        await operator.until(lambda: type(operator.screen).__name__ == "HelpScreen")
        await operator.press("escape")
        assert sheets == []
        await operator.command("theme light")
        await operator.until(lambda: sheets)
