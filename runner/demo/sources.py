"""What the demo works on: the source files of the Python that runs it."""

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
"""Folders inside the library's that hold other people's packages, or no source."""

BROKEN = "test/tokenizedata"
"""Where Python keeps source that no parser takes, to test its own; many distributions leave it out."""

SUBSTITUTES = {
    "bad_syntax.py": b"def broken(:\n    pass\n",
    "bad_coding.py": b"# coding: uft-8\nprint('the coding line has a slip of the pen')\n",
    "undecodable.py": b"print('caf\xe9')\n",
    "too_large.py": b"# One of very many lines that say the same.\n" * 6_500,
}
"""Files that fail, for a Python that comes without its own."""


class Source(NamedTuple):
    """One file.

    Args:
        path: absolute.
        name: relative to the library, with slashes.
    """

    path: Path
    name: str


def library(root: Path = LIBRARY) -> list[Source]:
    """Find every source file of the standard library.

    Args:
        root: the library's folder.

    Returns:
        The files, mixed in an order that is always the same, so that small and large ones take turns.
    """
    found = [Source(path, path.relative_to(root).as_posix()) for path in _files(root)]
    return sorted(found, key=lambda source: (zlib.crc32(source.name.encode()), source.name))


def is_complete(sources: list[Source]) -> bool:
    """Tell whether the library came with its broken files."""
    return any(source.name.startswith(BROKEN) for source in sources)


def substitutes() -> list[Source]:
    """Write the files that stand in for the broken ones; they stay, since a task may be run again much later.

    Raises:
        OSError: when there is no room for them anywhere.
    """
    folder = _folder()
    made = [Source(folder / name, f"demo/{name}") for name in SUBSTITUTES]
    for source in made:
        source.path.write_bytes(SUBSTITUTES[source.path.name])
    return made


def _files(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in FOREIGN]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _folder() -> Path:
    folder = platformdirs.user_cache_path("tasktui") / "demo"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # no home, or none that may be written to
        return Path(tempfile.mkdtemp(prefix="tasktui-demo-"))
    return folder
