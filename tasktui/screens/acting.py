"""ActingScreen: a screen whose keys change things: tasks, what they are claimed from, and who claims them."""

from collections.abc import Sequence
from functools import partial

from textual import on

from runner.people.filters import Filter
from runner.store import observe
from runner.store.intervene import Kind, Place, Result, objection
from runner.store.observe import Sight, TaskRow
from tasktui import screens
from tasktui.act import interventions
from tasktui.act.actions import ACTIONS, Action, Plan, Subject, plan
from tasktui.act.consent import Consent
from tasktui.act.spoken import of_plan
from tasktui.messages import Acted, Told
from tasktui.screens.confirm import told
from tasktui.screens.undoing import UndoingScreen

MOST_TOLD = 8
"""Tasks that were left alone are told of one by one up to so many."""


class ActingScreen(UndoingScreen):
    """A screen whose keys change things.

    What an action is done to is taken at the key press, with the versions that are on the screen; what happens to the
    list while the operator reads the question changes nothing about it.
    """

    def chosen(self) -> Sequence[TaskRow]:
        """The tasks that an action is done to, as they are shown."""
        return ()

    def place(self, kind: Kind) -> Place | None:
        """The queue or the handler of the one task that is chosen."""
        chosen = self.chosen()
        if len(chosen) != 1:
            return None
        return Place(kind, chosen[0].queue if kind is Kind.QUEUE else chosen[0].handler)

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
            self.app.push_screen(screens.WhyScreen(self.session, id), self._look_at)

    def _look_at(self, sight: Sight | None) -> None:
        """Go to where a cause can be seen."""
        if sight is None:
            return
        match sight.kind:
            case "tasks":
                self.session.wanted = sight.about
            case "task":
                self.session.task_id = int(sight.about)
            case "runners" | "audit":
                self.session.sought = sight.about
        self.app.switch_mode(sight.kind)

    def action_act(self, name: str) -> None:
        """Ask whether an action is meant, and do it then."""
        action = ACTIONS[name]
        chosen = self.chosen()
        match action.subject:
            case Subject.TASKS:
                self.ask_for_tasks(action, chosen)
            case Subject.QUEUE if place := self.place(Kind.QUEUE):
                self.prepare(self.ask_for_place(action, place))
            case Subject.HANDLER if place := self.place(Kind.HANDLER):
                self.prepare(self.ask_for_place(action, place))
            case Subject.RUNNER if runner := self.runner():
                self.ask_for_runner(action, runner)
            case Subject.TASK if len(chosen) == 1:
                self.prepare(self._ask_for_edit(chosen[0].id))
            case Subject.ENTRY if len(chosen) == 1:
                self.prepare(self._ask_for_undo(action, chosen[0].id))
            case _:
                many = (
                    f"{len(chosen):,} are marked, \\ takes the marks away"
                    if len(chosen) > 1
                    else "put the cursor on one"
                )
                self.tell(f"{action.label} is for one {action.subject.word}: {many}", bad=True)

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

        self.prepare(asking())

    def _ask_for_plan(self, made: Plan) -> None:
        if made.eligible.number:
            about, words = told(made, self.session.name), partial(of_plan, made)
            many = made.eligible.number > 1
            sql = partial(interventions.script, self.session, made)
            self.ask(made.action, about, made.weight, partial(self._do, made), words, sql, many=many)
        else:
            nobody = ["nothing matches any more"] if not made.skipped else list(made.skipped)
            self.tell("\n".join(f"{made.action.label}: {why}" for why in nobody), bad=True)

    def _do(self, made: Plan, consent: Consent) -> None:
        eligible = None if made.eligible.more else made.eligible.number
        total = eligible if consent.amount is None else min(consent.amount, eligible or consent.amount)
        self.carry(made.action.label, total, lambda work: interventions.carry_out(self.session, made, consent, work))

    async def _ask_for_edit(self, id: int) -> None:
        from tasktui.act.editing import runs_again  # with all that is told of a task, as in the dialog that follows

        story = await self.session.read(observe.story, id)
        if not runs_again(story) and (why := objection("edit", story.task)):
            self.post_message(Told(f"Task {id} cannot be edited: {why}", bad=True))
            return
        self.call_later(self.app.push_screen, screens.EditScreen(story, self.session), self._edited)

    async def _ask_for_undo(self, action: Action, id: int) -> None:
        entry = await interventions.last_change(self.session, id)
        if entry is None:
            self.post_message(Told(f"Nobody changed task {id}, or it was taken back already", bad=True))
        else:
            await self.ask_for_entry(action, entry)

    def _edited(self, result: Result | None) -> None:
        if result is not None:
            self.post_message(Acted("Edit", result))

    @on(Acted)
    def _acted(self, message: Acted) -> None:
        alone = message.result.left_alone()
        more = [f"and {len(alone) - MOST_TOLD:,} more"] if len(alone) > MOST_TOLD else []
        self.tell("\n".join([f"{message.what}: {message.result}", *alone[:MOST_TOLD], *more]), bad=bool(alone))
        self.feed.hurry()
