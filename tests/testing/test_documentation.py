"""The example of docs/testing.md works unchanged."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_readme import DOCS, blocks


@pytest.mark.slow
def test_the_documented_tests_pass(tmp_path: Path) -> None:
    conftest, tests = (block.text for block in blocks(DOCS / "testing.md", "python"))
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_shop.py").write_text(tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:asyncio",
        "-W",
        "error",
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 passed" in run.stdout
