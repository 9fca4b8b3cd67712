"""Node submits with plain SQL, as docs/sql.md says, and its tasks are like any other."""

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runner import Context
from tests.engine.conftest import harness
from tests.engine.harness import Harness
from tests.node.run import run
from tests.pages import DOCS, blocks

__all__ = ["harness"]

pytestmark = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)

TABLE = "CREATE TABLE customer_order(id INTEGER PRIMARY KEY, cents INTEGER)"

WRONG = """
import pg from "pg";
const client = new pg.Client(process.env.TASKTUI_URL);
await client.connect();
for (const [columns, values] of [
  ["handler, priority", ["work", 99]],
  ["handler, payload", ["work", [1]]],
  ["handler, payload", ["work", "{"]],
  ["handler, run_at", ["work", "infinity"]],
  ["handler, run_at", ["work", new Date(NaN)]],
  ["handler, payload", ["work", null]],
  ["handler", [""]],
  ["handler", ["no\\u0000pe"]],
  ["handler, headers", ["work", "{"]],
  ["handler, headers", ["work", [1]]],
]) {
  const marks = values.map((_, place) => `$${place + 1}`).join(", ");
  try {
    await client.query(`INSERT INTO task(${columns}) VALUES (${marks})`, values);
    console.log("taken", columns, values);
  } catch (error) {
    console.log("refused");
  }
}
const later = new Date(Date.UTC(2100, 0, 2, 3, 4, 5, 678));
const odd = { text: "\\u00e9 \\ud83d\\ude00 '\\"\\\\", deep: [[{}]], none: null };
await client.query(
  "INSERT INTO task(handler, payload, run_at, headers) VALUES ($1, $2, $3, $4)",
  ["odd", odd, later, { request_id: "\\u00e9" }],
);
await client.end();
"""


@pytest.fixture
def documented() -> str:
    (block,) = blocks(DOCS / "sql.md", "js")
    return block.text


@pytest.fixture
def shop(migrated_url: str) -> "psycopg.Connection[Any]":
    connection = psycopg.connect(migrated_url, autocommit=True)
    connection.execute(TABLE)
    connection.execute("LISTEN task")
    return connection


def row_counts(shop: "psycopg.Connection[Any]") -> tuple[int, int]:
    """How many orders and how many tasks there are."""
    (row,) = shop.execute("SELECT (SELECT count(*) FROM customer_order), (SELECT count(*) FROM task)").fetchall()
    return row[0], row[1]


def test_the_documented_program_stores_both_and_wakes_runners(
    tmp_path: Path, migrated_url: str, shop: "psycopg.Connection[Any]", documented: str
) -> None:
    with shop:
        done = run(documented, tmp_path, TASKTUI_URL=migrated_url)
        assert done.returncode == 0, done.stderr
        rows = shop.execute("SELECT id, handler, payload, key, headers FROM task").fetchall()
        payload, headers = {"order": 18, "cents": 500}, {"request_id": "r-18"}
        assert rows == [(int(done.stdout), "shop.charge", payload, "order-18", headers)]
        assert shop.execute("SELECT id FROM customer_order").fetchall() == [(18,)]
        assert [notice.channel for notice in shop.notifies(timeout=90, stop_after=1)] == ["task"]


@pytest.mark.parametrize("statement", ["INSERT INTO task", "SELECT pg_notify"])
def test_what_fails_in_between_leaves_neither(
    tmp_path: Path, migrated_url: str, shop: "psycopg.Connection[Any]", documented: str, statement: str
) -> None:
    with shop:
        done = run(documented.replace(statement, "SELECT no such"), tmp_path, TASKTUI_URL=migrated_url)
        assert done.returncode != 0
        assert row_counts(shop) == (0, 0)


def test_a_business_rule_that_is_broken_leaves_no_task(
    tmp_path: Path, migrated_url: str, shop: "psycopg.Connection[Any]", documented: str
) -> None:
    with shop:
        shop.execute("INSERT INTO customer_order VALUES (18, 1)")
        assert "customer_order_pkey" in run(documented, tmp_path, TASKTUI_URL=migrated_url).stderr
        assert row_counts(shop) == (1, 0)


def test_a_killed_program_leaves_neither(
    tmp_path: Path, migrated_url: str, shop: "psycopg.Connection[Any]", documented: str
) -> None:
    killed = documented.replace('await client.query("COMMIT");', 'process.kill(process.pid, "SIGKILL");')
    with shop:
        assert run(killed, tmp_path, TASKTUI_URL=migrated_url).returncode == -9
        assert row_counts(shop) == (0, 0)


async def test_what_node_sends_wrong_is_refused_and_the_rest_arrives(tmp_path: Path, harness: Harness) -> None:
    payloads: list[Any] = []
    headers: list[dict[str, str]] = []

    @harness.handler("odd")
    async def odd(ctx: Context, text: str, deep: list[Any], none: None) -> None:
        payloads.append((text, deep, none))
        headers.append(dict(ctx.headers))

    done = run(WRONG, tmp_path, TASKTUI_URL=harness.url)
    assert (done.returncode, re.findall("taken.*", done.stdout)) == (0, []), done.stderr + done.stdout
    assert done.stdout.count("refused") == 10
    await harness.work()
    assert payloads == []
    task = harness.database.tables.task
    (row,) = await harness.rows(task.select())
    assert row.run_at.isoformat() == "2100-01-02T03:04:05.678000+00:00"
    await harness.change(task.update().values(run_at=row.submitted_at))
    await harness.work()
    assert headers == [{"request_id": "é"}]
    assert payloads == [("é 😀 '\"\\", [[{}]], None)]
