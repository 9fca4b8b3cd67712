"""source.parse: read Python source into a syntax tree, and count what it defines."""

import ast
import threading
import warnings
from collections import Counter
from pathlib import Path

from runner import Context, handler

COUNTED: dict[type[ast.AST], str] = {
    ast.FunctionDef: "functions",
    ast.AsyncFunctionDef: "functions",
    ast.ClassDef: "classes",
    ast.Import: "imports",
    ast.ImportFrom: "imports",
}

_quiet = threading.Lock()


@handler("source.parse", queue="parse", retry="1s,5s,30s", timeout="1m")
def parse_source(ctx: Context, path: Path) -> dict[str, int]:
    """Count the functions, classes and imports of a source file.

    Args:
        ctx: of the task.
        path: the file.

    Returns:
        How many there are of each.

    Raises:
        SyntaxError: when it is no Python, or its bytes are not what its coding line says.
        OSError: when it cannot be read.
        InterruptedError: when the task was terminated meanwhile.
    """
    tree = _tree(path)
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if ctx.cancelled:  # a thread cannot be stopped from outside: it looks by itself
            raise InterruptedError("half a count is no result")
        if kind := COUNTED.get(type(node)):
            found[kind] += 1
    return dict(found)


def _tree(path: Path) -> ast.Module:
    source = path.read_bytes()
    # The parser warns of odd code, which is none of ours. Filters belong to the whole process: one thread at a time.
    with _quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source, "file")  # its name would stand in the error: equal errors then looked different
