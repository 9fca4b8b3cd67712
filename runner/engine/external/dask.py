"""DaskExecutor: the workers of a Dask cluster as an external executor.

The runner chooses the worker of each call: Dask would start the call of a lost worker again on another one, and the
attempt would run twice. A call waits for the end of no other one, because a worker has a slot per thread.
"""

import contextlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from distributed import Client, get_worker

from runner.engine.external.call import ExternalCall
from runner.engine.external.call_site import call_site, is_refusal
from runner.engine.external.executor import End, ExecutorLost, Receive, StartedCall, WorkerLost

log = logging.getLogger("runner")

CONNECT_TIMEOUT = 10.0
"""Seconds for a connection to the scheduler."""

LOOK_EVERY = 1.0
"""Seconds between two looks at the connection."""

FETCHES = 4
"""Threads that fetch results. One that a lost worker has waits for up to LOOK_EVERY."""

AVOID = 60.0
"""Seconds for which a worker gets no call that another worker can take, after it could not load a handler."""

QUIET = 0.02
"""Seconds for which a handler runs before the runner hears of its start."""

SMALL = 10_000
"""Maximum size in bytes of an end that is sent as a message too, which is several times as fast as a fetched result.

The scheduler keeps the last 1,000 messages.
"""

DISCONNECTED = ("newly-created", "connecting", "closing", "closed")
"""The states of a client without its scheduler."""


class DaskExecutor:
    """The threads of the workers of a Dask cluster.

    Args:
        address: the address of the scheduler, such as tcp://scheduler:8786, or a file that the scheduler wrote.
    """

    calls_on_loop = False
    span = 0.0

    def __init__(self, address: str) -> None:
        self._address, self._topic = address, f"tasktui-{secrets.token_hex(8)}"
        self._client: Any = None
        self._calls: dict[int, DaskCall] = {}
        """The calls that have not ended."""
        self._open: dict[int, DaskCall] = {}
        """Those, and calls whose messages still arrive."""
        self._threads: dict[str, int] = {}
        """The number of threads of each worker, by its address."""
        self._refused: dict[str, float] = {}
        """The monotonic time until which other workers are better, by the address of a worker that refused a call."""
        self._guard = threading.Lock()
        self._closing = threading.Event()
        self._sends: ThreadPoolExecutor | None = None
        self._fetches: ThreadPoolExecutor | None = None
        self._resize: Callable[[int], object] = lambda _: None
        self._lost: Callable[[str], object] = lambda _: None

    def open(self, resize: Callable[[int], object], lost: Callable[[str], object]) -> None:
        """Connect to the scheduler, in a thread."""
        self._resize, self._lost, self._closing = resize, lost, threading.Event()
        client: Any = Client(  # type: ignore[no-untyped-call]
            self._address, timeout=CONNECT_TIMEOUT, name="tasktui", set_as_default=False, heartbeat_interval=1000
        )
        self._client = client
        self._sends = ThreadPoolExecutor(1, thread_name_prefix="runner-dask")
        self._fetches = ThreadPoolExecutor(FETCHES, thread_name_prefix="runner-dask")
        client.subscribe_topic(self._topic, self._take_message)
        client.subscribe_topic("all", self._take_event)
        self._look(client)
        threading.Thread(target=self._watch, args=(client, self._closing), name="runner-dask", daemon=True).start()

    def start(self, call: ExternalCall, receive: Receive, end: End) -> StartedCall:
        """Start a call on the worker with the most free threads."""
        client, number = self._client, call.call.number
        if client is None:
            raise ExecutorLost("it is closed")
        with self._guard:
            used = Counter(call.worker for call in self._calls.values())
            worker = max(self._threads, key=lambda address: self._rank(address, used[address]), default=None)
            if worker is None:
                raise ExecutorLost("it has no workers")
            started = self._calls[number] = self._open[number] = DaskCall(self, number, worker, receive, end)
        started.future = future = client.submit(
            run_call, number, call.dumps(), self._topic, key=f"tasktui-{number}", pure=False, workers=[worker]
        )
        future.add_done_callback(lambda done: self._take_result(number, done))
        return started

    def _rank(self, address: str, used: int) -> tuple[bool, int]:
        """The order of the workers: those that refuse calls end them fast, and so have the most free threads."""
        return time.monotonic() >= self._refused.get(address, 0.0), self._threads[address] - used

    def send(self, number: int, worker: str, data: bytes) -> None:
        """Send a message to a call."""
        if (client := self._client) is not None and self._sends is not None:
            self._sends.submit(_deliver_at, client, number, worker, data)

    def forget(self, number: int) -> None:
        """Receive no more messages of a call."""
        self._open.pop(number, None)

    def cancel(self, call: "DaskCall") -> None:
        """Cancel a call, in a thread: the client waits for the scheduler, and must not in its own thread."""
        if call.future is not None and self._sends is not None:
            self._sends.submit(call.future.cancel)

    def close(self) -> None:
        """Disconnect, in a thread. The scheduler forgets the calls; functions that run go on."""
        client, self._client = self._client, None
        self._closing.set()
        with self._guard:
            self._calls.clear()
            self._threads.clear()
        for pool in (self._sends, self._fetches):
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        if client is not None:
            with contextlib.suppress(Exception):  # its scheduler may be gone
                client.close(timeout=1)

    def _take_message(self, event: tuple[float, Any]) -> None:
        number, data, is_end = event[1]
        if is_end:
            self._finish(number, data)
        elif (call := self._open.get(number)) is not None:
            call.has_begun = True
            call.receive(data)

    def _take_event(self, event: tuple[float, Any]) -> None:
        message = event[1]
        if isinstance(message, dict) and message.get("action") == "remove-worker":
            self._lose_worker(str(message.get("worker")))

    def _take_result(self, number: int, future: Any) -> None:
        if future.status == "finished" and self._fetches is not None:
            if number in self._calls:  # its end was large
                self._fetches.submit(self._fetch, number, future)
            return
        call = self._pop(number)
        if call is None:
            return
        if future.status == "error":
            call.end(future.exception())
        elif call.is_killed:
            call.end(WorkerLost("its call was cancelled before it started"))
        else:
            self._lose("the scheduler has cancelled its calls, or is gone")

    def _fetch(self, number: int, future: Any) -> None:
        """Fetch a result from its worker. If that is lost now, Dask waits for it, and `_lose_worker` ends the call."""
        while number in self._calls:
            try:
                result: bytes | BaseException = future.result(timeout=LOOK_EVERY)
            except TimeoutError:
                continue
            except Exception as error:
                result = error
            self._finish(number, result)

    def _finish(self, number: int, end: bytes | BaseException) -> None:
        if (call := self._pop(number)) is not None:
            if isinstance(end, bytes) and is_refusal(end):
                self._refused[call.worker] = time.monotonic() + AVOID
            call.end(end)

    def _pop(self, number: int) -> "DaskCall | None":
        with self._guard:
            return self._calls.pop(number, None)

    def _lose_worker(self, worker: str) -> None:
        with self._guard:
            self._threads.pop(worker, None)
            lost = [call for call in self._calls.values() if call.worker == worker]
            for call in lost:
                del self._calls[call.number]
        self._resize(sum(self._threads.values()))
        for call in lost:
            self.cancel(call)
            call.end(WorkerLost(f"its worker {worker} has left the cluster"))

    def _look(self, client: Any) -> None:
        """Read the workers."""
        workers = client.scheduler_info(n_workers=-1)["workers"]
        if client.status in DISCONNECTED:  # they are not known
            return
        with self._guard:
            self._threads = {address: worker["nthreads"] for address, worker in workers.items()}
        for gone in {call.worker for call in list(self._calls.values())} - workers.keys():
            self._lose_worker(gone)
        self._resize(sum(self._threads.values()))

    def _watch(self, client: Any, closing: threading.Event) -> None:
        """Follow the size of the cluster until the scheduler goes."""
        while not closing.wait(LOOK_EVERY):
            if client.status in DISCONNECTED:
                self._lose("the scheduler does not answer")
                return
            with contextlib.suppress(Exception):  # the scheduler may go during the look
                self._look(client)

    def _lose(self, why: str) -> None:
        with self._guard:
            self._calls.clear()
        self._lost(why)


class DaskCall:
    """A call on a worker of a Dask cluster."""

    future: Any = None
    has_begun = is_killed = False

    def __init__(self, executor: DaskExecutor, number: int, worker: str, receive: Receive, end: End) -> None:
        self._executor, self.number, self.worker = executor, number, worker
        self.receive, self.end = receive, end

    def send(self, data: bytes) -> None:
        """Send a message to the handler."""
        self._executor.send(self.number, self.worker, data)

    def close(self) -> None:
        """Receive no more messages of the call."""
        self._executor.forget(self.number)

    def kill(self) -> None:
        """Cancel the call if it has not started: Dask cannot end a thread."""
        if not self.has_begun and self.future is not None:
            self.is_killed = True
            self._executor.cancel(self)


def _deliver_at(client: Any, number: int, worker: str, data: bytes) -> None:
    try:
        client.run(_deliver, number, data, workers=[worker], on_error="ignore")
    except Exception as error:  # the worker or the scheduler is gone, which ends the call
        log.debug("could not send a message to worker %s: %s", worker, error)


def _deliver(number: int, data: bytes) -> None:
    call_site().deliver(number, data)


def run_call(number: int, data: bytes, topic: str) -> bytes:
    """Execute a call in this worker, and return its end as a message."""
    worker = get_worker()
    end = call_site().run(data, lambda message: worker.log_event(topic, [number, message, False]), QUIET)
    if len(end) <= SMALL:
        worker.log_event(topic, [number, end, True])
    return end
