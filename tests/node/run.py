"""Programs in Node, with the packages that `npm ci --prefix tests/node` installs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PACKAGES = Path(__file__).parent / "node_modules"


def run(program: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a module in an empty folder and return what came of it; skip the test where Node or its packages are not."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("There is no node on this machine.")
    if not (PACKAGES / "pg").exists():
        pytest.skip("The packages of the Node tests are not installed: npm ci --prefix tests/node")
    (folder / "program.mjs").write_text(program)
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(PACKAGES)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TASKTUI_", "PG", "NODE_"))}
    command = [node, "program.mjs"]
    return subprocess.run(command, cwd=folder, env=kept | environment, capture_output=True, text=True, check=False)


def pyright(*arguments: object) -> dict[str, Any]:
    """Check types with pyright and return its report; skip the test where it is not installed."""
    node = shutil.which("node")
    if node is None or not (PACKAGES / "pyright").exists():
        pytest.skip("pyright is not installed: npm ci --prefix tests/node")
    command = [node, PACKAGES / "pyright" / "index.js", *arguments, "--pythonpath", sys.executable, "--outputjson"]
    output = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False).stdout
    report: dict[str, Any] = json.loads(output)
    return report
