"""Ground: what every part stands on: a place, a plan, and somebody who looks on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from runner.bench.crew import Crew, Show
from runner.bench.load import Load
from runner.bench.place import Place
from runner.bench.plan import Plan


@dataclass(frozen=True, slots=True)
class Ground:
    """What every part is given.

    Args:
        place: to work in.
        plan: how much of everything.
        show: told how far a part is.
    """

    place: Place
    plan: Plan
    show: Show

    @asynccontextmanager
    async def loaded(self) -> AsyncIterator[Load]:
        """Empty tables, and a load to put into them; they are gone after the block."""
        async with self.place.empty() as database:
            yield Load(database, notify=self.place.settings.notify)

    def crew(self, size: int = 1, *, watched: bool = False) -> Crew:
        """Runners that start with the block and are gone after it.

        Args:
            size: how many.
            watched: measure what each step costs.
        """
        return Crew(self.place, size, self.show, watched=watched)
