"""Submitting and waiting in greenlets, as under `gunicorn -k gevent`."""

import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from runner.client.client import refuse_event_loop
from runner.errors import WouldBlock
from tests.conftest import on_sqlite

WAIT_SECONDS = 90

PROGRAM = """
from gevent import monkey

monkey.patch_all()

import sys

import gevent

from runner import connect, handler
from runner.errors import TimedOut


@handler("test.greenlet")
def work(n: int) -> int: ...


def submit(n: int) -> int:
    return work.submit(n=n)


connect(url=sys.argv[1])
greenlets = [gevent.spawn(submit, n) for n in range(20)]
gevent.joinall(greenlets, raise_error=True)
try:
    greenlets[0].value.result(timeout="10ms")
except TimedOut:
    print(len({greenlet.value for greenlet in greenlets}), "tasks")
"""


@on_sqlite
@pytest.mark.skipif(find_spec("gevent") is None, reason="gevent is not installed")
def test_greenlets_submit_and_wait(migrated_url: str, tmp_path: Path) -> None:
    (tmp_path / "greenlets.py").write_text(PROGRAM)
    command = [sys.executable, "-P", str(tmp_path / "greenlets.py"), migrated_url]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert (answer.stdout, answer.stderr) == ("20 tasks\n", "")


async def test_a_loop_that_another_greenlet_of_the_thread_runs_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WouldBlock):
        refuse_event_loop("submit")
    # gevent gives every greenlet an id of its own, while asyncio keeps one running loop per thread.
    monkeypatch.setattr(threading, "get_ident", lambda: 17)
    refuse_event_loop("submit")
