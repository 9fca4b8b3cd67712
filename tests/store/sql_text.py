"""Compiled SQL as text for reviewers: one clause per line, placeholders by name."""

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite

from runner.db.sql_text import Executed

DIALECTS: dict[str, Any] = {
    "postgresql": PGDialect_psycopg(paramstyle="named"),  # type: ignore[no-untyped-call]
    "sqlite": SQLiteDialect_aiosqlite(paramstyle="named"),
}
"""The drivers' dialects, with placeholders that have names."""

WIDTH = 120
SHORT = 60
"""Characters of a list that stays on its line, even if the line is too long."""

INDENT = "    "

TOKEN = re.compile(r"'(?:[^']|'')*'|[(),]|->>?|[=<>!]+|(?:\"[^\"]*\"|[^\s(),'\"=<>!])+")

CLAUSES = (
    "WITH RECURSIVE", "WITH", "SELECT DISTINCT", "SELECT", "INSERT INTO", "UPDATE", "DELETE FROM", "VALUES", "SET",
    "FROM", "LEFT OUTER JOIN", "JOIN", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "OFFSET", "FOR UPDATE", "UNION ALL",
    "ON CONFLICT", "RETURNING",
)  # fmt: skip
"""The words that begin a line."""

STATEMENTS = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "VALUES")
"""The words that make a text in parentheses a subquery."""

Node = str | list[Any]
"""A token, or the nodes between two parentheses."""


def compiled(executed: Executed, dialect: str) -> str:
    """The SQL of a statement for a database, with placeholders by name."""
    rows = executed.parameters
    columns = list(rows[0]) if isinstance(rows, Sequence) else None
    options = {"render_postcompile": True}
    return str(executed.statement.compile(dialect=DIALECTS[dialect], column_keys=columns, compile_kwargs=options))


def sql_text(sql: str) -> str:
    """Format SQL; only whitespace changes.

    Args:
        sql: one statement.
    """
    return "\n".join(_lines(_tree(iter(TOKEN.findall(sql))), ""))


def _tree(tokens: Any) -> list[Node]:
    nodes: list[Node] = []
    for token in tokens:
        if token == ")":
            break
        nodes.append(_tree(tokens) if token == "(" else token)
    return nodes


def _lines(nodes: list[Node], indent: str) -> list[str]:
    """The lines of a statement, each clause on its own."""
    return [line for clause in _clauses(nodes) for line in _clause_lines(clause, indent)]


def _clause_lines(clause: list[Node], indent: str) -> list[str]:
    line = indent + _inline(clause)
    if len(line) <= WIDTH and not _has_subquery(clause):
        return [line]
    size = _begins(clause, 0)
    head, parts = clause[:size], _parts(clause[size:])
    if len(parts) == 1:
        return _part_lines(clause, indent)
    return [indent + _inline(head), *(line for part in parts for line in _part_lines(part, indent + INDENT))]


def _part_lines(part: list[Node], indent: str) -> list[str]:
    """The lines of one condition or one column, with each subquery and each long list in it as a block."""
    place = _block_of(part, indent)
    if place is None:
        return [indent + _inline(part)]
    before, block, after = part[:place], part[place], part[place + 1 :]
    assert isinstance(block, list)
    inner = _lines(block, indent + INDENT) if _is_subquery(block) else _block_lines(block, indent + INDENT)
    first, *rest = _part_lines(after, indent) if after else [indent]
    separator = "" if not after or after[0] == "," else " "
    return [indent + _inline([*before, "("]), *inner, f"{indent}){separator}{first.removeprefix(indent)}", *rest]


def _block_of(part: list[Node], indent: str) -> int | None:
    """The place of the text in parentheses to break into lines; None if the part fits on one line."""
    lists = {place: node for place, node in enumerate(part) if isinstance(node, list)}
    for place, node in lists.items():
        if _has_subquery([node]):
            return place
    longest = max(lists, key=lambda place: len(_inline(lists[place])), default=None)
    fits = len(indent + _inline(part)) <= WIDTH
    return None if fits or longest is None or len(_inline(lists[longest])) < SHORT else longest


def _block_lines(nodes: list[Node], indent: str) -> list[str]:
    return [line for part in _parts(nodes) for line in _part_lines(part, indent)]


def _clauses(nodes: list[Node]) -> list[list[Node]]:
    clauses: list[list[Node]] = []
    place = 0
    while place < len(nodes):
        size = _begins(nodes, place)
        if size or not clauses:
            clauses.append([])
        clauses[-1] += nodes[place : place + max(1, size)]
        place += max(1, size)
    return clauses


def _begins(nodes: list[Node], place: int) -> int:
    """The number of words of the clause that begins here; 0 if none does."""
    for clause in CLAUSES:
        words = clause.split()
        if nodes[place : place + len(words)] == words:
            is_type = nodes[place + 1 : place + 3] == ["TIME", "ZONE"]
            is_comparison = place > 0 and nodes[place - 1] == "DISTINCT" and clause == "FROM"
            return 0 if is_type or is_comparison else len(words)
    return 0


def _parts(nodes: list[Node]) -> list[list[Node]]:
    """The columns or the conditions of a clause: cut behind commas, and before AND and OR."""
    parts: list[list[Node]] = [[]]
    depth, between = 0, False
    for node in nodes:
        depth += (node == "CASE") - (node == "END")
        cuts = node in ("AND", "OR") and not between and not depth
        between = node == "BETWEEN" or (between and node != "AND")
        if cuts and parts[-1]:
            parts.append([])
        parts[-1].append(node)
        if node == "," and not depth:
            parts.append([])
    return [part for part in parts if part]


def _has_subquery(nodes: list[Node]) -> bool:
    return any(isinstance(node, list) and (_is_subquery(node) or _has_subquery(node)) for node in nodes)


def _is_subquery(nodes: list[Node]) -> bool:
    return bool(nodes) and nodes[0] in STATEMENTS


def _inline(nodes: list[Node]) -> str:
    text = ""
    for node in nodes:
        piece = f"({_inline(node)})" if isinstance(node, list) else node
        calls = piece.startswith("(") and _is_called(text)
        glued = not text or piece == "," or calls or piece.startswith(("::", "["))
        text += piece if glued else f" {piece}"
    return text


def _is_called(text: str) -> bool:
    """True if the text ends with the name of a function or a table, not with a word of SQL."""
    return bool(re.search(r"[a-z_0-9\"]$|\bCAST$", text))
