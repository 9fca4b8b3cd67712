"""source.parse: counts of functions, classes and imports in Python source."""

import ast
import threading
import warnings
from collections import Counter
from pathlib import Path

from runner import Context, handler

KINDS: dict[type[ast.AST], str] = {
    ast.FunctionDef: "functions",
    ast.AsyncFunctionDef: "functions",
    ast.ClassDef: "classes",
    ast.Import: "imports",
    ast.ImportFrom: "imports",
}

_warnings_lock = threading.Lock()


@handler("source.parse", queue="parse", retry="1s,5s,30s", timeout="1m")
def parse_source(ctx: Context, path: Path) -> dict[str, int]:
    """Count the functions, classes and imports of a source file.

    Args:
        ctx: the context of the attempt.
        path: the file.

    Returns:
        The count of each kind; kinds without any are missing.

    Raises:
        SyntaxError: the source is not valid Python, or its bytes do not match its coding line.
        OSError: the file cannot be read.
        InterruptedError: the task was terminated.
    """
    tree = _parse(path)
    counts: Counter[str] = Counter()
    for node in ast.walk(tree):
        if ctx.cancelled:  # Python cannot stop a thread, so the handler checks for itself.
            raise InterruptedError("terminated before the count was complete")
        if kind := KINDS.get(type(node)):
            counts[kind] += 1
    return dict(counts)


def _parse(path: Path) -> ast.Module:
    source = path.read_bytes()
    # The parser warns about odd code in the files. Warning filters are global to the process, hence the lock.
    with _warnings_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A constant name keeps paths out of the error messages, so that equal errors form one failure group.
        return ast.parse(source, "file")
