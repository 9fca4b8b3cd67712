"""Project rules checked by tests: imports, lengths, and the place of state literals."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

PROJECT = Path(__file__).parent.parent
PACKAGES = ("runner", "tasktui", "sample_handlers")
LONGEST_MODULE = 350
MOST_MODULES = 330
SHORT_MODULE = 60
MOST_SHORT_MODULES = 50
LONGEST_FUNCTION = 60
LONGEST_LINE = 120
MOST_METHODS = 40
VAGUE_NAMES = {"base", "common", "helpers", "manager", "misc", "utils"}
FORMER_MODULES = {
    "borrowed", "chances", "deeds", "discretion", "door", "elsewhere", "family", "gathering", "hindrances", "intervene",
    "legible", "misnamed", "observe", "obey", "once", "people", "rehearsed", "survey", "tallies", "ticket", "together",
    "upkeep", "wish", "wishes",
}  # fmt: skip
FORMER_CLASSES = {
    "After", "By", "ContentRefused", "DatabaseAway", "Desk", "Door", "Found", "Held", "MovedOn", "Once", "Patience",
    "Recall", "Receipt", "Said", "Sibling", "Side", "Standing", "Subject", "TaskMovedOn", "Ticket", "Way", "WrongForm",
}  # fmt: skip
PARTICIPLES = {
    "chosen", "ended", "found", "given", "gone", "heard", "held", "known", "meant", "said", "seen", "sought", "spoken",
    "taken", "told", "wanted",
}  # fmt: skip
PARTICIPLES_THAT_USERS_SEE = {
    ("runner/cli/bench/load.py", "ended"),  # a JSON key of `bench --json`
    ("runner/cli/check.py", "found"),  # a JSON key of `check --json`
    ("runner/cli/handlers.py", "known"),  # a JSON key of `check --against --json`
    ("runner/queries/runners.py", "seen"),  # a JSON key of `stats --json`
    ("runner/queries/task/dependency_tree.py", "ended"),  # a JSON key of `show --json`
}
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


def functions(source: str) -> list[Function]:
    """The functions of a module."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]


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


def too_long_modules(limit: int) -> Iterator[str]:
    for module in modules(*PACKAGES):
        length = len(module.read_text().splitlines())
        if length > limit:
            yield f"{location(module)}: {length} lines, {limit} at most"


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
    tree = ast.parse(source)
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


def participles(source: str) -> Iterator[tuple[int, str]]:
    """Lines and names of variables, arguments, functions and attributes that name an event instead of a thing."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case _:
                continue
        if name.strip("_").removeprefix("is_") in PARTICIPLES:
            yield node.lineno, name


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


def test_no_module_is_too_long() -> None:
    assert list(too_long_modules(LONGEST_MODULE)) == []


def test_modules_are_few_and_not_too_short() -> None:
    files = [file for package in ("runner", "tasktui") for file in (PROJECT / package).rglob("*.py")]
    short = [
        location(file)
        for file in files
        if file.name != "__init__.py" and len(file.read_text().splitlines()) < SHORT_MODULE
    ]
    named = [file for file in files if file.name != "__init__.py"]
    assert 100 < len(named) < MOST_MODULES
    assert len(short) < MOST_SHORT_MODULES, short


def test_a_class_name_is_used_once() -> None:
    assert {name: places for name, places in class_names().items() if len(places) > 1} == {}


def test_former_names_are_not_used_again() -> None:
    parts = {
        part: location(module)
        for module in modules("runner", "tasktui")
        for part in module.relative_to(PROJECT).with_suffix("").parts
    }
    assert {part: place for part, place in parts.items() if part in FORMER_MODULES} == {}
    assert {name: places for name, places in class_names().items() if name in FORMER_CLASSES} == {}
    former_call = re.compile(rf"\b(?:{'|'.join(FORMER_CLASSES)})\(")
    texts = [*modules(*PACKAGES), PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")]
    assert [(location(text), call) for text in texts for call in former_call.findall(text.read_text())] == []


def test_names_are_not_participles() -> None:
    names = {
        (str(module.relative_to(PROJECT)), name): location(module, line)
        for module in modules(*PACKAGES, "tests")
        for line, name in participles(module.read_text())
    }
    assert {
        name: place for (path, name), place in names.items() if (path, name) not in PARTICIPLES_THAT_USERS_SEE
    } == {}
    assert names.keys() >= PARTICIPLES_THAT_USERS_SEE, "an exception is not needed any more"


def test_every_form_of_a_participle_is_found() -> None:
    source = "async def told(seen, *, held=1):\n    is_gone = seen\n    self._ended = [0 for known in held]\n"
    assert sorted(participles(source)) == [
        (1, "held"),
        (1, "seen"),
        (1, "told"),
        (2, "is_gone"),
        (3, "_ended"),
        (3, "known"),
    ]


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


def test_every_module_has_a_docstring() -> None:
    assert [location(module) for module in modules(*PACKAGES, "tests") if module.stem in VAGUE_NAMES] == []


def project_classes() -> Iterator[type]:
    """Every class that a module of `tasktui` or `runner` defines."""
    for module in modules("tasktui", "runner"):
        # The Django app can only be imported within a project; tests/django does.
        if module.name != "__main__.py" and module.parent.name not in ("django", "commands"):
            path = module.relative_to(PROJECT).with_suffix("")
            name = ".".join(path.parts).removesuffix(".__init__")
            for _, kind in inspect.getmembers(importlib.import_module(name), inspect.isclass):
                if kind.__module__ == name:
                    yield kind


def written_methods(kind: type) -> list[str]:
    """The methods and properties that files of this project define in a class and its bases, overridden ones too."""
    return [
        f"{base.__name__}.{name}"
        for base in kind.__mro__
        for name, value in list(vars(base).items())
        if is_written(value) and name != "__annotate_func__"  # Python 3.14 makes it of annotations.
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
    assert counts["tasktui.screens.live.LiveScreen"] > 10, "the rule looks at nothing"
