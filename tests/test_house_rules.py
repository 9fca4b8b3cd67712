"""Project rules checked by tests: imports, lengths, and the place of state literals."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

import runner
from runner.cli.app import CLI_COMMANDS
from runner.db.schema import tables
from tasktui.screens import MODES

PROJECT = Path(__file__).parent.parent
PACKAGES = ("runner", "tasktui", "sample_handlers")
LONGEST_FUNCTION = 60
LONGEST_LINE = 120
MOST_METHODS = 40
VAGUE_NAMES = {"base", "common", "helpers", "manager", "misc", "utils"}
OPERATIONS = (
    "retry", "terminate", "delay", "edit", "unblock", "pause", "resume", "limit", "breaker", "rewind", "new_task",
    "schedule", "silence", "runner_command", "undo", "canary", "signal", "erase", "rekey", "rebalance",
)  # fmt: skip
TABLES = {
    "task": "task", "history": "history", "attempt": "attempts", "minute": "minute_statistics", "audit": "audit_log",
    "dependency": "dependencies", "queue": "registries", "handler": "handlers", "tick": "tick",
    "checkpoint": "notes", "progress": "notes", "log": "log", "schedule": "schedule", "runner": "runners",
}  # fmt: skip
"""The file of a table's noun, where it is not the noun or its plural."""
STATES = {"waiting", "running", "blocked", "succeeded", "dead", "cancelled"}
NAMED_BY_DJANGO = {("Meta", True), ("Command", True)}
HEAVY = {"sqlalchemy", "apscheduler", "textual", "alembic"}
PUBLIC_INDEX = "https://pypi.org/simple"
PUBLIC_HOSTS = {"pypi.org", "files.pythonhosted.org"}

Function = ast.FunctionDef | ast.AsyncFunctionDef

DATABASE_NAME = re.compile(r"""(?:\bkind|dialect\.name|backend_name\(\)) *(?:[!=]=|is|in) *[(\["']""")
ANY_DATABASE = {"db", "urls", "django"}
"""The packages that distinguish databases by name; Django has names of its own."""
DATABASE_OF_OTHERS = "runner/client/external.py"

CLASS = re.compile(r"^ *class (\w+)[(:\[]", re.MULTILINE)
DEFINITION = re.compile(r"^( *)(?:(?:async )?def|(class)) ")


def modules(*packages: str) -> list[Path]:
    """Every module of these packages except the migrations, which do not change."""
    all_modules = (module for package in packages for module in (PROJECT / package).rglob("*.py"))
    return sorted(module for module in all_modules if "migrations" not in module.parts)


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a module: several rules look at each."""
    return ast.parse(source)


def functions(source: str) -> list[Function]:
    """The functions of a module."""
    return [node for node in ast.walk(parsed(source)) if isinstance(node, Function)]


def repeated_constants(module: Path) -> list[str]:
    """The constants to which a module assigns twice: every function sees the last value, also those above it."""
    nodes = [node for node in parsed(module.read_text()).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [target for node in nodes for target in (node.targets if isinstance(node, ast.Assign) else [node.target])]
    names = Counter(name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
    return [f"{module.relative_to(PROJECT)}: {name}" for name, number in names.items() if number > 1]


def may_be_long(source: str, limit: int) -> bool:
    """True if a function is followed by enough lines before the next definition that is not within it."""
    begun: list[tuple[int, int]] = []  # indentations and first lines of functions
    for number, line in enumerate([*source.splitlines(), "class End:"]):
        if definition := DEFINITION.match(line):
            indentation = len(definition[1])
            while begun and begun[-1][0] >= indentation:
                if number - begun.pop()[1] > limit:
                    return True
            if not definition[2]:
                begun.append((indentation, number))
    return False


def location(module: Path, line: int = 1) -> str:
    return f"{module.relative_to(PROJECT)}:{line}"


def too_long_functions(limit: int) -> Iterator[str]:
    for module in modules(*PACKAGES):
        source = module.read_text()
        for node in functions(source) if may_be_long(source, limit) else ():  # most are not worth parsing
            if (length := function_length(node)) > limit:
                yield f"{location(module, node.lineno)}: {node.name} has {length} lines, {limit} at most"


def too_long_lines(limit: int) -> Iterator[str]:
    """Long lines of text in the pages; table rows and code blocks cannot be wrapped."""
    for page in [*PROJECT.glob("*.md"), *(PROJECT / "docs").glob("*.md")]:
        code = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            code ^= line.lstrip().startswith("```")
            if len(line) > limit and not code and not line.lstrip().startswith("|"):
                yield f"{location(page, number)}: {len(line)} characters, {limit} at most"


def function_length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def docstrings(tree: ast.Module) -> set[ast.expr]:
    """Strings that are statements: docstrings of modules, classes, functions and attributes."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def state_literals(source: str) -> Iterator[tuple[int, str]]:
    if not any(f"{quote}{state}{quote}" in source for state in STATES for quote in "\"'"):
        return  # not worth parsing
    tree = parsed(source)
    spared = docstrings(tree) | subscripts(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in STATES and node not in spared:
            yield node.lineno, str(node.value)


def subscripts(tree: ast.Module) -> set[ast.AST]:
    """Strings in brackets, which name a column or a type instead of writing a state."""
    return {inner for node in ast.walk(tree) if isinstance(node, ast.Subscript) for inner in ast.walk(node.slice)}


def stray_state_literals() -> Iterator[str]:
    tables = PROJECT / "runner" / "db" / "schema"
    for module in modules("runner"):
        if module != PROJECT / "runner" / "model" / "task.py" and not module.is_relative_to(tables):
            yield from (f"{location(module, line)}: {state!r}" for line, state in state_literals(module.read_text()))


def class_names() -> dict[str, list[str]]:
    """The places of the classes of runner and tasktui, by name."""
    places: dict[str, list[str]] = {}
    for module in modules("runner", "tasktui"):
        source = module.read_text()
        for match in CLASS.finditer(source):
            if (match[1], "django" in module.parts) not in NAMED_BY_DJANGO:
                line = source.count("\n", 0, match.start()) + 1
                places.setdefault(match[1], []).append(location(module, line))
    return places


def in_a_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    return done.stdout.strip()


@pytest.mark.slow
def test_imports_point_one_way() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run([lint, "--no-cache"], capture_output=True, text=True, check=False, cwd=PROJECT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_importing_the_public_names_loads_nothing_heavy() -> None:
    assert in_a_fresh_python(f"import sys; from runner import *; print({HEAVY} & sys.modules.keys())") == "set()"


def test_the_database_is_queried_before_textual_is_loaded() -> None:
    loaded = in_a_fresh_python("import sys, tasktui.startup.startup; print({'textual', 'rich'} & sys.modules.keys())")
    assert loaded == "set()"


def test_the_lock_file_names_only_the_public_index() -> None:
    lock = (PROJECT / "uv.lock").read_text()
    assert set(re.findall(r'registry = "([^"]+)"', lock)) == {PUBLIC_INDEX}
    assert set(re.findall(r'\w+://([^/"\s]+)', lock)) == PUBLIC_HOSTS


def test_a_class_name_is_used_once() -> None:
    assert {name: places for name, places in class_names().items() if len(places) > 1} == {}


def test_a_module_gives_a_name_to_one_constant_only() -> None:
    assert [each for module in modules(*PACKAGES) for each in repeated_constants(module)] == []


def test_the_pages_name_every_logger() -> None:
    sources = "".join(module.read_text() for module in (PROJECT / "runner").rglob("*.py"))
    loggers = set(re.findall(r'getLogger\("(runner[\w.]*)"\)', sources))
    page = (PROJECT / "docs" / "running.md").read_text().partition("| logger | lines |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(runner[\w.]*)`", page)) == loggers


def test_no_imports_form_a_cycle_even_those_inside_functions_or_for_types() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()


def test_no_function_is_too_long() -> None:
    assert list(too_long_functions(LONGEST_FUNCTION)) == []
    assert list(too_long_functions(LONGEST_FUNCTION - 10)), "the rule looks at nothing"


def test_no_line_of_a_page_is_too_long() -> None:
    assert not list(too_long_lines(LONGEST_LINE))
    assert list(too_long_lines(40)), "the rule looks at nothing"


def test_states_are_written_in_one_place() -> None:
    assert list(stray_state_literals()) == []


def test_only_the_database_packages_ask_for_the_name_of_a_database() -> None:
    places = [
        location(module, number)
        for module in modules("runner", "tasktui")
        if not ANY_DATABASE & set(module.parts) and module != PROJECT / DATABASE_OF_OTHERS
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), 1)
        if DATABASE_NAME.search(line) and re.search("sqlite|postgresql", line)
    ]
    assert not places, f"ask for a property of the URL or of the dialect instead: {places}"


def test_every_form_of_a_state_literal_is_found() -> None:
    source = 'def f(state: str = "dead"):\n    """Running."""\n    return {"running": [f"{state}", "waiting"]}\n'
    assert sorted(state_literals(source)) == [(1, "dead"), (3, "running"), (3, "waiting")]


def test_a_docstring_can_name_a_state() -> None:
    assert list(state_literals('"""running"""\nclass Task:\n    """dead"""\n')) == []


OWN_COMMANDS = {"bench": "bench/verb"}
"""Commands with a folder of their own."""


def test_each_command_operation_and_screen_has_a_file_of_its_name() -> None:
    places = {command.name: command.module.replace(".", "/") for command in CLI_COMMANDS}
    expected = {name: OWN_COMMANDS.get(name, name) for name in places}
    assert places == expected
    operations = {file.stem for file in (PROJECT / "runner" / "operations").rglob("*.py")}
    assert set(OPERATIONS) <= operations
    screens = {file.stem for file in (PROJECT / "tasktui" / "screens").glob("*.py")}
    assert {mode.module for mode in MODES.values()} <= screens


def test_each_noun_with_a_table_has_a_file_of_its_name() -> None:
    stems = {file.stem for file in (PROJECT / "runner").rglob("*.py")}
    nouns = {table.name.removeprefix("task_") for table in tables().metadata.sorted_tables}
    assert {noun for noun in nouns if not {noun, f"{noun}s", TABLES.get(noun, noun)} & stems} == set()


def test_a_module_is_about_one_thing() -> None:
    """The first line of its docstring is a noun phrase, or a name and a sentence."""
    lines = {str(module.relative_to(PROJECT)): first_line(module.read_text()) for module in modules(*PACKAGES)}
    assert {name: line for name, line in lines.items() if ";" in line or line.count(" and ") > 1} == {}


def first_line(source: str) -> str:
    return (ast.get_docstring(parsed(source)) or "").partition("\n")[0]


def test_each_package_keeps_its_budget_of_lines_of_code() -> None:
    """A commit that raises a budget gives the reason in its body."""
    budgets = tomllib.loads((PROJECT / "tests" / "budgets.toml").read_text())["lines"]
    lines = Counter[str]()
    for module in modules(*PACKAGES):
        parts = module.relative_to(PROJECT).parts
        lines["/".join(parts[: min(2, len(parts) - 1)])] += lines_of_code(module.read_text())
    assert {package: number for package, number in lines.items() if number > budgets.get(package, 0)} == {}
    assert budgets.keys() == lines.keys()


def lines_of_code(source: str) -> int:
    """The lines without docstrings, comments and blank lines."""
    tree = parsed(source)
    prose = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for number, line in lines if number not in prose and line.strip() and not line.strip().startswith("#"))


def test_no_module_has_a_vague_name() -> None:
    assert [location(module) for module in modules(*PACKAGES, "tests") if module.stem in VAGUE_NAMES] == []


def test_public_functions_describe_their_arguments() -> None:
    """The linter demands it (D417) in the modules of public names, and only there."""
    ignores = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["per-file-ignores"]
    (pattern,) = (pattern for pattern, rules in ignores.items() if rules == ["D417"])
    stems = set(re.findall(r"\w+(?=[,}.])", pattern)) - {"py"}
    assert {getattr(runner, name).__module__.rpartition(".")[2] for name in runner.__all__} <= stems
    assert pattern.startswith("!runner/{client/"), "the rule looks at nothing"


def test_every_module_has_a_docstring() -> None:
    assert [location(module) for module in modules(*PACKAGES) if not has_docstring(module.read_text())] == []


def has_docstring(source: str) -> bool:
    return source.lstrip().startswith(('"""', 'r"""')) or not source.strip()


def project_classes() -> Iterator[type]:
    """Every class that a module of `tasktui` or `runner` defines."""
    for module in modules("tasktui", "runner"):
        # The Django app can only be imported within a project; tests/django does.
        if module.name != "__main__.py" and module.parent.name not in ("django", "commands"):
            path = module.relative_to(PROJECT).with_suffix("")
            name = ".".join(path.parts).removesuffix(".__init__")
            try:
                found = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name != "ray":  # the suite does without this package, which is large
                    raise
                continue
            for _, kind in inspect.getmembers(found, inspect.isclass):
                if kind.__module__ == name:
                    yield kind


def written_methods(kind: type) -> list[str]:
    """The methods and properties that files of this project define in a class and its bases, overridden ones too.

    A method of a protocol and the method of the class that implements it are one.
    """
    return [
        f"{base.__name__}.{name}"
        for place, base in enumerate(kind.__mro__)
        for name, value in list(vars(base).items())
        if is_written(value) and name != "__annotate_func__"  # Python 3.14 makes it of annotations.
        if not (getattr(base, "_is_protocol", False) and any(name in vars(other) for other in kind.__mro__[:place]))
    ]


def is_written(value: object) -> bool:
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if not inspect.isfunction(function):
        return False
    file = Path(inspect.unwrap(function).__code__.co_filename)  # Generated methods have none.
    return any(file.is_relative_to(PROJECT / package) for package in ("tasktui", "runner"))


def test_no_class_has_too_many_methods_with_those_it_inherits() -> None:
    counts = {f"{kind.__module__}.{kind.__name__}": len(written_methods(kind)) for kind in project_classes()}
    assert {name: count for name, count in counts.items() if count > MOST_METHODS} == {}
    assert counts["tasktui.shell.live.LiveScreen"] > 10, "the rule looks at nothing"
