"""RayExecutor: the workers of a Ray cluster as an external executor.

The runner is a client of the cluster (`ray://`). In Ray's other way to connect, a program ends when its cluster goes.
A call has one processor. Ray may not start the call of a lost worker again: the attempt would run twice.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
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

ANSWER = 5
"""Seconds in which the cluster answers a look."""

MOST_WAITS = 10_000
"""Maximum number of calls of the mailbox at the same time: each call has one that waits for messages."""

REASON = 200
"""Maximum number of characters of an error of Ray, which explains much."""

AUTO = "127.0.0.1:10001"
"""The address of a head node on this machine."""


class Mailbox:
    """An actor of the cluster that passes messages between a runner and the workers of its calls."""

    def __init__(self) -> None:
        self._received = asyncio.Condition()
        self._to_runner: list[tuple[int, bytes]] = []
        self._to_calls: dict[int, list[bytes]] = {}

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
        """Keep a message for a call that has begun."""
        async with self._received:
            if number in self._to_calls:
                self._to_calls[number].append(data)
                self._received.notify_all()

    async def begin(self, number: int) -> None:
        """Let a call receive messages."""
        self._to_calls[number] = []

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


class RayExecutor:
    """The processors of a Ray cluster.

    Args:
        address: host and port of the client server of the head node, or `auto` for port 10001 of this machine.
    """

    calls_on_loop = False

    def __init__(self, address: str) -> None:
        self._address = f"ray://{AUTO if address == 'auto' else address.removeprefix('ray://')}"
        self._cluster: Any = None
        self._mailbox: Any = None
        self._function: Any = None
        self._calls: dict[int, RayCall] = {}
        self._lost: Callable[[str], object] = lambda _: None

    def open(self, resize: Callable[[int], object], lost: Callable[[str], object]) -> None:
        """Connect to the cluster, in a thread."""
        self._lost = lost
        cluster: Any = ray.init(self._address, namespace="tasktui", log_to_driver=False)
        try:
            self._mailbox = ray.remote(num_cpus=0, max_concurrency=MOST_WAITS)(Mailbox).remote()
            self._function = ray.remote(num_cpus=1, max_retries=0)(run_call)
            resize(_processors())
        except BaseException:
            cluster.disconnect()
            raise
        self._cluster = cluster
        for work in (lambda: self._watch(cluster, resize), lambda: self._take(cluster, self._mailbox)):
            threading.Thread(target=work, name="runner-ray", daemon=True).start()

    def start(self, call: ExternalCall, receive: Receive, end: End) -> StartedCall:
        """Start a call."""
        if self._cluster is None:
            raise ExecutorLost("it is closed")
        number = call.call.number
        started = self._calls[number] = RayCall(self, number, receive, end)
        started.result = self._function.remote(self._mailbox, number, call.dumps())
        started.result.future().add_done_callback(lambda done: self._end(number, done))
        return started

    def send(self, number: int, data: bytes) -> None:
        """Send a message to a call."""
        if self._cluster is not None:
            self._mailbox.send.remote(number, data)

    def forget(self, number: int) -> None:
        """Receive no more messages of a call."""
        self._calls.pop(number, None)

    def cancel(self, call: "RayCall") -> None:
        """End the worker process of a call, or cancel the call before its start."""
        if self._cluster is not None and call.result is not None:
            with contextlib.suppress(Exception):  # it may have ended
                ray.cancel(call.result, force=True)

    def close(self) -> None:
        """Disconnect, in a thread. The cluster ends the calls."""
        cluster, self._cluster = self._cluster, None
        self._calls.clear()
        if cluster is not None:
            with contextlib.suppress(Exception):  # the cluster may be gone
                cluster.disconnect()

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

    def _take(self, cluster: Any, mailbox: Any) -> None:
        """Pass the messages of calls on until the connection ends."""
        while self._cluster is cluster:
            try:
                messages = mailbox.take.remote().future().result()  # `ray.get` would delay all other requests
            except Exception as error:
                if self._cluster is cluster:
                    self._lose(f"{type(error).__name__}: {error}")
                return
            for number, data in messages:
                if (call := self._calls.get(number)) is not None:
                    call.receive(data)

    def _watch(self, cluster: Any, resize: Callable[[int], object]) -> None:
        """Follow the size of the cluster until the connection ends."""
        pause = threading.Event()
        while self._cluster is cluster:
            pause.wait(LOOK_EVERY)
            try:
                client.ray.get_context().client_worker.ping_server(timeout=ANSWER)
                resize(_processors())
            except Exception as error:
                if self._cluster is cluster:
                    self._lose(f"{type(error).__name__}: {error}")
                return

    def _lose(self, why: str) -> None:
        self._calls.clear()
        self._lost(why.partition("\n")[0])


class RayCall:
    """A call on a worker of a Ray cluster."""

    result: Any = None
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
        self._executor.cancel(self)


def _processors() -> int:
    return int(ray.cluster_resources().get("CPU", 0))


def run_call(mailbox: Any, number: int, data: bytes) -> bytes:
    """Execute a call in this worker, and return its end as a message."""
    ray.get(mailbox.begin.remote(number))
    threading.Thread(target=_deliver, args=(mailbox, number), daemon=True).start()
    try:
        return call_site().run(data, lambda message: ray.get(mailbox.put.remote(number, message)))
    finally:
        mailbox.end.remote(number)


def _deliver(mailbox: Any, number: int) -> None:
    """Pass the messages of the runner to a call until it ends."""
    with contextlib.suppress(Exception):  # the cluster is gone, and so is the call
        while messages := ray.get(mailbox.receive.remote(number)):
            for data in messages:
                call_site().deliver(number, data)
