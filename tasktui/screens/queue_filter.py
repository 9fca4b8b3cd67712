"""QueueFilter: the input of the filter on the queues of the overview, which holds their order too."""

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from runner.errors import InvalidInput
from runner.queries.counts import QueueCounts
from tasktui.data.queue_order import FIGURES, HINT, ORDERS, TROUBLE, WORDS, arranged, matcher, names_of
from tasktui.messages import Notice
from tasktui.render.render import line
from tasktui.render.rows import Part
from tasktui.widgets.input import CompletionInput


class QueueFilter(CompletionInput):
    """The input, hidden until its key opens it.

    Attributes:
        named: the queues that the filter names, also those that are not listed; None if it searches only the list.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "discard", "Back", show=False)]

    class Applied(Message):
        """The filter or the order has changed, or the input has closed."""

    def __init__(self) -> None:
        super().__init__(_completed, "/", HINT, id="queue-filter")
        self._matches = matcher("")
        self.text = ""
        self.named: Sequence[QueueCounts] | None = None
        self.order = TROUBLE
        self.reverse = False
        self.on_submit = self._submit
        self.display = False

    @property
    def sort(self) -> str:
        """The name of the filter and the order."""
        return f"{self.text} {self.order} {self.reverse}"

    @property
    def names(self) -> list[str]:
        """The words that ask for names."""
        return names_of(self.text)

    def apply(self, queues: Sequence[QueueCounts]) -> list[QueueCounts]:
        """The queues that match, in the order.

        Args:
            queues: the listed queues and the named ones, sorted by trouble.
        """
        return arranged([queue for queue in queues if self._matches(queue)], self.order, reverse=self.reverse)

    def notes(self) -> list[Part]:
        """The filter and the order, for the title of the queues; empty for the first ones."""
        words: list[Part] = [(f" {line(word)} ", "bold strong on raised") for word in self.text.split()]
        parts: list[Part] = [part for word in words for part in (word, (" ", ""))]
        if self.order != TROUBLE or self.reverse:
            ascends = self.reverse is not (self.order == "name")
            parts.append((f"{'↑' if ascends else '↓'} {self.order}  ", "accent"))
        return parts

    def edit(self) -> None:
        """Show the input; the following keys are meant for it."""
        self.value, self.display = self.text, True
        self.screen.set_focus(self)

    def action_discard(self) -> None:
        """Close the input without a change."""
        self.display = False
        self.post_message(self.Applied())

    def choose(self, order: str = "") -> None:
        """Take the next order, or the named one; the present one is reversed."""
        if order == self.order:
            self.reverse = not self.reverse
        else:
            following = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
            self.order, self.reverse = order or following, False
        self.post_message(self.Applied())

    def _submit(self, text: str) -> None:
        try:
            self._matches = matcher(text)
        except InvalidInput as error:
            self.post_message(Notice(str(error), bad=True))
            return
        self.text, self.named, self.display = text.strip(), None, False
        self.post_message(self.Applied())


def _completed(text: str) -> str | None:
    """Complete the last word of a filter."""
    before, _, word = text.rpartition(" ")
    names = [*WORDS, *(f"{figure}>" for figure in FIGURES)]
    found = next((name for name in names if word and name.startswith(word) and name != word), None)
    return None if found is None else f"{before} {found}".lstrip()
