"""Handlers to learn from: three that read source files. Load them with `-H sample_handlers`.

parse.py     a plain function, which runs in a thread; whatever it raises is tried again
count.py     an exception that no retry can mend
digest.py    an async function that decides for itself: again, not now, or never
"""

from sample_handlers.count import count_words
from sample_handlers.digest import digest_file
from sample_handlers.parse import parse_source

__all__ = ["count_words", "digest_file", "parse_source"]
