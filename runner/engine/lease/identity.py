"""Identity: the host, the process and the capabilities of a runner."""

import os
import socket
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from types import MappingProxyType

from runner.engine.in_flight import InFlight
from runner.handlers.keyring import Keyring
from runner.handlers.parameters import NO_TIMEOUT, stored_signatures
from runner.handlers.registry import Handler
from runner.policy.claim_order import parse_order
from runner.policy.polling import describe_polling, parse_poll_mode
from runner.policy.selection import described_selection
from runner.settings import Settings
from runner.store.registration import ExecutorSlots, Identity

NO_HANDLERS: Mapping[str, Handler] = MappingProxyType({})


def identity(
    handlers: Mapping[str, Handler],
    settings: Settings,
    in_flight: InFlight,
    loaded: Mapping[str, Handler] = NO_HANDLERS,
) -> Identity:
    """Return the identity of a runner in this process.

    Args:
        handlers: the handlers whose tasks it claims.
        loaded: all handlers, of which it leaves those without a key to others.

    Raises:
        InvalidSettings: a policy or a selection in the settings is not valid.
    """
    in_processes = sorted(name for name, handler in handlers.items() if handler.in_process)
    outside = {name for name, handler in handlers.items() if handler.in_process or handler.external is not None}
    threaded = [name for name, handler in handlers.items() if not handler.is_async and name not in outside]
    names, queue_names, threads = sorted(handlers), sorted(settings.queues), in_flight.in_threads.limit
    slices, buckets = described_selection(settings.slice, settings.buckets)
    limits = {name: handler.defaults.limits for name, handler in handlers.items() if handler.defaults.limits}
    breakers = {name: breaker.columns for name, handler in handlers.items() if (breaker := handler.defaults.breaker)}
    declared = {name: handler for name, handler in handlers.items() if handler.is_declared}
    keyring = Keyring(settings)
    left = {name: handler for name, handler in loaded.items() if name not in handlers}
    keyless = {name: handler for name, handler in left.items() if keyring.missing(keyring.of(handler))}
    version, capacity = settings.app_version or release(), in_flight.capacity
    made = Identity(socket.gethostname(), os.getpid(), version, names, capacity, queue_names, threads)
    return made._replace(
        threaded=sorted(threaded),
        processes=in_flight.in_processes.limit,
        in_processes=in_processes,
        executors={
            name: ExecutorSlots(slots=slots.size, handlers=sorted(_handlers_of(name, handlers)))
            for name, slots in in_flight.external.items()
        },
        limits=limits,
        breakers=breakers,
        undeclared=[name for name, handler in handlers.items() if not handler.is_declared],
        signatures=stored_signatures(
            declared,
            settings.retry,
            settings.max_attempts,
            settings.timeout.total_seconds() if settings.timeout else NO_TIMEOUT,
            keyring.of,
        ),
        keyless=stored_signatures(keyless, codec_of=keyring.of),
        claim_order=str(parse_order(settings.claim_order)),
        polling=describe_polling(parse_poll_mode(settings.poll_mode), settings.poll_interval, settings.scans),
        slice=slices,
        buckets=buckets,
    )


def _handlers_of(executor: str, handlers: Mapping[str, Handler]) -> list[str]:
    return [name for name, handler in handlers.items() if handler.external == executor]


@cache
def release() -> str:
    """The version of this program. It is read from a file, and each external call names it."""
    try:
        return metadata.version("tasktui")
    except metadata.PackageNotFoundError:
        return "unknown"
