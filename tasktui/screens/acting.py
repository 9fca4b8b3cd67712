"""ActingScreen: a screen whose keys change things, each from the table of actions and each confirmed."""

import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content

from runner import cells
from runner.errors import RunnerError
from runner.filters import Filter
from runner.policy.consent import demand
from runner.store import observe
from runner.store.intervene import Result
from runner.store.observe import Audited, Pause, TaskRow
from tasktui import interventions
from tasktui.actions import ACTIONS, Action, Plan, Subject, plan
from tasktui.consent import Consent
from tasktui.messages import Acted, Told
from tasktui.render import content, line
from tasktui.screens.confirm import ConfirmScreen, told
from tasktui.screens.edit import EditScreen
from tasktui.screens.live import LiveScreen
from tasktui.screens.why import WhyScreen
from tasktui.work import Work

MOST_TOLD = 8
"""Tasks that were left alone are told of one by one up to so many."""

Then = Callable[[Consent], object]


def acts(*subjects: Subject) -> list[BindingType]:
    """The bindings of all actions on such subjects."""
    chosen = [action for action in ACTIONS.values() if action.subject in subjects]
    return [Binding(action.key, f"act('{action.name}')", action.label) for action in chosen]


class ActingScreen(LiveScreen):
    """A screen whose keys change things.

    What an action is done to is taken at the key press, with the versions that are on the screen; what happens to the
    list while the operator reads the question changes nothing about it.
    """

    BINDINGS: ClassVar[list[BindingType]] = acts(*Subject)

    def chosen(self) -> Sequence[TaskRow]:
        """The tasks that an action is done to, as they are shown."""
        return ()

    def queue(self) -> str | None:
        """The queue that an action is done to: that of the one task that is chosen."""
        chosen = self.chosen()
        return chosen[0].queue if len(chosen) == 1 else None

    def looked_at(self) -> int | None:
        """The one task that is looked at."""
        chosen = self.chosen()
        return chosen[0].id if len(chosen) == 1 else None

    def action_why(self) -> None:
        """Tell why the task that is looked at is not running."""
        id = self.looked_at()
        if id is None:
            self.tell("Put the cursor on a task to be told why it is not running", bad=True)
        else:
            self.app.push_screen(WhyScreen(self.session, id))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey out what changes anything while that is not allowed."""
        if action == "act" and not self.session.writable:
            return None
        return super().check_action(action, parameters)

    def action_act(self, name: str) -> None:
        """Ask whether an action is meant, and do it then."""
        action = ACTIONS[name]
        chosen = self.chosen()
        match action.subject:
            case Subject.TASKS:
                self.ask_for_tasks(action, chosen)
            case Subject.QUEUE if queue := self.queue():
                self.work(self._ask_for_queue(action, queue))
            case Subject.TASK if len(chosen) == 1:
                self.work(self._ask_for_edit(chosen[0].id))
            case Subject.ENTRY if len(chosen) == 1:
                self.work(self._ask_for_undo(action, chosen[0].id))
            case _:
                self.tell(f"{action.label} is for one {action.subject.word}: put the cursor on one", bad=True)

    def ask_for_tasks(self, action: Action, chosen: Sequence[TaskRow]) -> None:
        """Ask whether an action on these tasks is meant."""
        if chosen:
            self._ask_for_plan(plan(action, chosen))
        else:
            self.tell("No task is chosen", bad=True)

    def ask_for_all(self, action: Action, wanted: Filter) -> None:
        """Ask whether an action on all that a filter lets through is meant; the database counts them first."""

        async def asking() -> None:
            self.call_later(self._ask_for_plan, await interventions.preview(self.session, action, wanted))

        self.work(asking())

    def _ask_for_plan(self, made: Plan) -> None:
        if made.eligible.number:
            many = made.eligible.number > 1
            self.ask(made.action, told(made, self.session.name), made.weight, partial(self._do, made), many=many)
        else:
            nobody = ["nothing matches any more"] if not made.skipped else list(made.skipped)
            self.tell("\n".join(f"{made.action.label}: {why}" for why in nobody), bad=True)

    def ask_for_entry(self, action: Action, entry: Audited) -> None:
        """Ask whether taking back a change is meant."""
        about = [
            content(
                (f"Undo what {line(entry.operator)} did: {line(entry.verb)} of task {line(entry.task_id)}", "bold")
            ),
            content(f"  from {line(entry.after)}"),
            content(f"  back to {line(entry.before)}"),
        ]
        self.ask(action, about, 1, lambda consent: self._undo(entry.id, consent))

    def ask(self, action: Action, about: Sequence[Content], count: int, then: Then, *, many: bool = False) -> None:
        """Put the question; `then` is called with the consent when there is one."""
        wanted = demand(count, production=self.session.settings.production, name=self.session.name)

        def answered(consent: Consent | None) -> None:
            if consent is not None:
                then(consent)

        self.app.push_screen(ConfirmScreen(action, about, wanted, many=many), answered)

    def work(self, doing: Coroutine[Any, Any, object]) -> None:
        """Do something in a worker; what goes wrong is told."""

        async def working() -> None:
            try:
                await doing
            except RunnerError as error:
                self.post_message(Told(str(error), bad=True))

        self.run_worker(working(), group="act")

    def _do(self, made: Plan, consent: Consent) -> None:
        session = self.session
        if session.work is not None:
            self.tell(f"{session.work.what} is still under way: wait for it, or stop it with x", bad=True)
            return
        eligible = None if made.eligible.more else made.eligible.number
        total = eligible if consent.amount is None else min(consent.amount, eligible or consent.amount)
        session.work = work = Work(made.action.label, total, time.monotonic())

        async def doing() -> None:
            try:
                result = await interventions.carry_out(session, made, consent, work)
            except RunnerError as error:
                self.post_message(Told(f"{work.what}: {work.done:,} changed, then it failed. {error}", bad=True))
                return
            finally:
                session.work = None
                self.feed.hurry()
            what = f"{work.what}, stopped" if work.stopping else work.what
            self.post_message(Acted(what, result))

        self.work(doing())

    def _undo(self, entry: int, consent: Consent) -> None:
        async def doing() -> None:
            self.post_message(Acted("Undo", await interventions.take_back(self.session, entry, consent.reason)))

        self.work(doing())

    async def _ask_for_queue(self, action: Action, queue: str) -> None:
        found = await interventions.pause_of(self.session, queue)
        about = self._about_pause(queue, found, await self.session.read(observe.clock))
        self.call_later(
            self.ask, action if found is None else action.plain(), about, 1, partial(self._turn, queue, found)
        )

    def _about_pause(self, queue: str, found: Pause | None, at: Any) -> list[Content]:
        if found is None:
            return [content((f"Pause queue {line(queue)}: no more of its tasks start", "bold"))]
        until = cells.exact(found.until, at, self.session.zone) if found.until else "somebody ends it"
        return [
            content((f"Resume queue {line(queue)}", "bold")),
            content(f"  paused by {line(found.by)} until {until}: {line(found.why)}"),
        ]

    def _turn(self, queue: str, found: Pause | None, consent: Consent) -> None:
        async def doing() -> None:
            if found is None:
                done = await interventions.pause(self.session, queue, consent.answer, consent.reason)
            else:
                done = await interventions.resume(self.session, queue, consent.reason)
            self.post_message(Told(f"Queue {queue} {done}"))
            self.feed.hurry()

        self.work(doing())

    async def _ask_for_edit(self, id: int) -> None:
        story = await self.session.read(observe.story, id)
        self.call_later(self.app.push_screen, EditScreen(story, self.session), self._edited)

    async def _ask_for_undo(self, action: Action, id: int) -> None:
        entry = await interventions.last_change(self.session, id)
        if entry is None:
            self.post_message(Told(f"Nobody changed task {id}, or it was taken back already", bad=True))
        else:
            self.call_later(self.ask_for_entry, action, entry)

    def _edited(self, result: Result | None) -> None:
        if result is not None:
            self.post_message(Acted("Edit", result))

    @on(Acted)
    def _acted(self, message: Acted) -> None:
        alone = message.result.left_alone()
        more = [f"and {len(alone) - MOST_TOLD:,} more"] if len(alone) > MOST_TOLD else []
        self.tell("\n".join([f"{message.what}: {message.result}", *alone[:MOST_TOLD], *more]), bad=bool(alone))
        self.feed.hurry()
