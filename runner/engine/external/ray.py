"""RayExecutor: the workers of a Ray cluster as an external executor.

The runner is a client of the cluster (`ray://`). In Ray's other way to connect, a program ends when its cluster goes.
A call has one processor. Ray may not start the call of a lost worker again: the attempt would run twice.

The client server of the head node may accept requests and not answer. Ray waits for its answers without a limit, also
when it disconnects or drops the reference to a result. So one thread sends all requests and has all references, and
`_limit` ends what takes too long.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayError, TaskCancelledError
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
"""Maximum number of calls of the mailbox at the same time: each call has one that waits for messages."""

QUIET = 0.02
"""Seconds for which a handler runs before the runner hears of its start."""

EARLY = 1_000
"""Maximum number of messages for calls that have not begun to receive."""

REASON = 200
"""Maximum number of characters of an error of Ray, which explains much."""

AUTO = "127.0.0.1:10001"
"""The address of a head node on this machine."""


Request = Callable[[dict[int, Any]], object]
"""A request to the cluster; its argument has the references to the results of calls by their number."""


class Mailbox:
    """An actor of the cluster that passes messages between a runner and the workers of its calls."""

    def __init__(self) -> None:
        self._received = asyncio.Condition()
        self._to_runner: list[tuple[int, bytes]] = []
        self._to_calls: dict[int, list[bytes]] = {}
        self._early: deque[tuple[int, bytes]] = deque(maxlen=EARLY)

    async def put(self, number: int, data: bytes) -> None:
        """Keep a message of a call."""
        async with self._received:
            self._to_runner.append((number, data))
            self._received.notify_all()

    async def take(self) -> list[tuple[int, bytes]]:
        """Return the messages of calls; waits for one."""
        async with self._received:
            await self._received.wait_for(lambda: self._to_runner)
            taken, self._to_runner = self._to_runner, []
            return taken

    async def send(self, number: int, data: bytes) -> None:
        """Keep a message for a call."""
        async with self._received:
            if number in self._to_calls:
                self._to_calls[number].append(data)
                self._received.notify_all()
            else:
                self._early.append((number, data))

    async def begin(self, number: int) -> None:
        """Let a call receive messages."""
        self._to_calls[number] = [data for other, data in self._early if other == number]

    async def receive(self, number: int) -> list[bytes]:
        """Return the messages for a call; waits for one. None arrives after the end of the call."""
        async with self._received:
            await self._received.wait_for(lambda: self._to_calls.get(number) != [])
            if number not in self._to_calls:
                return []
            taken, self._to_calls[number] = self._to_calls[number], []
            return taken

    async def end(self, number: int) -> None:
        """Let a call receive no further messages."""
        async with self._received:
            self._to_calls.pop(number, None)
            self._received.notify_all()

    async def answer(self) -> None:
        """Show that messages pass."""


class RayExecutor:
    """The processors of a Ray cluster.

    Args:
        address: host and port of the client server of the head node, or `auto` for port 10001 of this machine.
    """

    calls_on_loop = False

    def __init__(self, address: str) -> None:
        self._address = f"ray://{AUTO if address == 'auto' else address.removeprefix('ray://')}"
        self._connection: object = None
        self._mailbox: Any = None
        self._function: Any = None
        self._calls: dict[int, RayCall] = {}
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._lost: Callable[[str], object] = lambda _: None

    def open(self, resize: Callable[[int], object], lost: Callable[[str], object]) -> None:
        """Connect to the cluster, in a thread."""
        self._lost = lost
        connection = object()
        try:
            with _limit(CONNECT):
                ray.init(self._address, namespace="tasktui", log_to_driver=False)
                mailbox: Any = ray.remote(num_cpus=0, max_concurrency=MOST_WAITS)(Mailbox).remote()
                self._function = ray.remote(num_cpus=1, max_retries=0)(run_call)
                _answer(mailbox)  # its process starts
                resize(_processors())
        except BaseException:
            _disconnect()
            raise
        requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._connection, self._mailbox, self._requests = connection, mailbox, requests
        works = (
            lambda: self._watch(mailbox, resize),
            lambda: self._take(mailbox),
            lambda: self._send(requests),
        )
        for work in works:
            threading.Thread(target=self._work, args=(connection, work), name="runner-ray", daemon=True).start()

    def start(self, call: ExternalCall, receive: Receive, end: End) -> StartedCall:
        """Start a call."""
        if self._connection is None:
            raise ExecutorLost("it is closed")
        number = call.call.number
        started = self._calls[number] = RayCall(self, number, receive, end)
        data, requests = call.dumps(), self._requests

        def request(results: dict[int, Any]) -> None:
            results[number] = self._function.remote(self._mailbox, number, data)
            requests.put(expect)  # waits for an answer, which the requests before it need not

        def expect(results: dict[int, Any]) -> None:
            if (result := results.get(number)) is not None:
                result.future().add_done_callback(lambda done: self._end(number, done))

        requests.put(request)
        return started

    def send(self, number: int, data: bytes) -> None:
        """Send a message to a call."""
        self._requests.put(lambda _: self._mailbox.send.remote(number, data))

    def forget(self, number: int) -> None:
        """Receive no more messages of a call."""
        self._calls.pop(number, None)
        self._requests.put(lambda results: results.pop(number, None))

    def cancel(self, number: int) -> None:
        """End the worker process of a call, or cancel the call before its start."""

        def request(results: dict[int, Any]) -> None:
            with contextlib.suppress(Exception):  # it may have ended
                ray.cancel(results[number], force=True)

        self._requests.put(request)

    def close(self) -> None:
        """Disconnect, in a thread. The cluster ends the calls."""
        connection, self._connection = self._connection, None
        self._calls.clear()
        self._requests.put(None)
        if connection is not None:
            _disconnect()

    def _end(self, number: int, done: Any) -> None:
        call = self._calls.get(number)
        if call is None or call.has_ended:
            return
        call.has_ended = True
        error = done.exception()
        if error is None:
            call.end(done.result())
        elif isinstance(error, TaskCancelledError):
            call.end(WorkerLost("its call was cancelled"))
        elif isinstance(error, RayError):  # a worker process or a machine has ended
            call.end(WorkerLost(f"{type(error).__name__}: {one_line(str(error), REASON)}"))
        else:
            self._lose(f"{type(error).__name__}: {error}")

    def _work(self, connection: object, work: Callable[[], object]) -> None:
        """Repeat work until the connection ends."""
        try:
            while self._connection is connection:
                work()
        except Exception as error:
            if self._connection is connection:
                self._lose(f"{type(error).__name__}: {error}")

    def _take(self, mailbox: Any) -> None:
        """Pass messages of calls on."""
        messages = mailbox.take.remote().future().result()  # `ray.get` would delay all other requests
        for number, data in messages:
            if (call := self._calls.get(number)) is not None:
                call.receive(data)

    def _send(self, requests: queue.SimpleQueue[Request | None]) -> None:
        """Send requests in their order until the connection ends: each may wait for an answer."""
        results: dict[int, Any] = {}
        while (request := requests.get()) is not None:
            request(results)

    def _watch(self, mailbox: Any, resize: Callable[[int], object]) -> None:
        """Follow the size of the cluster, and require answers of it."""
        time.sleep(LOOK_EVERY)
        with _limit(ANSWER, self._lose):
            _answer(mailbox)
            resize(_processors())

    def _lose(self, why: str) -> None:
        self._calls.clear()
        self._lost(why.partition("\n")[0])


class RayCall:
    """A call on a worker of a Ray cluster."""

    has_ended = False

    def __init__(self, executor: RayExecutor, number: int, receive: Receive, end: End) -> None:
        self._executor, self._number = executor, number
        self.receive, self.end = receive, end

    def send(self, data: bytes) -> None:
        """Send a message to the handler."""
        self._executor.send(self._number, data)

    def close(self) -> None:
        """Receive no more messages of the call."""
        self._executor.forget(self._number)

    def kill(self) -> None:
        """End the worker process of the call: it runs nothing else."""
        self._executor.cancel(self._number)


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


def _answer(mailbox: Any) -> None:
    """Require an answer, on the way of all messages and results."""
    mailbox.answer.remote().future().result()


def _processors() -> int:
    return int(ray.cluster_resources().get("CPU", 0))


def run_call(mailbox: Any, number: int, data: bytes) -> bytes:
    """Execute a call in this worker, and return its end as a message. A short one needs no other message."""
    opening = threading.Lock()
    is_open = False

    def send(message: bytes) -> None:
        nonlocal is_open
        with opening:
            if not is_open:
                is_open = True
                ray.get(mailbox.begin.remote(number))
                threading.Thread(target=_deliver, args=(mailbox, number), daemon=True).start()
        ray.get(mailbox.put.remote(number, message))

    try:
        return call_site().run(data, send, QUIET)
    finally:
        if is_open:
            mailbox.end.remote(number)


def _deliver(mailbox: Any, number: int) -> None:
    """Pass the messages of the runner to a call until it ends."""
    with contextlib.suppress(Exception):  # the cluster is gone, and so is the call
        while messages := ray.get(mailbox.receive.remote(number)):
            for data in messages:
                call_site().deliver(number, data)
