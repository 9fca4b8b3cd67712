"""The release after this one: it has one revision more."""

import shutil
from pathlib import Path

import pytest

from runner.db.migrations import context, revisions
from runner.db.migrations.revisions import HEAD, REVISIONS

NEXT = f"{int(HEAD) + 1:04}"

OUT_OF_DATE = rf"is at schema {HEAD}, but this program needs {NEXT}\. .*: runner migrate"

NEXT_REVISION = """
import sqlalchemy as sa

revision = "{revision}"
down_revision = "{before}"
additive = {additive}

def upgrade(op):
    op.plain.add_column(op.name("task"), sa.Column("colour", sa.Text), schema=op.schema)
    {then}
"""


def install_next(folder: Path, monkeypatch: pytest.MonkeyPatch, then: str = "pass", *, additive: bool = False) -> None:
    """Let this process be of the next release.

    Args:
        folder: an empty or missing one, for its revisions.
        monkeypatch: undoes it.
        then: a further statement of the new revision.
        additive: programs that do not know the new revision can use its tables.
    """
    versions = shutil.copytree(revisions.FOLDER / "versions", folder / "versions")
    text = NEXT_REVISION.format(revision=NEXT, before=HEAD, then=then, additive=additive)
    (versions / f"{NEXT}_colour.py").write_text(text)
    monkeypatch.setattr(context, "FOLDER", folder)
    monkeypatch.setattr(revisions, "REVISIONS", (*REVISIONS, NEXT))
    monkeypatch.setattr(revisions, "HEAD", NEXT)
