"""The context of every part: sandbox, plan and progress display."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from runner.cli.bench.load import Load
from runner.cli.bench.plan import BenchPlan
from runner.cli.bench.sandbox import Sandbox
from runner.cli.bench.workers import Show, Workers


@dataclass(frozen=True, slots=True)
class BenchContext:
    """The context of a part.

    Args:
        sandbox: the sandbox.
        plan: the amounts.
        show: called with progress lines.
    """

    sandbox: Sandbox
    plan: BenchPlan
    show: Show

    @asynccontextmanager
    async def create_load(self) -> AsyncIterator[Load]:
        """Create empty tables and a load for them; removes both after the block."""
        async with self.sandbox.empty() as database:
            yield Load(database, notify=self.sandbox.settings.notify)

    def workers(self, count: int = 1, *, profiling: bool = False) -> Workers:
        """Runners that live as long as the block.

        Args:
            count: number of runners.
            profiling: measure the cost of each step.
        """
        return Workers(self.sandbox, count, self.show, profiling=profiling)
