"""`runner serve`: hands tasks to executors that pull them over HTTP."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from runner import log_queue
from runner.cli.options import DEFAULT_CONNECTION, Connection
from runner.engine.main import run_process, work
from runner.errors import InvalidInput, PackageMissing
from runner.logs import JsonLine, set_up

DOCUMENTS = (JsonLine,)
"""With log_format json, the command writes one such line per record."""

LAST_PORT = 65_535

DEFAULT_ADDRESS = "127.0.0.1:8765"


def serve(
    *,
    address: str = DEFAULT_ADDRESS,
    certificate: Annotated[Path | None, Parameter(name="--certificate")] = None,
    key: Annotated[Path | None, Parameter(name="--key")] = None,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Hand tasks to executors that pull them over HTTP.

    The setting serve_tokens has the secret of each executor and the handlers whose
    tasks it may pull. SIGTERM or ctrl-c drains: executors receive no more tasks,
    and settle the ones that they have.

    Args:
        address: Where to listen, as HOST:PORT. Other hosts than this one need TLS.
        certificate: File with the certificate chain, for TLS.
        key: File with the private key of the certificate.
        connection: The database.
    """
    settings = connection.settings()
    try:
        from runner.engine.serving.http_server import ServeAddress
        from runner.engine.serving.service import Service
    except ModuleNotFoundError as error:
        name = error.name or "starlette"
        raise PackageMissing(package=name, use="runner serve", extra="serve", instead="") from None

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > LAST_PORT:
        raise InvalidInput(why=f"--address {address!r} is not HOST:PORT, such as {DEFAULT_ADDRESS}")
    place = ServeAddress(host.strip("[]"), int(port), certificate, key)
    place.require()
    service = Service(settings, place)
    set_up(settings.log_format, settings.log_level)
    try:
        return run_process(work(settings, service.handlers, service=service))
    finally:
        log_queue.drain()
