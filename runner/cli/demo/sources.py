"""The sample data: the source files of the Python that runs the demo."""

import os
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import platformdirs

LIBRARY = Path(sysconfig.get_path("stdlib"))

FOREIGN = {"site-packages", "dist-packages", "__pycache__"}
"""Folders within the library that contain other packages, or no source."""

BROKEN = "test/tokenizedata"
"""Python's own test files that no parser accepts. Many distributions omit them."""

SUBSTITUTES = {
    "bad_syntax.py": b"def broken(:\n    pass\n",
    "bad_coding.py": b"# coding: uft-8\nprint('the coding line has a typo')\n",
    "undecodable.py": b"print('caf\xe9')\n",
    "too_large.py": b"# One of many lines that repeat this text.\n" * 6_500,
}
"""Files that fail, for a Python without the broken test files."""


class SourceFile(NamedTuple):
    """A source file.

    Args:
        path: absolute path.
        name: path relative to the library, with slashes.
    """

    path: Path
    name: str


def library(root: Path = LIBRARY) -> list[SourceFile]:
    """List the source files of the standard library.

    Args:
        root: folder of the library.

    Returns:
        The files in a fixed order that mixes small and large ones.
    """
    sources = [SourceFile(path, path.relative_to(root).as_posix()) for path in _files(root)]
    return sorted(sources, key=lambda source: (zlib.crc32(source.name.encode()), source.name))


def is_complete(sources: list[SourceFile]) -> bool:
    """True if the library includes its broken files."""
    return any(source.name.startswith(BROKEN) for source in sources)


def substitutes() -> list[SourceFile]:
    """Write substitutes for the broken files. They stay on disk because a task may be retried much later.

    Raises:
        OSError: no folder is writable.
    """
    folder = _folder()
    sources = [SourceFile(folder / name, f"demo/{name}") for name in SUBSTITUTES]
    for source in sources:
        source.path.write_bytes(SUBSTITUTES[source.path.name])
    return sources


def _files(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in FOREIGN]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _folder() -> Path:
    folder = platformdirs.user_cache_path("tasktui") / "demo"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # no home folder, or a read-only one
        return Path(tempfile.mkdtemp(prefix="tasktui-demo-"))
    return folder
