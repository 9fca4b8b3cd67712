"""Actions: the action keys of a screen. Each opens a dialog for the selected targets and applies the change.

The first screen does not need the modules of the dialogs: the methods import them.
"""

import time
from asyncio import CancelledError, ensure_future
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from textual.binding import Binding, BindingType

from runner.errors import RunnerError
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Result
from runner.text.sanitize import count_noun
from tasktui.actions.action import Action, ActionTarget, Confirmation, Targets
from tasktui.actions.actions import ACTIONS
from tasktui.actions.as_command import command_line
from tasktui.messages import Notice, Tone
from tasktui.session.session import Job, Session
from tasktui.session.shards import ShardsSession, each_database
from tasktui.session.write_lock import ReadOnly
from tasktui.terminal import clipboard
from tasktui.terminal.keyboard import key_buffer

if TYPE_CHECKING:
    from runner.queries.task.detail import TaskDetail
    from tasktui.actions.question import BulkChange, Dialog, Question
    from tasktui.data.values import Copyable, CopyItem
    from tasktui.shell.frame import FramedScreen

T = TypeVar("T")

LONGEST_COPY = 200
"""Characters of a copied text in a notice."""

TASK_TARGETS = (
    ActionTarget.TASKS,
    ActionTarget.TASK,
    ActionTarget.QUEUE,
    ActionTarget.HANDLER,
    ActionTarget.ENTRY,
)
"""The targets of a screen with tasks."""


def action_bindings(*targets: ActionTarget) -> list[BindingType]:
    """Build the bindings of all actions on some targets."""
    actions = [action for action in ACTIONS.values() if action.target in targets]
    # With priority, the application handles the key before it dispatches the next one.
    return [
        Binding(action.key, f"act('{action.name}')", action.label, show=action.in_footer, priority=True)
        for action in actions
    ]


def job_notice(work: Job, result: Result) -> Notice:
    """Describe the result of an operation that was stopped, ended early, or is complete."""
    from tasktui.actions.question import result_notice

    label = f"{work.what} (stopped)" if work.stopping else work.what
    # the note of a canary names the undo
    notice = result_notice(label, result, "" if work.note and not work.parts else work.undo)
    tone = Tone.PARTIAL if work.stopping or work.note else notice.tone
    return Notice("\n".join([*filter(None, [work.note]), *work.parts, notice.text]), tone=tone)


class Actions:
    """The actions of a screen.

    An action applies to the tasks and versions on the screen at the key press. Changes of the list while the dialog
    is open do not affect it.

    Args:
        screen: the screen, which shows the dialogs and runs the workers.
        targets: the selection of the screen.
    """

    def __init__(self, screen: "FramedScreen", targets: Targets) -> None:
        self._screen = screen
        self.targets = targets

    def start_for(self, name: str, targets: Targets) -> None:
        """Ask for confirmation of an action on other targets than the selection of the screen."""
        if self._may_write():
            self.start(name, targets)

    def start(self, name: str, targets: Targets | None = None) -> None:
        """Ask for confirmation of an action, then apply it.

        Args:
            targets: its targets; None for the selection of the screen.
        """
        from tasktui.actions.dialogs import DIALOGS, in_shards

        action, targets = ACTIONS[name], targets or self.targets
        session, parts = self._screen.session, targets.by_shard()
        dialog: Dialog | Coroutine[Any, Any, Dialog] | None = None
        if isinstance(session, ShardsSession) and len(parts) > 1:
            dialog = in_shards(action, session, parts)
        else:
            if isinstance(session, ShardsSession) and parts:
                ((shard, targets),) = parts.items()
                session = session.shard(shard)
                if not self._may_write(session):
                    return
            dialog = DIALOGS[name](action, session, targets)
        if dialog is None:
            marked = len(targets.tasks())
            hint = f"{marked:,} are marked, \\ clears the marks" if marked > 1 else "select one"
            if len(parts) > 1:
                hint = f"choose a shard: {', '.join(f':db {name}' for name in parts)}"
            dialog = Notice(f"{action.label} applies to one {action.target.word}: {hint}", bad=True)
        if isinstance(dialog, Coroutine):
            self._prepare(action, dialog, session)
        else:
            self._open(dialog, session)

    def offer_texts(self) -> None:
        """Offer the texts under the cursor, each with the key that copies it."""
        copyable = self.targets.copyable()
        if copyable is None:
            text = "Nothing to copy here: move the cursor to a row"
            self._screen.post_message(Notice(text, bad=True))
        elif isinstance(copyable, Coroutine):
            self.prepare("Copy", copyable, self._open_texts)
        else:
            self._open_texts(copyable)

    def _open_texts(self, copyable: "Copyable") -> None:
        from tasktui.dialogs.copy import CopyScreen

        def copy_item(item: "CopyItem | None") -> None:
            if item is not None:
                clipboard.copy(self._screen.app, item.text)
                lines = item.text.splitlines()
                more = f" and {count_noun(len(lines) - 1, 'more line')}" if len(lines) > 1 else ""
                self._screen.post_message(Notice(f"Copied the {item.name}: {lines[0][:LONGEST_COPY]}{more}"))

        self._screen.app.push_screen(CopyScreen(copyable), copy_item)

    def ask_pause(self, target: PauseTarget, length: str, reason: str, *, resume: bool) -> None:
        """Ask to pause a queue or a handler that a command names, or to resume it.

        Args:
            target: the queue or the handler.
            length: duration or end, as typed; empty for the usual one.
            reason: reason, as typed.
            resume: True to resume it.
        """
        if self._may_write():
            from tasktui.actions import queues

            action = ACTIONS["pause" if target.kind is PauseKind.QUEUE else "pause --handler"]
            asking = queues.ask_to_pause(action, self._screen.session, target, length, reason, resume=resume)
            self._prepare(action, asking)

    def ask_limit(self, target: PauseTarget, limits: str, reason: str) -> None:
        """Ask to limit a queue or a handler that a command names.

        Args:
            target: the queue or the handler.
            limits: limits, as typed; empty for the usual ones.
            reason: reason, as typed.
        """
        if self._may_write():
            from tasktui.actions import queues

            action = ACTIONS[f"limit {target.kind}"]
            self._prepare(action, queues.ask_to_limit(action, self._screen.session, target, limits, reason))

    def ask_breaker(self, handler: str, wait: str, reason: str) -> None:
        """Ask to open the breaker of a handler that a command names, or to close it if it is open.

        Args:
            wait: time until the first probe, as typed; empty for the usual one.
            reason: reason, as typed.
        """
        if self._may_write():
            from tasktui.actions import breaker

            action = ACTIONS["breaker"]
            self._prepare(action, breaker.ask_for_breaker(action, self._screen.session, handler, wait, reason))

    def ask_silence(self, name: str, length: str, reason: str) -> None:
        """Ask to silence an alert that a command names, or to end its silence.

        Args:
            length: duration or end, as typed; empty for the usual one.
            reason: reason, as typed.
        """
        if self._may_write():
            from tasktui.actions import alerts

            action = ACTIONS["alerts silence"]
            self._prepare(action, alerts.ask_to_silence(action, self._screen.session, name, length, reason))

    def ask_submit(self, handler: str) -> None:
        """Ask for a new task of a handler that a command names."""
        if self._may_write():
            from tasktui.actions import new_task

            action = ACTIONS["submit"]
            self._prepare(action, new_task.ask_to_submit(action, self._screen.session, handler))

    def _may_write(self, session: Session | None = None) -> bool:
        """True if changes are allowed; otherwise show why not.

        Args:
            session: the session with a shard; None for that of the screen.
        """
        session = session or self._screen.session
        if not session.writable:
            key_buffer(self._screen.app).ahead.refuse(str(ReadOnly(why=session.why_locked)))
        return session.writable

    def run(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in a worker and show its error as a notice."""

        async def guarded() -> None:
            try:
                await work
            except RunnerError as error:
                self._screen.post_message(Notice(str(error), bad=True))

        # A coroutine would never be awaited if the worker is cancelled before it begins, and hold the keys typed ahead.
        self._screen.run_worker(ensure_future(guarded()), group="act")

    def _prepare(self, action: Action, reading: "Coroutine[Any, Any, Dialog]", session: Session | None = None) -> None:
        self.prepare(action.label, reading, partial(self._open, session=session or self._screen.session))

    def prepare(self, label: str, reading: Coroutine[Any, Any, T], open_dialog: Callable[[T], None]) -> None:
        """Read the data of a dialog and open it. The keys typed until then wait for the dialog; escape cancels it."""
        screen, ahead = self._screen, key_buffer(self._screen.app).ahead
        pending = ahead.prepare(label)

        async def read_and_open() -> None:
            try:
                show = partial(open_dialog, await reading)
            except RunnerError as error:
                show = partial(ahead.refuse, str(error))
            except CancelledError:  # The screen is removed.
                pending.drop()
                raise
            if not screen.call_later(pending.open, show):
                pending.drop()

        self.run(read_and_open())

    def _open(self, dialog: "Dialog", session: Session) -> None:
        """Open a dialog about the database of a session."""
        if self._screen not in self._screen.app.screen_stack:  # A click has opened another screen since.
            self._screen.post_message(Notice("Nothing was changed: the screen is not in front any more", bad=True))
            return
        from tasktui.actions.question import Form, Question

        match dialog:
            case Notice(tone=Tone.ERROR):
                key_buffer(self._screen.app).ahead.refuse(dialog.text)
            case Notice():
                self._screen.post_message(dialog)
            case Question():
                self._confirm(dialog, session)
            case Form():
                from tasktui.dialogs.form import FormScreen

                self._screen.app.push_screen(FormScreen(dialog), partial(self._continue, session))
            case detail:
                self._edit(detail, session)

    def _continue(self, session: Session, dialog: "Dialog | None") -> None:
        """Open the dialog that follows a form."""
        if dialog is not None:
            self._open(dialog, session)

    def _confirm(self, question: "Question", session: Session) -> None:
        from runner.operations.targets import required_confirmation
        from tasktui.dialogs.ask import ConfirmScreen

        production = session.settings.production
        required = required_confirmation(question.count, production=production, name=session.name)

        def on_close(answer: "Confirmation | Question | None") -> None:
            if isinstance(answer, Confirmation):
                self._apply(question, answer, session)
            elif answer is not None:
                self._confirm(answer, session)

        def command(confirmation: Confirmation) -> str | None:
            return command_line(question.words(confirmation), session.settings)

        now = session.now().astimezone(session.zone)
        self._screen.app.push_screen(ConfirmScreen(question, required, command, now, production=production), on_close)

    def _edit(self, detail: "TaskDetail", session: Session) -> None:
        from tasktui.actions.question import result_notice
        from tasktui.dialogs.form import EditScreen

        def on_close(result: Result | None) -> None:
            if result is not None:
                self._unmark(result, session)
                self._report(result_notice("Edit", result), session)

        self._screen.app.push_screen(EditScreen(detail, session), on_close)

    def _apply(self, question: "Question", confirmation: Confirmation, session: Session) -> None:
        from tasktui.actions.question import BulkChange

        change = question.change(confirmation)
        if isinstance(change, BulkChange):
            self._start_job(change, session)
            return

        async def apply() -> None:
            self._report(await change, session)

        self.run(apply())

    def _start_job(self, change: "BulkChange", changed: Session) -> None:
        """Run a bulk change in a worker, one at a time. The heading shows its progress, and it can be stopped.

        Args:
            changed: the session with the database that it changes.
        """
        screen, session = self._screen, self._screen.session
        if session.work is not None:
            text = f"{session.work.what} is still in progress; wait, or stop it with ctrl+x"
            screen.post_message(Notice(text, bad=True))
            return
        session.work = work = Job(change.label, change.total, time.monotonic())

        async def run() -> None:
            try:
                result = await change.apply(work)
            except RunnerError as error:
                self._report(Notice(f"{work.what} failed after {work.done:,} changes. {error}", bad=True), changed)
            else:
                self._unmark(result, changed)
                self._report(job_notice(work, result), changed)
            finally:
                session.work = None
                screen.feed.hurry()

        self.run(run())

    def _unmark(self, result: Result, session: Session) -> None:
        """Remove the marks of the changed tasks, which have ids with a shard on a screen of several."""
        of_shard = session is not self._screen.session and isinstance(self._screen.session, ShardsSession)
        self.targets.unmark(result.in_shard(session.name) if of_shard else result)

    def _report(self, notice: Notice, session: Session) -> None:
        """Show the result of a change. On other screens than the audit, it may offer to undo it there."""
        if self.targets.change() is None:
            for each in each_database(session):
                self._screen.console.databases.opened_of(each).audit.has_new_change = True
        notice.database = session.name
        self._screen.post_message(notice)
        self._screen.feed.hurry()
