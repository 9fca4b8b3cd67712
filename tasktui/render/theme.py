"""Themes: turn the roles of a text into the styles of a terminal."""

from collections.abc import Mapping
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.style import Style as ContentStyle
from textual.theme import Theme as TextualTheme

from runner.errors import InvalidInput
from tasktui.render.palette import ASCII, DARK, GRADIENTS, LIGHT, PLAIN, REVERSED, SIXTEEN

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
        name: name of the theme.
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
                    "input-cursor-text-style": "reverse",
                    "input-selection-background": "ansi_blue",
                    "input-selection-foreground": "ansi_white",
                    "screen-selection-background": "ansi_blue",
                    "screen-selection-foreground": "ansi_white",
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
                "scrollbar-background": get("bg"),
                "scrollbar-background-hover": get("bg"),
                "scrollbar-background-active": get("bg"),
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


class Ascii(LineFilter):
    """Replaces the signs that the console draws with ASCII characters."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - the signature is Textual's
        """Draw with ASCII characters; every one takes one cell."""
        return [Segment(text.translate(ASCII), style, control) for text, style, control in segments]


class _Current:
    """The theme of this process: a console draws with one theme at a time."""

    palette: Palette = THEMES["dark"]


def current() -> Palette:
    """The theme in use."""
    return _Current.palette


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
