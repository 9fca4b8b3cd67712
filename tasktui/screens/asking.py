"""AskingScreen: a screen whose keys change things, each from the table of actions and each confirmed."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Key
from textual.widgets import Input

from runner.errors import RunnerError
from runner.policy.consent import demand
from tasktui import screens
from tasktui.act.actions import ACTIONS, Action, Subject
from tasktui.act.consent import Consent
from tasktui.act.copying import Scripted
from tasktui.act.spoken import written
from tasktui.messages import Told
from tasktui.operator.writing import ReadOnly
from tasktui.screens.live import LiveScreen
from tasktui.terminal.holding import holding

Then = Callable[[Consent], object]


def acts(*subjects: Subject) -> list[BindingType]:
    """The bindings of all actions on such subjects."""
    chosen = [action for action in ACTIONS.values() if action.subject in subjects]
    # With priority the application handles the key itself, and none behind it before that is done.
    return [
        Binding(action.key, f"act('{action.name}')", action.label, show=action.shown, priority=True)
        for action in chosen
    ]


class AskingScreen(LiveScreen):
    """A screen that asks whether a change is meant, and makes it in a worker."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey out what changes anything while that is not allowed."""
        if action == "act" and isinstance(self.focused, Input):
            return False  # a letter that is typed is a letter
        if action == "act" and not self.session.writable:
            return None
        return super().check_action(action, parameters)

    def on_key(self, event: Key) -> None:
        """Say why a key does nothing that is greyed out."""
        active = self.active_bindings.get(event.key)
        if active is not None and not active.enabled:
            self.tell(str(ReadOnly(why=self.session.lock.why)), bad=True)

    def ask(
        self,
        action: Action,
        about: Sequence[Content],
        count: int,
        then: Then,
        words: Callable[[Consent], Sequence[object]],
        scripted: Scripted | None = None,
        *,
        many: bool = False,
    ) -> None:
        """Put a question.

        Args:
            action: that is asked about.
            about: what it will be done to.
            count: how many things that are.
            then: called with the consent when there is one.
            words: behind `runner`, that do the same on the command line.
            scripted: writes the SQL that does the same; None where there is none.
            many: it can be tried on some of them first.
        """
        settings = self.session.settings
        wanted = demand(count, production=settings.production, name=self.session.name)

        def answered(consent: Consent | None) -> None:
            if consent is not None:
                then(consent)

        def spoken(consent: Consent) -> str | None:
            return written(words(consent), settings)

        self.app.push_screen(screens.ConfirmScreen(action, about, wanted, spoken, scripted, many=many), answered)

    def prepare(self, asking: Coroutine[Any, Any, object]) -> None:
        """Ask the database what a question needs, and put it then; keys that are typed meanwhile wait for it."""
        console = holding(self.app)
        console.hold()

        async def preparing() -> None:
            try:
                await asking
            finally:
                self.call_later(console.let_go)  # behind the question, which is put in the same way

        self.work(preparing())

    def work(self, doing: Coroutine[Any, Any, object]) -> None:
        """Do something in a worker; what goes wrong is told."""

        async def working() -> None:
            try:
                await doing
            except RunnerError as error:
                self.post_message(Told(str(error), bad=True))

        self.run_worker(working(), group="act")
