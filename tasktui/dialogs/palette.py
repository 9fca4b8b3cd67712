"""The command palette: screens, actions, commands and saved filters by name."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from tasktui.actions.actions import ACTIONS
from tasktui.commands.parse import COMMANDS
from tasktui.render.render import content, line
from tasktui.screens import MODES
from tasktui.screens.live import LiveScreen

if TYPE_CHECKING:
    from tasktui.commands.console import CommandTarget


class Choice(NamedTuple):
    """An entry of the palette.

    Args:
        title: the title.
        help: one line; both are shown as plain text.
        run: executes the entry.
    """

    title: str
    help: str
    run: Callable[[], object]

    @property
    def prompt(self) -> Content:
        """Both lines as content; the palette would parse its own help line as markup."""
        return content(self.title, (f"\n{self.help}", "muted"))


class PaletteProvider(Provider):
    """The entries available on the current screen."""

    async def discover(self) -> Hits:
        """List all entries before the operator types."""
        for choice in self._choices():
            yield DiscoveryHit(choice.prompt, choice.run, choice.title)

    async def search(self, query: str) -> Hits:
        """List the entries that match the query."""
        matcher = self.matcher(query)
        for choice in self._choices():
            score = matcher.match(f"{choice.title} {choice.help}")
            if score > 0:
                yield Hit(score, choice.prompt, choice.run, choice.title)

    def _choices(self) -> Iterator[Choice]:
        console = cast("CommandTarget", self.app)
        if isinstance(self.screen, LiveScreen):
            yield from _actions(self.screen)
        for name, mode in MODES.items():
            yield Choice(f"{mode.title}  {mode.key}", "go to this screen", partial(console.action_go, name))
        for view, filter_text in console.views().items():
            yield Choice(f"View {line(view)}", line(filter_text), partial(console.list_tasks, filter_text))
        for command in COMMANDS.values():
            if command.name not in MODES:
                text = f":{command.name} {command.arguments}".strip()
                yield Choice(text, command.help, partial(console.begin_command, command.name))


def _actions(screen: LiveScreen) -> Iterator[Choice]:
    """The screen's actions that are currently enabled."""
    enabled = {active.binding.action for active in screen.active_bindings.values() if active.enabled}
    for action in ACTIONS.values():
        if f"act('{action.name}')" in enabled:
            name = f"{action.label}  {action.key}"
            yield Choice(name, f"for {action.target.word}", partial(screen.action_act, action.name))
