"""RunnerProbes: the facts by which a supervisor restarts a runner, or sends it no work."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from runner.engine.exposition import exposition
from runner.engine.hosting.otel import export_metrics
from runner.engine.hosting.probe_server import Answer, ProbeServer, Reply
from runner.engine.hosting.service_manager import ServiceManager
from runner.engine.lease import watchdog
from runner.engine.runner import Engine
from runner.engine.runner_collector import collect_runner, collect_shards
from runner.errors import InvalidSettings
from runner.text.formatting import age
from runner.text.sanitize import one_line

if TYPE_CHECKING:
    from runner.engine.shards import ShardEngines


class RunnerProbes:
    """The probes of the runners of a process: one, or one per shard. Any thread may ask.

    No answer waits for the event loop or the database.

    Args:
        runners: returns the runners.
    """

    def __init__(self, runners: Callable[[], Sequence[Engine]]) -> None:
        self._runners = runners

    def not_live(self) -> str:
        """Why a supervisor should restart the process; empty while it is live.

        A database that is unavailable is no reason: a restart would not mend it.
        """
        return next((why for runner in self._runners() if (why := _not_live(runner))), "")

    def not_ready(self) -> str:
        """Why the process takes no tasks; empty while it takes those of any shard."""
        reasons = [_not_ready(runner) for runner in self._runners()]
        return "" if "" in reasons else reasons[0]


def _not_live(runner: Engine) -> str:
    blocked = runner.watchdog.blocked_for
    if blocked > watchdog.LONGEST_BLOCK:
        return runner.watchdog.describe_block(blocked)
    if runner.lease.is_neglected:
        return f"no lease renewed for {age(runner.lease.renewal_age)}, although the database answers"
    return ""


def _not_ready(runner: Engine) -> str:
    if runner.stopping:
        return "draining"
    if not runner.lease.id:
        return f"starting: {one_line(runner.start_problem) or 'not registered yet'}"
    if not runner.lease.is_valid:
        return f"lease lost: last renewal {age(runner.lease.renewal_age)} ago"
    if runner.schema_watch.problem is not None:
        return one_line(runner.schema_watch.problem)
    if pending := runner.resources.opened.pending:
        return f"resources not open: {one_line(', '.join(pending))}"
    return "" if runner.resources.complete else "starting: on_start has not ended"


@contextmanager
def serve_probes(runner: "Engine | ShardEngines") -> Iterator[ProbeServer]:
    """Serve the probes of a runner during the block, and send its metrics and pings.

    Raises:
        InvalidSettings: the address cannot be used, or the health file cannot be created.
        PackageMissing: a package of OpenTelemetry is not installed.
    """
    settings, probes = runner.settings, RunnerProbes(lambda: runner.parts)
    collect = partial(collect_runner, runner) if isinstance(runner, Engine) else partial(collect_shards, runner)
    try:
        manager = ServiceManager(settings.health_file, os.environ)
    except OSError as error:
        raise _unusable(runner, "health_file", str(settings.health_file), error) from None

    def send_signs() -> None:
        manager.send(live=not probes.not_live(), ready=not probes.not_ready(), stopping=runner.stopping)

    answers: dict[str, Answer] = {
        "/livez": lambda: Reply.of(probes.not_live()),
        "/readyz": lambda: Reply.of(probes.not_ready()),
        "/metrics": exposition(collect),
    }
    try:
        server = ProbeServer(settings.listen, answers, send_signs, manager.interval)
    except OSError as error:
        manager.close()
        raise _unusable(runner, "listen", str(settings.listen), error) from None
    server.start()
    try:
        with export_metrics(collect, is_on=settings.otel):
            yield server
    finally:
        server.stop()
        send_signs()  # a short drain ends between two ticks
        manager.close()


def _unusable(runner: "Engine | ShardEngines", setting: str, value: str, error: OSError) -> InvalidSettings:
    why = f"{value}: {error.strerror} (errno {error.errno})"
    return InvalidSettings(where=runner.settings.origins.of(setting), why=why)
