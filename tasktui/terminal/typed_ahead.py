"""Keys that were typed before a screen was ready."""

import time
from collections.abc import Callable
from math import inf
from typing import Protocol, runtime_checkable

from textual.app import App
from textual.events import Event, Key
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input

from runner.text.sanitize import count_noun

QUITTING = ("ctrl+c", "ctrl+q")


LEAVING = ("escape", *QUITTING)
"""Keys that bypass the buffer, because the query may be slow."""


MAX_KEYS = 1_000
"""Capacity of the buffer."""


BURST = 0.8
"""Seconds without a key that end the keys typed ahead for the dialog of a refused key."""


PATIENCE, REPORT_EVERY = 1.0, 5.0
"""Seconds until the console shows that a dialog waits for the database, and between two such notices."""


HELD_KEY = 3
"""Times that one key is typed in a row by holding it down; no text of a dialog repeats a letter as often."""


@runtime_checkable
class OrderedField(Protocol):
    """An input that handles a key completely before the application takes the next one."""

    async def press(self, event: Key) -> None:
        """Handle a key: insert its character, or run its action."""
        ...


@runtime_checkable
class RefusingScreen(Protocol):
    """A screen that refuses keys."""

    def refusal(self, key: str) -> str:
        """Return the reason why a key does nothing now; empty if it is not refused."""
        ...


class PendingDialog:
    """A dialog in preparation: it opens once its data are read, unless the operator cancels it.

    Args:
        ahead: the keys that wait for the dialog.
        label: name of the action.
    """

    def __init__(self, ahead: "TypedAhead", label: str) -> None:
        self._ahead = ahead
        self.label = label
        self.is_cancelled = False
        self.notice = ""

    def cancel(self) -> None:
        """Never open the dialog."""
        self.is_cancelled = True

    def open(self, show: Callable[[], object]) -> None:
        """Show the dialog, or the reason why there is none, unless it is cancelled; then replay the keys."""
        if not self.is_cancelled:
            try:
                show()
            finally:
                self._ahead.settle(self)

    def drop(self) -> None:
        """Open no dialog, because its screen is removed; the keys that waited for it are ignored."""
        self._ahead.settle(self)


class TypedAhead:
    """The keys that an operator types before their dialog opens.

    They wait for the dialog. If its key is refused, no dialog opens, and the rest of the burst, until a pause of
    `BURST` seconds, is ignored.
    """

    def __init__(self, app: "KeyBuffer") -> None:
        self._app = app
        self._keys: list[Key] | None = None
        self._holds = 0
        self._leaving: tuple[str, ...] = LEAVING
        self._pending: list[PendingDialog] = []
        self._refusal, self._ignored, self._ignore_until = "", list[str](), -inf

    def takes(self, event: Key) -> bool:
        """True if a key waits for a dialog or is ignored."""
        if event.key == "escape" and self._pending:
            self._cancel()
            return True
        if self._ignores(event):
            return True
        if event.key in self._leaving:
            self._keys = None  # the operator gave up on the dialog
        if self._keys is None:
            return False
        self._keys = [*self._keys, event][:MAX_KEYS]
        return True

    def hold(self, *leaving: str) -> None:
        """Start buffering; each call needs one of `release`, and the last of them ends the buffering.

        Args:
            leaving: further keys that bypass the buffer.
        """
        self._holds += 1
        self._leaving = (*self._leaving, *leaving)
        self._keys = self._keys or []

    def prepare(self, label: str) -> "PendingDialog":
        """Start buffering for a dialog that needs data of the database.

        Args:
            label: name of the action, for the notice that escape has cancelled it.
        """
        self.hold()
        self._pending.append(dialog := PendingDialog(self, label))
        self._app.set_timer(PATIENCE, lambda: self._report(dialog))
        return dialog

    def _report(self, dialog: PendingDialog) -> None:
        """Show that the keys wait for a dialog, as long as they do."""
        if dialog in self._pending:
            dialog.notice = f"{dialog.label} waits for the database, and keys for its dialog; escape cancels"
            self._app.show_waiting(dialog.notice)
            self._app.set_timer(REPORT_EVERY, lambda: self._report(dialog))

    def settle(self, dialog: "PendingDialog") -> None:
        """Replay the keys to a dialog that was prepared, or drop them if no dialog opened."""
        if dialog in self._pending:
            self._pending.remove(dialog)
            self._app.show_waiting(dialog.notice, over=True)
            if not self._app.screen_stack or not isinstance(self._app.screen, ModalScreen):
                self._keys = None
            self.release()

    def _cancel(self) -> None:
        """Cancel the dialogs in preparation and the keys that wait for them, with one notice."""
        ahead, self._keys = len(self._keys or []), None
        pending, self._pending = self._pending, []
        for dialog in pending:
            dialog.cancel()
            self.release()
        labels = ", ".join(dict.fromkeys(dialog.label for dialog in pending))
        note = f"; {count_noun(ahead, 'key')} typed after it ignored" if ahead else ""
        self._app.show_waiting(f"{labels} cancelled before its dialog opened{note}")

    def release(self) -> None:
        """Replay the keys to the screen in front, once it is drawn."""
        self._holds -= 1
        if not self._holds:
            self._leaving = LEAVING
        if not self._holds and self._app.screen_stack:  # Without a screen, the console has closed.
            # In the application: a key of the screen would not reach the bindings of the screen from a widget in it.
            self._app.screen.call_after_refresh(self._app.call_next, self._replay)

    def refuse(self, why: str) -> None:
        """Show why a key was refused, and ignore the keys typed ahead for its dialog.

        Args:
            why: the reason, not sanitized.
        """
        ahead, self._keys = self._keys or [], None
        self._refusal, self._ignored, self._ignore_until = why, [], time.monotonic() + BURST
        self._app.show_refusal(why, 0)
        for key in ahead:
            self._ignores(key)

    def _ignores(self, event: Key) -> bool:
        """True for a key of the burst after a refused key; escape, a pause and a key held down end the burst."""
        last = [*self._ignored, event.key][-HELD_KEY:]
        repeats = last == [event.key] * HELD_KEY and not event.key.isdigit()
        if event.time > self._ignore_until or event.key in QUITTING or repeats:
            self._ignore_until = -inf
            return False
        self._ignored.append(event.key)
        self._ignore_until = -inf if event.key == "escape" else max(self._ignore_until, event.time + BURST)
        self._app.show_refusal(self._refusal, len(self._ignored))
        return True

    def _replay(self) -> None:
        if self._holds:  # The keys wait for another dialog since.
            return
        keys, self._keys = self._keys or [], None
        for key in keys:
            self._app.post_message(Key(key.key, key.character))


def _takes_keys(target: Widget) -> bool:
    """True if a widget, or one around it, handles keys itself."""
    return any(isinstance(node, Input) or hasattr(node, "on_key") for node in target.ancestors_with_self)


class KeyBuffer(App[None]):
    """An application that handles keys in the order in which they were typed.

    Keys after the one that opens a dialog are meant for the dialog and must not act on the screen below. Textual
    inserts characters in the queue of the input, but runs the actions of other keys in the queue of the application,
    so that characters overtake backspace, arrows and enter. This application waits for each key of an input.

    It also runs the keys of a list before the next key: Textual hands them to the list, where a key of the screen, such
    as one that changes tasks, would overtake the arrows before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ahead = TypedAhead(self)

    async def on_event(self, event: Event) -> None:
        """Keep the keys typed ahead, and hand the keys of an input to it one by one."""
        if not isinstance(event, Key):
            await super().on_event(event)
            return
        if not self.screen_stack or self.ahead.takes(event):  # Without a screen, the console has closed.
            return
        field: object = self.focused
        screen: object = self.screen
        if isinstance(field, OrderedField):
            await field.press(event)
        elif isinstance(screen, RefusingScreen) and (why := screen.refusal(event.key)):
            self.ahead.refuse(why)
        elif event.is_forwarded or _takes_keys(self.focused or self.screen):
            await super().on_event(event)
        else:
            if event.key == "escape":
                self.screen.clear_selection()
            if not await self._check_bindings(event.key, priority=True):
                await self._check_bindings(event.key)

    def show_refusal(self, why: str, ignored: int) -> None:
        """Show why a key was refused.

        Args:
            why: the reason, not sanitized.
            ignored: number of keys ignored since.
        """
        raise NotImplementedError

    def show_waiting(self, text: str, *, over: bool = False) -> None:
        """Show that the dialog of an action waits for the database, or that escape cancelled it before it opened.

        Args:
            text: the notice, not sanitized.
            over: hide this notice, because the wait is over; another notice stays.
        """
        raise NotImplementedError
