"""docs/frameworks.md: each application submits and reads a result, with a runner inside of it or beside it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pages import DOCS, RUNNER, blocks, run, save

pytestmark = pytest.mark.one_database

PAGE = DOCS / "frameworks.md"

FLASK = """
from runner import Runner
from shop_flask import app

with Runner(), app.test_client() as client:
    created = client.post("/orders", data={"order": 7})
    print(created.status_code, client.get(f"/tasks/{created.json['task']}").json)
"""

FACTORY = """
from runner import Runner, connect
from blog import create_app
from blog.tasks import export

connect(url="sqlite:///shop.db")
with Runner(), create_app().test_client() as client:
    created = client.post("/exports/7")
    print(created.status_code, export.task_handle(created.json["task"]).result(timeout=30))
"""

LITESTAR = """
from litestar.testing import TestClient
from shop_litestar import app

with TestClient(app) as client:
    created = client.post("/orders?order=7")
    print(created.status_code, client.get(f"/tasks/{created.json()['task']}").json())
"""

STARLETTE = """
import asyncio, httpx
from shop_starlette import app

async def main():
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        created = await client.post("/orders/7")
        print(created.status_code, (await client.get(f"/tasks/{created.json()['task']}")).json())

asyncio.run(main())
"""

QUART = """
import asyncio
from shop_quart import app

async def main():
    async with app.test_app() as running:
        client = running.test_client()
        created = await client.post("/orders/7")
        task = (await created.get_json())["task"]
        print(created.status_code, await (await client.get(f"/tasks/{task}")).get_json())

asyncio.run(main())
"""

SQLMODEL = """
import time
from runner import Runner
from sqlmodel import Session
from shop_sqlmodel import Order, create, engine

order, end = create(500), time.monotonic() + 30
with Runner():
    paid = False
    while not paid and time.monotonic() < end:
        time.sleep(0.05)
        with Session(engine) as session:
            paid = session.get_one(Order, order).paid
print("paid", paid)
"""

PROGRAMS = {
    "flask": (FLASK, "202 {'result': 'shop_flask confirms order 7'}"),
    "flask factory": (FACTORY, "202 ana exports the posts of user 7"),
    "litestar": (LITESTAR, "201 {'result': 'confirmed order 7'}"),
    "starlette": (STARLETTE, "202 {'result': 'confirmed order 7'}"),
    "quart": (QUART, "202 {'result': 'shop_quart confirms order 7'}"),
    "sqlmodel": (SQLMODEL, "paid True"),
}
"""A program that uses the application of each framework, and its output."""


@pytest.mark.slow
@pytest.mark.parametrize("framework", PROGRAMS)
def test_the_application_of_the_page_works(tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework.partition(" ")[0], reason="needs the group frameworks of packages")
    save(PAGE, tmp_path)
    program, output = PROGRAMS[framework]
    run(tmp_path, RUNNER, "migrate", "--url", "sqlite:///shop.db")
    assert output in run(tmp_path, sys.executable, "-c", program)


@pytest.mark.slow
def test_the_cells_of_the_notebook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the group frameworks of packages")
    nbformat: Any = pytest.importorskip("nbformat")

    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    cells = [block.text for block in blocks(PAGE, "python") if block.first.startswith("# cell")]
    again = "try:\n    square.submit(1)\nexcept Exception as error:\n    print(type(error).__name__)"
    cells = [*cells, cells[0].replace("number * number", "-number"), cells[1], again]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    values = [[output["data"]["text/plain"] for output in cell.outputs if "data" in output] for cell in notebook.cells]
    assert values[1] == ["[0, 1, 4, 9, 16]"]
    assert values[3] == ["[0, -1, -2, -3, -4]"]
    assert notebook.cells[4].outputs[0]["text"] == "WouldBlock\n"
