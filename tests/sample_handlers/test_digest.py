import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from runner import Context, Dead, Retry, Snooze
from sample_handlers import digest_file
from sample_handlers.digest import BLOCK_SIZE, LARGEST
from tests.sample_handlers.conftest import LIBRARY


@pytest.mark.parametrize("size", [0, 1, BLOCK_SIZE, 2 * BLOCK_SIZE + 1, LARGEST])
async def test_the_digest_is_that_of_the_whole_file(ctx: Context, file: Callable[[bytes], Path], size: int) -> None:
    content = b"a" * size
    expected = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": size}
    assert await digest_file(ctx, file(content)) == expected


async def test_the_library_has_digests(ctx: Context) -> None:
    path = LIBRARY / "json" / "decoder.py"
    expected = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
    assert await digest_file(ctx, path) == expected


async def test_a_file_that_is_too_large_is_dead(ctx: Context, file: Callable[[bytes], Path]) -> None:
    outcome = await digest_file(ctx, file(b"a" * (LARGEST + 1)))
    assert outcome == Dead(f"the file has {LARGEST + 1} bytes; the limit is {LARGEST}")


async def test_a_file_just_written_is_put_off(ctx: Context, file: Callable[[bytes], Path]) -> None:
    path = file(b"half")
    path.write_bytes(b"half of it")
    assert isinstance(await digest_file(ctx, path), Snooze)


async def test_a_file_that_changes_while_it_is_read_is_tried_again(ctx: Context, file: Callable[[bytes], Path]) -> None:
    path = file(b"a" * LARGEST)
    digest = asyncio.ensure_future(digest_file(ctx, path))
    await asyncio.sleep(0)  # it has looked at the file, and waits for the first piece of it
    with path.open("ab") as writer:
        writer.write(b"and more")
    assert isinstance(await digest, Retry)


async def test_a_missing_file_is_reported(ctx: Context, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await digest_file(ctx, tmp_path / "gone.py")
