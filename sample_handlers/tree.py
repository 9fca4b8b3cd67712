"""source.tree: compute the checksum of a directory tree, with a checkpoint after each part."""

import asyncio
import hashlib
import os
from pathlib import Path

from runner import Context, handler

PART = 200
"""Files between two checkpoints."""


@handler("source.tree", queue="digest", timeout="none")
async def digest_tree(ctx: Context, path: Path) -> dict[str, str | int]:
    """Compute one SHA-256 over the names and contents of all files in a directory, in the order of their names.

    The state of a checkpoint is the name of the last file and the digest up to it. After a deploy or a crash the next
    attempt continues after that file.

    Args:
        ctx: the context of the attempt.
        path: the directory.

    Returns:
        The digest and the number of files.
    """
    files = await asyncio.to_thread(_files, path)
    state = ctx.state or {"last": "", "digest": "", "files": 0}
    remaining = [file for file in files if file > state["last"]]
    if state["files"]:
        ctx.logger.info("continuing after %s: %d of %d files are done", state["last"], state["files"], len(files))
    for first in range(0, len(remaining), PART):
        part = remaining[first : first + PART]
        state = await asyncio.to_thread(_chain, path, part, state)
        await ctx.checkpoint(state)
        ctx.progress(state["files"], len(files), "files")
    ctx.logger.info("%d files digested", state["files"])
    return {"sha256": state["digest"], "files": state["files"]}


def _files(path: Path) -> list[str]:
    """Return the names of all files relative to the directory, sorted."""
    names = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    return sorted(str(name.relative_to(path)) for name in names if name.is_file() and not name.is_symlink())


def _chain(path: Path, names: list[str], state: dict[str, str | int]) -> dict[str, str | int]:
    """Chain the digests of files to the digest so far."""
    digest, count = str(state["digest"]), int(state["files"])
    for name in names:
        content = hashlib.sha256((path / name).read_bytes()).hexdigest()
        digest = hashlib.sha256(f"{digest} {name} {content}".encode()).hexdigest()
    return {"last": names[-1], "digest": digest, "files": count + len(names)}
