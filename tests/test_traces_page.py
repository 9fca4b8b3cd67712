"""The programs of docs/traces.md run, and their output is as the page describes it."""

import json
import sys
from pathlib import Path

import pytest

from runner.model.headers import TRACE_HEADERS
from tests.pages import DOCS, run, save

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

PROGRAM = """
import structlog
import structured_logs
from runner import handler
from runner.testing import TaskStore

@handler("shop.charge")
def charge() -> None:
    structlog.get_logger().info("charged")

@handler("shop.ship")
async def ship() -> None:
    structlog.get_logger().info("shipped")

with TaskStore("sqlite:///shop.db") as store:
    charge.options(headers={"traceparent": "00-%s-00f067aa0ba902b7-01"}).submit()
    ship.submit()
    store.drain()
structlog.get_logger().info("outside")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The modules of the page."""
    save(DOCS / "traces.md", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_recipe_for_structlog_binds_the_task(folder: Path) -> None:
    lines = [json.loads(line) for line in run(folder, sys.executable, "-c", PROGRAM % TRACE).splitlines()]
    names = ("event", "task", "handler", "attempt", "trace_id")
    assert [tuple(line.get(name) for name in names) for line in lines] == [
        ("charged", 1, "shop.charge", 1, TRACE),
        ("shipped", 2, "shop.ship", 1, None),
        ("outside", None, None, None, None),
    ]


@pytest.mark.parametrize("module", ["telemetry", pytest.param("errors", marks=pytest.mark.slow)])
def test_one_line_switches_an_integration_on(folder: Path, module: str) -> None:
    program = f"import {module}; from runner.handlers.hooks import LIFE_CYCLE as registered; "
    assert run(folder, sys.executable, "-c", f"{program}print(len(registered.of('around_execute')))") == "1\n"


def test_importing_runner_loads_no_integration(tmp_path: Path) -> None:
    program = "import sys, runner; print([name for name in sys.modules if name.startswith(('opentele', 'sentry'))])"
    assert run(tmp_path, sys.executable, "-c", program) == "[]\n"


def test_the_page_about_headers_names_those_of_a_trace() -> None:
    page = (DOCS / "submitting.md").read_text()
    assert [name for name in TRACE_HEADERS if f"`{name}`" not in page] == []
