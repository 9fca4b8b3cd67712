"""undo: undo operations, unless later changes would be lost."""

from runner.operations.undo.entries import UndoableChange, changes_of, entries_of_group
from runner.operations.undo.undo import UndoPreview, preview_undo, undo, undo_all

__all__ = ["UndoPreview", "UndoableChange", "changes_of", "entries_of_group", "preview_undo", "undo", "undo_all"]
