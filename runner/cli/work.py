"""`runner work`: run a runner process."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from runner.cli.connection import DEFAULT_CONNECTION, Connection
from runner.cli.handlers import Modules, load_handlers
from runner.cli.reload import own_command, supervise
from runner.engine.main import run_contained
from runner.engine.main import work as run
from runner.errors import InvalidInput
from runner.logs import set_up
from runner.settings import DESCRIPTIONS


def _described(setting: str, *aliases: str) -> Parameter:
    """An option with the description of its setting."""
    description = DESCRIPTIONS[setting]
    return Parameter(
        name=(f"--{setting.replace('_', '-')}", *aliases), help=f"{description[0].upper()}{description[1:]}."
    )


@Parameter(name="*", group=Group("Runner", sort_key=50))
@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Settings of a runner. An omitted option takes its value from the environment, the profile or the defaults."""

    queues: Annotated[tuple[str, ...], _described("queues", "--queue")] = ()
    only: Annotated[tuple[str, ...], _described("only")] = ()
    without: Annotated[tuple[str, ...], _described("without", "--except")] = ()
    buckets: Annotated[str | None, _described("buckets")] = None
    slice: Annotated[str | None, _described("slice")] = None
    poll_mode: Annotated[str | None, _described("poll_mode")] = None
    poll_interval: Annotated[str | None, _described("poll_interval")] = None
    scans: Annotated[tuple[str, ...], _described("scans", "--scan")] = ()
    initial_delay: Annotated[str | None, _described("initial_delay")] = None
    claim_batch_size: Annotated[int | None, _described("claim_batch_size")] = None
    concurrency: Annotated[int | None, _described("concurrency")] = None
    threads: Annotated[int | None, _described("threads")] = None
    spare_threads: Annotated[int | None, _described("spare_threads")] = None
    processes: Annotated[int | None, _described("processes")] = None
    prefetch: Annotated[int | None, _described("prefetch")] = None
    claim_order: Annotated[str | None, _described("claim_order", "--order")] = None
    on_error: Annotated[str | None, _described("on_error")] = None
    on_none: Annotated[str | None, _described("on_none")] = None
    lease_timeout: Annotated[str | None, _described("lease_timeout")] = None
    drain_timeout: Annotated[str | None, _described("drain_timeout")] = None
    log_format: Annotated[Literal["auto", "human", "json"] | None, _described("log_format")] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, _described("log_level")] = None

    def overrides(self) -> dict[str, Any]:
        """The options by setting name."""
        values = asdict(self).items()
        return {name: (",".join(value) or None) if isinstance(value, tuple) else value for name, value in values}


NO_OPTIONS = RunnerOptions()


def work(
    *,
    handlers: Modules = (),
    until_idle: bool = False,
    reload: bool = False,
    options: RunnerOptions = NO_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Run tasks until stopped.

    SIGTERM or ctrl-c drains: the runner claims no more tasks, waits for the running
    ones and writes all outcomes. A second signal ends the process immediately.

    Args:
        handlers: A module that defines handlers; may be repeated.
        until_idle: Exit when no task runs, is due, or waits for a retry.
        reload: Start again when a Python file below the current directory changes.
        options: Settings of the runner.
        connection: The database.
    """
    if reload:
        return supervise(own_command(), Path.cwd())
    settings = connection.settings(handlers=handlers or None, **options.overrides())
    registry = load_handlers(settings)
    if not registry:
        raise InvalidInput(why="no handlers loaded; name the module that defines them with -H package.module")

    set_up(settings.log_format, settings.log_level)
    return run_contained(run(settings, registry, until_idle=until_idle))
