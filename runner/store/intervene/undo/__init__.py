"""undo: take back what an operator did, if nothing has happened since that it would overrule."""

from runner.store.intervene.undo.batch import Undoing, undo_all, undoing
from runner.store.intervene.undo.changes import Change, changes_of, in_batch
from runner.store.intervene.undo.undo import undo

__all__ = ["Change", "Undoing", "changes_of", "in_batch", "undo", "undo_all", "undoing"]
