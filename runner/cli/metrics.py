"""`runner metrics`: the metrics of the database for Prometheus, once or over HTTP."""

import asyncio
import time

from runner.cli.exit_codes import Exit, Interruption
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, open_unchecked
from runner.db.database import Database
from runner.engine.database_collector import LONGEST_PERIOD, DatabaseCollector
from runner.engine.exposition import exposition, exposition_text
from runner.engine.hosting.otel import export_metrics
from runner.engine.hosting.probe_server import Answer, ProbeServer, Reply
from runner.errors import InvalidSettings
from runner.event_wait import within
from runner.logs import set_up

REFRESH = 10.0
"""Seconds between two readings of the database, however often it is scraped."""

RETRY = 2.0
"""Seconds until the next reading after one that failed."""

REST_SHARE = 10
"""The pause after a reading that took long, as a multiple of its time: 10,000 queues take seconds."""


async def metrics(*, listen: str | None = None, otel: bool = False, connection: Connection = DEFAULT_CONNECTION) -> int:
    """Print the metrics of the database for Prometheus, or serve them.

    One exporter is enough for a database. It reads the database every ten seconds.

    Args:
        listen: Serve /metrics on this address, such as 127.0.0.1:9465, until stopped.
        otel: Send the metrics over OpenTelemetry, until stopped.
        connection: The database.
    """
    settings = connection.settings(listen=listen)
    if listen is None and not otel:
        collector = DatabaseCollector(earlier=LONGEST_PERIOD)
        async with open_database(settings) as database:
            await collector.read(database)
            print(exposition_text(collector.collect()), end="")
        return Exit.OK
    set_up(settings.log_format, settings.log_level)
    async with open_unchecked(settings) as database:
        await _serve(listen, database, otel=otel)
    return Exit.OK


async def _serve(listen: str | None, database: Database, *, otel: bool) -> None:
    collector, stopped = DatabaseCollector(), asyncio.Event()
    answers: dict[str, Answer] = {
        "/metrics": exposition(collector.collect),
        "/livez": lambda: Reply.of(""),
        "/readyz": lambda: Reply.of(collector.problem),
    }
    try:
        server = ProbeServer(listen, answers)
    except OSError as error:
        why = f"{listen}: {error.strerror} (errno {error.errno})"
        raise InvalidSettings(where="argument listen", why=why) from None
    server.start()
    try:
        with export_metrics(collector.collect, is_on=otel), Interruption(stopped.set):
            while not stopped.is_set():
                started = time.monotonic()
                await collector.refresh(database)
                pause = RETRY if collector.problem else max(REFRESH, REST_SHARE * (time.monotonic() - started))
                await within(stopped, pause)
    finally:
        server.stop()
