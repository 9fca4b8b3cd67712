"""HttpServer: the protocol of HTTP executors over HTTP, with bearer tokens and limits."""

import asyncio
import hashlib
import hmac
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import uvicorn
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from runner.engine.serving.dispatch import Dispatch
from runner.engine.serving.endpoints import (
    CHECKPOINT,
    DOCUMENT_PATH,
    HEARTBEAT,
    LOG,
    PROGRESS,
    PULL,
    SETTLE,
    openapi_document,
)
from runner.engine.serving.protocol import (
    MOST_BYTES,
    CheckpointRequest,
    LeaseRequest,
    LogRequest,
    Problem,
    ProgressRequest,
    PullRequest,
    SettleRequest,
    WireMessage,
)
from runner.engine.serving.server_client import is_loopback
from runner.errors import InvalidCheckpoint, InvalidInput, StoreError
from runner.settings.serve_tokens import ServeToken
from runner.text.sanitize import one_line

log = logging.getLogger("runner")

READ_LIMIT = 30.0
"""Seconds for a request to arrive."""

MOST_CONNECTIONS = 2_000

IDLE_LIMIT = 75
"""Seconds for which a connection without a request stays open, beyond the longest pause of an executor."""

STOP_LIMIT = 5
"""Seconds for open replies when the server stops."""

T = TypeVar("T", bound=WireMessage)


class Refused(Exception):
    """A request that is not served."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status, self.error = status, error


class ServeAddress(NamedTuple):
    """Where a server listens.

    Args:
        certificate: file with its certificate chain; None without TLS.
        key: file with the private key of the certificate.
    """

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None

    def require(self) -> None:
        """Check that tokens are not sent in the clear over a network, and that the files can be used.

        Raises:
            InvalidInput: they would be, or a file cannot be used.
        """
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput(why="--certificate and --key need each other")
        if self.certificate is None or self.key is None:
            if not is_loopback(self.host):
                why = f"{self.host} is not a loopback address, and tokens need TLS there: add --certificate and --key"
                raise InvalidInput(why=why)
            return
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key)
        except OSError as error:  # of the files, or of their content
            why = f"the certificate {self.certificate} cannot be used with the key {self.key}: {error}"
            raise InvalidInput(why=why) from None

    def listen(self) -> socket.socket:
        """Open the socket.

        Raises:
            InvalidInput: the address cannot be used.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # Only with the number of its protocol does asyncio send replies at once: otherwise each costs 40 ms.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self.host, self.port))
            listening.listen()  # a connection from now on waits for the server
        except OSError as error:
            listening.close()
            why = f"the address {self.host}:{self.port} cannot be used: {error.strerror} (errno {error.errno})"
            raise InvalidInput(why=why) from None
        return listening


class HttpServer:
    """Serves one dispatch.

    Args:
        tokens: the tokens, each with its handlers.
    """

    def __init__(self, dispatch: Dispatch, tokens: Sequence[ServeToken]) -> None:
        self._dispatch = dispatch
        self._tokens = [(hashlib.sha256(token.secret.encode()).digest(), token) for token in tokens]
        calls = (
            (PULL, self._pull),
            (SETTLE, self._settle),
            (HEARTBEAT, self._heartbeat),
            (PROGRESS, self._progress),
            (LOG, self._log),
            (CHECKPOINT, self._checkpoint),
        )
        self.app = Starlette(
            routes=[
                *(Route(endpoint.path, call, methods=["POST"]) for endpoint, call in calls),
                Route(DOCUMENT_PATH, _describe),
            ],
            exception_handlers={Refused: _refuse, 404: _unknown, 405: _unknown, 500: _fault},
        )

    @asynccontextmanager
    async def serving(self, address: ServeAddress) -> AsyncIterator[int]:
        """Serve during the block, and return the port.

        Raises:
            InvalidInput: the address cannot be used.
        """
        listening = address.listen()
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its lines about the start repeat ours
        config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=IDLE_LIMIT,
            timeout_graceful_shutdown=STOP_LIMIT,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
        )
        server = _Server(config)
        running = asyncio.ensure_future(server.serve([listening]))
        try:
            yield int(listening.getsockname()[1])
        finally:
            server.should_exit = True
            await asyncio.wait([running])
            listening.close()

    async def _pull(self, request: Request) -> Response:
        token = self._authorize(request)
        message = await _read(request, PullRequest)
        for handler in message.handlers:
            if handler not in token.handlers:
                names = ", ".join(token.handlers)
                why = f"token {token.name} may not pull {one_line(handler)!r}; its handlers are {names}"
                raise Refused(403, why)
        pulling = asyncio.ensure_future(self._dispatch.pull(token, message))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait([pulling, gone], return_when=asyncio.FIRST_COMPLETED)
            if not pulling.done():
                raise Refused(499, "the executor has closed the connection")
            calls = pulling.result()
            if calls and (await asyncio.wait([gone], timeout=0))[0]:  # a turn of the event loop sees a lost peer
                self._dispatch.take_back(token, message, calls)
                raise Refused(499, "the executor has closed the connection")
            return _json(self._dispatch.pull_reply(calls))
        finally:
            gone.cancel()
            pulling.cancel()

    async def _settle(self, request: Request) -> Response:
        token = self._authorize(request)
        return _json(await self._dispatch.settle(token, await _read(request, SettleRequest)))

    async def _heartbeat(self, request: Request) -> Response:
        token = self._authorize(request)
        return _answer(self._dispatch.heartbeat(token, await _read(request, LeaseRequest)))

    async def _progress(self, request: Request) -> Response:
        token = self._authorize(request)
        return _answer(self._dispatch.note_progress(token, await _read(request, ProgressRequest)))

    async def _log(self, request: Request) -> Response:
        token = self._authorize(request)
        return _answer(self._dispatch.note_lines(token, await _read(request, LogRequest)))

    async def _checkpoint(self, request: Request) -> Response:
        token = self._authorize(request)
        try:
            return _answer(await self._dispatch.checkpoint(token, await _read(request, CheckpointRequest)))
        except InvalidCheckpoint as error:
            raise Refused(422, str(error)) from None
        except StoreError as error:
            raise Refused(503, one_line(str(error))) from None

    def _authorize(self, request: Request) -> ServeToken:
        """Return the token of a request. The comparison takes the same time for each secret."""
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        given, found = hashlib.sha256(secret.strip().encode()).digest(), None
        for digest, token in self._tokens:
            if hmac.compare_digest(digest, given):
                found = token
        if scheme.lower() != "bearer" or found is None:
            raise Refused(401, "the server does not know the bearer secret of the request")
        return found


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the runner."""
        yield


async def _describe(_: Request) -> Response:
    return JSONResponse(openapi_document())


async def _disconnected(request: Request) -> None:
    """Wait until the other end closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read(request: Request, model: type[T]) -> T:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"the content type is {one_line(kind) or 'missing'}: send application/json")
    body = await _body(request)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Refused(422, one_line(f"{place}: {first['msg']}" if place else str(first["msg"]))) from None


async def _body(request: Request) -> bytes:
    """Read a body that is not too large and not too slow."""
    too_large = Refused(413, f"the body exceeds {MOST_BYTES:,} bytes")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > MOST_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(READ_LIMIT):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise too_large
    except TimeoutError:
        raise Refused(408, f"the body did not arrive in {READ_LIMIT:g} s") from None
    except ClientDisconnect:
        raise Refused(499, "the executor has closed the connection") from None
    return bytes(body)


def _answer(message: BaseModel, status: int = 200) -> Response:
    return _json(message.model_dump_json(), status)


def _json(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


async def _refuse(_: Request, error: Exception) -> Response:
    status = getattr(error, "status", 500)
    answer = _answer(Problem(error=getattr(error, "error", "")), status)
    if status == HTTPStatus.UNAUTHORIZED:
        answer.headers["www-authenticate"] = "Bearer"
    if status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
        answer.headers["connection"] = "close"
    return answer


async def _unknown(request: Request, error: Exception) -> Response:
    status: Any = getattr(error, "status_code", 404)
    text = f"{request.method} {one_line(request.url.path)} is not part of the protocol"
    return _answer(Problem(error=text), status)


async def _fault(request: Request, error: Exception) -> Response:
    log.error("%s %s failed: %s", request.method, one_line(request.url.path), type(error).__name__)
    return _answer(Problem(error="the server failed; its log has the reason"), 500)
