"""UndoingScreen: a screen on which changes are taken back, one or all that were made together."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from runner.errors import RunnerError
from runner.people import cells
from runner.people.redaction import differences
from runner.policy.consent import MANY
from runner.store import intervene
from runner.store.intervene import Result
from tasktui.act import interventions
from tasktui.act.actions import Action
from tasktui.act.consent import Consent
from tasktui.act.spoken import of_undo, of_undo_together
from tasktui.draw.render import content, line
from tasktui.messages import Acted, Told
from tasktui.operator.work import Work
from tasktui.screens.steering import SteeringScreen

if TYPE_CHECKING:
    # With all that they need, and the first screen does not.
    from runner.store.intervene import Undoing
    from runner.store.observe import Audited


class UndoingScreen(SteeringScreen):
    """A screen that takes changes back: what cannot be is told with the reason, and asked about no further."""

    async def ask_for_entry(self, action: Action, entry: "Audited") -> None:
        """Ask whether taking back a change is meant, or all that were made together with it."""
        if action.name == "undo":
            seen = await self.session.read(intervene.undoing, [entry.id])
            self.call_later(self._ask_for_one, action, entry, seen)
        elif entry.batch is None:
            self.post_message(Told(f"Change {entry.id} was made alone: undo takes it back", bad=True))
        else:
            seen = await self.session.read(intervene.undoing, None, entry.batch)
            self.call_later(self._ask_for_all, action, entry, entry.batch, seen)

    def _ask_for_one(self, action: Action, entry: "Audited", seen: "Undoing") -> None:
        if not seen.able:
            why = next(iter(seen.skipped), "it is not in the audit any more")
            self.tell(f"Change {entry.id} cannot be taken back: {why}", bad=True)
            return
        target = f"task {entry.task_id}" if entry.task_id is not None else entry.target
        about = [
            content((f"Undo what {line(entry.operator)} did: {line(cells.verb(entry.verb))} of {line(target)}", "bold"))
        ]
        about += [
            content(f"  back to {line(change)}")
            for change in differences(entry.after, entry.before, zone=self.session.zone)
        ]
        sql = partial(interventions.undo_script, self.session, entry)
        self.ask(action, about, 1, partial(self._undo, entry.id), partial(of_undo, entry.id), sql)

    def _ask_for_all(self, action: Action, entry: "Audited", batch: str, seen: "Undoing") -> None:
        skipped = [f"  {count:,} left alone: {line(why)}" for why, count in seen.skipped.items()]
        if not seen.able:
            self.tell("\n".join(["None of these changes can be taken back", *skipped]), bad=True)
            return
        done = f"{line(cells.verb(entry.verb))} of {len(seen.changes):,}{'+' if seen.more else ''} tasks"
        about = [content((f"Undo what {line(entry.operator)} did together: {done}", "bold"))]
        about.append(content(f"  {seen.number} will be taken back"))
        about += [content((text, "yellow")) for text in skipped]
        weight = MANY + 1 if seen.more else len(seen.able)
        words = partial(of_undo_together, batch, seen.number)
        self.ask(action, about, weight, partial(self._undo_all, batch, seen), words)

    def _undo(self, entry: int, consent: Consent) -> None:
        async def doing() -> None:
            self.post_message(Acted("Undo", await interventions.take_back(self.session, entry, consent.reason)))

        self.work(doing())

    def _undo_all(self, batch: str, seen: "Undoing", consent: Consent) -> None:
        total = None if seen.more else len(seen.able)
        self.carry("Undo", total, lambda work: interventions.take_back_all(self.session, batch, consent, work))

    def carry(self, what: str, total: int | None, doing: Callable[[Work], Awaitable[Result]]) -> None:
        """Do something long in a worker, one at a time; its progress stands in the heading, and it can be stopped.

        Args:
            what: is done, in a word.
            total: tasks that will be changed; None when there are more than were counted.
            doing: given the work, which it tells how far it has come.
        """
        session = self.session
        if session.work is not None:
            self.tell(f"{session.work.what} is still under way: wait for it, or stop it with ctrl+x", bad=True)
            return
        session.work = work = Work(what, total, time.monotonic())

        async def carrying() -> None:
            try:
                result = await doing(work)
            except RunnerError as error:
                self.post_message(Told(f"{work.what}: {work.done:,} changed, then it failed. {error}", bad=True))
                return
            finally:
                session.work = None
                self.feed.hurry()
            self.post_message(Acted(f"{work.what}, stopped" if work.stopping else work.what, result))

        self.work(carrying())
