"""The pages without a test of their own: their Python works, and their commands run in a shop with an outage."""

import asyncio
import re
import shlex
import subprocess
from datetime import UTC
from functools import partial
from pathlib import Path

import pytest

from runner.cli.app import build
from runner.cli.app import run as run_command
from runner.cli.exit_codes import Exit, exit_code_of
from runner.filter.parse import parse_filter
from runner.handlers.registry import REGISTRY
from tests import shop
from tests.conftest import on_sqlite
from tests.pages import DOCS, RUNNER, blocks, documented_commands, follow, python, shell_environment
from tests.shells import shell_of

__all__ = ["shell_environment"]

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

ELSEWHERE = ("--follow", "--install-completion", "--pdb", "alerts test", "bench", "demo", "submit source.tree")
"""Words of commands that need a receiver or a terminal, do not end, or take minutes: other tests run these."""

WITH_HANDLERS = re.compile("-H |--listen|--against")
"""The commands that run in a folder with handlers."""

HAPPENED = {"/srv/tasks": "tasks", "--profile prod ": "", "--at 03:12": "--at 'yesterday 03:12'"}
"""Parts of commands, and those of a shop that began within the last hour."""

ENDS = {
    "alerts": (Exit.FIRING, "SEVERITY"),
    "alerts silence handler-failing:pay": (Exit.BAD_INPUT, "runner: Invalid input: no runner ever had handler pay."),
    "check": (Exit.DEAD, "! note  handlers  none loaded"),
    "check --json": (Exit.DEAD, "{"),
    "edit 1042 --requeue": (Exit.BAD_INPUT, "runner: This change cannot be written as SQL: task 1042: it is waiting"),
    "edit 4 --requeue": (Exit.CONFLICT, "edit: 0 changed, 1 skipped"),
    "edit 4711 --priority 9 --version 7": (Exit.CONFLICT, "runner: Task 4711 has changed since you loaded version 7"),
    "edit 4711 --priority 9 --version 7 --sql": (Exit.BAD_INPUT, "runner: This change cannot be written as SQL"),
    "edit 4711 --requeue": (Exit.CONFLICT, "edit: 0 changed, 1 skipped"),
    "restore 1042": (Exit.NOT_FOUND, "restored 0 tasks"),
    "retry 1 --reason": (Exit.CONFLICT, "retry: 0 changed, 1 skipped"),
    "retry 3 --reason": (Exit.CONFLICT, "retry: 0 changed, 1 skipped"),
    "retry state:dead --url sqlite:///case.db": (Exit.DATABASE, "runner: The SQLite file"),
    "rewind 12 --to 3": (Exit.CONFLICT, "rewind: 0 changed, 1 skipped"),
    "rewind 17 --step ship": (Exit.CONFLICT, "task 17: it is running"),
    "schedules run close-the-day": (Exit.NOT_FOUND, "runner: Schedule 'close-the-day' does not exist."),
    "show 1042 --archive": (Exit.NOT_FOUND, "runner: Task 1042 does not exist"),
    "tasks queue:mail --at": (Exit.BAD_INPUT, "runner: Invalid input"),
    "tasks state:running --at": (Exit.BAD_INPUT, "runner: Invalid input"),
    "undo --group 1f2e3d4c": (Exit.BAD_INPUT, "runner: Invalid input: change group '1f2e3d4c' does not exist"),
    "undo 812": (Exit.BAD_INPUT, "runner: Invalid input: change 812 does not exist"),
    "why 4711 --at": (Exit.BAD_INPUT, "runner: Invalid input"),
}
"""The ends that are not a success, by the beginning of a command: its exit code and first line. The ids and names of
the pages belong to other tasks in the shop, or to none, and `check` finds its outage. The longest beginning counts."""


def in_order(commands: list[str]) -> list[str]:
    """The commands, sorted, and those that delete after the others."""
    return sorted(commands, key=lambda command: ("delete" in command, command))


@pytest.mark.slow
def test_every_documented_command_ends_as_expected_in_a_shop(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(shop.main(tmp_path / "shop.db"))
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    shell_of(url)(
        "UPDATE task_runner SET lease_until = datetime('now', '+1 day')"
    )  # none is lost, however long it takes
    monkeypatch.setenv("TASKTUI_URL", url)
    monkeypatch.setattr(REGISTRY, "_handlers", {})  # other tests load those of alerts
    failed, unused = [], set(ENDS)
    for command in in_order(documented_commands()):
        if any(words in command for words in ELSEWHERE) or WITH_HANDLERS.search(command):
            continue
        text = command
        for part, happened in HAPPENED.items():
            text = text.replace(part, happened)
        code = exit_code_of(partial(run_command, shlex.split(text)))
        output = "".join(capsys.readouterr()).strip()
        beginning = max((each for each in ENDS if command.startswith(each) and code), key=len, default="")
        expected, line = ENDS.get(beginning, (Exit.OK, ""))
        unused.discard(beginning)
        if code != expected or not output.startswith(line) or not output:
            failed.append(f"{command}: {code!r}\n{output}")
    assert not failed, "\n".join(failed)
    assert not unused


MODULES_OF_PAGES = {
    "blog/__init__.py": (),
    "blog/tasks.py": ("blog.export",),
    "shop/__init__.py": ("pay", "shop.order"),
    "shop/tasks.py": ("report.daily", "report.weekly", "cleanup"),
    "coupons.py": ("coupons.send",),
    "mail.py": ("mail.welcome",),
    "tasks.py": ("shop.charge",),
}
"""Handlers by file of a reader."""

LAST_LINES = {"work": "stopped: ", "submit": "Submitted task ", "check": "No tasks are waiting"}

SHORT = {"127.0.0.1:9464": "127.0.0.1:0", "127.0.0.1:9465": "127.0.0.1:0", "--initial-delay 30s": "--initial-delay 1s"}


@pytest.mark.slow
@on_sqlite
def test_every_documented_command_with_handlers_runs_and_ends(
    tmp_path: Path, shell_environment: dict[str, str]
) -> None:
    follow("runner migrate", tmp_path, shell_environment)
    for name, handlers in MODULES_OF_PAGES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        defined = [
            f"\n@handler({name!r})\ndef run_{number}(order: int = 1): ..." for number, name in enumerate(handlers)
        ]
        (tmp_path / name).write_text("\n".join(["from runner import handler", *defined]))
    commands = [command for command in documented_commands() if WITH_HANDLERS.search(command)]
    commands = [command for command in commands if not any(words in command for words in ELSEWHERE)]
    assert len(commands) >= 15
    for command in commands:
        text = command
        for long, short in SHORT.items():
            text = text.replace(long, short)
        if text.startswith("metrics"):
            serve_and_stop(text, tmp_path, shell_environment)
        else:
            output = follow(f"runner {text}", tmp_path, shell_environment)
            assert LAST_LINES[text.split()[0]] in output, f"{command}\n{output}"


def serve_and_stop(command: str, folder: Path, environment: dict[str, str]) -> None:
    """Start a command that serves until a signal comes, and stop it when it listens."""
    program = [RUNNER, *shlex.split(command)]
    with subprocess.Popen(program, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            assert any("listening" in line for line in process.stderr)
        finally:
            process.terminate()
        process.stderr.read()
        assert process.wait() == 0
