"""Hooks of MkDocs: pages from files outside docs/, and the generated tables of the reference."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import runner
from runner import errors
from runner.cli.app import CLI_COMMANDS, build
from runner.cli.exit_codes import MEANINGS
from runner.settings import DESCRIPTIONS, Settings

PROJECT = Path(__file__).parent.parent

ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "license.md",
}
"""Pages of the site by file of the project."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are outside docs/, and the pictures of the console as it is now."""
    for picture in (PROJECT / "build" / "pictures").glob("*.svg"):
        old = files.get_file_from_path(f"pictures/{picture.name}")
        if old:
            files.remove(old)
        files.append(File.generated(config, f"pictures/{picture.name}", content=picture.read_text(encoding="utf-8")))
    for name, page in ROOT_PAGES.items():
        text = (PROJECT / name).read_text(encoding="utf-8")
        content = text if name.endswith(".md") else f"# Licence\n\n{text}"
        files.append(File.generated(config, page, content=_relink(content, "docs/")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the tables that are generated from the code."""
    text = _relink(markdown, "../")
    for name, lines in _TABLES.items():
        text = text.replace(f"<!-- {name} -->", "\n".join(lines()))
    return text


def _relink(text: str, prefix: str) -> str:
    """Turn links between the project's folders into links between pages.

    Args:
        text: a page.
        prefix: the path to docs/ from a file of the root, or to the root from a page in docs/.
    """
    text = text.replace(f"]({prefix}", "](").replace("[mkdocs.yml](mkdocs.yml)", "The navigation")
    for name, page in ROOT_PAGES.items():
        text = re.sub(rf"\]\({re.escape(name)}(?=[)#])", f"]({page}", text)
    return text


def _python() -> Iterator[str]:
    for name in sorted(runner.__all__, key=str.lower):
        yield f"::: runner.{name}\n"


def _errors() -> Iterator[str]:
    public = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, Exception)]
    for error in sorted(public, key=lambda error: error.__name__):
        yield f"::: {error.__module__}.{error.__name__}\n"


def _settings() -> Iterator[str]:
    yield "| setting | environment variable | default | meaning |"
    yield "|---|---|---|---|"
    for row in Settings().describe():
        if row.name in DESCRIPTIONS:
            yield f"| `{row.name}` | `TASKTUI_{row.name.upper()}` | {row.value} | {DESCRIPTIONS[row.name]} |"


def _commands() -> Iterator[str]:
    for command in CLI_COMMANDS:
        text = build(command.name)[command.name].generate_docs(output_format="markdown", heading_level=3)
        # Flags have no negative form, which only the application knows, and no default but off.
        text = re.sub(r", --no-[a-z-]+|\s*\*\[default: False\]\*", "", text)
        yield text.replace(f"```console\n{command.name}", f"```console\nrunner {command.name}")
        yield ""


def _exit_codes() -> Iterator[str]:
    yield "| exit code | meaning |"
    yield "|---|---|"
    for code, meaning in MEANINGS.items():
        yield f"| {code.value} | {meaning} |"


_TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "python": _python,
    "errors": _errors,
    "settings": _settings,
    "commands": _commands,
    "exit codes": _exit_codes,
}
"""The generated parts, by the comment that they replace."""
