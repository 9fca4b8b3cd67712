"""The examples of docs/transactions.md work unchanged: both rows are stored, or neither."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runner.client.external import AWAITED, PLAIN
from tests.pages import DOCS, README, blocks, python, save
from tests.shells import shell_of

PAGE = DOCS / "transactions.md"

PLAIN_PROGRAM = """
import shop, sqlalchemy as sa
shop.buy(7, 500)
try:
    shop.buy(8, None)
except sa.exc.IntegrityError:
    pass
"""

DJANGO_MODELS = """
from django.db import models

class Order(models.Model):
    cents = models.IntegerField()

    class Meta:
        app_label, db_table, managed = "orders", "customer_order", False
"""

DJANGO_PROGRAM = """
import os, django
from django.conf import settings
from django.db import connection, transaction
from django.test import RequestFactory

settings.configure(DATABASES={"default": eval(os.environ["DJANGO_DATABASE"])}, INSTALLED_APPS=["orders"])
django.setup()
import views
from coupons import send_coupon
from runner.errors import AutocommitConnection

buying = RequestFactory().post("/", {"cents": "500"})
assert views.buy(buying).status_code == 200
try:
    with transaction.atomic():
        views.buy(buying)
        raise LookupError
except LookupError:
    pass
connection.ensure_connection()
try:
    send_coupon.options(tx=connection.connection).submit(user_id=9)
except AutocommitConnection:
    pass
else:
    raise SystemExit("the submit was accepted")
connection.close()
"""

FASTAPI_PROGRAM = """
import asyncio, httpx, app

async def main():
    transport = httpx.ASGITransport(app.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert (await client.post("/orders", params={"cents": 500})).status_code == 200
        assert (await client.post("/orders", params={"cents": -1})).status_code == 422
    await app.engine.dispose()

asyncio.run(main())
"""

SERIAL = {"sqlite": "INTEGER PRIMARY KEY", "postgresql": "integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY"}


@pytest.fixture
def shop(tmp_path: Path, migrated_url: str) -> Path:
    """A folder with the modules of the page, and a database with a table for orders."""
    save(README, tmp_path)
    save(PAGE, tmp_path)
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "__init__.py").touch()
    (tmp_path / "orders" / "models.py").write_text(DJANGO_MODELS)
    serial = SERIAL[migrated_url.partition(":")[0]]
    shell_of(migrated_url)(f"CREATE TABLE customer_order(id {serial}, cents INTEGER NOT NULL)")
    return tmp_path


def run(program: str, folder: Path, **environment: str) -> None:
    # TASKTUI_URL names an unreachable server, so every statement must use the application's connection.
    unreachable = {"TASKTUI_URL": "postgresql://127.0.0.1:1/nowhere", "PYTHONPATH": str(folder)}
    python(folder, program, **unreachable | environment)


def stored(url: str) -> list[Any]:
    """The amounts of the orders and the keys of the tasks."""
    shell = shell_of(url)
    cents, keys = shell("SELECT cents FROM customer_order").split(), shell("SELECT key FROM task").split()
    return [cents, keys]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "own_orders", "own_keys"), [(README, ["499"], ["user-10"]), (PAGE, [], [])], ids=["readme", "page"]
)
@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_the_example_for_sqlalchemy(
    shop: Path, migrated_url: str, page: Path, own_orders: list[str], own_keys: list[str]
) -> None:
    (example,) = [block.text for block in blocks(page, "python") if block.first == "# shop.py"]
    (shop / "shop.py").write_text(example)
    (shop / "test.db").rename(shop / "tasktui.db")
    run(PLAIN_PROGRAM, shop)
    assert stored(f"sqlite:///{shop / 'tasktui.db'}") == [[*own_orders, "500"], [*own_keys, "user-7"]]


@pytest.mark.slow
def test_the_example_for_django(shop: Path, migrated_url: str) -> None:
    run(DJANGO_PROGRAM, shop, DJANGO_DATABASE=json.dumps(django_database(migrated_url)))
    assert stored(migrated_url) == [["500"], ["order-1"]]


def django_database(url: str) -> dict[str, str]:
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    names = ("USER", "HOST", "PORT", "NAME")
    (parts,) = re.findall(r"//(\w+)@([^:]+):(\d+)/(\w+)", url)
    return {"ENGINE": "django.db.backends.postgresql"} | dict(zip(names, parts, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("databases", "driver"),
    [
        pytest.param("sqlite", "sqlite+aiosqlite", marks=pytest.mark.slow),
        ("postgresql", "postgresql+asyncpg"),
        pytest.param("postgresql", "postgresql+psycopg", marks=pytest.mark.slow),
    ],
    indirect=["databases"],
)
def test_the_example_for_fastapi(shop: Path, migrated_url: str, driver: str) -> None:
    run(FASTAPI_PROGRAM, shop, APP_URL=driver + migrated_url[migrated_url.index(":") :])
    assert stored(migrated_url) == [["500"], ["order-1"]]


def test_every_kind_of_connection_is_listed() -> None:
    listed = PAGE.read_text().partition("## Supported connections")[2].partition("##")[0]
    for library, name in [*PLAIN, *AWAITED]:
        assert library in listed.lower()
        assert f"`{name}`" in listed or name == "PoolConnectionProxy"
