"""submit: a task of a handler whose code this process does not load."""

import logging
import time
from asyncio import wrap_future
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Unpack
from weakref import WeakKeyDictionary

from pydantic_core import PydanticSerializationError, to_json

from runner.client.client import get_client, refuse_event_loop
from runner.client.database_client import Client
from runner.client.results import TaskHandle, handles
from runner.errors import DatabaseRefused, InvalidPayload, InvalidTask
from runner.handlers.dependencies import Parent, read_declared, with_key
from runner.handlers.options import SETTABLE, ScheduledTaskOptions, read_options
from runner.handlers.parameters import StoredSignature
from runner.handlers.registry import NAME, REGISTRY
from runner.model.outcome import Delay
from runner.model.task import NewTask, OnFailure, SubmitResult
from runner.model.text_limits import require_levels, require_payload
from runner.policy.retry import load_retry

if TYPE_CHECKING:
    from runner.db.transaction import Transaction

log = logging.getLogger("runner")

SIGNATURE_SECONDS = 60.0
"""Seconds for which a process keeps the stored signature of a handler."""


class NamedTaskOptions(ScheduledTaskOptions, total=False):
    """The options of `submit` for type checkers; a test compares them. Values are as in `handler.options`."""

    run_at: datetime
    delay: Delay
    expires_at: datetime
    route: str
    unique_key: str
    unique: str
    on_duplicate: str
    order_key: str
    order_on_failure: OnFailure
    after: Parent | Iterable[Parent]


class StoredHandler(NamedTuple):
    """A handler as its runners stored it.

    Args:
        signature: None if there is none, or if this login may only submit.
        warning: a clause about its name; empty if a runner has had it.
    """

    signature: StoredSignature | None = None
    warning: str = ""


Known: TypeAlias = dict[str, tuple[float, StoredHandler]]
"""The time of the read, monotonic, and the stored handler, by name."""

_known: WeakKeyDictionary[Client, Known] = WeakKeyDictionary()


def submit(
    handler: str,
    arguments: Mapping[str, Any] | None = None,
    /,
    *,
    tx: object = None,
    **options: Unpack[NamedTaskOptions],
) -> TaskHandle[Any]:
    """Submit a task of a handler by its name, in a process that does not load the handler's code.

    The arguments are checked against the signature that the runners of the handler stored, if there is one. The task
    gets the queue, the priority and the expiry of the handler; values that its code derives from the arguments, such as
    a unique key, are options here. If the handler is loaded, this is the same as a submit of the handler.

    Args:
        handler: name of the handler.
        arguments: arguments of the call, by name.
        tx: your connection or session; the task becomes part of its open transaction.
        options: task options, as in `handler.options`.

    Returns:
        The task's id, as a handle for its result.

    Raises:
        InvalidPayload: the arguments do not match the stored signature, or cannot be written as JSON.
        InvalidTask: an option is unknown or not valid.
        WouldBlock: called on an event loop without `tx`: await `submit_async` there.
        PayloadTooLarge, DatabaseUnavailable, SubmitUncertain, DuplicateTask: see `handler.submit`.

    Examples:
        >>> submit("shop.export", {"user": 7}, queue="slow", key="user-7")
    """
    loaded: Any = _loaded(handler, arguments)
    if loaded is not None:
        _require_known(options)
        handle: TaskHandle[Any] = loaded.options(tx=tx, **options).submit(**(arguments or {}))
        return handle
    client = get_client()
    if tx is None:
        refuse_event_loop("submit")
    stored = _cached(client, handler) or _keep(client, handler, _begin(client, handler).result())
    tasks = _tasks(client, handler, arguments, options, stored)
    return _handle(client.submit(tasks) if tx is None else client.submit_within(tx, tasks))


async def submit_async(
    handler: str,
    arguments: Mapping[str, Any] | None = None,
    /,
    *,
    tx: object = None,
    **options: Unpack[NamedTaskOptions],
) -> TaskHandle[Any]:
    """Same as `submit`, without blocking the event loop."""
    loaded: Any = _loaded(handler, arguments)
    if loaded is not None:
        _require_known(options)
        handle: TaskHandle[Any] = await loaded.options(tx=tx, **options).submit_async(**(arguments or {}))
        return handle
    client = get_client()
    if client.frame is None:
        await client.load()
    stored = _cached(client, handler) or _keep(client, handler, await wrap_future(_begin(client, handler)))
    tasks = _tasks(client, handler, arguments, options, stored)
    return _handle(await (client.submit_async(tasks) if tx is None else client.submit_within_async(tx, tasks)))


def _loaded(handler: str, arguments: Mapping[str, Any] | None) -> Any:
    """The handler, if its code is loaded; refuses a value that is no name, and arguments without names."""
    if not isinstance(handler, str) or not NAME.fullmatch(handler):
        why = "pass the name of a handler, of 1 to 200 letters, digits and _ . : / -; a handler itself has submit(...)"
        raise InvalidTask(field="handler", value=handler, why=why)
    if arguments is not None and not isinstance(arguments, Mapping):
        raise InvalidPayload(handler=handler, why='pass the arguments by name, such as {"user": 7}')
    return REGISTRY.get(handler)


def _cached(client: Client, handler: str) -> StoredHandler | None:
    read_at, stored = _known.get(client, {}).get(handler, (0.0, None))
    return stored if time.monotonic() - read_at < SIGNATURE_SECONDS else None


def _keep(client: Client, handler: str, stored: StoredHandler) -> StoredHandler:
    _known.setdefault(client, {})[handler] = (time.monotonic(), stored)
    for each in client.each() if stored.signature is not None else ():
        each.sealing.keyring.note(handler, stored.signature and stored.signature.codec)
    if stored.warning:
        log.warning("%s; the task waits until a runner has it", stored.warning)
    return stored


def _begin(client: Client, handler: str) -> Future[StoredHandler]:
    """Begin to read the stored signature; that of the first shard counts for all."""

    async def read(database: Any) -> StoredHandler:
        try:
            stored: StoredHandler = await database.read(_stored, handler)
        except DatabaseRefused:  # the role of producers does not read the registry
            return StoredHandler()
        return stored

    return client.each()[0].run(read)


async def _stored(tx: "Transaction", handler: str) -> StoredHandler:
    from runner.operations.names import handler_warning
    from runner.queries.signatures import stored_signature

    signature = await stored_signature(tx, handler)
    return StoredHandler(signature, "" if signature else await handler_warning(tx, handler))


def _tasks(
    client: Client,
    handler: str,
    arguments: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    stored: StoredHandler,
) -> Sequence[NewTask]:
    """Make the task, in a sequence of one."""
    _require_known(options)
    signature, payload = stored.signature, _payload(handler, arguments or {})
    fields, call_options = read_options(options)
    if fields.get("retry") is not None:
        fields["retry"] = str(load_retry(fields["retry"]))
    if signature is not None:
        signature.require(handler, payload)
        for name in signature.derived:
            if name not in options:
                log.warning("the code of %s derives %s from the arguments: pass it to submit", handler, name)
        at_submit = [name for name, option in SETTABLE.items() if option.default == "submit"]
        fields = {name: value for name, value in signature.options.items() if name in at_submit} | fields
    client.sealing.require_size(handler, payload)
    call_options.require_keys()
    task = call_options.applied(NewTask(handler, payload, **fields), dict)
    return [task if signature is None else with_key(task, read_declared(signature.options))]


def _require_known(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in SETTABLE:
            argument = f"for an argument, write {{{name!r}: ...}}"
            why = f"there is no such option; {argument}; the options are {', '.join(SETTABLE)}"
            raise InvalidTask(field="options", value=name, why=why)


def _payload(handler: str, arguments: Mapping[str, Any]) -> str:
    try:
        text = to_json(dict(arguments), inf_nan_mode="constants").decode()
        require_payload(text)
        require_levels(text)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidPayload(handler=handler, why=f"it cannot be written as JSON: {error}") from None
    except InvalidTask as error:
        raise InvalidPayload(handler=handler, why=error.fields["why"]) from None
    return text


def _handle(result: SubmitResult) -> TaskHandle[Any]:
    return handles(result.ids, result.duplicates)[0]
