"""Write the pages of the documentation site to build/pages, for any program that builds a site from Markdown.

They are the pages of docs/, pages from files outside docs/, tables that are generated from the code, the files that a
page shows, and llms.txt.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from runner import errors
from runner.cli.app import CLI_COMMANDS, build
from runner.cli.exit_codes import MEANINGS
from runner.settings import DESCRIPTIONS, Settings

PROJECT = Path(__file__).parent.parent
PAGES = PROJECT / "build" / "pages"
PICTURES = PROJECT / "build" / "pictures"

ROOT_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "LICENSE": "license.md",
}
"""Pages of the site by file of the project."""

ELSEWHERE = {"README.md": "index.md"} | ROOT_PAGES
"""The pages to which links to files of the project lead."""


def main() -> None:
    """Write the pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(PROJECT / "docs", PAGES)
    for picture in PICTURES.glob("*.svg"):
        shutil.copy(picture, PAGES / "pictures")
    for page in PAGES.rglob("*.md"):
        page.write_text(_filled(_relinked(page.read_text(encoding="utf-8"), "../")), encoding="utf-8")
    for name, page_name in ROOT_PAGES.items():
        text = (PROJECT / name).read_text(encoding="utf-8")
        content = text if name.endswith(".md") else f"# Licence\n\n{text}"
        (PAGES / page_name).write_text(_relinked(content, "docs/"), encoding="utf-8")
    (PAGES / "llms.txt").write_text("\n".join(_llms()) + "\n", encoding="utf-8")


def _relinked(text: str, prefix: str) -> str:
    """Turn links between the project's folders into links between pages.

    Args:
        text: a page.
        prefix: the path to docs/ from a file of the root, or to the root from a page in docs/.
    """
    if prefix == "docs/":
        text = text.replace("](docs/", "](")
    for name, page in ELSEWHERE.items():
        text = re.sub(rf"\]\((?:\.\./)?{re.escape(name)}(?=[)#])", f"]({page}", text)
    return text


def _filled(text: str) -> str:
    """Fill in the tables that are generated from the code, and the files that a page shows."""
    for name, lines in _TABLES.items():
        if (mark := f"<!-- {name} -->") in text:  # the commands take a second
            text = text.replace(mark, "\n".join(lines()))
    return re.sub(r"<!-- file (\S+) -->", lambda shown: _fenced(PROJECT / shown[1]), text)


def _fenced(file: Path) -> str:
    language = {".yaml": "yaml", ".service": "ini", "": file.name.lower()}[file.suffix]
    return f"```{language}\n{file.read_text(encoding='utf-8')}```"


def _errors() -> Iterator[str]:
    public = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, Exception)]
    for error in sorted(public, key=lambda error: error.__name__):
        yield f"::: {error.__module__}.{error.__name__}\n"


def _settings() -> Iterator[str]:
    yield "| setting | environment variable | default | meaning |"
    yield "|---|---|---|---|"
    for row in Settings().describe():
        if row.name in DESCRIPTIONS:
            value = row.value.replace(f"{Path.cwd()}/", "")  # the file in the current directory
            yield f"| `{row.name}` | `TASKTUI_{row.name.upper()}` | {value} | {DESCRIPTIONS[row.name]} |"


def _commands() -> Iterator[str]:
    for command in CLI_COMMANDS:
        text = build(command.name)[command.name].generate_docs(output_format="markdown", heading_level=2)
        # Flags have no negative form, which only the application knows, and no default but off.
        text = re.sub(r", --(?:no|empty)-[a-z-]+|\s*\*\[default: (?:False|\(\))\]\*", "", text)
        yield text.replace(f"```console\n{command.name}", f"```console\nrunner {command.name}")
        yield ""


def _exit_codes() -> Iterator[str]:
    yield "| exit code | meaning |"
    yield "|---|---|"
    for code, meaning in MEANINGS.items():
        yield f"| {code.value} | {meaning} |"


def _llms() -> Iterator[str]:
    """The pages by the groups of the navigation, for assistants that read a site: https://llmstxt.org."""
    yield "# tasktui\n"
    settings, _, navigation = (PROJECT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    description = re.search(r"^site_description: (.*)$", settings, re.MULTILINE)
    yield f"> {description[1] if description else ''}"
    for title, page in re.findall(r"^ *- (.+?):(?: (\S+\.md))?$", navigation, re.MULTILINE):
        if not page:
            yield f"\n## {title}\n"
        else:
            text = (PAGES / page).read_text(encoding="utf-8")
            summary = " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", _first_paragraph(text)).split())
            yield f"- [{title}]({page.removesuffix('.md')}.html): {summary}"


def _first_paragraph(text: str) -> str:
    body = re.sub(r"^---\n.*?\n---\n", "", text, flags=re.DOTALL)
    paragraphs = re.split(r"\n\s*\n", body)
    return next((part for part in paragraphs if re.match(r"[A-Za-z`]", part.strip())), "").partition(". ")[0]


_TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "errors": _errors,
    "settings": _settings,
    "commands": _commands,
    "exit codes": _exit_codes,
}
"""The generated parts, by the comment that they replace."""

if __name__ == "__main__":
    main()
