"""intervene: what an operator may do, each guarded by the version that was seen, each written down.

Every function takes a writing transaction; the change and the entry that tells of it are committed together.
"""

from typing import TYPE_CHECKING

from runner.later import names_of

if TYPE_CHECKING:
    from runner.store.intervene.answers import By, MovedOn, Refused, Result, Target
    from runner.store.intervene.bulk import Course, Doors, Matching, Operation, matching, to_all, to_each
    from runner.store.intervene.changes import KEEP, Changes
    from runner.store.intervene.delay import delay
    from runner.store.intervene.edit import Editing, edit, edit_each, editing
    from runner.store.intervene.eligibility import LAST, VERBS, is_last, objection
    from runner.store.intervene.elsewhere import place_script, wish_script
    from runner.store.intervene.misnamed import misnamed
    from runner.store.intervene.pause import Paused, pause, pause_of, pausing, resume
    from runner.store.intervene.person import together, who
    from runner.store.intervene.place import Kind, Place
    from runner.store.intervene.preview import Preview, bounded, gathered, preview
    from runner.store.intervene.retry import requeue, retry_now
    from runner.store.intervene.reveal import reveal
    from runner.store.intervene.script import MOST_SCRIPTED, Part, script, undo_script, written
    from runner.store.intervene.terminate import terminate
    from runner.store.intervene.unblock import unblock
    from runner.store.intervene.undo import Undoing, undo, undo_all, undoing
    from runner.store.intervene.wish import wish

__all__ = [
    "KEEP",
    "LAST",
    "MOST_SCRIPTED",
    "VERBS",
    "By",
    "Changes",
    "Course",
    "Doors",
    "Editing",
    "Kind",
    "Matching",
    "MovedOn",
    "Operation",
    "Part",
    "Paused",
    "Place",
    "Preview",
    "Refused",
    "Result",
    "Target",
    "Undoing",
    "bounded",
    "delay",
    "edit",
    "edit_each",
    "editing",
    "gathered",
    "is_last",
    "matching",
    "misnamed",
    "objection",
    "pause",
    "pause_of",
    "pausing",
    "place_script",
    "preview",
    "requeue",
    "resume",
    "retry_now",
    "reveal",
    "script",
    "terminate",
    "to_all",
    "to_each",
    "together",
    "unblock",
    "undo",
    "undo_all",
    "undo_script",
    "undoing",
    "who",
    "wish",
    "wish_script",
    "written",
]

__getattr__ = names_of(__name__)
