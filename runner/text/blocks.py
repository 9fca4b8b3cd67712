"""blocks: the headings, lists and tables of a report, each written as Markdown or as HTML.

Texts from the database are inert in both, and their secrets are masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol, TypeAlias

from runner.text.redact import markdown_code, markdown_text, mask
from runner.text.sanitize import clean


class Block(Protocol):
    """A part of a page."""

    def html(self) -> str:
        """The part as HTML."""
        ...


class MarkdownBlock(Block, Protocol):
    """A part of a text that is a page too."""

    def markdown(self) -> str:
        """The part as Markdown."""
        ...


class Code(str):
    """A name or a value, which is written as code."""

    __slots__ = ()


Words: TypeAlias = str | Sequence[str]
"""A text, or parts of one; a part that is Code is written as code."""


@dataclass(frozen=True, slots=True)
class Section:
    """The heading of a section."""

    text: str

    def markdown(self) -> str:
        """The block as Markdown."""
        return f"## {self.text}"

    def html(self) -> str:
        """The block as HTML."""
        return f"<h2>{escape(self.text)}</h2>"


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or several.

    Args:
        note: True for a remark beside the report.
    """

    words: Words
    note: bool = False

    def markdown(self) -> str:
        """The block as Markdown."""
        return f"_{in_markdown(self.words)}_" if self.note else in_markdown(self.words)

    def html(self) -> str:
        """The block as HTML."""
        return f"<p{' class=note' if self.note else ''}>{in_html(self.words)}</p>"


@dataclass(frozen=True, slots=True)
class Items:
    """A list of lines."""

    lines: Sequence[Words]

    def markdown(self) -> str:
        """The block as Markdown."""
        return "\n".join(f"- {in_markdown(line)}" for line in self.lines)

    def html(self) -> str:
        """The block as HTML."""
        return f"<ul>{''.join(f'<li>{in_html(line)}</li>' for line in self.lines)}</ul>"


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Rows under a head.

    Args:
        right: the columns of numbers, which are aligned right, from the first to the last.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Words]]
    right: range = range(0)

    def markdown(self) -> str:
        """The block as Markdown."""
        rule = ["--:" if column in self.right else "-" for column in range(len(self.head))]
        rows = ([in_markdown(words) for words in row] for row in self.rows)
        return "\n".join(f"| {' | '.join(line)} |" for line in (self.head, rule, *rows))

    def html(self) -> str:
        """The block as HTML."""
        head = "".join(
            f"<th scope=col{self._align(column)}>{escape(name)}</th>" for column, name in enumerate(self.head)
        )
        body = "\n".join(self._row(row) for row in self.rows)
        table = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
        return f'<div class="scroll" tabindex="0">{table}</div>'

    def _row(self, row: Sequence[Words]) -> str:
        cells = (f"<td{self._align(column)}>{in_html(words)}</td>" for column, words in enumerate(row))
        return f"<tr>{''.join(cells)}</tr>"

    def _align(self, column: int) -> str:
        return " class=number" if column in self.right else ""


@dataclass(frozen=True, slots=True)
class Sample:
    """A text with line breaks, such as a traceback."""

    text: str

    def markdown(self) -> str:
        """The block as Markdown."""
        return f"```text\n{self._shown().replace('```', chr(39) * 3)}\n```"

    def html(self) -> str:
        """The block as HTML."""
        return f"<pre tabindex=0>{escape(self._shown())}</pre>"

    def _shown(self) -> str:
        return clean(mask(self.text), newlines=True)


@dataclass(frozen=True, slots=True)
class Figures:
    """The main figures of a page.

    Args:
        figures: label, figure and remark of each; the remark may be empty.
    """

    figures: Sequence[tuple[str, str, str]]

    def html(self) -> str:
        """The block as HTML."""
        return f'<dl class="figures">{"".join(map(self._figure, self.figures))}</dl>'

    @staticmethod
    def _figure(figure: tuple[str, str, str]) -> str:
        label, value, remark = map(escape, figure)
        note = f"<dd class=note>{remark}</dd>" if remark else ""
        return f"<div><dt>{label}</dt><dd>{value}</dd>{note}</div>"


def markdown(title: Words, blocks: Sequence[MarkdownBlock]) -> str:
    """Write a report as Markdown."""
    return "\n\n".join([f"# {in_markdown(title)}", *(block.markdown() for block in blocks)]) + "\n"


def in_markdown(words: Words) -> str:
    """Write a text, or the parts of one, as Markdown."""
    return "".join(markdown_code(part) if isinstance(part, Code) else markdown_text(part) for part in _parts(words))


def in_html(words: Words) -> str:
    """Write a text, or the parts of one, as HTML."""
    return "".join(f"<code>{_inert(part)}</code>" if isinstance(part, Code) else _inert(part) for part in _parts(words))


def _parts(words: Words) -> Sequence[str]:
    return (words,) if isinstance(words, str) else words


def _inert(text: str) -> str:
    return escape(clean(mask(text)))
