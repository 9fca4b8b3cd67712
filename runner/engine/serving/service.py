"""Service: the tasks of a runner for executors that pull over HTTP."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from runner.engine.serving.dispatch import Dispatch
from runner.engine.serving.http_server import HttpServer, ServeAddress
from runner.engine.serving.served_database import ServedDatabase
from runner.errors import InvalidSettings
from runner.handlers.context import Context
from runner.handlers.registry import Handler
from runner.settings import Settings
from runner.settings.serve_tokens import parse_serve_token

log = logging.getLogger("runner")


class RemoteHandler(Handler):
    """A handler whose function only HTTP executors have."""

    is_declared = False

    def __init__(self, name: str) -> None:
        super().__init__(name, _run_by_executors)
        self.external = name


def _run_by_executors(ctx: Context, **payload: Any) -> None:
    raise NotImplementedError(f"an HTTP executor runs task {ctx.id}, with {len(payload)} arguments")


class Service:
    """Serves the tasks of the handlers that tokens name.

    Args:
        settings: the settings of the runner.
        on_open: receives the port, when the server listens.

    Raises:
        InvalidSettings: there are no tokens.
    """

    def __init__(self, settings: Settings, address: ServeAddress, on_open: Callable[[int], object] = bool) -> None:
        tokens = [parse_serve_token(text) for text in settings.serve_tokens]
        if not tokens:
            why = "no executor could pull: set TASKTUI_SERVE_TOKENS, such as node=SECRET@mail.send+sms.send"
            raise InvalidSettings(where=settings.origins.of("serve_tokens"), why=why)
        names = sorted({name for token in tokens for name in token.handlers})
        self.handlers: Mapping[str, Handler] = {name: RemoteHandler(name) for name in names}
        self.dispatch = Dispatch(names, settings.lease_timeout.total_seconds())
        for shard in settings.shards or ("",):
            self.dispatch.serve(shard, int(settings.result_limit))
        self._server, self._address, self._on_open = HttpServer(self.dispatch, tokens), address, on_open

    @asynccontextmanager
    async def around(self, stop_requested: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Serve while runners run inside the block; executors settle until they have drained.

        Args:
            stop_requested: ends when they begin to drain.
        """
        async with self._server.serving(self._address) as port:
            scheme = "http" if self._address.certificate is None else "https"
            log.info("serving HTTP executors on %s://%s:%d", scheme, self._address.host, port)
            self._on_open(port)
            parts = [asyncio.ensure_future(self.dispatch.sweep()), asyncio.ensure_future(self._drain(stop_requested))]
            try:
                yield
            finally:
                self.dispatch.drain()
                for part in parts:
                    part.cancel()

    def database(self, shard: str = "") -> ServedDatabase:
        """Return a database for its runner."""
        return self.dispatch.databases[shard]

    async def _drain(self, stop_requested: Coroutine[Any, Any, None]) -> None:
        await stop_requested
        self.dispatch.drain()
