"""The databases that tests run on.

A test that takes a database exists for SQLite and for PostgreSQL. In the folders of `ON_BOTH`, an ordinary run executes
both. Elsewhere it executes the one on SQLite: the one on PostgreSQL repeats the same behaviour, and `-m slow` has it.
The markers `both_databases` and `one_database` change this for a test, a class or a file.

A test with several parameters, the database among them, exists for every combination of their values. An ordinary run
executes each combination that brings a value which no earlier one had, and `-m slow` executes the others. Where the
values repeat one behaviour, the marker `representatives` leaves all but the first ones to `-m slow`.
"""

import asyncio
import compileall
import gc
import importlib
import os
import re
import shutil
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from hypothesis import is_hypothesis_test, settings
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

from runner.db.async_core import AsyncCoreEngine
from tests.postgres import Cluster, Remote, Server, create_database, drop_database, find_programs
from tests.postgres.databases import URL_VARIABLE
from tests.postgres.programs import BIN_VARIABLE
from tests.postgres.reuse import Cleaner, shape_of
from tests.postgres.server import TEMPLATE
from tests.shards import Sharded, sharded

if TYPE_CHECKING:
    from runner.db.database import Database
    from tests.store.runners import Runner

NO_POSTGRES = (
    "There is no PostgreSQL for the tests. Install the development packages, which bring one, or set "
    f"{URL_VARIABLE} to the URL of a server or {BIN_VARIABLE} to the folder of its programs."
)

TESTS = Path(__file__).parent

# Whoever runs the tests in the background of a script lets them, and all that they start, ignore an interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as `nohup` does

# Each worker, and each of the hundreds of programs that tests start, would compile our modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A commit to a SQLite file on a disk waits for the disk.
MEMORY, LEAST_MEMORY = Path("/dev/shm"), 4 * 2**30
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > LEAST_MEMORY:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# What is collected here is no garbage, and there is much of it.
gc.disable()

# How long an example takes depends on what else the machine does.
settings.register_profile("short", parent=settings(), deadline=None, max_examples=15)
settings.register_profile("long", parent=settings(), deadline=None, max_examples=1_000)
settings.load_profile("short")


def examples(few: int, many: int) -> int:
    """The number of examples of a test whose examples take long: few in an ordinary run, many in `-m slow`."""
    return few if settings.get_current_profile_name() == "short" else many


COMPILED: LRUCache[Any, Any] = LRUCache(5_000)
"""Compiled statements of all tests: each test opens engines of its own, which would compile the same ones again."""


def _share_compiled_statements() -> None:
    create = AsyncCoreEngine.create.__func__  # type: ignore[attr-defined]

    def sharing(kind: type[AsyncCoreEngine], *args: Any, **options: Any) -> AsyncCoreEngine:
        engine: AsyncCoreEngine = create(kind, *args, **options)
        engine.sync_engine._compiled_cache = COMPILED
        return engine

    def facts(dialect: object) -> tuple[Any, ...]:
        """All that the text of a statement depends on; the key of a compiled statement contains the dialect."""
        version = getattr(dialect, "server_version_info", None)
        return type(dialect), version, getattr(dialect, "_backslash_escapes", None)

    AsyncCoreEngine.create = classmethod(sharing)  # type: ignore[assignment, method-assign]
    DefaultDialect.__hash__ = lambda self: hash(facts(self))  # type: ignore[method-assign]
    DefaultDialect.__eq__ = lambda self, other: facts(self) == facts(other)  # type: ignore[method-assign]


_share_compiled_statements()


def pytest_configure(config: pytest.Config) -> None:
    """Choose the number of examples, and compile our modules once, before workers and programs do it together."""
    if config.option.markexpr.startswith("slow"):
        settings.load_profile("long")  # before modules of tests are imported
    if not hasattr(config, "workerinput"):
        for package in ("runner", "tasktui", "sample_handlers"):
            compileall.compile_dir(str(TESTS.parent / package), quiet=2)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import this worker's share of the tests first: pytest compiles them for the other workers too."""
    worker = getattr(session.config, "workerinput", None)
    if worker and session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        files = sorted(TESTS.glob("*/test_*.py")) + sorted(TESTS.glob("test_*.py"))
        for file in files[number::count]:
            importlib.import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))


ON_BOTH = ("store", "db")
"""Folders whose tests are about statements, which differ by database."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark repetitions as slow, and let `-m slow` execute the property tests too."""
    values: dict[str, set[object]] = defaultdict(set)
    executed: Counter[tuple[str, object]] = Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if _is_repetition(item) or _has_no_new_value(item, values[name]) or _is_represented(item, name, executed):
            item.add_marker("slow")
    if config.option.markexpr.startswith("slow"):
        for item in items:
            if is_hypothesis_test(getattr(item, "obj", None)):
                item.add_marker("slow")


def _is_repetition(item: pytest.Item) -> bool:
    """True if an ordinary run executes the same test on SQLite, and that is enough."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    if item.callspec.params.get("databases") != "postgresql":
        return False
    for marker in item.iter_markers():  # the closest one first
        if marker.name in ("both_databases", "one_database"):
            return marker.name == "one_database"
        if marker.name == "parametrize" and "databases" in marker.args[0]:
            return False
    return item.path.relative_to(TESTS).parts[0] not in ON_BOTH


def _has_no_new_value(item: pytest.Item, earlier: set[object]) -> bool:
    """True if earlier tests of the same function have each value of each parameter."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec") or item.get_closest_marker("slow"):
        return False
    given = item.callspec.params
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    groups = [tuple(re.findall(r"\w+", one)) if isinstance(one, str) else tuple(one) for one in names]
    groups += [(name,) for name in given if not any(name in group for group in groups)]
    values = {(group, *(id(given[name]) for name in group)) for group in groups}
    repeats = values <= earlier
    earlier |= values
    return repeats


def _is_represented(item: pytest.Item, name: str, executed: Counter[tuple[str, object]]) -> bool:
    """True if an ordinary run executes enough earlier combinations of its parameters on the same database."""
    marker = item.get_closest_marker("representatives")
    if not isinstance(item, pytest.Function) or marker is None or item.get_closest_marker("slow"):
        return False
    key = name, item.callspec.params.get("databases")
    executed[key] += 1
    return bool(executed[key] > marker.args[0])


def pytest_collection_finish() -> None:
    """Look for garbage from now on, but only among what the tests make, and in larger portions."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 1_000)
    gc.enable()


class Databases(Protocol):
    """One kind of database, as the tests need it."""

    def empty(self, directory: Path) -> str:
        """Make a database without tables and return its URL."""
        ...

    def migrated(self, directory: Path, *, new: bool = False) -> str:
        """Return the URL of a database with our tables, all of them empty.

        Args:
            directory: of the test.
            new: no test has had it before.
        """
        ...

    def remove(self, url: str) -> None: ...


class SqliteDatabases:
    """Files; the migrated ones are copies of a file that was migrated once."""

    def __init__(self, directory: Path) -> None:
        self._template = directory / "template.db"
        asyncio.run(_migrate(_sqlite_url(self._template)))  # now: the first user may be a coroutine

    def empty(self, directory: Path) -> str:
        return _sqlite_url(directory / "test.db")

    def migrated(self, directory: Path, *, new: bool = False) -> str:
        shutil.copy(self._template, directory / "test.db")
        return self.empty(directory)

    def remove(self, url: str) -> None:
        """Leave it to pytest, which keeps the directories of the last runs to look into."""


class PostgresDatabases:
    """Databases of one server; the migrated ones are copies of a database that was migrated once, and used again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made: set[str] = set()
        self._copies: set[str] = set()
        self._spare: list[str] = []

    @cached_property
    def _template(self) -> str:
        url = self._make()
        asyncio.run(_migrate(url))
        return url

    def empty(self, directory: Path) -> str:
        return self._make()

    @cached_property
    def _cleaner(self) -> Cleaner:
        return Cleaner(shape_of(self._template))

    def migrated(self, directory: Path, *, new: bool = False) -> str:
        if self._spare and not new:
            return self._spare.pop()
        copy = self._make(self._template)
        if not new:
            self._copies.add(copy)
        return copy

    def remove(self, url: str) -> None:
        if url in self._copies and self._cleaner.clean(url):
            self._spare.append(url)
        else:
            self._drop(url)

    def close(self) -> None:
        """Drop all databases; those of our own server go with its directory."""
        for url in set(self._made):
            if isinstance(self._cluster, Remote):
                self._drop(url)
            elif url in self._copies:
                self._cleaner.forget(url)

    def _drop(self, url: str) -> None:
        if url in self._copies:
            self._cleaner.forget(url)
        drop_database(self._cluster, url)
        self._made.remove(url)

    def _make(self, template: str = "") -> str:
        url = create_database(self._cluster, template)
        self._made.add(url)
        return url


@pytest.fixture(autouse=True)
def _no_connection_of_another_test() -> Iterator[None]:
    """Submits after a test go to the database of their settings, not to that of its `connect`."""
    yield
    if client := sys.modules.get("runner.client.client"):
        vars(client)["_connected"] = None


@pytest.fixture
def own_handlers() -> Iterator[None]:
    """Forget the handlers and the resources that a test registers."""
    from runner.handlers.registry import REGISTRY
    from runner.handlers.resources import RESOURCES

    handlers, resources = dict(REGISTRY), set(RESOURCES)
    yield
    REGISTRY._handlers = handlers
    for name in set(RESOURCES) - resources:
        RESOURCES.remove(name)


@pytest.fixture
def connected(migrated_url: str) -> Iterator[None]:
    """Submit to the database of the test."""
    from runner import connect, disconnect
    from runner.urls import parse_url

    connect(url=parse_url(migrated_url))
    yield
    disconnect()


@pytest.fixture(scope="session", autouse=True)
def _one_initdb(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let all servers of a run start with copies of one data folder, in whichever worker they are."""
    folder = tmp_path_factory.getbasetemp()
    TEMPLATE[:] = [(folder.parent if hasattr(request.config, "workerinput") else folder) / "postgres"]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings and files of whoever runs the tests out of them."""
    for name in os.environ:
        if name.startswith("TASKTUI_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Cluster]:
    """A PostgreSQL to make databases in: the one that the environment names, or our own."""
    if url := os.environ.get(URL_VARIABLE):
        yield Remote(url)
    elif programs := find_programs():
        with Server(programs) as server:
            yield server
    else:
        pytest.skip(NO_POSTGRES)


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A PostgreSQL that the tests of a module may stop or kill."""
    if (programs := find_programs()) is None:
        pytest.skip(NO_POSTGRES)
    with Server(programs) as server:
        yield server


@pytest.fixture(scope="session")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> SqliteDatabases:
    return SqliteDatabases(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(scope="session")
def postgresql(postgres_server: Cluster) -> Iterator[PostgresDatabases]:
    databases = PostgresDatabases(postgres_server)
    yield databases
    databases.close()


on_sqlite = pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
"""For tests whose database makes no difference, or all of it."""

_SLOW_SQLITE, _SLOW_POSTGRESQL = (pytest.param(kind, marks=pytest.mark.slow) for kind in ("sqlite", "postgresql"))
postgresql_first = pytest.mark.parametrize("databases", ["postgresql", _SLOW_SQLITE], indirect=True)
sqlite_first = pytest.mark.parametrize("databases", ["sqlite", _SLOW_POSTGRESQL], indirect=True)
"""For tests of many processes: the other database has its turn in `-m slow`."""


@pytest.fixture(params=["sqlite", "postgresql"])
def databases(request: pytest.FixtureRequest) -> Databases:
    """Each kind of database in turn: a new kind is one class above and one parameter here."""
    kind: Databases = request.getfixturevalue(request.param)
    return kind


@pytest.fixture
def database_url(databases: Databases, tmp_path: Path) -> Iterator[str]:
    """The URL of a database of the test's own, without any table."""
    url = databases.empty(tmp_path)
    yield url
    databases.remove(url)


@pytest.fixture
def pair() -> tuple[str, str]:
    """The kinds of the databases of the shards; `tests.shards.EACH_PAIR` has others."""
    return "sqlite", "sqlite"


@pytest.fixture
def profile(request: pytest.FixtureRequest, tmp_path: Path, pair: tuple[str, str]) -> Iterator[Sharded]:
    with sharded(request, tmp_path, pair) as made:
        yield made


@pytest.fixture
def new_database() -> None:
    """For a test whose database no other one may have had before."""


@pytest.fixture
def migrated_url(request: pytest.FixtureRequest, databases: Databases, tmp_path: Path) -> Iterator[str]:
    """The URL of a database of the test's own, with our tables in it."""
    url = databases.migrated(tmp_path, new="new_database" in request.fixturenames)
    yield url
    databases.remove(url)


@pytest.fixture
async def database(migrated_url: str) -> "AsyncIterator[Database]":
    """The database at `migrated_url`, open."""
    from runner.db.database import Database

    opened = Database.open(migrated_url)
    yield opened
    await opened.dispose()


@pytest.fixture
async def rival(migrated_url: str) -> "AsyncIterator[Database]":
    """The database of `database`, as another program sees it."""
    from runner.db.database import Database

    opened = Database.open(migrated_url)
    yield opened
    await opened.dispose()


@pytest.fixture
async def runner(database: "Database") -> "Runner":
    """A runner with the handler `work`."""
    from tests.store.runners import Runner

    return await Runner.enter(database)


@pytest.fixture
async def other(rival: "Database") -> "Runner":
    """Another runner, in another program."""
    from tests.store.runners import Runner

    return await Runner.enter(rival, host="there")


async def _migrate(url: str) -> None:
    from runner.db.database import Database

    database = Database.open(url)
    try:
        await database.migrate()
    finally:
        await database.dispose()


def _sqlite_url(file: Path) -> str:
    return f"sqlite:///{file}"
