"""The worker of a Dask cluster that receives the next call."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from runner.engine.external.call_site import _not_started

LOADED = b"another message"


class Client:
    """The side of Dask that receives calls: it notes their workers, and ends none."""

    def __init__(self) -> None:
        self.workers: list[str] = []

    def submit(self, *_: Any, workers: list[str], **__: Any) -> "Future[bytes]":
        self.workers += workers
        return Future()


@pytest.mark.parametrize(
    ("result", "workers"),
    [(_not_started("no module shop"), ["large", "small", "small"]), (LOADED, ["large", "large", "large"])],
    ids=["refused", "ended"],
)
def test_a_worker_that_cannot_load_a_handler_gets_no_further_calls(result: bytes, workers: list[str]) -> None:
    from runner.engine.external.dask import DaskExecutor

    executor, client = DaskExecutor("tcp://127.0.0.1:9"), Client()
    executor._client, executor._threads = client, {"small": 1, "large": 4}
    ends: list[Any] = []

    def start(number: int) -> None:
        call: Any = SimpleNamespace(call=SimpleNamespace(number=number), dumps=bytes)
        executor.start(call, ends.append, ends.append)

    start(1)
    done: Future[bytes] = Future()
    done.set_result(result)
    executor._fetch(1, done)
    assert ends == [result]
    start(2)
    start(3)
    assert client.workers == workers
