"""Submitting from the command line: one task, or lines of them."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.cli.ending import Exit
from runner.store.transaction import Transaction
from runner.task import Priority
from tests.cli.conftest import PROGRAM, Call, Store, program

HANDLERS = """
import runner

@runner.handler("mail.send", queue="mail", priority=5)
async def send(to: str, copies: int = 1) -> None: ...

@runner.handler("mail.once", unique_key=lambda to: f"to-{to}", bucket=lambda to: len(to))
async def once(to: str, copies: int = 1) -> None: ...
"""


@pytest.fixture
def handlers(tmp_path: Path) -> None:
    """A module of handlers in the current directory, beside a file with the name of our package."""
    (tmp_path / "mail_handlers.py").write_text(HANDLERS)
    (tmp_path / "runner.py").write_text("raise RuntimeError('the wrong runner')")


def test_a_task_is_stored_as_it_was_typed(called: Call, store: Store) -> None:
    told = called("submit", "a.b", '{"x": 1.50, "y": "ü"}', "--key", "k1", "--tag", "t1", "--tag", "t2", "--json")
    (task,) = store.tasks()
    assert told.document == {"id": task["id"], "duplicate": False, "replaced": False}
    assert (task["handler"], task["payload"], task["key"]) == ("a.b", '{"x": 1.50, "y": "ü"}', "k1")
    assert json.loads(task["tags"]) == ["t1", "t2"]


def test_a_name_that_the_modules_do_not_know_is_told(called: Call, store: Store, handlers: None) -> None:
    told = called("submit", "-H", "mail_handlers", "mail.sent", '{"to": "ana"}')
    assert told.code == Exit.OK
    assert "no handler is named 'mail.sent' in what -H names, did you mean 'mail.send'" in told.err
    assert called("submit", "mail.sent", '{"to": "ana"}').err == ""


def test_every_option_reaches_the_row(called: Call, store: Store) -> None:
    options = ("--priority", 9, "--queue", "q", "--max-attempts", 3, "--retry", "1m, 5m", "--timeout", "90s")
    assert called("submit", "a.b", *options).code == Exit.OK
    (task,) = store.tasks()
    names = ("priority", "queue", "max_attempts", "retry", "timeout", "payload")
    assert [task[name] for name in names] == [Priority.HIGHEST, "q", 3, "1m,5m", 90.0, "{}"]


def test_a_time_may_be_a_distance_or_a_moment(called: Call, store: Store) -> None:
    called("submit", "a.b", "--at", "-5m")
    called("submit", "a.b", "--delay", "1h")
    called("submit", "a.b", "--at", "2031-01-02T03:04+01:00")
    now = datetime.now(UTC)
    past, later, moment = (task["run_at"] for task in store.tasks())
    assert past < now - timedelta(minutes=4)
    assert now + timedelta(minutes=50) < later < now + timedelta(minutes=70)
    assert moment == datetime(2031, 1, 2, 2, 4, tzinfo=UTC)


def test_a_duplicate_is_told_and_counted(called: Call, store: Store) -> None:
    once = ("submit", "a.b", "--unique-key", "k", "--unique", "for 1h", "--bucket", 17)
    assert "Submitted task 1." in called(*once).out
    assert "Task 1 has the unique key; nothing was submitted." in called(*once).out
    assert "it waits, and has the new values now" in called(*once, "--on-duplicate", "replace").out
    refused = called(*once, "--on-duplicate", "error")
    assert (refused.code, "'k' of handler 'a.b' is held by task 1" in refused.err) == (Exit.MOVED_ON, True)
    (task,) = store.tasks()
    assert (task["unique_key"], task["bucket"]) == ("k", 17)
    told = called("show", 1)
    assert "held for another" in told.out
    assert "2 duplicates, the last" in told.out
    assert called("show", 1, "--json").document["unique"]["holder"] == 1
    assert "1 task (scan)" in called("tasks", "unique:k bucket:17").out


def test_lines_may_be_duplicates(called: Call, store: Store, tmp_path: Path) -> None:
    lines = [{"handler": "a.b", "unique_key": key} for key in ("k", "k", "l")]
    lines += [{"handler": "a.b", "unique_key": "l", "on_duplicate": "error"}, {"handler": "a.b", "unique": "forever"}]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    told = called("submit", "--lines", tmp_path / "lines", "--json")
    assert (told.code, told.document["submitted"], told.document["duplicates"]) == (Exit.PARTLY, 2, 1)
    assert sorted(bad["line"] for bad in told.document["bad"]) == [4, 5]
    assert len(store.tasks()) == 2


@pytest.mark.usefixtures("handlers")
def test_the_handlers_own_rule_makes_the_key(called: Call, store: Store) -> None:
    for copies in (1, 2):
        called("submit", "mail.once", json.dumps({"to": "ana", "copies": copies}), "-H", "mail_handlers")
    assert [(task["unique_key"], task["bucket"]) for task in store.tasks()] == [("to-ana", 3)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("a.b", "[]"), "JSON object"),
        (("a.b", "--unique", "forever"), "not by which key"),
        (("a.b", "--unique-key", "k", "--unique", "often"), "write forever, until finished"),
        (("a.b", "--unique-key", ""), "it is empty"),
        (("a.b", "--bucket", 1000), "buckets go from 0 to 999"),
        (("a.b", "{"), "not JSON"),
        (("a.b", '{"a": NaN}'), "NaN"),
        (("a.b", '{"a": "\\u0000"}'), "NUL"),
        (("a.b", "[" * 100_000), "nested too deeply"),
        (("a.b", '{"a": "\udcff"}'), "UTF-8"),
        (("a.b", "--priority", 10), "priorities go from 1 to 9"),
        (("a.b", "--delay", "soon"), "not a duration"),
        (("a.b", "--at", "25:00"), "not a point in time"),
        (("a.b", "--at", "+5m", "--delay", "5m"), "run_at is given as well"),
        (("a.b", "--retry", "often"), "not a retry plan"),
        (("a.b", "--max-attempts", 0), "at least once"),
        (("a.b", json.dumps({"a": "x" * 300_000})), "more than the 262144 allowed"),
        (("x" * 201,), "1 to 200 characters"),
        (("a.b", "--nonsense"), "no option --nonsense"),
        ((), "name a handler"),
        (("a.b", "{}", "--lines", "x"), "beside --lines"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_stored(
    call: Call, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], reason: str
) -> None:
    told = call("submit", *arguments)
    assert told.code == Exit.BAD_INPUT
    assert reason in told.err
    assert not Path("tasktui.db").exists()


def test_a_known_handler_checks_its_payload_and_gives_its_defaults(call: Call, handlers: None) -> None:
    refused = program("submit", "mail.send", '{"to": 7, "cc": "x"}', "-H", "mail_handlers")
    assert refused.returncode == Exit.BAD_INPUT
    assert "to: " in refused.stderr
    assert "cc: " in refused.stderr
    accepted = program("submit", "mail.send", '{"to": "ana"}', "-H", "mail_handlers")
    assert accepted.returncode == Exit.OK, accepted.stderr
    (task,) = call("tasks", "--json").document["tasks"]
    assert (task["queue"], task["priority"]) == ("mail", 5)


def test_two_handlers_with_one_name_are_refused(handlers: None, tmp_path: Path) -> None:
    (tmp_path / "other_handlers.py").write_text(HANDLERS.replace("def send", "def post"))
    told = program("submit", "mail.send", "-H", "mail_handlers", "-H", "other_handlers")
    assert told.returncode == Exit.CONFIGURATION
    assert "mail_handlers.send" in told.stderr
    assert "other_handlers.post" in told.stderr


@pytest.mark.parametrize(
    "source", ["import no_such_module", "raise ValueError('no')", "syntax error", "raise SystemExit(0)"]
)
def test_a_module_that_cannot_be_loaded_is_named(call: Call, tmp_path: Path, source: str) -> None:
    (tmp_path / "broken_handlers.py").write_text(source)
    told = call("submit", "a.b", "-H", "broken_handlers")
    assert told.code == Exit.CONFIGURATION
    assert "broken_handlers" in told.err
    assert "Traceback" not in told.err


def test_files_of_the_current_directory_do_not_replace_modules_of_python(handlers: None, tmp_path: Path) -> None:
    for name in ("sqlite3", "queue", "getpass", "aiosqlite"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')")
    told = program("submit", "mail.send", '{"to": "ana"}', "-H", "mail_handlers")
    assert told.returncode == Exit.OK, told.stderr


def test_a_payload_can_come_from_standard_input(call: Call) -> None:
    assert program("submit", "a.b", "-", input='{"secret": 1}').returncode == Exit.OK
    assert call("show", 1, "--json", "--reveal").document["payload"] == {"secret": 1}


LINES = """\
{"handler": "a.b", "payload": {"n": 1}, "queue": "q", "tags": ["t"]}

{"handler": "a.b", "payload": [1]}
not json
{"payload": {}}
{"handler": "a.b", "prority": 3}
{"handler": "a.b", "priority": "3"}
{"handler": "a.b", "payload": {"n": 8}, "run_at": "+1h", "key": "k"}"""


def test_bad_lines_are_listed_and_no_good_one_is_lost(called: Call, store: Store, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(LINES)
    told = called("submit", "--lines", "lines", "--json")
    assert told.code == Exit.PARTLY
    assert [bad["line"] for bad in told.document["bad"]] == [3, 4, 5, 6, 7]
    assert [line.partition(":")[0] for line in told.err.splitlines()] == [f"line {n}" for n in (3, 4, 5, 6, 7)]
    assert "did you mean 'priority'" in told.err
    first, second = store.tasks()
    assert (told.document["submitted"], told.document["first_id"], told.document["last_id"]) == (
        2,
        first["id"],
        second["id"],
    )
    assert (first["payload"], first["queue"], second["key"]) == ('{"n": 1}', "q", "k")


def test_lines_can_be_payloads_of_one_handler(called: Call, store: Store, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b'\xef\xbb\xbf{"n": 1.10}\r\n{"n": 2}\n')
    assert called("submit", "a.b", "--lines", "lines", "--queue", "bulk").code == Exit.OK
    assert [(task["payload"], task["queue"]) for task in store.tasks()] == [
        ('{"n": 1.10}', "bulk"),
        ('{"n": 2}', "bulk"),
    ]


def test_many_lines_are_all_submitted_in_order(called: Call, store: Store, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f'{{"n": {n}}}\n' for n in range(4_500)))
    told = called("submit", "a.b", "--lines", "lines", "--json")
    assert (told.code, told.document["submitted"], told.document["bad"]) == (Exit.OK, 4_500, [])
    assert [json.loads(task["payload"])["n"] for task in store.tasks()] == list(range(4_500))


FORBIDDEN = {
    "sqlite": "CREATE TRIGGER forbidden BEFORE INSERT ON task WHEN NEW.key = 'no' BEGIN SELECT RAISE(ABORT, 'no'); END",
    "postgresql": "ALTER TABLE task ADD CONSTRAINT forbidden CHECK (key <> 'no')",
}


def test_a_line_that_only_the_database_refuses_costs_no_other(called: Call, store: Store, tmp_path: Path) -> None:
    async def forbid(tx: Transaction) -> None:
        await tx.execute(sa.text(FORBIDDEN[tx.dialect.name]))

    store.write(forbid)
    lines = [{"handler": "a.b", "key": "no" if n in (3, 70) else f"k{n}"} for n in range(100)]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    told = called("submit", "--lines", "lines", "--json")
    assert told.code == Exit.PARTLY
    assert [bad["line"] for bad in told.document["bad"]] == [4, 71]
    assert len(store.tasks()) == 98


def test_lines_that_are_too_long_or_no_text_are_passed_over(call: Call, tmp_path: Path) -> None:
    long = b'{"n": "' + b"x" * 600_000 + b'"}'
    (tmp_path / "lines").write_bytes(b"\n".join([b"{}", long, b"\xff\xfe", b'{"n": 4}', long]))
    told = call("submit", "a.b", "--lines", "lines", "--json")
    assert [bad["line"] for bad in told.document["bad"]] == [2, 3, 5]
    assert told.document["submitted"] == 2


@pytest.mark.parametrize("path", ["/nowhere", "/", "a\0b"])
def test_a_file_that_cannot_be_read_is_bad_input(call: Call, path: str) -> None:
    told = call("submit", "--lines", path)
    assert told.code == Exit.BAD_INPUT
    assert "cannot be read" in told.err


def test_only_bad_lines_are_bad_input(call: Call, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("nonsense\n")
    assert call("submit", "--lines", "lines").code == Exit.BAD_INPUT


@contextmanager
def fed(call: Call, lines: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has submitted these lines from a pipe, and waits for more."""
    call("migrate")
    command = [str(PROGRAM), "submit", "a.b", "--lines", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as ours:
        assert ours.stdin is not None
        ours.stdin.write(lines)
        ours.stdin.flush()
        while len(call("tasks", "--json").document["tasks"]) < lines.count(b"\n"):
            assert ours.poll() is None
        yield ours


def test_what_a_pipe_holds_is_submitted_before_more_comes(call: Call) -> None:
    with fed(call, b'{"n": 1}\n') as ours:
        out, _ = ours.communicate(b'{"n": 2}\n', timeout=30)
    assert ours.returncode == Exit.OK
    assert out.startswith(b"Submitted 2 tasks")


def test_an_interrupted_pipe_says_how_far_it_came(call: Call) -> None:
    with fed(call, b'{"n": 1}\n{"n": 2}\n') as ours:
        ours.send_signal(signal.SIGINT)
        ours.wait(timeout=30)  # with the pipe still open: its end would be an end, too
        _, said = ours.communicate()
    assert ours.returncode == Exit.INTERRUPTED
    assert b"stopped: 2 tasks submitted, up to line 2" in said
    assert b"Traceback" not in said
