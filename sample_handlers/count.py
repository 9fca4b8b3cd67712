"""source.count: count the lines and words of a text."""

from pathlib import Path

from runner import handler


# A file that cannot be opened today may be there tomorrow: try again. Bytes that are no UTF-8 stay so: give up at once.
@handler("source.count", queue="count", retry="1s,5s,30s", timeout="1m", on_error=UnicodeDecodeError)
def count_words(path: Path) -> dict[str, int]:
    """Count the lines and words of a file in UTF-8.

    Args:
        path: the file.

    Returns:
        Its lines and words, and the characters of its longest line.

    Raises:
        UnicodeDecodeError: when it is not in UTF-8.
        OSError: when it cannot be read.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    words = sum(len(line.split()) for line in lines)
    return {"lines": len(lines), "words": words, "longest": max(map(len, lines), default=0)}
