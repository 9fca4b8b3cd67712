"""Public names that load their modules on first use."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import runner


@pytest.mark.parametrize("name", runner.__all__)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(runner, name).__name__ == name


def test_type_checkers_and_the_interpreter_see_the_same_modules() -> None:
    tree = ast.parse(Path(str(runner.__file__)).read_text())
    checked = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (modules,) = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    assert ast.literal_eval(modules) == checked
    assert sorted(checked) == sorted(runner.__all__)


def test_a_name_loads_only_its_own_module() -> None:
    code = (
        "import sys; from runner import Retry;"
        "print('runner.model.outcome' in sys.modules, 'runner.client' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "False"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'runner' has no attribute 'play'"):
        runner.play  # noqa: B018 - the access is under test


def test_dir_lists_the_public_names_without_loading_them() -> None:
    code = "import sys, runner; print(*dir(runner)); assert 'sqlalchemy' not in sys.modules"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"handler", "connect", "Runner", "TaskHandle", "__doc__"} <= set(names)
    assert "TYPE_CHECKING" not in names
    assert set(runner.__all__) <= set(names)
