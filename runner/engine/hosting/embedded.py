"""Runner: a runner inside an application's program."""

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from runner.client.client import connected_settings
from runner.errors import ConfigurationError
from runner.handlers.discovery import discover
from runner.handlers.registry import REGISTRY, Handler
from runner.handlers.resources import Resource
from runner.settings import Settings, load

if TYPE_CHECKING:
    from runner.engine.runner import Engine
    from runner.engine.shards import ShardEngines
    from runner.settings.keywords import RunnerKeywords

log = logging.getLogger("runner")

NAMES_OF_A_DATABASE = {"url", "profile", "config"}
"""Settings that choose a database: with one of them a runner does not use the settings of `connect`."""


class Runner:
    """A runner inside your program, on its event loop or in a thread. It runs once.

    It takes no signal handlers and configures no logging. Several runners in one program, each with its own queues,
    handlers and period, are several scan loops.

    Args:
        handlers: handlers or their names; None for all registered ones, and those of the modules in the settings.
        settings: complete settings; None for those of `connect`, or to load them if one of the overrides names a
            database or this program has not connected.
        resources: objects to use instead of opening a resource, by resource.
        overrides: single settings by name, e.g. queues=["mail"], concurrency=10, poll_interval="5s"; None counts as
            unset. With poll_interval=0 the runner scans once, executes the claimed tasks and stops.

    Raises:
        InvalidSettings: a value is not valid.
        UnknownHandler: no handler has a name.
        ConfigurationError: no handlers are registered.

    Examples:
        >>> async with Runner(queues=["mail"]), Runner(queues=["video"], concurrency=2):
        ...     await serve()
        >>> with Runner():  # in a thread
        ...     serve_without_asyncio()
    """

    def __init__(
        self,
        handlers: Iterable[Handler | str] | None = None,
        *,
        settings: Settings | None = None,
        resources: Mapping[Resource[Any], Any] | None = None,
        **overrides: "Unpack[RunnerKeywords]",
    ) -> None:
        self.settings = _settings(settings, overrides)
        self._handlers = _handlers(handlers, self.settings)
        self._replacements = {resource.name: value for resource, value in (resources or {}).items()}
        self._engine: Engine | ShardEngines | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run: asyncio.Task[bool] | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._tried = threading.Event()
        self._stopping = False

    @property
    def id(self) -> int:
        """The id in the list of runners; 0 before the registration. With shards, that in the first of them."""
        return self._engine.parts[0].lease.id if self._engine is not None else 0

    async def run(self, *, until_idle: bool = False) -> bool:
        """Claim and execute tasks until `stop`.

        Args:
            until_idle: stop when nothing runs, is due or will be retried.

        Returns:
            True if every started task has ended and every outcome is written; False if the drain timeout was exceeded.

        Raises:
            StoreError: the database refuses this runner permanently, e.g. because its schema is too new.
            ConfigurationError: it runs, or has run before.
        """
        self._require_new()
        self._loop = asyncio.get_running_loop()
        self._engine = self._make_engine()
        if self._stopping:
            return True
        return await self._engine.run(until_idle=until_idle)

    def _make_engine(self) -> "Engine | ShardEngines":
        if self.settings.shards and self.settings.shard is None:
            from runner.engine.shards import ShardEngines

            return ShardEngines(self.settings, self._handlers, resources=self._replacements)
        from runner.engine.runner import Engine  # loads SQLAlchemy and APScheduler

        return Engine(self.settings, self._handlers, self._replacements)

    def _require_new(self) -> None:
        if self._engine is not None:
            runs = (self._run is not None and not self._run.done()) or (
                self._thread is not None and self._thread.is_alive()
            )
            used = "runs in its own block" if runs else "has run before"
            raise ConfigurationError(why=f"this Runner {used}; make a new one")

    def stop(self) -> None:
        """Drain: claim nothing more, let running tasks finish, and end. From any thread."""
        self._stopping = True
        if self._engine is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._engine.stop)

    async def __aenter__(self) -> Self:
        self._require_new()
        self._run = asyncio.ensure_future(self.run())
        await asyncio.sleep(0)  # `run` makes the engine
        if self._engine is not None:
            tried = asyncio.ensure_future(self._engine.first_try())
            await asyncio.wait([tried, self._run], return_when=asyncio.FIRST_COMPLETED)
            tried.cancel()
        if self._run.done():
            self._run.result()
        self._run.add_done_callback(_log_failure)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._run is not None:
            await asyncio.shield(self._run)

    def __enter__(self) -> Self:
        self._require_new()
        self._thread = threading.Thread(target=self._run_in_thread, name="runner", daemon=True)
        self._thread.start()
        self._tried.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run_in_thread(self) -> None:
        async def run() -> None:
            watch = asyncio.ensure_future(self._announce())
            try:
                await self.run()
            finally:
                watch.cancel()

        from runner.engine.hosting.event_loop import run_contained

        try:
            run_contained(run())
        except BaseException as error:
            self._error = error
            if self._tried.is_set():
                log.error("the runner in thread %s failed", threading.current_thread().name, exc_info=error)
        finally:
            self._tried.set()

    async def _announce(self) -> None:
        """Set `_tried` after the first attempt to register."""
        await asyncio.sleep(0)
        if self._engine is not None:
            await self._engine.first_try()
        self._tried.set()


def _settings(settings: Settings | None, overrides: Mapping[str, Any]) -> Settings:
    values = {name: value for name, value in overrides.items() if value is not None}
    if settings is None and not NAMES_OF_A_DATABASE & values.keys():
        settings = connected_settings()
    if settings is None:
        return load(**values)
    return Settings(**{name: getattr(settings, name) for name in settings.model_fields_set} | values)


def _handlers(selection: Iterable[Handler | str] | None, settings: Settings) -> dict[str, Handler]:
    if isinstance(selection, (Handler, str)):
        name = selection if isinstance(selection, str) else selection.name
        raise ConfigurationError(why=f"its handlers are a list: pass handlers=[{name!r}]")
    if selection is None:
        handlers = dict(discover(settings.handlers))
    else:
        entries = [item if isinstance(item, Handler) else REGISTRY.find(item) for item in selection]
        handlers = {handler.name: handler for handler in entries}
        for handler in entries:
            handler.require()
            handler.require_parents({**REGISTRY, **handlers})
    if not handlers:
        raise ConfigurationError(why="it has no handlers; import the module that defines them, or pass handlers=[...]")
    return handlers


def _log_failure(run: "asyncio.Task[bool]") -> None:
    if not run.cancelled() and (error := run.exception()) is not None:
        log.error("the runner failed", exc_info=error)
