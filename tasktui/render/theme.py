"""Themes: the colours of each role of a text, and the styles that a terminal shows for them."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.style import Style as ContentStyle
from textual.theme import Theme as TextualTheme

from runner.errors import InvalidInput

ROLES = (
    *("bg", "surface", "raised", "line", "sel", "cap", "strong", "text", "muted", "faint", "accent", "on_accent"),
    *("spark", "ready", "scheduled", "retrying", "blocked", "running", "succeeded", "dead", "cancelled", "lost"),
    *("paused", "production_text", "production", "write_text", "write", "locked_text", "locked"),
    *("json_key", "json_string", "json_number", "json_literal"),
)
"""Every role of a colour. A state has its own role; `retrying` also means `watch`, `dead` also means `broken`."""

STATES = ("ready", "scheduled", "retrying", "blocked", "running", "succeeded", "dead", "cancelled", "lost", "paused")
"""The roles that show a state, always with its sign and its word."""


def _by_role(colours: str) -> dict[str, str]:
    return dict(zip(ROLES, colours.split(), strict=True))


def _tints(colours: str) -> dict[str, str]:
    names = ("retrying", "dead", "lost", "running", "succeeded", "ready", "scheduled", "blocked", "cancelled")
    return {f"tint_{name}": colour for name, colour in zip(names, colours.split(), strict=True)}


DARK = MappingProxyType(
    _by_role(
        "#0E1116 #141922 #1D2430 #2B3442 #222B42 #242D3B #F4F6FA #D8DEE9 #8D99AD #717D92 #8AA4FF #0E1116 "
        "#5F6E99 #9CC4E4 #8D95BE #E8B04B #B48EC7 #4CC9E0 #79C58F #F2736B #8792A5 #EF7FC3 "
        "#C9B27C #FFE7E9 #8E2433 #1A1408 #E8B04B #C5CEDC #2A3342 "
        "#9CB4FF #9CCBA4 #E0B877 #C6A0F6"
    )
    | _tints("#362B18 #3A1D22 #371D31 #12303A #17301F #1B2C3A #20233A #2B2135 #20262F")
)
LIGHT = MappingProxyType(
    _by_role(
        "#FBFBF8 #F2F3EF #E6E9E8 #CDD3D6 #E0E6FA #E3E7EA #0C121B #27303D #5A6675 #727D8B #3A50C8 #FFFFFF "
        "#7C8DBE #2A6A97 #5D668F #8C5800 #7D4E98 #006B7E #287240 #C22F2B #636D7A #B0307F "
        "#7A6420 #FFFFFF #A3243A #241A00 #F0B93A #3D4856 #DCE1E5 "
        "#3A50C8 #2F7D46 #9A6200 #7D4E98"
    )
    | _tints("#F8EBCF #FBE3E1 #FAE1F0 #DBF1F4 #E0F1E4 #DFECF5 #E7E9F4 #F0E5F5 #E9ECEE")
)
SIXTEEN = MappingProxyType(
    _by_role(
        "default default default bright_black default default default default default bright_black bright_blue black "
        "blue default bright_black yellow magenta cyan green bright_red bright_black bright_magenta "
        "yellow white red black yellow default default "
        "bright_blue green yellow magenta"
    )
)

GRADIENTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "dark": {
        "done": ("#1D2C52", "#4C6FD8"),
        "failed": ("#4A2320", "#F2736B"),
        "trouble": ("#E8B04B", "#F2736B"),
        "held": ("#5A5038", "#C9B27C"),
        "heat": ("#141922", "#1B2547", "#263B7A", "#3A5BB5", "#4F8FD0", "#58BFC9", "#9ADBB0", "#F0E6A0"),
        "handler": ("#7AA2F7", "#5FBFA4", "#C6A0F6", "#A9A086", "#58B4D1", "#AE8BB4", "#9DB86A", "#A9B1C0"),
    },
    "light": {
        "done": ("#D3DCFA", "#6B86E6"),
        "failed": ("#F8D5D1", "#DC5A53"),
        "trouble": ("#8C5800", "#C22F2B"),
        "held": ("#D9CFAE", "#7A6420"),
        "heat": ("#F2F3EF", "#DCE6F5", "#B9CFEF", "#8FB2E6", "#5E8FD8", "#3D6CC4", "#3A449F", "#4A1D6E"),
        "handler": ("#4C74D9", "#2E937A", "#9062CF", "#877B55", "#2488A8", "#96688F", "#6C8A34", "#7D8796"),
    },
    "sixteen": {
        "done": ("blue",),
        "failed": ("red",),
        "trouble": ("yellow", "bright_red"),
        "held": ("yellow",),
        "heat": ("blue", "cyan", "bright_yellow"),
        "handler": ("blue", "green", "bright_cyan", "white", "cyan", "bright_blue", "bright_green", "bright_black"),
    },
}
"""The colours of plots from the bottom to the top, and of handlers, by theme."""

PLAIN = {
    **dict.fromkeys(("strong", "accent", "dead", "lost", "retrying", "cap"), "bold"),
    **dict.fromkeys(("muted", "faint", "line", "raised", "spark", "done", "cancelled"), "dim"),
}
"""Attributes of a role in place of its colour."""

REVERSED = frozenset({"sel", "production", "write", "accent"})
"""Grounds that reverse the text in place of a colour."""

SIGN_PAIRS = (
    *("○o", "◔@", "↻~", "◇#", "►>", "✓+", "✗x", "⊘-", "◌?", "‖="),
    *("▌>", "●*", "◆*", "─-", "│|", "└+", "├+", "┌+", "┐+", "┘+", "┤|", "┴+", "┬+", "┼+", "╭+", "╮+", "╰+", "╯+"),
    *("━=", "╸-", "▲^", "▼v", "…~", "┊:", "┄-", "■#", "·.", "•*", "▸>", "→>", "↑^", "↓v", "↵<"),
    *("▁_", "▂_", "▃.", "▄-", "▅-", "▆=", "▇=", "█#", "▀=", "░.", "▒:", "▓*"),
)
"""Every sign that the console draws, with the ASCII character in its place."""

ASCII = str.maketrans({pair[0]: pair[1] for pair in SIGN_PAIRS})


TRACKS = ("scrollbar-background", "scrollbar-background-hover", "scrollbar-background-active")
"""The grounds of a scroll bar."""

ANSI_SCROLL_BARS = {
    "scrollbar": "ansi_bright_black",
    "scrollbar-hover": "ansi_default",
    "scrollbar-active": "ansi_bright_blue",
    **dict.fromkeys(TRACKS, "ansi_default"),
}

SHADES = 32
"""Steps of a gradient; few enough to keep every style."""

ATTRIBUTES = frozenset({"bold", "dim", "italic", "underline", "reverse", "strike"})

DISCRETE = "handler"
"""A list of colours that are not mixed."""


class Palette:
    """The styles of one theme.

    A specification is a list of words: attributes (`bold`), a role (`dead`), a shade of a gradient (`done@12`), a
    colour (`#8AA4FF`), and `on` before the role of the ground: `bold accent on cap`.

    Args:
        colours: colour of each role; empty for a theme of attributes.
        dark: True if the ground is dark.
    """

    def __init__(self, name: str, colours: Mapping[str, str], *, dark: bool = True) -> None:
        self.name = name
        self.colours = colours
        self.dark = dark
        self._gradients = GRADIENTS.get(name, {})
        self.style = lru_cache(maxsize=4096)(self._style)
        self.content_style = lru_cache(maxsize=4096)(self._content_style)

    @property
    def flat(self) -> bool:
        """True if the theme has no shades: plots then use signs of different density."""
        return self.name in ("sixteen", "none")

    def _style(self, spec: str) -> Style:
        ground, words = False, spec.split()
        colour = background = None
        attributes: set[str] = set()
        for word in words:
            if word == "on":
                ground = True
            elif word in ATTRIBUTES:
                attributes.add(word)
            elif ground:
                background = self._colour(word)
                attributes |= {"reverse"} if self.flat and word in REVERSED and background is None else set()
            else:
                colour = self._colour(word)
                attributes |= set(PLAIN.get(word.partition("@")[0], "").split()) if not self.colours else set()
                attributes |= {"bold"} if word == "strong" and self.flat else set()
        return Style(color=colour, bgcolor=background) + Style.parse(" ".join(sorted(attributes)))

    def _colour(self, word: str) -> str | None:
        name, at, step = word.partition("@")
        if at:
            return self._shade(name, int(step))
        colour = self.colours.get(name)
        if colour is None and word.startswith("#"):
            return word
        return None if colour == "default" else colour

    def _shade(self, name: str, step: int) -> str | None:
        stops = self._gradients.get(name)
        if not stops:
            plain = self.colours.get(name)
            return None if plain == "default" else plain
        if name == DISCRETE:
            return stops[step % len(stops)]
        place = min(max(step, 0), SHADES - 1) / (SHADES - 1) * (len(stops) - 1)
        if self.flat:
            return stops[round(place)]
        first = min(int(place), len(stops) - 2)
        return Color.parse(stops[first]).blend(Color.parse(stops[first + 1]), place - first).hex

    def _content_style(self, spec: str) -> ContentStyle:
        return ContentStyle.from_rich_style(self.style(spec)) if spec else ContentStyle.null()

    def textual(self) -> TextualTheme:
        """The theme for the widgets of Textual."""
        if self.flat:
            return TextualTheme(
                name=f"console-{self.name}",
                ansi=True,
                primary="ansi_blue",
                accent="ansi_bright_blue",
                foreground="ansi_default",
                background="ansi_default",
                surface="ansi_default",
                panel="ansi_default",
                warning="ansi_yellow",
                error="ansi_red",
                variables={
                    "line": "ansi_bright_black",
                    "muted": "ansi_default",
                    "ansi-background": "ansi_default",
                    "ansi-foreground": "ansi_default",
                    "border-blurred": "ansi_bright_black",
                    "block-cursor-foreground": "ansi_black",
                    "block-cursor-background": "ansi_white",
                    "input-cursor-background": "ansi_white",
                    "input-cursor-foreground": "ansi_black",
                    "input-cursor-text-style": "reverse" if self.name == "none" else "none",  # Reversed white is black.
                    "input-selection-background": "ansi_blue",
                    "input-selection-foreground": "ansi_white",
                    "screen-selection-background": "ansi_blue",
                    "screen-selection-foreground": "ansi_white",
                    **ANSI_SCROLL_BARS,
                },
            )
        get = self.colours.__getitem__
        return TextualTheme(
            name=f"console-{self.name}",
            primary=get("accent"),
            accent=get("accent"),
            foreground=get("text"),
            background=get("bg"),
            surface=get("surface"),
            panel=get("raised"),
            warning=get("retrying"),
            error=get("dead"),
            success=get("succeeded"),
            dark=self.dark,
            variables={
                "line": get("line"),
                "muted": get("muted"),
                "input-cursor-background": get("accent"),
                "input-cursor-foreground": get("on_accent"),
                "input-selection-background": f"{get('accent')} 35%",
                "scrollbar": get("line"),
                "scrollbar-hover": get("muted"),
                "scrollbar-active": get("accent"),
                **dict.fromkeys(TRACKS, get("bg")),
                "text-disabled": get("faint"),
                "input-placeholder": get("faint"),
            },
        )


THEMES = {
    palette.name: palette
    for palette in (
        Palette("dark", DARK),
        Palette("light", LIGHT, dark=False),
        Palette("sixteen", SIXTEEN),
        Palette("none", {}),
    )
}
"""The themes by name."""


class WholeCells(ScrollBarRender):
    """A scroll bar without parts of a cell, which have no ASCII character."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * 8


class Ascii(LineFilter):
    """Replaces the signs that the console draws with ASCII characters."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - the signature is Textual's
        """Draw with ASCII characters; every one takes one cell."""
        return [Segment(text.translate(ASCII), style, control) for text, style, control in segments]


class _Current:
    """The theme of this process: a console draws with one theme at a time, and with ASCII characters or not."""

    palette: Palette = THEMES["dark"]
    ascii_signs: bool = False


def current() -> Palette:
    """The theme in use."""
    return _Current.palette


def use_ascii(*, on: bool) -> None:
    """Draw with ASCII characters, or with all signs."""
    _Current.ascii_signs = on
    ScrollBar.renderer = WholeCells if on else ScrollBarRender


def draws_ascii() -> bool:
    """True if every sign is drawn as an ASCII character, of which fewer look different."""
    return _Current.ascii_signs


def key_sign(key: str) -> str:
    """A key as a cap shows it; the sign of enter has no ASCII character, so that its name replaces it."""
    return "enter" if key == "↵" and _Current.ascii_signs else key


def use(name: str) -> Palette:
    """Use a theme.

    Raises:
        InvalidInput: the theme does not exist.
    """
    if name not in THEMES:
        raise InvalidInput(why=f"unknown theme {name[:20]!r}; the themes are {', '.join(THEMES)}")
    _Current.palette = THEMES[name]
    return _Current.palette


def style(spec: str) -> Style:
    """The style of a specification in the theme in use; see `Palette`."""
    return _Current.palette.style(spec)


def content_style(spec: str) -> ContentStyle:
    """The same for a text of Textual."""
    return _Current.palette.content_style(spec)


def suitable(environment: Mapping[str, str]) -> str:
    """The theme that suits a terminal, by its environment variables.

    NO_COLOR removes the colours (https://no-color.org). COLORTERM, and a TERM of 256 colours, mean more than sixteen
    colours. The second part of COLORFGBG is the ground: 7 and 15 are light.
    """
    if environment.get("NO_COLOR"):
        return "none"
    many = environment.get("COLORTERM", "") in ("truecolor", "24bit")
    if not many and not any(word in environment.get("TERM", "") for word in ("256", "direct", "kitty")):
        return "sixteen"
    return "light" if environment.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15") else "dark"
