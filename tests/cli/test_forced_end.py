"""A runner that was told to stop ends, whatever its handlers do."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Call, CallResult

HANDLERS = """
import asyncio, time
from runner import handler

@handler("stubborn.swallows")
async def swallows():
    print("started", flush=True)
    while True:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass

@handler("stubborn.blocks")
async def blocks():
    print("started", flush=True)
    while True:
        time.sleep(0.01)

@handler("stubborn.thread")
def thread():
    print("started", flush=True)
    while True:
        time.sleep(0.01)

@handler("stubborn.leaves")
async def leaves():
    async def swallows():
        while True:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
    asyncio.get_running_loop().left = asyncio.create_task(swallows())
    print("started", flush=True)

@handler("stubborn.transaction")
async def transaction(ctx):
    async with ctx.transaction():
        print("started", flush=True)
        while True:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
"""


@contextmanager
def working(call: Call, handler: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A runner whose task has begun."""
    Path("stubborn.py").write_text(HANDLERS)
    assert call("submit", handler, "-H", "stubborn").code == 0
    command = [str(PROGRAM), "work", "-H", "stubborn", "--drain-timeout", "100ms", "--log-format", "human"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        yield process


def ended(process: "subprocess.Popen[bytes]") -> CallResult:
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return CallResult(process.returncode, out.decode(), err.decode())


@pytest.mark.parametrize("kind", ["swallows", "blocks", "transaction"])
def test_a_coroutine_that_does_not_end_is_named_and_ends_with_the_process(cli: Call, kind: str) -> None:
    with working(cli, f"stubborn.{kind}") as process:
        process.send_signal(signal.SIGTERM)
        answer = ended(process)
    assert answer.code == 1, answer.err
    assert f"(stubborn.{kind}) ignored its interrupt" in answer.err
    assert "Traceback" not in answer.err
    assert len(cli("runners", "--json").document["runners"]) == 1, "its lease runs out"


def test_a_thread_that_does_not_end_is_named_and_ends_with_the_process(cli: Call) -> None:
    with working(cli, "stubborn.thread") as process:
        process.send_signal(signal.SIGTERM)
        answer = ended(process)
    assert answer.code == 0, answer.err
    assert "(stubborn.thread) does not end: abandoning its thread" in answer.err
    assert cli("runners", "--json").document["runners"] == []


def test_a_coroutine_that_a_handler_left_behind_does_not_keep_the_process(cli: Call) -> None:
    with working(cli, "stubborn.leaves") as process:
        process.send_signal(signal.SIGTERM)
        answer = ended(process)
    assert answer.code == 0, answer.err
    assert cli("runners", "--json").document["runners"] == []


def test_a_second_signal_ends_a_process_whose_event_loop_is_blocked(cli: Call) -> None:
    with working(cli, "stubborn.blocks") as process:
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        answer = ended(process)
    assert answer.code == 130, answer.err
