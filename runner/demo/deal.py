"""deal: give each source file to one of the sample handlers, as a task."""

import zlib
from collections.abc import Mapping

from runner.demo.sources import Source
from runner.handlers import Handler
from runner.task import NewTask

PARSE, COUNT, DIGEST = HANDLERS = ("source.parse", "source.count", "source.digest")

FAILING: Mapping[str, str] = {
    # No Python, or not in the encoding that it claims.
    "bad_coding.py": PARSE,
    "bad_coding2.py": PARSE,
    "bad_syntax.py": PARSE,
    "badsyntax_3131.py": PARSE,
    "bom.py": PARSE,
    "crlf.py": PARSE,
    "different_encoding.py": PARSE,
    "false_encoding.py": PARSE,
    "py2_test_grammar.py": PARSE,
    # Not in UTF-8.
    "badsyntax_pep3120.py": COUNT,
    "module_iso_8859_1.py": COUNT,
    "module_koi8_r.py": COUNT,
    "undecodable.py": COUNT,
    # Too large.
    "datetimetester.py": DIGEST,
    "test_typing.py": DIGEST,
    "too_large.py": DIGEST,
    "topics.py": DIGEST,
}
"""The handler that each of these files is a trouble to: dealt out blindly, a handler might meet none."""

RETRY = "200ms,500ms"
"""The handlers' own stages are long enough for real trouble to pass, and too long to watch."""

MAX_ATTEMPTS = 3


def deal(sources: list[Source], handlers: Mapping[str, Handler], by: str) -> list[NewTask]:
    """Make a task for each file; those that will fail come first, so that their retries pass while others run.

    Args:
        sources: the files.
        handlers: the sample handlers, by name.
        by: who submits.
    """
    ordered = sorted(sources, key=lambda source: source.path.name not in FAILING)
    return [_task(source, handlers[_chosen(source)], by) for source in ordered]


def _chosen(source: Source) -> str:
    return FAILING.get(source.path.name) or HANDLERS[zlib.crc32(source.name.encode()) % len(HANDLERS)]


def _task(source: Source, handler: Handler, by: str) -> NewTask:
    return NewTask(
        handler=handler.name,
        payload=handler.signature.encode((), {"path": source.path}),
        queue=handler.defaults.queue,
        key=source.name,
        retry=RETRY,
        max_attempts=MAX_ATTEMPTS,
        submitted_by=by,
    )
