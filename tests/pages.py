"""The pages of the documentation, as a reader follows them: their blocks, their tables, their commands."""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

from tests.shells import shell_of

PROJECT = Path(__file__).parent.parent
README = PROJECT / "README.md"
DOCS = PROJECT / "docs"
PAGES = (README, *sorted(DOCS.rglob("*.md")))
RUNNER = str(Path(sys.executable).with_name("runner"))
DOCUMENTED_URL = "postgresql://app@db.example.org/app"

PROGRAMS = {
    # A runner must stop by itself.
    "runner": f"""#!/bin/sh
case "$*" in *--until-idle*) ;; work*) set -- "$@" --until-idle ;; esac
exec {RUNNER} "$@"
""",
    # The password manager of the documentation.
    "pass": "#!/bin/sh\nprintf 'a secret\\n'\n",
}


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.partition("\n")[0]


def blocks(page: Path, language: str, section: str = "") -> list[Block]:
    """The fenced blocks of a page in one language, optionally only those of one section."""
    text = page.read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)  # those of tabs are indented
    fenced = [Block(language, dedent(text)) for _, language, text in found]
    return [block for block in fenced if block.language == language]


def table(first_title: str, after: str, page: Path = README) -> list[list[str]]:
    """The rows of the first table with this first title that follows the text `after`, as stripped cells."""
    text = page.read_text().partition(after)[2]
    start = text.index(f"| {first_title} |")
    lines = text[start:].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines[2:]]


def code(text: object) -> str:
    return f"`{text}`"


def save(page: Path, folder: Path) -> list[str]:
    """Write the Python examples of a page into the files that their first lines name, and return the names."""
    texts: dict[str, str] = {}
    for block in blocks(page, "python"):
        if named := re.fullmatch(r"# ([\w/]+\.py)(?:, continued)?", block.first):
            text = texts.get(named[1], "")
            texts[named[1]] = text if block.text == text else text + block.text  # the same in another tab
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return [*texts]


def inherited() -> dict[str, str]:
    """The environment of the tests without the settings of whoever runs them."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("TASKTUI_", "PG"))}


def run(folder: Path, *command: object, **environment: str) -> str:
    """Run a program in the folder of a reader, which must succeed, and return its output."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=inherited() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(folder: Path, program: str, *arguments: str, **environment: str) -> str:
    """Run a program that imports the saved examples; a warning is an error."""
    return run(folder, sys.executable, "-W", "error", "-c", program, *arguments, **environment)


@pytest.fixture
def shell_environment(tmp_path: Path, database_url: str) -> dict[str, str]:
    """The environment of a reader who follows a page in an empty folder."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in PROGRAMS.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    url = {"TASKTUI_URL": database_url} if database_url.startswith("postgresql") else {}
    return inherited() | {"PATH": path, "HOME": str(tmp_path), "COLUMNS": "100"} | url


def follow(text: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a block of shell, which must succeed, and return its output."""
    done = subprocess.run(
        ["sh", "-eu", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def execute(statements: str, folder: Path, environment: dict[str, str]) -> None:
    """Send statements to psql or sqlite3."""
    shell_of(environment.get("TASKTUI_URL") or f"sqlite:///{folder / 'tasktui.db'}")(statements)


def meant_for(block: Block, environment: dict[str, str]) -> bool:
    """Whether a block of SQL names the shell of this database, or both shells."""
    return ("psql" if "TASKTUI_URL" in environment else "sqlite3") in block.first


def documented_commands() -> list[str]:
    """Every line of shell that calls `runner`, without that word."""
    texts = [block.text for page in PAGES for block in blocks(page, "sh")]
    return sorted({line for text in texts for line in re.findall(r"^ *(?:uv run )?runner (.*)$", text, re.MULTILINE)})
