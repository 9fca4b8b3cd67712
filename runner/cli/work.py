"""`runner work`: runs a runner process until it is stopped."""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from runner import log_queue
from runner.cli.exit_codes import release_stdout
from runner.cli.handlers import Modules, load_handlers
from runner.cli.options import DEFAULT_CONNECTION, Connection, refuse_empty
from runner.engine.main import run_process
from runner.engine.main import work as run
from runner.errors import InvalidInput
from runner.handlers.registry import Registry
from runner.logs import JsonLine, set_up
from runner.policy.selection import select_handlers
from runner.settings import DESCRIPTIONS, Settings

log = logging.getLogger("runner")


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

    app_version: Annotated[str | None, _described("app_version")] = None
    queues: Annotated[tuple[str, ...], _described("queues")] = ()
    only: Annotated[tuple[str, ...], _described("only")] = ()
    without: Annotated[tuple[str, ...], _described("without", "--except")] = ()
    buckets: Annotated[str | None, _described("buckets")] = None
    slice: Annotated[str | None, _described("slice")] = None
    poll_mode: Annotated[str | None, _described("poll_mode")] = None
    poll_interval: Annotated[str | None, _described("poll_interval")] = None
    scans: Annotated[tuple[str, ...], _described("scans")] = ()
    initial_delay: Annotated[str | None, _described("initial_delay")] = None
    claim_batch_size: Annotated[int | None, _described("claim_batch_size")] = None
    concurrency: Annotated[int | None, _described("concurrency")] = None
    threads: Annotated[int | None, _described("threads")] = None
    spare_threads: Annotated[int | None, _described("spare_threads")] = None
    processes: Annotated[int | None, _described("processes")] = None
    prefetch: Annotated[int | None, _described("prefetch")] = None
    claim_order: Annotated[str | None, _described("claim_order")] = None
    on_error: Annotated[str | None, _described("on_error")] = None
    on_none: Annotated[str | None, _described("on_none")] = None
    lease_timeout: Annotated[str | None, _described("lease_timeout")] = None
    drain_timeout: Annotated[str | None, _described("drain_timeout")] = None
    listen: Annotated[str | None, _described("listen")] = None
    health_file: Annotated[Path | None, _described("health_file")] = None
    otel: Annotated[bool | None, _described("otel")] = None
    log_format: Annotated[Literal["auto", "human", "json"] | None, _described("log_format")] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, _described("log_level")] = None

    def overrides(self) -> dict[str, Any]:
        """The options by setting name.

        Raises:
            InvalidInput: an option with names is empty, as from an unset variable of a shell.
        """
        values = asdict(self)
        refuse_empty(values)
        return {
            name: (",".join(value) or None) if isinstance(value, tuple) else value for name, value in values.items()
        }


NO_OPTIONS = RunnerOptions()


DOCUMENTS = (JsonLine,)
"""With --log-format json, the command writes one such line per record."""


def work(  # noqa: PLR0913 - the options of the command
    *,
    handlers: Modules = (),
    until_idle: bool = False,
    until_none_due: bool = False,
    max_tasks: int | None = None,
    reload: bool = False,
    pdb: bool = False,
    server: str | None = None,
    options: RunnerOptions = NO_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Run tasks until stopped.

    SIGTERM, SIGHUP or ctrl-c drains: the runner claims no more tasks, waits for the
    running ones and writes all outcomes. A second signal ends it immediately.

    Args:
        handlers: A module that defines handlers; may be repeated.
        until_idle: Exit when none of its tasks runs, is due, or waits for a retry.
        until_none_due: Exit when none of its tasks runs or is due; retries remain.
        max_tasks: Drain and exit after this number of attempts, before leaks add up.
        reload: Start again when a Python file below the current directory changes.
        pdb: Run the due tasks one at a time, and open the debugger where a handler fails.
        server: The address of a runner serve to pull tasks from, in the place of a database.
        options: Settings of the runner.
        connection: The database.
    """
    ends = until_idle or until_none_due
    if max_tasks is not None and max_tasks < 1:
        raise InvalidInput(why=f"--max-tasks is {max_tasks}; it must be at least 1")
    if max_tasks is not None and (server is not None or pdb):
        raise InvalidInput(why="--max-tasks does not apply with --server or --pdb; leave it out")
    if reload:
        from runner.cli.reload import own_command, supervise

        return supervise(own_command(), Path.cwd())
    settings = connection.settings(handlers=handlers or None, **options.overrides())
    registry = load_handlers(settings)
    if not registry:
        modules = ", ".join(settings.handlers)
        without = f"no handlers in {modules}: decorate functions with @handler, or name another module"
        none = "no handlers loaded; name the module that defines them with -H package.module"
        raise InvalidInput(why=without if modules else none)

    if pdb:
        from runner.cli.debug import debug

        return debug(settings, registry)
    set_up(settings.log_format, settings.log_level)
    try:
        if server is not None:
            return _work_for(server, settings, registry, ends)
        return run_process(run(settings, registry, until_idle=ends, leaves_retries=until_none_due, max_tasks=max_tasks))
    finally:
        if why := release_stdout():
            log.warning("the last lines that handlers printed are lost: standard output: %s", why)
        log_queue.drain()


def _work_for(server: str, settings: Settings, handlers: Registry, until_idle: bool) -> int:
    """Run the tasks of a server."""
    from runner.engine.serving.http_executor import HttpExecutor  # most runners have a database
    from runner.engine.serving.server_client import ServerClient

    if settings.server_token is None:
        raise InvalidInput(why="TASKTUI_SERVER_TOKEN is not set; --server needs one of the secrets of the server")
    mine = select_handlers(handlers, settings.only, settings.without)
    return HttpExecutor(settings, mine, ServerClient(server, settings.server_token)).run(until_idle=until_idle)
