"""The order of docs/durable-work.md waits, continues and survives kills, as the page describes it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import DOCS, blocks, follow, inherited

PAGE = DOCS / "durable-work.md"
pytestmark = pytest.mark.both_databases


@pytest.fixture
def shop(tmp_path: Path, migrated_url: str) -> dict[str, str]:
    """The environment of a reader who has saved the order of the page."""
    (tmp_path / "shop.py").write_text(next(block.text for block in blocks(PAGE, "python")))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return inherited() | {"TASKTUI_URL": migrated_url, "PATH": path}


@pytest.mark.slow
def test_the_commands_of_the_page_take_an_order_to_its_end(tmp_path: Path, shop: dict[str, str]) -> None:
    output = follow(blocks(PAGE, "sh")[0].text, tmp_path, shop)
    assert "It waits for signal approved, 6d23h left" in output
    task = json.loads(follow("runner show 1 --json", tmp_path, shop))
    assert (task["state"], task["attempt"]) == ("succeeded", 1)
    assert task["result"].startswith("receipt-17: parcel for order 17 from shelf 3, approved by ")
    assert [step["name"] for step in task["steps"]] == ["charge", "reserve", "approved", "ship", "sleep 1", "remind"]


KILLED = """
import os, signal
from pathlib import Path
from runner import Context, handler

LOG = Path("calls.txt")

async def call(number: int) -> int:
    with LOG.open("a") as log:
        log.write(f"{number}\\n")
    if str(number) == os.environ["DIE_IN"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * 2

@handler("shop.steps", max_attempts=9)
async def steps(ctx: Context) -> list[int]:
    values = [await ctx.step(f"call-{number}", call, number) for number in range(4)]
    if os.environ["DIE_IN"] == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    found = await ctx.wait_for("go")
    return [*values, found.payload if found else -1]
"""


@pytest.mark.slow
def test_a_killed_runner_repeats_only_the_step_that_it_was_in(tmp_path: Path, shop: dict[str, str]) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    quick = shop | {"TASKTUI_LEASE_TIMEOUT": "1s", "TASKTUI_HEARTBEAT_INTERVAL": "100ms"}
    follow("runner submit -H killed shop.steps && runner signal 1 go 7", tmp_path, quick | {"DIE_IN": "0"})
    for place in ("1", "3", "after"):
        work = ["runner", "work", "-H", "killed", "--until-idle"]
        died = subprocess.run(work, cwd=tmp_path, env=quick | {"DIE_IN": place}, capture_output=True, check=False)
        assert died.returncode == -signal.SIGKILL, died.stderr
    follow("runner work -H killed --until-idle", tmp_path, quick | {"DIE_IN": "never"})
    task = json.loads(follow("runner show 1 --json", tmp_path, quick))
    assert (task["state"], task["result"]) == ("succeeded", [0, 2, 4, 6, 7])
    assert (tmp_path / "calls.txt").read_text().split() == ["0", "1", "1", "2", "3", "3"]
