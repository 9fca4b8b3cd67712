"""The project's English: short declarative sentences, held by counts of constructions that plain prose avoids."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
CODE = ("runner", "tasktui", "sample_handlers")
PROSE = ("README.md", "docs", *CODE)
MOST_PER_1000_WORDS = {PROSE: 3.0, ("tests",): 5.0}

SUBJECTS = "is|was|are|it|they|an?|the|he|she|who|we|you|I|has|had|have|this|that|these|those|such|both|each|one"
VERBS = "would|must|may|can|could|does|did|runs|waits|comes|goes|ends|follows|differs|keeps|becomes|makes|only"
AVOIDED = re.compile(
    "|".join(
        [
            rf"(?<![?\w])[Ww]hat (?:{SUBJECTS}|{VERBS})\b(?! new)",
            r"\b[Ww]ho(?:ever|mever)\b|\b[Ww]hatever\b",
            r"\b(?:[Ss]ome|[Nn]o|[Aa]ny)body\b",
            r"\bso (?:many|much|long|often)\b",
            r"\b(?:is|are|was|were) no (?!longer|more)\w+",
            r"\b[Ss]tands?\b|\bstanding\b|\bstood\b",
            r"\b[Tt]ells?\b|\btold\b|\b[Ss]ays?\b|\bsaid\b",
            r"\b(?:is|are|was|were) to \w+",
            r"\blets? (?:\w+ )?through\b|\blet(?:s|ting)? \w+ go\b|\bin hand\b|\btak(?:es|en|e) for\b",
            r"\b[Mm]eanwhile\b|\banew\b|\bfor ever\b|\bof late\b|\bbesides\b|\bat once\b|\bseldom\b|\belsewhere\b",
            r"\ball (?:that|who)\b|\bnone that\b|\bthose (?:that|who|which)\b",
            r"\b(?:task|runner)'s number\b|\bby (?:its |their )?numbers?\b",
        ]
    )
)
NEVER_SHOWN = re.compile(
    r"\b(?:nobody|somebody|anybody|whoever|whomever|whatever|meanwhile|anew|stands)\b"
    r"|\bfor ever\b|\bis no number\b|\bmoved on\b|\btakes? back\b",
    re.IGNORECASE,
)

TOKENS = re.compile(
    r'''(?P<docstring>[rRbBfFuU]{0,2}"""(?:\\[\s\S]|[^\\])*?""")'''
    r"|'''(?:\\[\s\S]|[^\\])*?'''"
    r"""|"(?:\\[\s\S]|[^"\\\n])*"|'(?:\\[\s\S]|[^'\\\n])*'|(?P<comment>#[^\n]*)"""
)
"""Strings and comments; several times faster than the tokenizer of Python."""

JOINT = re.compile(r"""["']\s*\n\s*[a-zA-Z]?["']""")
"""Where a string continues in the next line."""


def of_page(text: str) -> Iterator[str]:
    """The lines of a page, without its blocks of code."""
    code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield line


def of_module(text: str) -> Iterator[str]:
    """The lines of the docstrings and comments of a module."""
    for token in TOKENS.finditer(text):
        if token["docstring"]:
            yield from token["docstring"].splitlines()
        elif token["comment"] and not token["comment"].startswith(("# noqa", "# type:")):
            yield token["comment"]


def prose(path: Path) -> Iterator[str]:
    """The prose of a file, or of the files in a folder; the changelog quotes old names."""
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.suffix in (".md", ".py") and "node_modules" not in file.parts and file != Path(__file__):
            yield from (of_page if file.suffix == ".md" else of_module)(file.read_text())


def shown(source: str) -> Iterator[tuple[int, str]]:
    """The strings of a module with words that are never shown, without its docstrings."""
    if not NEVER_SHOWN.search(JOINT.sub("", source)):
        return  # not worth parsing
    tree = ast.parse(source)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.lineno, node.value


@pytest.mark.parametrize("paths", MOST_PER_1000_WORDS, ids=["project", "tests"])
def test_prose_is_plain_english(paths: tuple[str, ...]) -> None:
    lines = [line for path in paths for line in prose(PROJECT / path)]
    words = sum(len(re.findall(r"[A-Za-z']+", line)) for line in lines)
    avoided = [(match[0], line.strip()) for line in lines for match in AVOIDED.finditer(line)]
    assert words > 1000, "the prose was not found"
    assert 1000 * len(avoided) / words < MOST_PER_1000_WORDS[paths], avoided


def test_messages_are_plain_english() -> None:
    modules = [module for package in CODE for module in (PROJECT / package).rglob("*.py")]
    hits = [
        f"{module.relative_to(PROJECT)}:{line}: {text!r}"
        for module in modules
        for line, text in shown(module.read_text())
        if NEVER_SHOWN.search(text)
    ]
    assert hits == []


@pytest.mark.parametrize(
    "text",
    [
        "What is claimed stays.",
        "Nobody waits.",
        "so many rows",
        "It is no task.",
        "The name stands here.",
        "It tells why.",
        "as the page says",
        "It is to be done.",
        "the tasks in hand",
        "Meanwhile it runs.",
        "those that match",
        "the task's number",
    ],
)
def test_a_construction_is_found(text: str) -> None:
    assert AVOIDED.search(text)


def test_only_strings_that_people_read_are_searched() -> None:
    source = '"""Nobody."""\n\ndef f():\n    """Anew."""\n    return f"{1} stands"  # whoever\n'
    assert [text for _, text in shown(source)] == [" stands"]
    assert list(of_module(source)) == ['"""Nobody."""', '"""Anew."""', "# whoever"]
    assert list(of_page("a\n```\nb\n```\nc")) == ["a", "c"]
