"""ModalDialog: a dialog that closes once."""

from typing import TypeVar

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen
from textual.widgets import Input

T = TypeVar("T")


class ModalDialog(ModalScreen[T]):
    """A dialog in the middle of the screen.

    Keys typed ahead still reach a dialog that has closed; closing it again would close the screen below it.
    """

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close the dialog if it is open."""
        return super().dismiss(result) if self in self.app.screen_stack else AwaitComplete()


def typed_texts(dialog: ModalDialog[T]) -> dict[str, str]:
    """The texts of the inputs of a dialog, by their ids."""
    return {field.id or "": field.value.strip() for field in dialog.query(Input)}
