"""The client of this process: opened by the first submit and shared by all threads."""

import asyncio
import atexit
import os
import threading
from typing import TYPE_CHECKING, Unpack

from runner.client.database_client import Client
from runner.db.semaphore import InterruptibleLock
from runner.errors import InvalidSettings, WouldBlock
from runner.settings import Settings, load

if TYPE_CHECKING:
    from runner.settings.keywords import Keywords

_lock = InterruptibleLock()
_client: Client | None = None
_connected: Settings | None = None  # of the last `connect`, also after `disconnect`
_kind: type[Client] = Client


def use_client(kind: type[Client]) -> None:
    """Set the class of the clients that this process opens from now on, for a framework with connections of its own."""
    global _kind  # noqa: PLW0603 - one framework per process
    _kind = kind


def get_client() -> Client:
    """The client of this process, opened with loaded settings if necessary; a forked child gets its own."""
    client = _client
    return client if client is not None and client.pid == os.getpid() else _lock.call(_open)


def refuse_event_loop(call: str, instead: str | None = None) -> None:
    """Reject a call on an event loop, because its wait would block the loop.

    With gevent, all greenlets of a thread see the loop that one of them runs, such as the client's. For the others it
    is as if it ran in another thread.

    Args:
        call: name of the function that blocks, or with `instead` the code.
        instead: the code to write; by default it awaits the function with `_async` at the end of its name.

    Raises:
        WouldBlock: the caller is on an event loop.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    if getattr(loop, "_thread_id", None) in (None, threading.get_ident()):
        raise WouldBlock(call=call if instead else f"{call}()", instead=instead or f"await {call}_async(...)")


def _open() -> Client:
    global _client  # noqa: PLW0603 - one client per process
    if _client is None or _client.pid != os.getpid():
        _client = _new(_client.settings if _client is not None else _connected or load())
    return _client


def _new(settings: Settings) -> Client:
    if not settings.shards:
        return _kind(settings)
    from runner.client.shards import ShardClients  # most programs have one database

    return ShardClients(settings)


def connect(settings: Settings | None = None, **overrides: "Unpack[Keywords]") -> None:
    """Set the database that tasks are submitted to, instead of using the environment and the configuration file.

    While a `TaskStore` of `runner.testing` is open, tasks go to the store, and after it to this database.

    Args:
        settings: complete settings; None to load them.
        overrides: single settings by name, e.g. url="postgresql://db/app"; None counts as unset.

    Raises:
        InvalidSettings: a value is not valid.
        DriverMissing: the driver of the database is not installed.
    """
    global _connected  # noqa: PLW0603 - one database per process
    _require_settings(settings)
    settings = settings or load(**overrides)
    if not _is_replaceable():
        _connected = settings
        return
    client = _new(settings)
    client.load_now()
    old, _connected = replace(client), settings
    if old is not None:
        old.close()


def _is_replaceable() -> bool:
    client = _client
    return client is None or client.is_replaceable


def _require_settings(settings: object) -> None:
    if isinstance(settings, str):
        why = 'a URL is a keyword argument: runner.connect(url="postgresql://host/database")'
        raise InvalidSettings(where="connect", why=why)


def connected_settings() -> Settings | None:
    """The settings that this process submits with, or None before `connect` and before the first submit."""
    client = _client
    return client.settings if client is not None else _connected


def disconnect() -> None:
    """Close the connections of this process; the next submit opens them again, to the database of `connect`."""
    old = replace(None) if _is_replaceable() else None
    if old is not None:
        old.close()


def replace(client: Client | None) -> Client | None:
    """Replace the client of this process and return the old one, still open."""
    return _lock.call(_replace, client)


def _replace(client: Client | None) -> Client | None:
    global _client
    old, _client = _client, client
    return old


atexit.register(disconnect)
