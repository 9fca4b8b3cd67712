"""Schemas and prefixes with capitals, spaces, quotes, reserved words and letters of any script work everywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import runner
from runner.cli.check import CheckStatus, run_checks
from runner.db.database import Database
from runner.db.migrations.apply import sql, upgrade
from runner.db.migrations.roles import missing_grant, missing_guards, roles
from runner.db.migrations.sequences import late_sequences
from runner.handlers.registry import REGISTRY
from runner.model.task import DependsOn, NewTask, OrderKey
from runner.queries.health import connection_permission, health
from runner.settings import Settings, load
from runner.store.partitions import extend
from runner.store.retention import enforce, retention_of
from runner.store.submit import submit_many
from tests.conftest import PostgresDatabases

SCHEMAS = ["Order", "select", 'My "own" Sch\'ema', "Заказы", "a b {c}"]
PREFIXES = ["Shop", "group ", 'It\'s "2" ', "ЗакАЗ_"]
NAMES = [(schema, "") for schema in SCHEMAS] + [(SCHEMAS[2], prefix) for prefix in PREFIXES]


@contextmanager
def handlers() -> Iterator[None]:
    before = set(REGISTRY)
    try:
        yield
    finally:
        for name in set(REGISTRY) - before:
            REGISTRY._handlers.pop(name)


async def whole_way(settings: Settings) -> None:
    """Migrate, submit, wake a runner, execute, fail, pause, check and prune."""
    database = Database.of(settings)
    await upgrade(database)
    with handlers():

        @runner.handler("name.work")
        async def work(n: int = 0) -> int:
            return n

        @runner.handler("name.fail", max_attempts=1)
        def fail() -> None:
            raise ValueError

        first = [NewTask("name.work", order_key=OrderKey("k")), NewTask("name.fail", order_key=OrderKey("k"))]
        parent, _ = await database.write(submit_many, first)
        await database.write(submit_many, [NewTask("name.work", after=(DependsOn(parent),))])
        waking: dict[str, Any] = {"poll_interval": "1h", "initial_delay": "0s", "retention_succeeded": "0s"}
        async with runner.Runner([work, fail], settings=settings.model_copy(), **waking) as embedded:
            assert embedded.settings.table_prefix == settings.table_prefix
            runner.connect(settings)
            try:
                handle = await work.submit_async(n=7)
                assert await handle.wait(timeout=90) == 7  # woken by the submit
            finally:
                runner.disconnect()
    assert await database.read(late_sequences) == []
    await database.read(health)
    assert await database.read(connection_permission)
    await database.write(extend)
    async for _ in enforce(database, retention_of(settings)):
        pass
    await database.dispose()
    findings = [finding async for finding in run_checks(settings)]
    assert next(finding for finding in findings if finding.topic == "schema").verdict is CheckStatus.WELL
    assert not [finding for finding in findings if finding.topic == "database" and finding.verdict is CheckStatus.WRONG]


@pytest.mark.parametrize(
    "prefix", [*(pytest.param(one, marks=pytest.mark.slow) for one in PREFIXES[:-1]), PREFIXES[-1]]
)
async def test_any_prefix_works_in_a_file(prefix: str, tmp_path: Path) -> None:
    await whole_way(load(url=f"sqlite:///{tmp_path}/tasks.db", table_prefix=prefix))


@pytest.mark.parametrize(
    ("schema", "prefix"), [*(pytest.param(*one, marks=pytest.mark.slow) for one in NAMES[:-1]), NAMES[-1]]
)
async def test_any_schema_and_prefix_work_in_a_server(
    schema: str, prefix: str, postgresql: PostgresDatabases, tmp_path: Path
) -> None:
    url = postgresql.empty(tmp_path)
    try:
        settings = load(url=url, table_schema=schema, table_prefix=prefix)
        await whole_way(settings)
        script = roles(settings.url, prefix, schema)
        with psycopg.connect(url, autocommit=True) as connection:
            for _ in range(2):
                connection.execute(script.encode())
        database = Database.of(settings)
        assert await database.read(missing_guards) == []
        assert await database.read(missing_grant) is None
        await database.dispose()
    finally:
        postgresql.remove(url)


async def test_the_script_of_the_tables_quotes_their_names(postgresql: PostgresDatabases, tmp_path: Path) -> None:
    url = postgresql.empty(tmp_path)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql(url, PREFIXES[2], SCHEMAS[2]).encode())
        database = Database.open(url, prefix=PREFIXES[2], schema=SCHEMAS[2])
        assert await upgrade(database) == []
        await database.dispose()
    finally:
        postgresql.remove(url)
