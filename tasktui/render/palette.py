"""Colours by role: dark, light, sixteen colours, and attributes in place of colours."""

from collections.abc import Mapping
from types import MappingProxyType

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
        "handler": ("blue", "green", "magenta", "yellow", "cyan", "bright_blue", "bright_green", "bright_black"),
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
