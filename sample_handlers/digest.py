"""source.digest: the checksum of a file that nobody is writing to."""

import asyncio
import hashlib
import os
import time
from pathlib import Path

from runner import Context, Dead, Retry, Snooze, handler

CHUNK = 64 * 1024
"""Bytes that are read at a time."""

LARGEST = 256 * 1024
"""Bytes of a file that is still taken."""

FRESH = 1.0
"""Seconds after the last write for which a file may still be in the making."""


@handler("source.digest", queue="digest", retry="1s,5s,30s", timeout="1m")
async def digest_file(ctx: Context, path: Path) -> dict[str, str | int] | Retry | Dead | Snooze:
    """Compute the SHA-256 of a file.

    Args:
        ctx: of the task.
        path: the file.

    Returns:
        The digest and the bytes that were read; or that the file is too large, is being written, or changed meanwhile.

    Raises:
        OSError: when it cannot be read.
    """
    before = path.stat()
    if before.st_size > LARGEST:
        return Dead(f"the file has {before.st_size} bytes, more than the {LARGEST} allowed")
    if 0 <= time.time() - before.st_mtime < FRESH:
        return Snooze("1s", why="the file was written a moment ago and may not be whole yet")
    digest = await _sha256(path)
    if not _same(before, path.stat()):
        ctx.logger.info("%s changed while it was read", path)
        return Retry(why="the file changed while it was read")
    return {"sha256": digest, "bytes": before.st_size}


async def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        # Reading a disk may take a while: in a thread, so that other tasks go on.
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _same(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
