"""Texts that harm a terminal unless sanitized, and a database that is full of one."""

import json
from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.model.task import State
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead

MARK = "owned"
"""Prefix of each text: a test recognizes the text on the screen by it."""

_TERMINALS = {
    "clear": "\x1b[2J\x1b[1;1H",
    "colour": "\x1b[38;5;199m",
    "scroll": "\x1b[3;4r\x1b[9S",
    "alternate": "\x1b[?1049l\x1b[?1000l",
    "paste": "\x1b[?2004h\x1b[201~",
    "report": "\x1b[6n\x1b[c\x1b[>0q",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;b3duZWQ=\x1b\\",
    "link": "\x1b]8;;https://evil.example\x1b\\press\x1b]8;;\x1b\\",
    "device": '\x1bP$q"p\x1b\\',
    "program": "\x1b_Gi=31\x1b\\",
    "privacy": "\x1b^owned\x1b\\",
    "string": "\x1bXowned\x1b\\",
    "reset": "\x1bc",
    "charset": "\x0e\x1b(0lqqk\x0f",
    "single control": "\x9b2J\x9d0;owned\x9c\x90\x9f",
    "unfinished": "\x1b[31;31",
    "twice": "\x1b\x1b",
}
_TEXTS = {
    "controls": "".join(map(chr, range(1, 32))) + "\x7f",
    "more controls": "".join(map(chr, range(128, 160))),
    "turned around": "\u202etxt.exe\u202c\u2066\u2069\u200f\u061c",
    "hidden": "in\u200bvis\u2060ible\ufeff\u00ad\u180e\u115f\u3164",
    "tags": "\U000e0001\U000e0041\U000e007f",
    "variations": "x\ufe0f\ufe0e\U000e0100",
    "tower": "z" + "\u0301" * 60,
    "wide": "漢字" * 30 + "👩\u200d👩\u200d👧",
    "lines": "a\r\nb\u2028c\u2029d\x85e\x0bf\x0cg\th",
    "unassigned": "\ufdd0\uffff\U0010ffff\ue000",
    "long": "x" * 90,
}
_MARKUP = {
    "button": "[@click=app.quit]press[/]",
    "action": "[@click=\"app.go('audit')\"]press[/@click]",
    "closing": "[/nothing][/]",
    "open": "[bold",
    "linked": "[link=https://evil.example]press[/link]",
    "coloured": "[red on white]press[/red on white]",
    "variable": "$error {0} {self.app} %s %(name)s",
}
CORPUS = {name: MARK + text for name, text in {**_TERMINALS, **_TEXTS, **_MARKUP}.items()}
"""Hostile texts of a foreign client by attack."""

NAME_LIMIT = 200
"""Characters of the name of a queue or a handler."""


async def fill(database: Database, text: str) -> int:
    """Write a text to every text column of all tables that the console reads.

    Returns:
        The id of the live task.
    """
    name = text[:NAME_LIMIT]
    values: dict[str, Any] = dict.fromkeys(("key", "error", "submitted_by", "host"), text)
    payload, names = json.dumps({text: text}), json.dumps([text])
    id = await add_live(database, name, queue=name, payload=payload, headers=payload, tags=names, **values)
    past: dict[str, Any] = dict.fromkeys(("key", "error"), text)
    await add_past(database, id + 1_000, State.DEAD, handler=name, queue=name, result=payload, **past)
    tried: dict[str, Any] = dict.fromkeys(("message", "error_type", "traceback", "host", "fingerprint"), text)
    await add_runner(database, handlers=names, version="0", started_at=ahead(-900))
    runner = {"host": text, "version": text, "command": text, "started_at": ahead(-600)}
    tried["runner_id"] = await add_runner(database, handlers=names, **runner)
    for task_id in (id, id + 1_000):
        await add_attempt(database, task_id, started_at=ahead(-2), ended_at=ahead(-1), handler=name, **tried)
    await _intervened(database, id, text)
    await _scheduled(database, id, text)
    await _reported(database, id, text)
    async with database.writing() as tx:
        workflow = tx.tables.workflow
        added = sa.insert(workflow).values(name=text, submitted_by=text).returning(workflow.c.id)
        member = tx.tables.task.c.id == id
        await tx.execute(sa.update(tx.tables.task).where(member).values(workflow=await tx.scalar(added)))
    return id


async def _intervened(database: Database, id: int, text: str) -> None:
    paused = {"name": text[:NAME_LIMIT], "paused_by": text, "paused_why": text, "paused_at": ahead(-1)}
    limited = {"max_running": 3, "limited_by": text, "limited_why": text, "limited_at": ahead(-1)}
    done = dict.fromkeys(("operator", "host", "verb", "reason"), text)
    changed = json.dumps({"key": text, text: text})
    broken = {"breaker_probes": 1, "breaker_wait": 60.0, "breaker_round": 1, "breaker_probe_at": ahead(60)}
    broken |= {"name": text[:NAME_LIMIT], "breaker_opened_at": ahead(-300), "breaker_by": text, "breaker_why": text}
    async with database.writing() as tx:
        await tx.execute(tx.dialect.insert(tx.tables.handler).values(broken).on_conflict_do_nothing())
        await tx.execute(tx.dialect.insert(tx.tables.queue).values(paused | limited).on_conflict_do_nothing())
        await tx.execute(sa.insert(tx.tables.audit).values(task_id=id, before=changed, after=changed, **done))
        restorable = done | {"verb": "edit", "before": '{"priority": 2}', "after": '{"priority": 1}'}
        await tx.execute(sa.insert(tx.tables.audit).values(task_id=id, **restorable))


async def _scheduled(database: Database, id: int, text: str) -> None:
    name = text[:NAME_LIMIT]
    texts = dict.fromkeys(("rule", "timezone", "misfire", "error", "module", "paused_by", "paused_why"), text)
    values = {"handler": name, "payload": json.dumps({text: text}), "options": json.dumps({"queue": name})}
    async with database.writing() as tx:
        for schedule, pause in ((name, {"paused_at": ahead(-1)}), (name[:-1] + "!", {"rule": "every 1h"})):
            row = {"id": schedule, **texts, **values, **pause, "last_tick": ahead(-9), "last_task_id": id}
            await tx.execute(tx.dialect.insert(tx.tables.schedule).values(row).on_conflict_do_nothing())
            tick = {"schedule": schedule, "tick": ahead(-9), "task_id": id, "outcome": "submitted"}
            await tx.execute(sa.insert(tx.tables.tick).values(tick))


async def _reported(database: Database, id: int, text: str) -> None:
    state = json.dumps({text: text})
    async with database.writing() as tx:
        row: dict[str, Any] = {"task_id": id, "fence": 0}
        await tx.execute(sa.insert(tx.tables.progress).values(row | {"done": 1, "total": 3, "unit": text}))
        await tx.execute(sa.insert(tx.tables.checkpoint).values(row | {"number": 1, "attempt": 1, "state": state}))
        for number, level in enumerate(("WARNING", text)):
            line = {"number": number, "attempt": 1, "at": ahead(-1), "level": level, "line": text}
            await tx.execute(sa.insert(tx.tables.log).values(row | line))
