"""The application of docs/fastapi.md works on each database, with its own tests, and with a runner inside of it."""

import sys
from pathlib import Path

import pytest

from tests.conftest import on_postgresql, on_sqlite
from tests.pages import DOCS, python, run, save

PROGRAM = """
import asyncio, httpx, {module} as shop

async def main():
    transport = httpx.ASGITransport(shop.app)
    async with (
        shop.app.router.lifespan_context(shop.app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        orders = [await client.post("/orders", params={"cents": cents}) for cents in (500, -1, 700)]
        assert [order.status_code for order in orders] == [201, 422, 201], [order.text for order in orders]
        tasks = [order.json()["task"] for order in orders if order.status_code == 201]
        results = [await client.get(f"/tasks/{task}", params={"wait": 20}, timeout=60) for task in tasks]
        assert [result.json()["result"]["points"] for result in results] == [5, 7], [result.text for result in results]

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The modules of the page."""
    save(DOCS / "fastapi.md", tmp_path)
    return tmp_path


@pytest.mark.slow
@on_sqlite
def test_the_documented_tests_pass(folder: Path, databases: object) -> None:
    assert "3 passed" in run(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider")


@pytest.mark.parametrize(
    ("databases", "driver"),
    [("sqlite", "sqlite+aiosqlite"), pytest.param("postgresql", "postgresql+asyncpg", marks=pytest.mark.slow)],
    indirect=["databases"],
)
def test_the_embedded_runner_executes_tasks_of_requests(folder: Path, migrated_url: str, driver: str) -> None:
    url = driver + migrated_url[migrated_url.index(":") :]
    program = PROGRAM.replace("{module}", "shop")
    python(folder, program, APP_URL=url, TASKTUI_URL=migrated_url, EMBED_RUNNER="1")


@pytest.mark.slow
@on_postgresql
def test_the_application_with_asyncpg_works(folder: Path, migrated_url: str) -> None:
    program = PROGRAM.replace("{module}", "shop_asyncpg")
    python(folder, program, APP_URL="sqlite+aiosqlite://", TASKTUI_URL=migrated_url)
