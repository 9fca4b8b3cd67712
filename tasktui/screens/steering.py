"""SteeringScreen: a screen on which queues and handlers are paused, and runners drained and resized."""

from datetime import datetime
from functools import partial

from textual.content import Content

from runner.people import cells
from runner.store import observe
from runner.store.intervene import Kind, Place
from runner.store.observe import Pause, RunnerRow
from tasktui.act import interventions
from tasktui.act.actions import Action
from tasktui.act.consent import Consent
from tasktui.act.spoken import of_pause, of_wish
from tasktui.draw.render import content, line
from tasktui.messages import Told
from tasktui.screens.asking import AskingScreen


class SteeringScreen(AskingScreen):
    """A screen that steers what is claimed, and by whom."""

    def place(self, kind: Kind) -> Place | None:  # noqa: ARG002 - for those that know one
        """The queue or the handler that an action is done to; None when there is not exactly one."""
        return None

    def runner(self) -> RunnerRow | None:
        """The runner that an action is done to."""
        return None

    async def ask_for_place(self, action: Action, place: Place) -> None:
        """Ask whether a pause, or its end, is meant."""
        found = await interventions.pause_of(self.session, place)
        about = self._about_pause(place, found, await self.session.read(observe.clock))
        asked = action if found is None else action.plain()
        words = partial(of_pause, place, ends=found is not None)
        sql = partial(interventions.place_script, self.session, place, found)
        self.call_later(self.ask, asked, about, 1, partial(self._turn, place, found), words, sql)

    def ask_for_runner(self, action: Action, runner: RunnerRow) -> None:
        """Ask whether a wish is meant."""
        name = f"runner {runner.id} on {line(runner.host)}"
        about = [content((f"{action.label} {name}: it hears of it with its next beat", "bold"))]
        about.append(content(f"  {runner.holds:,} of {runner.capacity:,} slots in use"))
        if not runner.alive:
            about.append(content((f"  it has been silent for {cells.age(runner.silent)}", "yellow")))
        sql = partial(interventions.wish_script, self.session, action, runner.id)
        self.ask(action, about, 1, partial(self._wish, action, runner.id), partial(of_wish, action, runner.id), sql)

    def _about_pause(self, place: Place, found: Pause | None, at: datetime) -> list[Content]:
        if found is None:
            return [content((f"Pause {line(place)}: no more of its tasks start", "bold"))]
        until = cells.exact(found.until, at, self.session.zone) if found.until else "somebody ends it"
        return [
            content((f"Resume {line(place)}", "bold")),
            content(f"  paused by {line(found.by)} until {until}{f': {line(found.why)}' if found.why else ''}"),
        ]

    def _turn(self, place: Place, found: Pause | None, consent: Consent) -> None:
        async def doing() -> None:
            if found is None:
                done = await interventions.pause(self.session, place, consent.answer, consent.reason)
            else:
                done = await interventions.resume(self.session, place, consent.reason)
            self.post_message(Told(f"{str(place).capitalize()} {done}"))
            self.feed.hurry()

        self.work(doing())

    def _wish(self, action: Action, runner_id: int, consent: Consent) -> None:
        async def doing() -> None:
            wanted = consent.answer if action.asks else action.name
            done = await interventions.wish(self.session, runner_id, wanted, consent.reason)
            self.post_message(Told(f"Runner {runner_id} {done}"))
            self.feed.hurry()

        self.work(doing())
