"""The pages without a test of their own: their Python works, and their commands run in a shop with an outage."""

import asyncio
import re
import shlex
from datetime import UTC
from pathlib import Path

import pytest

from runner.cli.app import build
from runner.cli.app import run as run_command
from runner.cli.exit_codes import Exit, exit_code_of
from runner.filter.parse import parse_filter
from tests import shop
from tests.pages import DOCS, blocks, documented_commands, python

MODULES = ("beyond-one-machine", "chunks", "long-tasks", "monitor", "schedules", "workflows")

PROGRAM = """
import hmac, sys, time
from runner.handlers.registry import REGISTRY
from runner.handlers.schedules import SCHEDULES
from runner.testing import TaskStore

with TaskStore("sqlite:///pages.db") as store:
    import beyond_one_machine, chunks, long_tasks, monitor, schedules, workflows

    def results(handler):
        return [(task.state, task.result) for task in store.tasks(handler)]

    chunks.welcome(["bob@example.com", "nobody"])
    chunks.test_an_address_without_at_is_dead()
    long_tasks.encode.submit("film")
    long_tasks.resize.submit("picture", 80)
    long_tasks.index.submit(long_tasks.__file__)
    workflows.order_report(7)
    workflows.order_parts(8)
    store.drain()
    assert [state for state, _ in results("order.charge")] == ["succeeded"] * 2
    assert [state for state, _ in results("mail.send")] == ["succeeded", "succeeded", "dead"], results("mail.send")
    assert results("image.resize") == [("succeeded", "picture 80")]
    assert results("video.index") == [("succeeded", len(open(long_tasks.__file__).readlines()))]
    assert results("book.report") == [("succeeded", "book 7: 15 words")], results("book.report")
    assert results("book.join") == [("succeeded", 9)], results("book.join")
assert {"reports.quick", "reports.daily", "runner.alerts.report"} <= set(SCHEDULES)
sent = str(int(time.time()))
digest = hmac.new(b"key", f"{sent}.body".encode(), "sha256").hexdigest()
assert monitor.is_genuine(f"t={sent},v1={digest}", b"body", "key")
assert not monitor.is_genuine(f"t={sent},v1={digest}", b"other", "key")
strategies = {}
for block in sys.argv[1:]:  # each one defines the same handlers in another way
    REGISTRY._handlers.clear()
    exec(block, strategies)
members = frozenset(["eu-1", "eu-2", "us-1"])
shares = [strategies["ByRegion"]().share(member, members) for member in sorted(members)]
assert sorted(sum(shares, [])) == list(range(1000))
"""


@pytest.mark.slow
def test_the_python_of_the_pages_works(tmp_path: Path) -> None:
    for page in MODULES:
        texts = [block.text for block in blocks(DOCS / f"{page}.md", "python")]
        (tmp_path / f"{page.replace('-', '_')}.py").write_text("\n\n".join(texts))
    others = [block.text for page in ("strategies", "limits") for block in blocks(DOCS / f"{page}.md", "python")]
    python(tmp_path, PROGRAM, *others)


@pytest.mark.parametrize("command", documented_commands())
def test_every_documented_command_is_valid(command: str) -> None:
    verb, *arguments = shlex.split(command)
    build(verb).parse_args([verb, *arguments], print_error=False, exit_on_error=False)
    if verb in WITH_FILTER and arguments:
        parse_filter(arguments[0], shop.NOW, UTC)


WITH_FILTER = ("tasks", "retry", "terminate", "delay")
"""The verbs whose first argument is a filter or a task id."""

ELSEWHERE = ("-H", "--follow", "--listen", "--install-completion", "alerts test", "bench", "demo", "check --against")
"""Words of commands that need handlers, a receiver or a terminal, or do not end: other tests run these."""

ENDS = {Exit.OK, Exit.NOT_FOUND, Exit.CONFLICT, Exit.FIRING}

OF_THE_SHOP = re.compile("--yes|does not exist|no runner ever had|cannot be written as SQL|before the first task|wrong")
"""Other ends because of the tasks of the shop: `check` finds its outage, and ids and names of the pages are missing."""


@pytest.mark.slow
def test_every_documented_command_runs_in_a_shop(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(shop.main(tmp_path / "shop.db"))
    monkeypatch.setenv("TASKTUI_URL", f"sqlite:///{tmp_path / 'shop.db'}")
    failed = []
    for command in documented_commands():
        if any(words in command for words in ELSEWHERE):
            continue
        words = shlex.split(command.replace("/srv/tasks", "tasks").replace("--profile prod ", ""))
        code = exit_code_of(lambda words=words: run_command(words))  # type: ignore[misc]
        said = "".join(capsys.readouterr())
        if code not in ENDS and not OF_THE_SHOP.search(said):
            failed.append(f"{command}: {code}\n{said}")
    assert not failed, "\n".join(failed)
