"""RayExecutor: the workers of a Ray cluster as an external executor.

The runner is a client of the cluster (`ray://`). In Ray's other way to connect, a program ends when its cluster goes.
A call of a client costs several milliseconds of processor time on both ends, so the runner calls one actor of the
cluster, the relay, with all that it has to send. The relay starts the calls of handlers. A call has one processor. Ray
may not start the call of a lost worker again: the attempt would run twice.

The client server of the head node may accept requests and not answer. Ray waits for its answers without a limit, also
when it disconnects or drops the reference to a result. So threads of their own send and receive, and `_limit` ends
what takes too long.
"""

import asyncio
import contextlib
import functools
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import ray
from ray.exceptions import TaskCancelledError
from ray.util import client

from runner.engine.external.call import ExternalCall
from runner.engine.external.call_site import call_site
from runner.engine.external.executor import End, ExecutorLost, Receive, StartedCall, WorkerLost
from runner.text.sanitize import one_line

log = logging.getLogger("runner")

LOOK_EVERY = 1.0
"""Seconds between two looks at the cluster."""

ANSWER = 20.0
"""Seconds in which the cluster answers a look. A busy machine has taken several."""

CONNECT = 120.0
"""Seconds to connect: the head node starts a process for each client."""

DISCONNECT = 3.0
"""Seconds to disconnect."""

MOST_WAITS = 10_000
"""Maximum number of calls of the relay at the same time: each long handler has one that waits for messages."""

QUIET = 0.05
"""Seconds for which a handler runs before the runner hears of its start."""

GATHER = 0.03
"""Seconds between two calls of the relay in each direction: they carry more if there is much to carry."""

REASON = 200
"""Maximum number of characters of an error of Ray, which explains much."""

AUTO = "127.0.0.1:10001"
"""The address of a head node on this machine."""

NAMESPACE = "tasktui"
"""The names of the relays are in it."""

Request = tuple[str, int, bytes]
"""A request to the relay: the name of its method, the number of a call, and the data."""

Arrival = tuple[int, bytes, str | None]
"""From the relay: the number of a call, its message, and None; or its end, and the reason if it has none."""


class RelayedCall:
    """A call that the relay has started, and the messages for it."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.messages: list[bytes] = []
        self.changed = asyncio.Event()


class Relay:
    """An actor of the cluster that starts calls, and passes messages between a runner and their workers.

    Args:
        name: its name, by which the workers find it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._function = ray.remote(num_cpus=1, max_retries=0)(run_call)
        self._calls: dict[int, RelayedCall] = {}
        self._arrivals: list[Arrival] = []
        self._arrived = asyncio.Event()
        self._taken_at = -inf
        self._following: set[asyncio.Task[None]] = set()

    async def post(self, requests: list[Request]) -> None:
        """Carry out requests of the runner, in their order."""
        for method, number, data in requests:
            try:
                getattr(self, method)(number, data)
            except Exception as error:
                self._arrive((number, b"", _reason(error)))

    async def take(self) -> list[Arrival]:
        """Return the messages and the ends of calls; waits for one."""
        await self._arrived.wait()
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._taken_at + GATHER - loop.time())
        self._arrived.clear()
        self._taken_at = loop.time()
        taken, self._arrivals = self._arrivals, []
        return taken

    async def put(self, number: int, data: bytes) -> None:
        """Keep a message of a call."""
        self._arrive((number, data, None))

    async def receive(self, number: int) -> list[bytes]:
        """Return the messages for a call; waits for one. None arrives after the end of the call."""
        if (call := self._calls.get(number)) is None:
            return []
        await call.changed.wait()
        call.changed.clear()
        taken, call.messages = call.messages, []
        return taken

    async def answer(self) -> None:
        """Show that messages pass."""

    def start(self, number: int, data: bytes) -> None:
        """Start a call."""
        call = self._calls[number] = RelayedCall(self._function.remote(self._name, number, data))
        following = asyncio.get_running_loop().create_task(self._follow(number, call))
        self._following.add(following)
        following.add_done_callback(self._following.discard)

    def send(self, number: int, data: bytes) -> None:
        """Keep a message for a call."""
        if (call := self._calls.get(number)) is not None:
            call.messages.append(data)
            call.changed.set()

    def cancel(self, number: int, _: bytes) -> None:
        """End the worker process of a call, or cancel the call before its start."""
        if (call := self._calls.get(number)) is not None:
            with contextlib.suppress(Exception):  # it may have ended
                ray.cancel(call.result, force=True)

    async def _follow(self, number: int, call: RelayedCall) -> None:
        end, reason = b"", None
        try:
            end = await call.result
        except TaskCancelledError:
            reason = "its call was cancelled"
        except Exception as error:  # a worker process or a machine has ended
            reason = _reason(error)
        del self._calls[number]
        call.messages = []
        call.changed.set()
        self._arrive((number, end, reason or ""))

    def _arrive(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        self._arrived.set()


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(str(error), REASON)}"


class RayExecutor:
    """The processors of a Ray cluster.

    Args:
        address: host and port of the client server of the head node, or `auto` for port 10001 of this machine.
    """

    calls_on_loop = False
    span = 0.1

    def __init__(self, address: str) -> None:
        self._address = f"ray://{AUTO if address == 'auto' else address.removeprefix('ray://')}"
        self._connection: object = None
        self._calls: dict[int, RayCall] = {}
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._lost: Callable[[str], object] = lambda _: None

    def open(self, resize: Callable[[int], object], lost: Callable[[str], object]) -> None:
        """Connect to the cluster, in a thread."""
        self._lost = lost
        connection, name = object(), f"relay-{secrets.token_hex(8)}"
        try:
            with _limit(CONNECT):
                ray.init(self._address, namespace=NAMESPACE, log_to_driver=False)
                relay: Any = ray.remote(num_cpus=0, max_concurrency=MOST_WAITS)(Relay).options(name=name).remote(name)
                _answer(relay)  # its process starts
                resize(_processors())
        except BaseException:
            _disconnect()
            raise
        requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._connection, self._requests = connection, requests
        works = (
            lambda: self._watch(relay, resize),
            lambda: self._take(relay),
            lambda: _send(relay, requests),
        )
        for work in works:
            threading.Thread(target=self._work, args=(connection, work), name="runner-ray", daemon=True).start()

    def start(self, call: ExternalCall, receive: Receive, end: End) -> StartedCall:
        """Start a call."""
        if self._connection is None:
            raise ExecutorLost("it is closed")
        number = call.call.number
        started = self._calls[number] = RayCall(self, number, receive, end)
        self._requests.put(("start", number, call.dumps()))
        return started

    def request(self, method: str, number: int, data: bytes = b"") -> None:
        """Send a request to the relay."""
        self._requests.put((method, number, data))

    def forget(self, number: int) -> None:
        """Receive no more messages of a call."""
        self._calls.pop(number, None)

    def close(self) -> None:
        """Disconnect, in a thread. The cluster ends the calls."""
        connection, self._connection = self._connection, None
        self._calls.clear()
        self._requests.put(None)
        if connection is not None:
            _disconnect()

    def _work(self, connection: object, work: Callable[[], object]) -> None:
        """Repeat work until the connection ends."""
        try:
            while self._connection is connection:
                work()
        except Exception as error:
            if self._connection is connection:
                self._lose(f"{type(error).__name__}: {error}")

    def _take(self, relay: Any) -> None:
        """Pass messages and ends of calls on."""
        arrivals = relay.take.remote().future().result()  # `ray.get` would delay all other requests
        for number, data, end in arrivals:
            if (call := self._calls.get(number)) is None:
                continue
            if end is None:
                call.receive(data)
            else:
                call.end(WorkerLost(end) if end else data)

    def _watch(self, relay: Any, resize: Callable[[int], object]) -> None:
        """Follow the size of the cluster, and require answers of it."""
        time.sleep(LOOK_EVERY)
        with _limit(ANSWER, self._lose):
            _answer(relay)
            resize(_processors())

    def _lose(self, why: str) -> None:
        self._calls.clear()
        self._lost(why.partition("\n")[0])


class RayCall:
    """A call on a worker of a Ray cluster."""

    def __init__(self, executor: RayExecutor, number: int, receive: Receive, end: End) -> None:
        self._executor, self._number = executor, number
        self.receive, self.end = receive, end

    def send(self, data: bytes) -> None:
        """Send a message to the handler."""
        self._executor.request("send", self._number, data)

    def close(self) -> None:
        """Receive no more messages of the call."""
        self._executor.forget(self._number)

    def kill(self) -> None:
        """End the worker process of the call: it runs nothing else."""
        self._executor.request("cancel", self._number)


@contextlib.contextmanager
def _limit(seconds: float, on_late: Callable[[str], object] = lambda _: None) -> Iterator[None]:
    """End all requests of the connection with an error if these take longer.

    Args:
        on_late: receives the reason first.
    """
    done = threading.Event()

    def cut() -> None:
        pause = seconds
        while not done.wait(pause):
            pause = 1.0  # Ray may be about to open its channel again
            on_late(f"no answer for {seconds:g} s")
            worker: Any = client.ray.get_context().client_worker
            if worker is not None and worker.channel is not None:
                worker._in_shutdown = True  # noqa: SLF001 - otherwise it connects again
                worker.channel.close()

    threading.Thread(target=cut, name="runner-ray-limit", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _disconnect() -> None:
    with _limit(DISCONNECT), contextlib.suppress(Exception):  # the cluster may be gone
        client.ray.disconnect()


def _send(relay: Any, requests: queue.SimpleQueue[Request | None]) -> None:
    """Send the requests that wait: all of them in one call, which ends with an answer of the client server."""
    batch: list[Request] = []
    with contextlib.suppress(queue.Empty):
        while (request := requests.get(block=not batch)) is not None:
            batch.append(request)
    if batch:
        relay.post.remote(batch)
        time.sleep(GATHER)


def _answer(relay: Any) -> None:
    """Require an answer, on the way of all messages and results."""
    relay.answer.remote().future().result()


def _processors() -> int:
    return int(ray.cluster_resources().get("CPU", 0))


def run_call(relay_name: str, number: int, data: bytes) -> bytes:
    """Execute a call in this worker, and return its end as a message. A short one needs no other message."""
    opening = threading.Lock()
    is_open = False

    def send(message: bytes) -> None:
        nonlocal is_open
        relay = _relay(relay_name)
        with opening:
            if not is_open:
                is_open = True
                threading.Thread(target=_deliver, args=(relay, number), daemon=True).start()
        ray.get(relay.put.remote(number, message))

    return call_site().run(data, send, QUIET)


@functools.lru_cache(maxsize=16)
def _relay(name: str) -> Any:
    """Return the relay of a runner."""
    return ray.get_actor(name, NAMESPACE)


def _deliver(relay: Any, number: int) -> None:
    """Pass the messages of the runner to a call until it ends."""
    with contextlib.suppress(Exception):  # the cluster is gone, and so is the call
        while messages := ray.get(relay.receive.remote(number)):
            for data in messages:
                call_site().deliver(number, data)
