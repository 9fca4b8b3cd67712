"""The Textual application: global keys, commands, and the crash message.

The screens and their keys come from COMMANDS in tasktui.commands.syntax.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from rich.segment import Segments
from rich.text import Text
from textual import constants, on
from textual.app import ScreenStackError
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.driver import Driver
from textual.events import TextSelected
from textual.filter import LineFilter
from textual.widget import AwaitMount
from textual.widgets import Input
from textual.worker import WorkerFailed

from runner.errors import InvalidInput, RunnerError
from runner.filter import saved as views
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term, parse_filter
from runner.filter.sort import Sort
from runner.text.sanitize import count_noun, crash_text
from tasktui.commands.run import run_command, write_incident
from tasktui.commands.syntax import parse_command
from tasktui.data.alerts import read_alarm
from tasktui.messages import Notice, ReadFailed, SnapshotRead, Tone
from tasktui.render import theme
from tasktui.render.theme import THEMES, Ascii, suitable
from tasktui.screens import MODES as SCREENS
from tasktui.screens import preload
from tasktui.session.databases import Databases, mode_name
from tasktui.session.opened import TargetScreen
from tasktui.session.session import Session
from tasktui.session.shards import ShardsSession
from tasktui.shell.actions import Actions
from tasktui.shell.heading import Heading
from tasktui.shell.live import LiveScreen
from tasktui.terminal import clipboard
from tasktui.terminal.keyboard import Keyboard, NoColor, forgive_bad_bytes
from tasktui.terminal.typed_ahead import KeyBuffer

if TYPE_CHECKING:
    from tasktui.dialogs.attention import AttentionChoice
    from tasktui.terminal.recording import Recorder

PRELOAD_DELAY = 0.2
"""Seconds between the first data and loading further modules, so that the first screen is drawn before."""

AUTO = "auto"
"""The name that chooses a theme by the terminal."""

QUIT_CHECK = 0.1
"""Seconds between checks whether the operation in progress has ended."""

MOST_NOTICES = 50
"""Notices that the console remembers."""


def theme_file(session: Session) -> Path:
    """The file of the themes that the operator chose, by profile."""
    return session.views.with_name("themes.json")


def saved_theme(session: Session) -> str:
    """The theme that the operator chose for this profile; empty if none."""
    try:
        return views.load(theme_file(session)).get(session.name, "")
    except InvalidInput:
        return ""


class Console(KeyBuffer):
    """The console of one operator at one database."""

    CSS_PATH = Path(__file__).with_name("console.tcss")
    TITLE = "tasktui"
    DEFAULT_MODE = "overview"
    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority, the application handles the key before it dispatches the next one. The following keys are meant
        # for the new screen or command line, not for the widget that has the focus now.
        *(Binding(mode.key, f"go('{name}')", mode.title, show=False, priority=True) for name, mode in SCREENS.items()),
        Binding("question_mark", "help", "Help", key_display="?", show=False),
        Binding("colon", "command", "Command", key_display=":", show=False, priority=True),
        Binding("ctrl+p", "command_palette", "Palette", show=False, priority=True),
        Binding("d", "database", "Next database", show=False, priority=True),
        Binding("h", "health", "Database health", show=False),
        Binding("exclamation_mark", "attention", "All alerts", key_display="!", show=False),
        Binding("q", "quit", "Quit", show=False),
        Binding("ctrl+z", "suspend_process", "Suspend", show=False, system=True),
        Binding("ctrl+c", "quit", show=False, system=True),  # A field copies; a dialog has no such key.
    ]

    def __init__(
        self, session: Session, theme_name: str = "", *, ascii_signs: bool = False, others: Sequence[Session] = ()
    ) -> None:
        super().__init__()
        self.databases = Databases((session, *others), self.DEFAULT_MODE.partition("@")[0])
        for place, each in enumerate(self.databases.sessions):
            for name, mode in SCREENS.items():
                create = mode.create_for_shards if isinstance(each, ShardsSession) else mode.create
                self.add_mode(mode_name(name, place), partial(create, each, self))
                self.add_mode(mode_name(name, place, past=True), partial(mode.create_past, each, self))
        self.notices: list[str] = []
        self._preloaded = False
        self._quit_requested = False
        self.recorder: Recorder | None = None
        self._ascii = ascii_signs
        self._parsed_theme = ""
        theme.use_ascii(on=ascii_signs)
        for palette in THEMES.values():
            self.register_theme(palette.textual())
        self.apply_theme(theme_name or saved_theme(self.session) or suitable(os.environ))

    @property
    def session(self) -> Session:
        """The session with the database in front."""
        return self.databases.front

    def switch_mode(self, mode: str) -> AwaitMount:
        """Switch to a screen of the database in front."""
        return super().switch_mode(self.databases.mode(mode))

    async def action_database(self) -> None:
        """Bring the next database to the front, with the screen that it showed last."""
        await self.switch_mode(self.databases.next())

    def apply_theme(self, name: str) -> None:
        """Draw with a theme.

        Raises:
            InvalidInput: the theme does not exist.
        """
        self.theme = f"console-{theme.use(name).name}"

    def refresh_css(self, animate: bool = True) -> None:
        """Parse the styles again, for another theme only.

        Textual asks for it twice for every new screen, and parses all style sheets. A screen applies the styles when it
        comes to the front.
        """
        if not self.screen_stack:  # The first screen parses them.
            self.stylesheet.set_variables(self.get_css_variables())
        elif self._parsed_theme != self.theme:
            super().refresh_css(animate)
        self._parsed_theme = self.theme

    def change_theme(self, name: str) -> None:
        """Draw with another theme, and keep it for this profile; `auto` chooses by the terminal.

        Raises:
            InvalidInput: the theme does not exist, or the choice cannot be kept.
        """
        if name != AUTO and name not in THEMES:
            raise InvalidInput(why=f"unknown theme {name[:20]!r}; the themes are {AUTO}, {', '.join(THEMES)}")
        self.apply_theme(suitable(os.environ) if name == AUTO else name)
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.redraw()
        if name != AUTO:
            views.save(theme_file(self.session), self.session.name, name)
        elif saved_theme(self.session):
            views.delete(theme_file(self.session), self.session.name)

    async def action_go(self, mode: str) -> None:
        """Switch to a screen, or with `back` to the one that opened this one. The following keys wait for it."""
        if name := self.databases.back() if mode == "back" else self.databases.mode(mode, by_key=True):
            await super().switch_mode(name)

    @on(Heading.Chosen)
    async def _open_screen(self, event: Heading.Chosen) -> None:
        if isinstance(self.screen, LiveScreen):  # A dialog stays in front.
            await self.action_go(next(name for name, mode in SCREENS.items() if mode.title == event.title))

    @on(TextSelected)
    def _copy_selection(self) -> None:
        """Copy the text that the mouse has selected."""
        if text := self.screen.get_selected_text():
            clipboard.copy(self, text)
            self.show_notice(f"Copied {count_noun(len(text), 'character')}")

    def action_help(self) -> None:
        """Show the help of this screen or dialog."""
        from tasktui.dialogs.answer import AnswerScreen
        from tasktui.dialogs.help import HelpScreen

        if isinstance(self.screen, LiveScreen | AnswerScreen):
            self.push_screen(HelpScreen(self.screen))

    def get_driver_class(self) -> type[Driver]:
        """Use a driver that stops when the terminal closes, or the one that a web server names."""
        if constants.DRIVER:
            return super().get_driver_class()
        forgive_bad_bytes()
        return Keyboard

    @on(SnapshotRead)
    @on(ReadFailed)
    def _preload(self) -> None:
        if not self._preloaded:
            self._preloaded = True
            self.run_worker(self.databases.watch(read_alarm), group="databases")
            self.set_timer(PRELOAD_DELAY, lambda: self.run_worker(preload()))

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Remove all colours if NO_COLOR is set."""
        filters = [NoColor()] if self.no_color or theme.current().name == "none" else super().get_line_filters()
        return [*filters, Ascii()] if self._ascii else filters

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave letters to inputs that have the focus, and show the stop key only while an operation is in progress."""
        if action == "stop":
            return self.session.work is not None
        if action in ("health", "capacity", "attention") and (
            self.session.at is not None or isinstance(self.session, ShardsSession)
        ):
            return None  # A database keeps none of them, and each shard has its own.
        if action == "database" and len(self.databases.sessions) == 1:
            return False
        if action in ("command", "go", "database"):
            return isinstance(self.screen, LiveScreen) and not isinstance(self.focused, Input)
        return super().check_action(action, parameters)

    def action_health(self) -> None:
        """Show the health of the database."""
        if isinstance(self.screen, LiveScreen):
            from tasktui.dialogs.health import HealthScreen

            self.push_screen(HealthScreen(self.session))

    def action_attention(self) -> None:
        """Show all alerts."""
        if isinstance(self.screen, LiveScreen):
            from tasktui.dialogs.attention import AttentionScreen

            AttentionScreen(self.databases).open(self, partial(_open_alert, self, self.screen))

    def action_capacity(self) -> None:
        """Show the capacity of the runners, and when each queue is drained."""
        if isinstance(self.screen, LiveScreen):
            from tasktui.dialogs.capacity import CapacityScreen

            self.push_screen(CapacityScreen(self.session))

    async def action_quit(self) -> None:
        """Quit; while an operation is in progress, only after a second request, and after its current chunk."""
        work = next(iter(self.databases.jobs), None)
        if work is None:
            self.exit()
        elif work.stopping:
            self.show_notice(f"{work.what} ends with its current chunk, then the console quits")
        elif not self._quit_requested:
            self._quit_requested = True
            text = f"{work.label(time.monotonic())}. Nothing was stopped: q again stops it and quits."
            self.show_notice(text, tone=Tone.PARTIAL)
        else:
            self.run_worker(self._stop_all(), group="quit")

    async def _stop_all(self) -> None:
        """Stop the operation of each database after its current chunk, then quit."""
        while jobs := self.databases.jobs:
            for job in jobs:
                job.stop()
            await asyncio.sleep(QUIT_CHECK)
        self.exit()

    def action_stop(self) -> None:
        """Stop the operation in progress after its current chunk."""
        if self.session.work is not None:
            self.session.work.stop()

    async def action_command(self, name: str = "") -> None:
        """Open the command line, with the name of a command. The following keys wait for it."""
        if isinstance(self.screen, LiveScreen):
            from tasktui.dialogs.command_line import CommandScreen, saved_views

            names = self.session.names | {"view": list(saved_views(self.session))}
            names["db"] = [each.name for each in self.databases.sessions if each is not self.session]
            screen = CommandScreen(names, self._run_command, f"{name} " if name else "")
            await self.push_screen(screen)
            screen.set_focus(screen.line)

    def action_command_palette(self) -> None:
        """Open the palette."""
        if isinstance(self.screen, LiveScreen):
            from tasktui.dialogs.palette import PaletteScreen

            self.push_screen(PaletteScreen(self, self.screen))

    def _run_command(self, typed: str) -> None:
        """Run a command. The following keys wait for the screen that it opens."""
        self.ahead.hold()
        try:
            command = parse_command(typed)
            for screen in self.screen_stack:
                if isinstance(screen, LiveScreen):
                    screen.frame.clear_error()
            if command.name == "compare":
                from tasktui.dialogs.compare import open_comparison

                open_comparison(self, command.words)
            else:
                run_command(self, command)
        except RunnerError as error:
            self.ahead.refuse(str(error))
        self.call_later(self.ahead.release)

    @property
    def actions(self) -> Actions:
        """The actions of the screen in front, as commands use them."""
        return cast("LiveScreen", self.screen_stack[0]).actions

    def write_incident(self, times: Sequence[str]) -> None:
        """Write the report of a period to a file, and show its name."""
        if isinstance(self.screen, LiveScreen):
            self.screen.actions.run(_write_incident(self.screen, times))

    def open_tasks(self, filter_text: str | None = None, sort: Sort | None = None) -> None:
        """Open the task list. An invalid filter is refused, and the screen stays.

        Args:
            filter_text: the filter, which may name saved ones; None keeps the present one.
            sort: the order; None keeps the present one.
        """
        tasks, session = self.databases.opened.tasks, self.session
        try:
            filter_text = None if filter_text is None else views.expand_text(filter_text, session.views)
            parse_filter(filter_text or "", session.now(), session.zone)
        except InvalidInput as error:
            self.ahead.refuse(str(error))
            return
        changes = self.databases.is_list_shown and filter_text not in (None, tasks.filter_text)
        tasks.before = (tasks.filter_text, tasks.sort) if changes else None
        tasks.filter_text = tasks.filter_text if filter_text is None else filter_text
        tasks.sort = sort or tasks.sort
        self.switch_mode("tasks")

    def open_task(self, id: int, ids: Sequence[int] | None = None) -> None:
        """Open a task.

        Args:
            ids: tasks of the list that it is opened from; None keeps the list of the task before.
        """
        task = self.databases.opened.task
        task.id, task.ids = id, task.ids if ids is None else ids
        self.switch_mode("task")

    def open_at(self, mode: TargetScreen, target: str) -> None:
        """Open a screen with the cursor on its target; see `OpenedTarget`."""
        getattr(self.databases.opened, mode).target = target
        self.switch_mode(mode)

    @on(Notice)
    def _show_notice(self, message: Notice) -> None:
        prefix = "" if message.database in ("", self.session.name) else f"{message.database}: "
        self.show_notice(f"{prefix}{message.text}", tone=message.tone)

    def show_notice(self, text: str, *, tone: Tone = Tone.DONE) -> None:
        """Show a notice on the screen in front, and on the one below a dialog."""
        self.notices = [*self.notices, text][-MOST_NOTICES:]
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.frame.show_message(text, tone)

    def show_refusal(self, why: str, ignored: int) -> None:
        """Show why a key was refused, and the number of keys ignored since."""
        if ignored and self.notices and self.notices[-1].startswith(why):
            self.notices.pop()  # the same notice with the number of keys before
        note = f"\n{count_noun(ignored, 'key')} typed after it ignored; pause before the next key" if ignored else ""
        self.show_notice(f"{why}{note}", tone=Tone.ERROR)

    def show_waiting(self, text: str, *, over: bool = False) -> None:
        """Show that the dialog of an action waits for the database, or that escape cancelled it before it opened."""
        if not over:
            self.show_notice(text, tone=Tone.PARTIAL)
        for screen in self.screen_stack:
            if over and isinstance(screen, LiveScreen):
                screen.frame.hide_message(text)

    def clear_selection(self) -> None:
        """Clear the selection of the screen; an input of the first screen asks for it before that one is open."""
        if self.screen_stack:
            super().clear_selection()

    def _handle_exception(self, error: Exception) -> None:
        """Ignore a message that needs a screen or its widgets after the quit; another error ends the console.

        A screen that opens during the quit stays without widgets.
        """
        ends = self._exit or not self.is_running
        cause = error.error if isinstance(error, WorkerFailed) else error
        if not (ends and isinstance(cause, ScreenStackError | NoMatches)):
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """Exit with our own message: the default one prints local variables, and so passwords and payloads."""
        message = Text(crash_text(sys.exc_info()[1] or self._exception))
        self._exit_renderables.append(Segments(self.console.render(message, self.console.options)))
        self._close_messages_no_wait()


async def _write_incident(screen: LiveScreen, times: Sequence[str]) -> None:
    screen.post_message(Notice(f"Wrote {await write_incident(screen.session, times)}"))


def _open_alert(console: Console, screen: LiveScreen, choice: "AttentionChoice | None") -> None:
    """Go to the view of a problem, or explain the tasks of its queue or handler.

    Args:
        screen: the screen below the dialog; a key typed ahead may have opened another dialog in front of it.
    """
    if choice is None:
        return
    from tasktui.screens.selection import open_why  # not needed for the first data

    if choice.action:
        screen.actions.start_for(choice.action, choice.targets)
        return
    kind, subject, view = choice.problem.kind, choice.problem.subject, choice.problem.label
    named = kind in ("queue", "handler") and subject
    tasks = Filter((Term(kind, Operator.EQ, subject),)) if named else Filter()
    if choice.explain:
        open_why(screen, tasks)
    elif kind == "database":
        console.switch_mode(console.databases.choose(subject))
    elif view == "health":
        console.action_health()
    elif view == "tasks":
        console.open_tasks(str(tasks))
    elif view == "failures" and kind == "queue":
        console.databases.opened.failures.queue = subject
        console.open_at("failures", "")
    else:
        console.open_at(cast("TargetScreen", view), subject)
