"""Read-only is enforced three times: by the keys, by the session with its connections, and by database permissions."""

import concurrent.futures.thread  # noqa: F401 - on demand it may lie where only root may look: see `somebody_else`
import inspect
import os
import shutil
import string
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from sqlite3 import connect
from typing import Any

import pytest
import sqlalchemy as sa

from runner import operations
from runner.db.database import Database
from runner.errors import StoreError
from runner.operations.pause import PauseKind, PauseTarget
from runner.queries.counts import counts
from runner.queries.task_list.row import task_rows
from runner.settings import Settings
from runner.urls import parse_url
from tasktui.actions import perform
from tasktui.actions.action import Confirmation
from tasktui.actions.actions import ACTIONS
from tasktui.actions.plan import plan
from tasktui.commands.syntax import COMMANDS
from tasktui.dialogs.ask import ConfirmScreen
from tasktui.render.rows import plain
from tasktui.screens import MODES
from tasktui.session import cache
from tasktui.session.session import Job, Session
from tasktui.session.write_lock import CLOSED, FILE, LOGIN, ReadOnly, ReadOnlyReason
from tasktui.shell.frame import Keys
from tasktui.startup.arguments import Arguments
from tasktui.startup.startup import opened
from tests.postgres.logins import logins
from tests.store.every_operation import LATER, OPERATIONS, TOGETHER, all_rows, arrange
from tests.store.rows import add_live, stored
from tests.store.table import change
from tests.tasktui.conftest import ON_ONE_DATABASE, Watch
from tests.tasktui.test_actions import audited, confirm

LOCKED = "READ-ONLY"
MODULES = [
    module.name
    for module in iter_modules(operations.__path__)
    if module.name not in {"audit_log", "bulk", "lock", "preview", "results", "sql_export", "unique_keys"}
]
"""The modules of the operations, without those that all operations share."""


@pytest.fixture
async def initial_rows(database: Database) -> dict[str, list[str]]:
    """All rows of a database in which every action has a target."""
    await arrange(database)
    return await all_rows(database)


@pytest.fixture
async def session(migrated_url: str) -> AsyncIterator[Session]:
    """A writable session without a console."""
    async with opened(Arguments(), Settings(url=parse_url(migrated_url))) as session:
        yield session


FIRST = ["tasks", "task", "runners"]
"""Screens with all kinds of actions."""

OTHERS = [name for name in MODES if name not in FIRST]


@ON_ONE_DATABASE
@pytest.mark.parametrize("names", [FIRST, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["three", "others"])
async def test_no_key_changes_anything(
    names: list[str], database: Database, initial_rows: dict[str, list[str]], watch: Watch
) -> None:
    assert {action.key for action in ACTIONS.values()} <= set(string.ascii_uppercase)
    async with watch(writable=False, task_id=LATER) as operator:
        for name in names:
            mode = MODES[name]
            await operator.press(mode.key)
            await operator.sees(LOCKED)
            screen = operator.screen
            assert screen.title == mode.title
            operator.console.notices.clear()
            for key in string.ascii_uppercase:
                await operator.press(key)
                assert operator.screen is screen, key
            has_actions = any(active.binding.action.startswith("act(") for active in screen.active_bindings.values())
            for action in ACTIONS if has_actions else ():
                assert screen.check_action("act", (action,)) is None
            if has_actions:
                await operator.sees_notice(
                    "Nothing was changed: this console is read-only (:write 10m REASON unlocks it)"
                )
            await operator.pilot.pause()
    assert await all_rows(database) == initial_rows


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_no_command_changes_anything(
    database: Database, initial_rows: dict[str, list[str]], watch: Watch
) -> None:
    async with watch(writable=False) as operator:
        for name in COMMANDS.keys() - MODES.keys() - {"write", "q"}:
            await operator.command(f"{name} {LATER} 10m because")
            await operator.until(lambda: type(operator.screen).__name__ != "CommandScreen")
            await operator.press("escape")
        await operator.command(f"pause {LATER}")  # The notice of the first one may have disappeared.
        await operator.sees_notice("Nothing was changed: this console is read-only")
    assert await all_rows(database) == initial_rows


UNDO = Job("Undo", 1, 0.0)
LIMITS = Confirmation(answer="concurrency=5")

DOES: dict[str, Callable[[Any, Any], Awaitable[object]]] = {
    "carry_out": lambda session, made: perform.carry_out(session, made, Confirmation(), Job("Terminate", 1, 0.0)),
    "pause": lambda session, _: perform.pause(session, PauseTarget(PauseKind.QUEUE, "mail"), "", None),
    "resume": lambda session, _: perform.resume(session, PauseTarget(PauseKind.QUEUE, "slow"), None),
    "send_runner_command": lambda session, _: perform.send_runner_command(session, 1, "drain", None),
    "record_reveal": lambda session, _: perform.record_reveal(session, LATER),
    "plan_sql": lambda session, made: perform.plan_sql(session, made, Confirmation()),
    "undo_sql": lambda session, made: perform.undo_sql(session, made, Confirmation()),
    "pause_sql": lambda session, _: perform.pause_sql(session, PauseTarget(PauseKind.QUEUE, "q"), None, Confirmation()),
    "runner_command_sql": lambda session, _: perform.runner_command_sql(session, ACTIONS["drain"], 1, Confirmation()),
    "limit": lambda session, _: perform.limit(session, PauseTarget(PauseKind.QUEUE, "mail"), "concurrency=5", None),
    "limit_sql": lambda session, _: perform.limit_sql(session, PauseTarget(PauseKind.QUEUE, "mail"), LIMITS),
    "switch_breaker": lambda session, _: perform.switch_breaker(session, "sms", True, Confirmation()),
    "breaker_sql": lambda session, _: perform.breaker_sql(session, "sms", True, Confirmation()),
    "undo": lambda session, _: perform.undo(session, 1, None),
    "undo_group": lambda session, _: perform.undo_group(session, TOGETHER, Confirmation(), UNDO),
}
READS = (
    "preview",
    "previews",
    "_previews",
    "with_obstacles",
    "changes_since",
    "_skipped_now",
    "current_pause",
    "current_limits",
    "last_change",
    "opened",
    "_until",
    "_obstacles",
    "_undoable",
)


def test_these_tests_cover_every_change_of_the_console() -> None:
    functions = inspect.getmembers(perform, inspect.iscoroutinefunction)
    verbs = {name for name, function in functions if function.__module__ == perform.__name__}
    assert verbs - set(READS) == set(DOES)


@ON_ONE_DATABASE
async def test_the_session_refuses_everything(
    session: Session, database: Database, initial_rows: dict[str, list[str]]
) -> None:
    session.lock.close()
    made = plan(ACTIONS["terminate"], await database.read(task_rows, [LATER]))
    for name, carries_out in DOES.items():
        with pytest.raises(ReadOnly):
            await carries_out(session, made)
        assert await all_rows(database) == initial_rows, name


def test_these_tests_cover_every_operation_of_the_store() -> None:
    modules = [import_module(f"runner.operations.{name}") for name in MODULES]
    functions = [
        function for module in modules for _, function in inspect.getmembers(module, inspect.iscoroutinefunction)
    ]
    verbs = {function.__name__ for function in functions if "by" in _parameters(function)}
    steps = {name for name in verbs if name.startswith("_")} | {
        "preview_pause",
        "canary",  # applies an operation, and records its result
        "record",
        "requeue_with",
        "cancel",
        "cancel_submit",
        "take",
    }
    scripts = {"reveal", "undo_script", "command_script"}
    assert verbs - steps | scripts == {name.split()[0] for name in OPERATIONS}


def _parameters(verb: Any) -> set[str]:
    return set(inspect.signature(verb).parameters) if inspect.iscoroutinefunction(verb) else set()


@pytest.mark.slow
async def test_the_connections_of_a_console_refuse_every_intervention(
    session: Session, database: Database, initial_rows: dict[str, list[str]]
) -> None:
    assert session.writable
    looking = session.database
    for name, verb in OPERATIONS.items():
        for call in (looking.write, looking.read, looking.write):
            with pytest.raises(StoreError, match=r"read-?only"):
                await call(verb)
        assert await all_rows(database) == initial_rows, name


@ON_ONE_DATABASE
async def test_no_command_is_named_that_unlocks_nothing(database: Database, watch: Watch) -> None:
    await add_live(database)
    async with watch("tasks", barrier=LOGIN) as operator:
        keys = plain(operator.screen.query_one(Keys).rows)
        assert " T " in keys
        assert "unlocks" not in keys
        await operator.press("question_mark")
        await operator.sees("read-only", "THIS SCREEN")
        assert "needs :write" not in operator.text


@ON_ONE_DATABASE
async def test_writing_is_unlocked_by_command_with_a_reason(database: Database, watch: Watch) -> None:
    await add_live(database)
    async with watch("tasks", writable=False) as operator:
        keys = operator.screen.query_one(Keys).rows
        assert ":write unlocks" in plain(keys)
        operator.screen.refresh_bindings()
        await operator.pilot.pause()
        assert operator.screen.query_one(Keys).rows == keys
        await operator.command("write 10m")
        await operator.sees_notice("add a reason")
        await operator.command("write 10m mend the mail queue")
        await operator.sees("WRITE 9m5")
        await operator.until(lambda: ":write unlocks" not in plain(operator.screen.query_one(Keys).rows))
        await operator.press("T")
        await confirm(operator)
        await operator.sees_notice("1 changed")
        await operator.command("lock")
        await operator.sees(LOCKED)
    (entry,) = await audited(database)
    assert entry.reason == "mend the mail queue"


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_lock_closes_by_itself_even_on_an_open_question(database: Database, watch: Watch) -> None:
    id = await add_live(database)
    async with watch("tasks", writable=False) as operator:
        await operator.command("write 10m mend the mail queue")
        await operator.sees("WRITE 9m5")
        await operator.press("T")
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))
        operator.console.session.lock.open_until = time.monotonic()
        await confirm(operator)
        await operator.sees_notice("Nothing was changed: this console is read-only")
        await operator.sees(LOCKED)
        assert operator.screen.check_action("act", ("terminate",)) is None
    assert await stored(database, id) is not None


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_production_is_a_word_and_not_only_a_colour(database: Database, watch: Watch) -> None:
    async with watch(production=True) as operator:
        for mode in MODES:
            await operator.press(MODES[mode].key)
            await operator.until(
                lambda mode=mode: isinstance(operator.screen, MODES[mode].screen) and operator.screen.feed.read_at
            )
            assert " PRODUCTION " in operator.text.splitlines()[0]


async def refused_for_good(settings: Settings, barrier: ReadOnlyReason) -> None:
    """Open a console that requests write access, and check that it gets none."""
    async with opened(Arguments(write=True), settings) as session:
        assert session.lock.barrier is barrier
        assert not session.writable
        with pytest.raises(ReadOnly, match=barrier.why):
            session.lock.open(0, ("10m", "because"))
        with pytest.raises(ReadOnly, match=barrier.why):
            await perform.pause(session, PauseTarget(PauseKind.QUEUE, "mail"), "", None)


@pytest.fixture
def reader_url(migrated_url: str) -> Iterator[str]:
    with logins(migrated_url) as seen_by:
        yield seen_by["reader"]


@pytest.mark.slow
@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
async def test_a_login_that_may_only_look_sees_every_screen_and_changes_nothing(
    reader_url: str, initial_rows: dict[str, list[str]], watch: Watch
) -> None:
    values = Settings(url=parse_url(reader_url))
    await refused_for_good(values, LOGIN)
    async with watch(task_id=LATER, url=reader_url, barrier=LOGIN) as operator:
        for mode in MODES:
            await operator.press(MODES[mode].key)
            await operator.until(
                lambda mode=mode: isinstance(operator.screen, MODES[mode].screen) and operator.screen.feed.read_at
            )
            await operator.sees("READ-ONLY login")
            assert not operator.screen.feed.error


@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
async def test_a_database_that_is_set_to_take_no_changes_is_watched(database: Database, migrated_url: str) -> None:
    name = sa.make_url(migrated_url).database
    async with database.writing() as tx:
        await tx.execute(sa.text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    await refused_for_good(Settings(url=parse_url(migrated_url)), CLOSED)


@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
async def test_an_open_console_takes_changes_once_its_database_does(
    database: Database, migrated_url: str, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SHARE", 1)
    name = sa.make_url(migrated_url).database
    setting = f'ALTER DATABASE "{name}" SET default_transaction_read_only'
    await change(database, sa.text(f"{setting} = on"))
    async with watch("tasks", barrier=CLOSED) as operator:
        await operator.sees("READ-ONLY database")
        await change(database, sa.text(f"{setting} = off"))
        await operator.sees_notice("default_transaction_read_only is off: changes are now allowed")
        await operator.until(lambda: "READ-ONLY" not in operator.text)


@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
async def test_an_open_console_takes_changes_once_its_login_may(
    database: Database, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SHARE", 1)
    async with watch("tasks", barrier=LOGIN) as operator:  # opened before the grant
        await operator.sees_notice("This login got the right to change tasks: changes are now allowed")
        await operator.until(lambda: "READ-ONLY" not in operator.text)


@pytest.mark.slow
@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
async def test_a_login_that_may_intervene_does(migrated_url: str, initial_rows: dict[str, list[str]]) -> None:
    with logins(migrated_url) as seen_by:
        async with opened(Arguments(), Settings(url=parse_url(seen_by["operator"]))) as session:
            assert session.writable
            assert await perform.pause(session, PauseTarget(PauseKind.QUEUE, "mail"), "", None)


@pytest.fixture
def somebody_else() -> Iterator[None]:
    """Run as an unprivileged user: root may write any file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.fixture
def protected(migrated_url: str) -> Iterator[str]:
    """URL of a database file that only its owner may write and has open."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    file = shutil.copy(parse_url(migrated_url).database, folder / "tasks.db")
    with closing(connect(file)) as owner:
        owner.execute("INSERT INTO task(handler) VALUES ('h')")
        owner.commit()
        for part in folder.iterdir():
            part.chmod(0o444)
        yield f"sqlite:///{file}"
    shutil.rmtree(folder)


@ON_ONE_DATABASE
async def test_a_file_that_may_not_be_written_can_be_looked_at(protected: str, somebody_else: None) -> None:
    settings = Settings(url=parse_url(protected))
    await refused_for_good(settings, FILE)
    async with opened(Arguments(), settings) as session:
        assert (await session.read(counts))[0].ready.number == 1


@ON_ONE_DATABASE
@pytest.mark.parametrize(("production", "badge"), [(True, "PRODUCTION    WRITE "), (False, "")])
async def test_production_that_may_be_changed_without_a_limit_says_so(
    production: bool, badge: str, watch: Watch
) -> None:
    async with watch("overview", production=production) as operator:
        await operator.until(lambda: badge in operator.text.splitlines()[0])
        assert ("WRITE" in operator.text) is production
