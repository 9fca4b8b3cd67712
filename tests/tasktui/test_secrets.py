"""Secrets stay masked on every screen, in every dialog and in copied text until the operator reveals them."""

import json
from pathlib import Path
from typing import Any

import pytest

from runner.db.database import Database
from runner.errors import InvalidEdit, InvalidInput
from runner.model.task import State
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.results import Actor
from runner.settings import Settings
from runner.text.redact import with_secrets
from runner.text.sanitize import crash_text
from runner.urls import parse_url
from tasktui.actions.actions import ACTIONS
from tasktui.actions.as_command import command_line
from tasktui.screens import MODES
from tasktui.session.session import Session
from tasktui.terminal.recording import Recorder
from tests.store.rows import add_attempt, add_live, add_past, ahead
from tests.tasktui.conftest import ON_ONE_DATABASE, WIDE, Operator, Watch

SECRET = "hunter2"
PAYLOAD = {"to": "ana", "password": SECRET, "dsn": f"postgresql://ana:{SECRET}@db/app"}
ERROR = f"ConnectionError: no way to postgresql://ana:{SECRET}@db/app, token={SECRET}"
TRACE = f'Traceback:\n  connect(password="{SECRET}")\nConnectionError: {{"api_key": "{SECRET}"}}'


@pytest.fixture
async def task_id(database: Database) -> int:
    """A dead task with secrets in every text column, after an edit of its payload."""
    id = await add_live(database, "smtp.send", payload=json.dumps(PAYLOAD), run_at=ahead(60))
    changes = Changes(payload=json.dumps(PAYLOAD | {"token": SECRET}), retry="1m")
    await database.write(edit, id, None, changes, Actor("ana", "web-1"))
    about = {"payload": json.dumps(PAYLOAD), "result": json.dumps(PAYLOAD), "error": ERROR, "submitted_at": ahead(-9)}
    await add_past(database, id + 1, State.DEAD, handler="smtp.send", finished_at=ahead(-1), **about)
    tried: dict[str, Any] = {"handler": "smtp.send", "message": ERROR, "traceback": TRACE}
    await add_attempt(database, id + 1, started_at=ahead(-2), ended_at=ahead(-1), **tried)
    await add_attempt(database, id, started_at=ahead(-2), ended_at=ahead(-1), **tried)
    return id


async def looks(operator: Operator) -> str:
    """Collect every screen, dialog and notice."""
    texts = []

    async def look(text: str) -> None:
        await operator.sees(text)
        texts.append(operator.text)

    for mode, text in {"tasks": "no way to", "failures": "***", "audit": "retry", "task": "ERROR OF"}.items():
        await operator.press(MODES[mode].key)
        await look(text)
        await operator.press("Y")
    for key, text in {
        "w": "is not running",
        ACTIONS["retry"].key: "smtp.send",
        ACTIONS["edit"].key: "Max attempts",
    }.items():
        await operator.press(key)
        # The task behind a dialog has some of its texts; an escape before the dialog opens would leave the task.
        await operator.until(lambda: operator.screen.is_modal)
        await look(text)
        await operator.press("escape")
        await operator.until(lambda: not operator.screen.is_modal)
    return "\n".join([*texts, operator.notices, operator.console.clipboard])


@ON_ONE_DATABASE
async def test_no_screen_and_no_question_shows_a_secret(database: Database, task_id: int, watch: Watch) -> None:
    async with watch(size=WIDE, task_id=task_id) as operator:
        assert SECRET not in await looks(operator)
        operator.console.databases.opened.task.id = task_id + 1
        masked = "no way to postgresql://ana:***@db/app, token=***"
        await operator.sees(f"{task_id + 1}  smtp.send", masked, "connect(password=***)", '"dsn"')
        assert SECRET not in operator.text
        await operator.press("v")
        await operator.sees(f'"password": "{SECRET}"', f"token={SECRET}", f'connect(password="{SECRET}")')
        await operator.press("v")
        await operator.until(lambda: SECRET not in operator.text)
        await operator.press(MODES["audit"].key)
        await operator.sees("reveal")


@ON_ONE_DATABASE
async def test_secrets_stay_masked_while_the_session_is_recorded(
    database: Database, watch: Watch, task_id: int, tmp_path: Path
) -> None:
    async with watch("task", task_id=task_id) as operator:
        await operator.sees(f"{task_id}  smtp.send", '"dsn"')
        operator.console.recorder = Recorder(tmp_path / "session.cast")
        await operator.press("v")
        await operator.sees_notice("Nothing was revealed: this session is recorded")
        operator.console.recorder.close()
        operator.console.recorder = None
        assert SECRET not in operator.text
        await operator.press("v")
        await operator.sees(f'"password": "{SECRET}"')


def test_a_secret_is_not_written_into_a_command_line() -> None:
    assert command_line(["edit", 7, "--payload", json.dumps({"to": "ana"})], Settings()) is not None
    assert command_line(["edit", 7, "--payload", json.dumps(PAYLOAD)], Settings()) is None
    assert command_line(["tasks", f"error~token={SECRET}"], Settings()) is None


async def test_no_repr_and_no_crash_tells_the_password_of_the_database() -> None:
    settings = Settings(url=parse_url(f"postgresql://ana:{SECRET}@db/app"))
    database = Database.of(settings, read_only=True)
    session = Session(database, settings)
    try:
        texts = [repr(session), str(settings), repr(vars(settings)), repr(database.engine), str(database.url)]
        texts += [crash_text(InvalidInput(why=SECRET)), repr(command_line(["tasks"], settings))]
    finally:
        await database.dispose()
    assert SECRET not in "\n".join(texts)


STORED = '{"to": "ana", "token": "abc", "users": [{"password": "p1"}, {"password": "p2"}], "n": 1}'


@pytest.mark.parametrize(
    ("typed", "saved"),
    [
        (
            '{"to": "ben", "token": "***", "users": [{"password": "***"}, {"password": "new"}]}',
            {"to": "ben", "token": "abc", "users": [{"password": "p1"}, {"password": "new"}]},
        ),
        ('{"token": "other"}', {"token": "other"}),
        ('{"other": "***"}', None),
        ('{"users": [{"password": "***"}]}', None),  # one of two: which one is unknown
    ],
)
def test_an_edit_keeps_the_secrets_that_it_does_not_show(typed: str, saved: dict[str, object] | None) -> None:
    if saved is None:
        with pytest.raises(InvalidEdit, match="only at its own place"):
            with_secrets(typed, STORED)
    else:
        assert json.loads(with_secrets(typed, STORED)) == saved
