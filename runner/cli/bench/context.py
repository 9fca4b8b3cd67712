"""The context of a part of the benchmark."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.cli.bench.load import Load
from runner.cli.bench.plan import BenchPlan
from runner.cli.bench.sandbox import Sandbox

if TYPE_CHECKING:
    from runner.handlers.registry import Options
from runner.cli.bench.workers import COMMAND, Show, Workers


@dataclass(frozen=True, slots=True)
class BenchContext:
    """The context of a part."""

    sandbox: Sandbox
    plan: BenchPlan
    show: Show

    @asynccontextmanager
    async def create_load(self) -> AsyncIterator[Load]:
        """Create empty tables and a load for them; removes both after the block."""
        async with self.sandbox.empty() as database:
            yield Load(database, notify=self.sandbox.settings.notify)

    def workers(
        self,
        count: int = 1,
        *,
        settings: Sequence[Mapping[str, Any]] | None = None,
        options: "Options | None" = None,
        is_plain: bool = False,
        command: Sequence[str] = COMMAND,
    ) -> Workers:
        """Runners that live as long as the block; for the arguments see Workers."""
        handler: dict[str, Any] = {"options": options, "is_plain": is_plain}
        return Workers(self.sandbox, count, self.show, settings=settings, command=command, **handler)
