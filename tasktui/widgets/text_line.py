"""A line to type or paste into."""

from textual import events
from textual.widgets import Input


class TextLine(Input):
    """One line; what is pasted over several lines becomes one.

    Textual would take the first of them and drop the others without a word: of a filter or a payload that would be
    another one.
    """

    def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()  # Textual would call the handler of the class above too
        joined = " ".join(event.text.splitlines())
        super()._on_paste(events.Paste(joined))
        event.stop()
