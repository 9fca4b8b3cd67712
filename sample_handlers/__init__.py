"""Sample handlers that read source files. Load them with `-H sample_handlers`.

parse.py     a plain function, which runs in a thread; every exception is retried
count.py     an exception that is final, because a retry cannot help; a schedule counts its own words each night
digest.py    a coroutine that returns its outcome: retry, snooze or dead
tree.py      a long task with checkpoints, progress and log lines
"""

from sample_handlers.count import count_words
from sample_handlers.digest import digest_file
from sample_handlers.parse import parse_source
from sample_handlers.tree import digest_tree

__all__ = ["count_words", "digest_file", "digest_tree", "parse_source"]
