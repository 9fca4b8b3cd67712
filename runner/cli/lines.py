"""Lines of a file or a pipe, as they come: numbered, limited in length, with a sign when no more is there yet."""

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from runner.errors import InvalidInput

BLOCK = 64 * 1024


class Line(NamedTuple):
    """One line.

    Args:
        number: from 1.
        text: without its end; None when it is too long or not UTF-8.
        problem: why there is no text.
    """

    number: int
    text: str | None
    problem: str = ""


@contextmanager
def reading(path: str) -> Iterator[int]:
    """Open a file, or standard input for `-`, and give its descriptor.

    Raises:
        InvalidInput: it cannot be read.
    """
    if path == "-":
        yield 0
        return
    try:
        number = os.open(path, os.O_RDONLY)
        os.read(number, 0)  # a folder can be opened, but not read
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(why=f"{path} cannot be read: {why}") from None
    try:
        yield number
    finally:
        os.close(number)


def read_lines(descriptor: int, limit: int) -> Iterator[Line | None]:
    """Read lines as they come.

    Args:
        descriptor: of a file or a pipe.
        limit: bytes of a line; a longer one is passed over.

    Yields:
        Each line that is not blank; None when no more can be read without waiting, so that what was read is not kept
        waiting either.
    """
    number, rest, too_long = 0, b"", False
    while block := os.read(descriptor, BLOCK):
        *whole, rest = (rest + block).split(b"\n")
        for raw in whole:
            number += 1
            yield from _line(number, raw, limit if not too_long else -1)
            too_long = False
        if len(rest) > limit:
            rest, too_long = b"", True
        if not select.select([descriptor], [], [], 0)[0]:
            yield None
    if rest or too_long:
        yield from _line(number + 1, rest, limit if not too_long else -1)


def _line(number: int, raw: bytes, limit: int) -> Iterator[Line]:
    if len(raw) > limit:
        yield Line(number, None, f"it is longer than {max(limit, 0) or 'allowed'} bytes")
        return
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        yield Line(number, None, "it is not UTF-8 text")
        return
    if text:
        yield Line(number, text)
