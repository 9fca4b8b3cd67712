import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from runner import Context
from sample_handlers import parse_source
from tests.sample_handlers.conftest import LIBRARY

SOURCE = b"""
import os
from pathlib import Path

class Gate:
    def open(self): ...
    async def close(self): ...
"""


def test_definitions_are_counted(ctx: Context, file: Callable[[bytes], Path]) -> None:
    assert parse_source(ctx, file(SOURCE)) == {"imports": 2, "classes": 1, "functions": 2}


def test_the_library_can_be_parsed(ctx: Context) -> None:
    assert parse_source(ctx, LIBRARY / "json" / "decoder.py")["classes"] == 2


def test_a_coding_line_is_obeyed(ctx: Context, file: Callable[[bytes], Path]) -> None:
    assert parse_source(ctx, file(b"# coding: latin-1\ndef caf\xe9(): ...\n")) == {"functions": 1}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"def broken(:\n", "invalid syntax"),
        (b"# coding: uft-8\n", "unknown encoding"),
        (b'"\xe4"\n', "(?i)unicode error|non-utf-8"),
    ],
)
def test_bad_source_is_a_syntax_error(ctx: Context, file: Callable[[bytes], Path], source: bytes, message: str) -> None:
    with pytest.raises(SyntaxError, match=message):
        parse_source(ctx, file(source))


def test_a_missing_file_is_reported(ctx: Context, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        parse_source(ctx, tmp_path / "gone.py")


def test_odd_code_gives_no_warning(ctx: Context, file: Callable[[bytes], Path]) -> None:
    odd = file(b"'\\d' is 'x'\n")
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        parse_source(ctx, odd)
    assert records == []


def test_a_terminated_task_leaves_no_half_count(ctx: Context, file: Callable[[bytes], Path]) -> None:
    ctx.stop.set()
    with pytest.raises(InterruptedError):
        parse_source(ctx, file(SOURCE))
