"""A process that a handler forks, and that leaves the handler, ends: it does not continue as a copy of the runner."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.engine.harness import WAIT_SECONDS

HANDLERS = """
import os, sys
from runner import handler


def fork(end: str) -> int:
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if end == "exit":
        sys.exit(3)
    if end == "raise":
        raise ValueError(end)
    return -1


@handler("forks.thread", max_attempts=1)
def in_thread(end: str) -> int:
    return fork(end)


@handler("forks.async", max_attempts=1)
async def on_loop(end: str) -> int:
    return fork(end)


@handler("forks.process", max_attempts=1, executor="process")
def in_process(end: str) -> int:
    return fork(end)
"""
STATUS = {"exit": 3, "raise": 1, "return": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", [("async",), pytest.param(("thread", "process"), marks=pytest.mark.slow)], ids=["async", "others"]
)
def test_a_forked_process_that_leaves_its_handler_ends(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    (tmp_path / "forks.py").write_text(HANDLERS)
    tasks = [(kind, end) for kind in kinds for end in STATUS]
    lines = "\n".join(json.dumps({"handler": f"forks.{kind}", "payload": {"end": end}}) for kind, end in tasks)
    program = [str(Path(sys.executable).with_name("runner"))]
    subprocess.run([*program, "submit", "--lines", "-"], input=lines, text=True, cwd=tmp_path, check=True)
    work = [*program, "work", "-H", "forks", "--until-idle"]
    done = subprocess.run(work, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=4 * WAIT_SECONDS)
    with closing(sqlite3.connect(tmp_path / "tasktui.db")) as database:
        query = "SELECT substr(handler, 7), json_extract(payload, '$.end'), result FROM task_history"
        stored = {(kind, end): json.loads(result) for kind, end, result in database.execute(query)}
    assert stored == {(kind, end): STATUS[end] for kind, end in tasks}
    assert done.stderr.count("a process that the handler forked left the handler") == 2 * len(kinds), done.stderr
    assert done.stderr.count(f"stopped: {len(tasks)} succeeded") == 1
