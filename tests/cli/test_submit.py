"""Submitting one task, or lines of tasks."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.cli.exit_codes import Exit
from runner.cli.handlers import UNREAD
from runner.db.transaction import Transaction
from runner.handlers.call_options import CallOptions
from runner.handlers.parameters import stored_signatures
from runner.handlers.registry import REGISTRY, Handler, Options
from runner.model.task import NewTask, Priority
from runner.store.registration import Identity, register
from tests.cli.conftest import PROGRAM, Call, Store, program
from tests.conftest import on_postgresql
from tests.postgres.logins import logins

HANDLERS = """
import runner

@runner.handler("mail.send", queue="mail", priority=5)
async def send(to: str, copies: int = 1) -> None: ...

@runner.handler("mail.once", unique_key=lambda to: f"to-{to}", bucket=lambda to: 3)
async def once(to: str, copies: int = 1) -> None: ...
"""


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of handlers in the current directory, next to a file named like our package."""
    monkeypatch.setattr(REGISTRY, "_handlers", dict(REGISTRY._handlers))
    sys.modules.pop("mail_handlers", None)
    (tmp_path / "mail_handlers.py").write_text(HANDLERS)
    (tmp_path / "runner.py").write_text("raise RuntimeError('the wrong runner')")


def test_a_task_is_stored_as_typed(cli: Call, store: Store) -> None:
    result = cli("submit", "a.b", '{"x": 1.50, "y": "ü"}', "--key", "k1", "--tag", "t1", "--tag", "t2", "--json")
    (task,) = store.tasks()
    assert result.document == {"id": task["id"], "duplicate": False, "replaced": False, "shard": None}
    assert (task["handler"], task["payload"], task["key"]) == ("a.b", '{"x": 1.50, "y": "ü"}', "k1")
    assert json.loads(task["tags"]) == ["t1", "t2"]


@pytest.mark.both_databases
def test_headers_are_stored_and_shown_without_secrets(cli: Call, store: Store) -> None:
    given = ("--header", "request-id=a=1", "--header", "authorization=hunter-22-x")
    id = cli("submit", "a.b", *given, "--json").document["id"]
    (task,) = store.tasks()
    assert json.loads(task["headers"]) == {"request-id": "a=1", "authorization": "hunter-22-x"}
    shown = {"request-id": "a=1", "authorization": "***"}
    assert cli("show", str(id), "--json").document["headers"] == shown
    text = cli("show", str(id)).out
    assert "request-id" in text
    assert "hunter" not in text
    refused = cli("submit", "a.b", "--header", "request-id")
    assert "expected name=value, such as request-id=a1" in refused.err
    assert len(store.tasks()) == 1


def test_a_sequence_behind_the_ids_is_advanced_first(cli: Call, store: Store) -> None:
    async def set_back(tx: Transaction) -> None:
        await tx.execute(sa.insert(tx.tables.task).values(id=1000, handler="mail.send", payload="{}"))
        if not tx.dialect.is_server:
            await tx.execute(sa.text("UPDATE sqlite_sequence SET seq = 1 WHERE name = 'task'"))

    store.write(set_back)
    assert cli("submit", "mail.send", "--json").document["id"] > 1000


def test_a_handler_that_the_named_modules_lack_is_refused(cli: Call, store: Store, handlers: None) -> None:
    result = cli("submit", "-H", "mail_handlers", "mail.sent", '{"to": "ana"}')
    assert result.code == Exit.BAD_INPUT
    assert "no handler named 'mail.sent' in the modules of -H, did you mean 'mail.send'" in result.err
    assert cli("submit", "mail.sent", '{"to": "ana"}').code == Exit.OK
    assert len(store.tasks()) == 1


@pytest.fixture
def registered(store: Store) -> None:
    """A runner that has stored the signatures of its handlers."""

    async def send(to: str, copies: int = 1) -> None: ...

    async def once(to: str) -> None: ...

    call_options = CallOptions(unique_key=lambda to: f"to-{to}", bucket=lambda to: 3)
    handlers = [
        Handler("mail.send", send, Options(queue="mail", priority=5)),
        Handler("mail.once", once, Options(call_options=call_options)),
    ]
    signatures = stored_signatures({handler.name: handler for handler in handlers})
    identity = Identity("web-1", 1, "1", sorted(signatures), 4, signatures=signatures)
    store.write(lambda tx: register(tx, identity, 60.0))


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
def test_a_handler_that_no_runner_ever_had_gets_a_warning(cli: Call, store: Store) -> None:
    expected = "no runner ever had handler mail.sent, did you mean 'mail.send'; the task waits until a runner has it"
    for _ in range(2):  # a task with the name does not make it known
        result = cli("submit", "mail.sent")
        assert (result.code, result.out[:9]) == (Exit.OK, "Submitted")
        assert expected in result.err
    lines = cli("submit", "mail.sent", "--lines", write_lines(["{}", "{}"]))
    assert lines.err.count("no runner ever had") == 1
    added = cli("schedules", "add", "nightly", "mail.sent", "--every", "5m")
    assert "no runner ever had handler mail.sent, did you mean 'mail.send'" in added.err
    assert cli("submit", "mail.send", '{"to": "ana"}').err == ""


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
def test_a_payload_is_checked_against_the_signature_that_runners_stored(cli: Call, store: Store) -> None:
    for payload, why in {
        '{"to": 7}': "to: expected text",
        '{"to": "ana", "copies": "many"}': "copies: expected a whole number",
        '{"copies": 2}': "to: the handler requires it",
        '{"to": "ana", "cc": "ben"}': "cc: the handler has no such argument; it has: to, copies",
    }.items():
        refused = cli("submit", "mail.send", payload)
        assert (refused.code, refused.out) == (Exit.BAD_INPUT, "")
        assert why in refused.err
        assert "--unchecked" in refused.err
    mixed = cli("submit", "mail.send", "--lines", write_lines(['{"to": 7}', '{"to": "ana"}']), "--json")
    assert (mixed.code, mixed.document["submitted"]) == (Exit.PARTIAL, 1)
    assert cli("submit", "mail.send", '{"to": 7}', "--unchecked").code == Exit.OK
    assert [json.loads(task["payload"]) for task in store.tasks()] == [{"to": "ana"}, {"to": 7}]


@pytest.mark.usefixtures("registered")
def test_a_copy_and_an_edit_follow_the_stored_signature_too(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("mail.send", '{"to": "ana"}'))
    wrong = '{"to": 7}'
    for words in (("copy", id, wrong), ("edit", id, "--payload", wrong), ("edit", id, "--payload", wrong, "--dry-run")):
        refused = cli(*words)
        assert (refused.code, "to: expected text" in refused.err) == (Exit.BAD_INPUT, True), words
    assert [task["payload"] for task in store.tasks()] == ['{"to": "ana"}']
    assert cli("edit", id, "--payload", wrong, "--unchecked").code == Exit.OK
    assert cli("copy", id, '{"to": 8}', "--unchecked").code == Exit.OK
    assert [json.loads(task["payload"])["to"] for task in store.tasks()] == [7, 8]


@pytest.mark.usefixtures("registered")
def test_a_task_takes_the_options_that_runners_stored(cli: Call, store: Store) -> None:
    assert cli("submit", "mail.send", '{"to": "ana"}').err == ""
    cli("submit", "mail.send", '{"to": "ana"}', "--queue", "slow")
    assert [(task["queue"], task["priority"]) for task in store.tasks()] == [("mail", 5), ("slow", 5)]
    derived = cli("submit", "mail.once", '{"to": "ana"}').err
    assert "the code of mail.once derives a unique key and a bucket, which this task does not have" in derived
    assert cli("submit", "mail.once", '{"to": "ana"}', "--unique-key", "k", "--bucket", 3).err == ""


def write_lines(lines: list[str]) -> Path:
    path = Path("some.lines")
    path.write_text("\n".join(lines))
    return path


@on_postgresql
def test_a_producer_submits_without_reading_the_handlers(
    migrated_url: str, call: Call, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(lambda tx: register(tx, Identity("web-1", 1, "1", ["mail.send"], 4), 60.0))
    with logins(migrated_url) as urls:
        monkeypatch.setenv("TASKTUI_URL", urls["producer"])
        result = call("submit", "mail.sent")
    assert (result.code, result.err) == (Exit.OK, f"runner: {UNREAD.format('mail.sent')}\n")


def test_every_option_reaches_the_row(cli: Call, store: Store) -> None:
    options = ("--priority", 9, "--queue", "q", "--max-attempts", 3, "--retry", "1m, 5m", "--timeout", "90s")
    assert cli("submit", "a.b", *options).code == Exit.OK
    (task,) = store.tasks()
    names = ("priority", "queue", "max_attempts", "retry", "timeout", "payload")
    assert [task[name] for name in names] == [Priority.HIGHEST, "q", 3, "1m,5m", 90.0, "{}"]


def test_a_time_may_be_relative_or_absolute(cli: Call, store: Store) -> None:
    cli("submit", "a.b", "--at", "-5m")
    cli("submit", "a.b", "--delay", "1h")
    cli("submit", "a.b", "--at", "2031-01-02T03:04+01:00")
    now = datetime.now(UTC)
    past, later, moment = (task["run_at"] for task in store.tasks())
    assert past < now - timedelta(minutes=4)
    assert now + timedelta(minutes=50) < later < now + timedelta(minutes=70)
    assert moment == datetime(2031, 1, 2, 2, 4, tzinfo=UTC)


@pytest.mark.slow
def test_a_duplicate_is_reported_and_counted(cli: Call, store: Store) -> None:
    once = ("submit", "a.b", "--unique-key", "k", "--unique", "for 1h", "--bucket", 17)
    assert "Submitted task 1." in cli(*once).out
    assert "Task 1 has this unique key; nothing was submitted." in cli(*once).out
    assert "its values were replaced" in cli(*once, "--on-duplicate", "replace").out
    refused = cli(*once, "--on-duplicate", "error")
    assert (refused.code, "'k' of handler 'a.b' is held by task 1" in refused.err) == (Exit.CONFLICT, True)
    (task,) = store.tasks()
    assert (task["unique_key"], task["bucket"]) == ("k", 17)
    result = cli("show", 1)
    assert "held for another" in result.out
    assert "2 duplicates, the last" in result.out
    assert cli("show", 1, "--json").document["unique"]["holder"] == 1
    assert "1 task (scan)" in cli("tasks", "unique:k bucket:17").out


def test_lines_may_be_duplicates(cli: Call, store: Store, tmp_path: Path) -> None:
    lines = [{"handler": "a.b", "unique_key": key} for key in ("k", "k", "l")]
    lines += [{"handler": "a.b", "unique_key": "l", "on_duplicate": "error"}, {"handler": "a.b", "unique": "forever"}]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    result = cli("submit", "--lines", tmp_path / "lines", "--json")
    assert (result.code, result.document["submitted"], result.document["duplicates"]) == (Exit.PARTIAL, 2, 1)
    assert sorted(bad["line"] for bad in result.document["bad"]) == [4, 5]
    assert len(store.tasks()) == 2


@pytest.mark.usefixtures("handlers")
def test_the_handlers_rule_derives_the_unique_key(cli: Call, store: Store) -> None:
    for copies in (1, 2):
        cli("submit", "mail.once", json.dumps({"to": "ana", "copies": copies}), "-H", "mail_handlers")
    assert [(task["unique_key"], task["bucket"]) for task in store.tasks()] == [("to-ana", 3)]


@pytest.mark.representatives(8)
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("a.b", "[]"), "JSON object"),
        (("a.b", "--unique", "forever"), "need a unique_key"),
        (("a.b", "--unique-key", "k", "--unique", "often"), "use until finished, until started, forever"),
        (("a.b", "--unique-key", ""), "it must not be empty"),
        (("a.b", "--bucket", 1000), "buckets range from 0 to 999"),
        (("a.b", "{"), "not JSON"),
        (("a.b", '{"a": NaN}'), "NaN"),
        (("a.b", '{"a": "\\u0000"}'), "NUL"),
        (("a.b", "[" * 100_000), "nested too deeply"),
        (("a.b", '{"a": "\udcff"}'), "UTF-8"),
        (("a.b", "--priority", 10), "priorities range from 1 to 9"),
        (("a.b", "--delay", "soon"), "not a duration"),
        (
            ("a.b", f'{{"order": {{"ids": [1, {"9" * 5_000}]}}}}'),
            "'ids' has 5,000 digits, and Python reads at most 4,300",
        ),
        (("a.b", "--at", "25:00"), "not a point in time"),
        (("a.b", "--at", "+5m", "--delay", "5m"), "run_at is set too"),
        (("a.b", "--retry", "often"), "not a retry plan"),
        (("a.b", "--max-attempts", 0), "it must be a whole number from 1 to 2,147,483,647"),
        (("a.b", json.dumps({"a": "x" * 300_000})), "the limit is 262144"),
        (("x" * 201,), "1 to 200 characters"),
        (("a.b", "--nonsense"), "unknown option --nonsense"),
        ((), "name a handler"),
        (("a.b", "{}", "--lines", "x"), "cannot be combined with --lines"),
    ],
)
def test_invalid_arguments_are_rejected_and_nothing_is_stored(
    call: Call, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], reason: str
) -> None:
    result = call("submit", *arguments)
    assert result.code == Exit.BAD_INPUT
    assert reason in result.err
    assert not Path("tasktui.db").exists()


def test_a_loaded_handler_checks_the_payload_and_supplies_defaults(call: Call, handlers: None) -> None:
    refused = program("submit", "mail.send", '{"to": 7, "cc": "x"}', "-H", "mail_handlers")
    assert refused.returncode == Exit.BAD_INPUT
    assert "to: " in refused.stderr
    assert "cc: " in refused.stderr
    accepted = program("submit", "mail.send", '{"to": "ana"}', "-H", "mail_handlers")
    assert accepted.returncode == Exit.OK, accepted.stderr
    (task,) = call("tasks", "--json").document["tasks"]
    assert (task["queue"], task["priority"]) == ("mail", 5)


def test_two_handlers_with_one_name_are_rejected(handlers: None, tmp_path: Path) -> None:
    (tmp_path / "other_handlers.py").write_text(HANDLERS.replace("def send", "def post"))
    result = program("submit", "mail.send", "-H", "mail_handlers", "-H", "other_handlers")
    assert result.returncode == Exit.CONFIGURATION
    assert "mail_handlers.send" in result.stderr
    assert "other_handlers.post" in result.stderr


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("\nimport no_such_module", "broken_handlers.py:2)"),
        ("import json\njson.loads('{')", "broken_handlers.py:2)"),
        ("syntax error", "(broken_handlers.py, line 1)"),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_named(call: Call, tmp_path: Path, source: str, why: str) -> None:
    (tmp_path / "broken_handlers.py").write_text(source)
    result = call("submit", "a.b", "-H", "broken_handlers")
    assert result.code == Exit.CONFIGURATION
    assert "module 'broken_handlers'" in result.err
    assert why in result.err
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_files_of_the_current_directory_do_not_replace_modules_of_python(handlers: None, tmp_path: Path) -> None:
    for name in ("sqlite3", "queue", "getpass", "aiosqlite"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')")
    command = [str(PROGRAM), "submit", "mail.send", '{"to": "ana"}', "-H", "mail_handlers"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == Exit.OK, result.stderr


def test_a_payload_can_come_from_standard_input(call: Call) -> None:
    assert program("submit", "a.b", "-", stdin='{"secret": 1}').returncode == Exit.OK
    assert call("show", 1, "--json", "--reveal").document["payload"] == {"secret": 1}


LINES = """\
{"handler": "a.b", "payload": {"n": 1}, "queue": "q", "tags": ["t"]}

{"handler": "a.b", "payload": [1]}
not json
{"payload": {}}
{"handler": "a.b", "prority": 3}
{"handler": "a.b", "priority": "3"}
{"handler": "a.b", "payload": {"n": 8}, "run_at": "+1h", "key": "k"}"""


def test_bad_lines_are_reported_and_good_ones_submitted(cli: Call, store: Store, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(LINES)
    result = cli("submit", "--lines", "lines", "--json")
    assert result.code == Exit.PARTIAL
    assert [bad["line"] for bad in result.document["bad"]] == [3, 4, 5, 6, 7]
    assert [line.partition(":")[0] for line in result.err.splitlines()] == [f"line {n}" for n in (3, 4, 5, 6, 7)]
    assert "did you mean 'priority'" in result.err
    first, second = store.tasks()
    assert (result.document["submitted"], result.document["first_id"], result.document["last_id"]) == (
        2,
        first["id"],
        second["id"],
    )
    assert (first["payload"], first["queue"], second["key"]) == ('{"n": 1}', "q", "k")


def test_lines_can_be_payloads_of_one_handler(cli: Call, store: Store, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b'\xef\xbb\xbf{"n": 1.10}\r\n{"n": 2}\n')
    assert cli("submit", "a.b", "--lines", "lines", "--queue", "bulk").code == Exit.OK
    assert [(task["payload"], task["queue"]) for task in store.tasks()] == [
        ('{"n": 1.10}', "bulk"),
        ('{"n": 2}', "bulk"),
    ]


def test_many_lines_are_all_submitted_in_order(cli: Call, store: Store, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f'{{"n": {n}}}\n' for n in range(4_500)))
    result = cli("submit", "a.b", "--lines", "lines", "--json")
    assert (result.code, result.document["submitted"], result.document["bad"]) == (Exit.OK, 4_500, [])
    assert [json.loads(task["payload"])["n"] for task in store.tasks()] == list(range(4_500))


FORBIDDEN = {
    "sqlite": "CREATE TRIGGER forbidden BEFORE INSERT ON task WHEN NEW.key = 'no' BEGIN SELECT RAISE(ABORT, 'no'); END",
    "postgresql": "ALTER TABLE task ADD CONSTRAINT forbidden CHECK (key <> 'no')",
}


def test_a_line_rejected_by_the_database_does_not_affect_others(cli: Call, store: Store, tmp_path: Path) -> None:
    async def forbid(tx: Transaction) -> None:
        await tx.execute(sa.text(FORBIDDEN[tx.dialect.name]))

    store.write(forbid)
    lines = [{"handler": "a.b", "key": "no" if n in (3, 70) else f"k{n}"} for n in range(100)]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    result = cli("submit", "--lines", "lines", "--json")
    assert result.code == Exit.PARTIAL
    assert [bad["line"] for bad in result.document["bad"]] == [4, 71]
    assert len(store.tasks()) == 98


def test_lines_that_are_too_long_or_not_text_are_skipped(call: Call, tmp_path: Path) -> None:
    long = b'{"n": "' + b"x" * 600_000 + b'"}'
    (tmp_path / "lines").write_bytes(b"\n".join([b"{}", long, b"\xff\xfe", b'{"n": 4}', long]))
    result = call("submit", "a.b", "--lines", "lines", "--json")
    assert [bad["line"] for bad in result.document["bad"]] == [2, 3, 5]
    assert result.document["submitted"] == 2


@pytest.mark.parametrize("path", ["/nowhere", "/", "a\0b"])
def test_a_file_that_cannot_be_read_is_bad_input(call: Call, path: str) -> None:
    result = call("submit", "--lines", path)
    assert result.code == Exit.BAD_INPUT
    assert f"cannot read {path[:1]}" in result.err


def test_only_bad_lines_are_bad_input(call: Call, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("nonsense\n")
    assert call("submit", "--lines", "lines").code == Exit.BAD_INPUT


@contextmanager
def fed(call: Call, lines: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has submitted these lines from a pipe and waits for more."""
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


@pytest.mark.slow
def test_lines_from_a_pipe_are_submitted_as_they_arrive(call: Call) -> None:
    with fed(call, b'{"n": 1}\n') as ours:
        out, _ = ours.communicate(b'{"n": 2}\n', timeout=90)
    assert ours.returncode == Exit.OK
    assert out.startswith(b"Submitted 2 tasks")


@pytest.mark.slow
def test_an_interrupt_reports_the_last_submitted_line(call: Call) -> None:
    with fed(call, b'{"n": 1}\n{"n": 2}\n') as ours:
        ours.send_signal(signal.SIGINT)
        ours.wait(timeout=90)  # the pipe is still open: closing it would end the program too
        _, output = ours.communicate()
    assert ours.returncode == Exit.INTERRUPTED
    assert b"stopped: 2 tasks submitted, up to line 2" in output
    assert b"Traceback" not in output


def test_a_copy_takes_options_and_can_be_tried_first(cli: Call, store: Store) -> None:
    (id,) = store.submit(NewTask("mail.send", '{"to": "ana", "token": "hunter-22-x"}', queue="mail", key="k"))
    words = ("copy", id, '{"to": "ben", "token": "***"}', "--priority", 7)
    tried = cli(*words, "--dry-run")
    assert tried.document["payload"] == {"to": "ben", "token": "***"}
    assert len(store.tasks()) == 1
    done = cli(
        "copy", id, '{"to": "ben", "token": "***"}', "--priority", 7, "--at", "+1h", "--reason", "asked", "--json"
    )
    copy = next(task for task in store.tasks() if task["id"] == done.document["id"])
    assert json.loads(copy["payload"]) == {"to": "ben", "token": "hunter-22-x"}
    assert (copy["queue"], copy["key"], copy["priority"]) == ("mail", "k", 7)
    assert cli("copy", id, "[1]").code == Exit.BAD_INPUT
    assert cli("copy", 999).code == Exit.NOT_FOUND
