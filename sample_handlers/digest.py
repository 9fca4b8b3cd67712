"""source.digest: compute the checksum of a file that is not being written."""

import asyncio
import hashlib
import os
import time
from pathlib import Path

from runner import Context, Dead, Retry, Snooze, handler

BLOCK_SIZE = 64 * 1024
"""Bytes per read."""

LARGEST = 256 * 1024
"""Maximum size of a file in bytes."""

SETTLE_TIME = 1.0
"""Seconds after the last write during which a file counts as incomplete."""


@handler("source.digest", queue="digest", retry="1s,5s,30s", timeout="1m")
async def digest_file(ctx: Context, path: Path) -> dict[str, str | int] | Retry | Dead | Snooze:
    """Compute the SHA-256 of a file.

    Args:
        ctx: the context of the attempt.
        path: the file.

    Returns:
        The digest and the size in bytes; Dead if the file is too large, Snooze if it was written just now, Retry if it
        changed during the read.

    Raises:
        OSError: the file cannot be read.
    """
    before = path.stat()
    if before.st_size > LARGEST:
        return Dead(f"the file has {before.st_size} bytes; the limit is {LARGEST}")
    if 0 <= time.time() - before.st_mtime < SETTLE_TIME:
        return Snooze("1s", why="the file was written less than a second ago and may be incomplete")
    digest = await _sha256(path)
    if not _unchanged(before, path.stat()):
        ctx.logger.info("%s changed during the read", path)
        return Retry(why="the file changed during the read")
    return {"sha256": digest, "bytes": before.st_size}


async def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        # Reads can be slow. A thread keeps the event loop free for other tasks.
        while chunk := await asyncio.to_thread(file.read, BLOCK_SIZE):
            digest.update(chunk)
    return digest.hexdigest()


def _unchanged(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
