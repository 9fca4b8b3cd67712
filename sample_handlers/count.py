"""source.count: count the lines and words of a text file."""

from pathlib import Path

from runner import handler, schedule


# A missing file may appear before the next attempt. Invalid UTF-8 stays invalid, so that error is final.
@schedule("0 3 * * *", id="source.count.nightly", arguments={"path": __file__})
@handler("source.count", queue="count", retry="1s,5s,30s", timeout="1m", on_error=UnicodeDecodeError)
def count_words(path: Path) -> dict[str, int]:
    """Count the lines and words of a UTF-8 file.

    Args:
        path: the file.

    Returns:
        The counts of lines and words, and the length of the longest line in characters.

    Raises:
        UnicodeDecodeError: the file is not valid UTF-8.
        OSError: the file cannot be read.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    words = sum(len(line.split()) for line in lines)
    return {"lines": len(lines), "words": words, "longest": max(map(len, lines), default=0)}
