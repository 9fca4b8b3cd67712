"""The rules of the house, held by machine: who imports whom, how long things are, where states are written."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parent.parent
PACKAGES = ("runner", "tasktui", "sample_handlers")
LONGEST_MODULE = 300
LONGEST_FUNCTION = 60
LONGEST_LINE = 120
VAGUE_NAMES = {"base", "common", "helpers", "manager", "misc", "utils"}
STATES = {"waiting", "running", "blocked", "succeeded", "dead", "cancelled"}
HEAVY = {"sqlalchemy", "apscheduler", "textual", "alembic"}
PUBLIC_INDEX = "https://pypi.org/simple"
PUBLIC_HOSTS = {"pypi.org", "files.pythonhosted.org"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(*packages: str) -> list[Path]:
    """Every module of these packages but the migrations, which are history and keep what they were written with."""
    found = (module for package in packages for module in (PROJECT / package).rglob("*.py"))
    return sorted(module for module in found if "migrations" not in module.parts)


def place(module: Path, line: int = 1) -> str:
    return f"{module.relative_to(PROJECT)}:{line}"


def too_long_modules(limit: int) -> Iterator[str]:
    for module in modules(*PACKAGES):
        length = len(module.read_text().splitlines())
        if length > limit:
            yield f"{place(module)}: {length} lines, {limit} at most"


def too_long_functions(limit: int) -> Iterator[str]:
    for module in modules(*PACKAGES):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, Function) and (length := function_length(node)) > limit:
                yield f"{place(module, node.lineno)}: {node.name} has {length} lines, {limit} at most"


def too_long_lines(limit: int) -> Iterator[str]:
    """Lines of text in the pages: rows of tables and statements cannot be wrapped."""
    for page in [*PROJECT.glob("*.md"), *(PROJECT / "docs").glob("*.md")]:
        code = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            code ^= line.lstrip().startswith("```")
            if len(line) > limit and not code and not line.lstrip().startswith("|"):
                yield f"{place(page, number)}: {len(line)} characters, {limit} at most"


def function_length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def docstrings(tree: ast.Module) -> set[ast.expr]:
    """The strings that stand as statements of their own: documentation, of whatever stands above them."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def state_literals(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    spared = docstrings(tree) | subscripts(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in STATES and node not in spared:
            yield node.lineno, str(node.value)


def subscripts(tree: ast.Module) -> set[ast.AST]:
    """What stands in brackets names a column, or a type: it is looked up, and not written."""
    return {inner for node in ast.walk(tree) if isinstance(node, ast.Subscript) for inner in ast.walk(node.slice)}


def stray_state_literals() -> Iterator[str]:
    tables = PROJECT / "runner" / "schema"
    for module in modules("runner"):
        if module != PROJECT / "runner" / "task.py" and not module.is_relative_to(tables):
            yield from (f"{place(module, line)}: {state!r}" for line, state in state_literals(module.read_text()))


def in_a_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    return done.stdout.strip()


def test_imports_point_one_way() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run([lint, "--no-cache"], capture_output=True, text=True, check=False, cwd=PROJECT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_names_for_applications_load_nothing_heavy() -> None:
    assert in_a_fresh_python(f"import sys; from runner import *; print({HEAVY} & sys.modules.keys())") == "set()"


def test_the_database_is_asked_before_anything_that_draws_is_loaded() -> None:
    loaded = in_a_fresh_python("import sys, tasktui.start.starting; print({'textual', 'rich'} & sys.modules.keys())")
    assert loaded == "set()"


def test_the_lock_file_knows_no_index_but_the_public_one() -> None:
    lock = (PROJECT / "uv.lock").read_text()
    assert set(re.findall(r'registry = "([^"]+)"', lock)) == {PUBLIC_INDEX}
    assert set(re.findall(r'\w+://([^/"\s]+)', lock)) == PUBLIC_HOSTS


def test_no_module_is_too_long() -> None:
    assert list(too_long_modules(LONGEST_MODULE)) == []


def test_no_function_is_too_long() -> None:
    assert list(too_long_functions(LONGEST_FUNCTION)) == []


def test_no_line_of_a_page_is_too_long() -> None:
    assert not list(too_long_lines(LONGEST_LINE))
    assert list(too_long_lines(40)), "the rule looks at nothing"


def test_states_are_written_in_one_place() -> None:
    assert list(stray_state_literals()) == []


def test_a_state_literal_is_found_wherever_it_hides() -> None:
    source = 'def f(state: str = "dead"):\n    """Running."""\n    return {"running": [f"{state}", "waiting"]}\n'
    assert sorted(state_literals(source)) == [(1, "dead"), (3, "running"), (3, "waiting")]


def test_a_docstring_may_name_a_state() -> None:
    assert list(state_literals('"""running"""\nclass Task:\n    """dead"""\n')) == []


def test_every_module_says_what_it_is_about() -> None:
    assert [place(module) for module in modules(*PACKAGES, "tests") if module.stem in VAGUE_NAMES] == []
