"""`runner work`: a runner as a process of its own."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from runner.cli.connection import NOWHERE, Connection
from runner.cli.handlers import Modules, load_handlers
from runner.engine.work import work as run
from runner.errors import InvalidInput
from runner.logs import set_up


@Parameter(name="*", group=Group("Runner", sort_key=50))
@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How a runner works; what is not given comes from the environment, the profile or the defaults.

    Args:
        queues: A queue to work on, or several with commas; may be repeated.
        mode: fixed-rate scans every period; fixed-delay waits it after each scan.
        every: The period of scans: 250ms, 1s, 1m.
        initial_delay: The time before the first scan.
        batch: Tasks claimed at most by one scan.
        slots: Async handlers running at once.
        threads: Threads for handlers that are plain functions.
        ahead: Tasks claimed beyond the free slots at most; 0 leaves them to other runners.
        lease: Silence after which other runners take over: 15s.
        drain_timeout: How long to wait for running tasks when stopping.
        log_format: human on a terminal and json elsewhere, unless said here.
    """

    queues: Annotated[tuple[str, ...], Parameter(name=("--queues", "--queue"))] = ()
    mode: Literal["fixed-rate", "fixed-delay"] | None = None
    every: str | None = None
    initial_delay: str | None = None
    batch: int | None = None
    slots: int | None = None
    threads: int | None = None
    ahead: int | None = None
    lease: str | None = None
    drain_timeout: str | None = None
    log_format: Literal["auto", "human", "json"] | None = None

    def given(self) -> dict[str, Any]:
        """What was said, by the names of the settings."""
        names = ",".join(self.queues)
        return asdict(self) | {"queues": names or None}


USUAL = RunnerOptions()


async def work(
    *,
    handlers: Modules = (),
    until_idle: bool = False,
    options: RunnerOptions = USUAL,
    connection: Connection = NOWHERE,
) -> int:
    """Run tasks until told to stop.

    SIGTERM or ctrl-c drains: nothing more is claimed, what runs is waited for,
    and all outcomes are written. A second one ends the process at once.

    Args:
        handlers: A module that defines handlers; may be repeated.
        until_idle: End when nothing runs, and nothing is due or will be retried.
        options: How.
        connection: Which database.
    """
    settings = connection.settings(handlers=handlers or None, **options.given())
    known = load_handlers(settings)
    if not known:
        raise InvalidInput(why="no handlers are known; name the module that defines them with -H package.module")
    set_up(settings.log_format)
    return await run(settings, known, until_idle=until_idle)
