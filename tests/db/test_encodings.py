"""A PostgreSQL database with another encoding than UTF-8 keeps every outcome, and gives each character back."""

import json
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runner
from runner import Context
from runner.cli.check import run_checks
from runner.db.database import Database
from runner.db.migrations.apply import upgrade
from runner.db.server_encoding import codec_of, escaped, unescaped
from runner.model.task import NewTask
from runner.policy.lanes import Lane
from runner.policy.positions import TenantPositions
from runner.settings import Settings, load
from runner.store.claim.limited import LimitedLanes, claim_limited
from runner.store.claim.tenants import visit
from runner.store.submit import submit_many
from tests.postgres import Cluster, drop_database
from tests.store.runners import Runner
from tests.store.table import attempts, past
from tests.store.test_limits import limit

pytestmark = pytest.mark.usefixtures("own_handlers")

TEXT = "€ \U0001f600 Αβ 日本 é \\u0041 \"'{,}"


@pytest.fixture(params=["LATIN1", pytest.param("WIN1252", marks=pytest.mark.slow), "EUC_JP", "SQL_ASCII", "UTF8"])
def encoded(request: pytest.FixtureRequest, postgres_server: Cluster) -> Iterator[Settings]:
    name = f"test_{request.param.lower()}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING '{request.param}' LOCALE 'C' TEMPLATE template0".encode())
    url = postgres_server.url(name)
    yield load(url=url)
    drop_database(postgres_server, url)


@pytest.mark.slow
async def test_claims_by_tenant_work_in_any_encoding(encoded: Settings) -> None:
    database = Database.of(encoded)
    await upgrade(database)
    batch = [NewTask("work", queue="mail", tenant=tenant) for tenant in ("acme", TEXT, "zeta")]
    ids = await database.write(submit_many, batch)
    await limit(database, "queue", "mail", per_tenant="1")
    worker = await Runner.enter(database)
    lane, positions = Lane("mail", "work", 1), TenantPositions(worker.start)
    positions.meet((await database.read(visit, lane, "", 9)).visits, 0.0)
    lanes = LimitedLanes([lane], worker.start, tenants={lane: positions})
    result = await database.write(claim_limited, worker.who, lanes, worker.terms, 9)
    assert {task.id: task.tenant for task in result.claimed} == dict(zip(ids, ("acme", TEXT, "zeta"), strict=True))
    await database.dispose()


@pytest.mark.slow
async def test_outcomes_and_submits_survive_any_encoding(encoded: Settings) -> None:
    @runner.handler("enc.work")
    async def work(ctx: Context, text: str) -> dict[str, str]:
        ctx.logger.info("%s", text)
        await ctx.checkpoint({"text": text})
        return {text: text}

    @runner.handler("enc.fail", max_attempts=1)
    def fail() -> None:
        raise ValueError(TEXT)

    database = Database.of(encoded)
    await upgrade(database)
    await upgrade(database)
    batch = [NewTask("enc.work", json.dumps({"text": TEXT}, ensure_ascii=False), key=TEXT) for _ in range(3)]
    many = await database.write(submit_many, batch)
    runner.connect(encoded)
    try:
        async with runner.Runner([work, fail], settings=encoded, poll_interval="50ms"):
            handle = await work.options(key=TEXT).submit_async(text=TEXT)
            failing = await fail.submit_async()
            assert await handle.wait(timeout=90) == {TEXT: TEXT}
            with pytest.raises(runner_errors()):
                await failing.wait(timeout=90)
            for id in many:
                while not await past(database, id):
                    await handle.wait(timeout=90)
    finally:
        runner.disconnect()
    for id in (int(handle), *many):
        row = await past(database, id)
        assert row
        assert (row["state"], row["key"], row["handler"]) == ("succeeded", TEXT, "enc.work")
        assert json.loads(row["result"]) == {TEXT: TEXT}
        assert json.loads(row["payload"]) == {"text": TEXT}
    [attempt] = await attempts(database, int(failing))
    assert (attempt["error_type"], attempt["message"]) == ("ValueError", TEXT)
    findings = [finding.found for finding in [f async for f in run_checks(encoded)] if finding.topic == "encoding"]
    name = database.url.rpartition("_")[2].partition("?")[0]
    assert bool(findings) is (name not in ("utf8", "ascii"))
    await database.dispose()


def runner_errors() -> type[Exception]:
    from runner.errors import TaskFailed

    return TaskFailed


@given(st.text(), st.sampled_from(["LATIN1", "WIN1252", "EUC_JP", "KOI8R", "EUC_CN", "EUC_TW"]))
def test_an_escaped_text_fits_and_comes_back(text: str, encoding: str) -> None:
    codec = codec_of(encoding)
    assert codec
    stored = escaped(text, codec)
    stored.encode(codec)
    if "\\u" not in text and not any("\ud800" <= character <= "\udfff" for character in text):
        assert unescaped(stored, codec) == text


def test_escapes_of_json_keep_its_meaning() -> None:
    document = json.dumps({TEXT: [TEXT]}, ensure_ascii=False)
    assert json.loads(escaped(document, "latin-1")) == {TEXT: [TEXT]}
