"""Files and tasks for the sample handlers."""

import logging
import os
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runner import Context

LIBRARY = Path(sysconfig.get_path("stdlib"))


@pytest.fixture
def ctx() -> Context:
    """The context of a first attempt without a deadline."""
    logger = logging.LoggerAdapter(logging.getLogger("tests"), {})
    return Context(1, None, 1, 3, 1, None, logger, stop=threading.Event())


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], Path]:
    """Create a file with this content whose last write was an hour ago."""

    def make(content: bytes) -> Path:
        path = tmp_path / "file.py"
        path.write_bytes(content)
        settle(path)
        return path

    return make


def settle(path: Path) -> None:
    an_hour_ago = time.time() - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))
