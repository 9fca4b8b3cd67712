"""Notices: sentences for the operator that stand in a corner for a while."""

from typing import Any

from textual.app import App
from textual.screen import Screen

from tasktui.draw.render import block

BRIEF = 5.0
"""Seconds for which a notice stands that something went well."""

LONG = 20.0
"""The same for one about something that did not: whoever reads another screen meanwhile must not miss it."""


def show(place: App[Any] | Screen[Any], text: str, *, bad: bool = False) -> None:
    """Say a sentence.

    Args:
        place: where.
        text: safe or not; it is made safe here.
        bad: it is about something that did not go well.
    """
    if bad:
        place.notify(block(text), severity="error", timeout=LONG, markup=False)
    else:
        place.notify(block(text), timeout=BRIEF, markup=False)
