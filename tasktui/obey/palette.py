"""The palette: every screen, action, command and saved view, found by a part of its name."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from tasktui.act.actions import ACTIONS
from tasktui.draw.render import content, line
from tasktui.screens import MODES
from tasktui.screens.acting import ActingScreen
from tasktui.typed.commands import COMMANDS

if TYPE_CHECKING:
    from tasktui.obey.console import Console


class Choice(NamedTuple):
    """Something that can be chosen.

    Args:
        title: what it is called.
        help: one line; both are shown as plain text, whatever stands in them.
        do: carries it out.
    """

    title: str
    help: str
    do: Callable[[], object]

    @property
    def prompt(self) -> Content:
        """Both lines. The palette would read a help of its own as markup."""
        return content(self.title, (f"\n{self.help}", "dim"))


class Palette(Provider):
    """What can be done here and now."""

    async def discover(self) -> Hits:
        """Everything, before anything is typed."""
        for choice in self._choices():
            yield DiscoveryHit(choice.prompt, choice.do, choice.title)

    async def search(self, query: str) -> Hits:
        """What was begun to be typed."""
        matcher = self.matcher(query)
        for choice in self._choices():
            score = matcher.match(f"{choice.title} {choice.help}")
            if score > 0:
                yield Hit(score, choice.prompt, choice.do, choice.title)

    def _choices(self) -> Iterator[Choice]:
        console = cast("Console", self.app)
        if isinstance(self.screen, ActingScreen):
            yield from _actions(self.screen)
        for name, mode in MODES.items():
            yield Choice(f"{mode.title}  {mode.key}", "go to this screen", partial(console.action_go, name))
        for view, wanted in console.views().items():
            yield Choice(f"View {line(view)}", line(wanted), partial(console.list_tasks, wanted))
        for command in COMMANDS.values():
            if command.name not in MODES:
                typed = f":{command.name} {command.arguments}".strip()
                yield Choice(typed, command.help, partial(console.begin_command, command.name))


def _actions(screen: ActingScreen) -> Iterator[Choice]:
    """The actions that this screen has keys for, if they are allowed at this moment."""
    possible = {active.binding.action for active in screen.active_bindings.values() if active.enabled}
    for action in ACTIONS.values():
        if f"act('{action.name}')" in possible:
            name = f"{action.label}  {action.key}"
            yield Choice(name, f"for {action.subject.word}", partial(screen.action_act, action.name))
