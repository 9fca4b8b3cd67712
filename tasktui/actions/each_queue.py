"""The question about a queue or a handler that several shards have: one pause, limit or breaker in each of them."""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace

from runner.errors import RunnerError
from tasktui.actions.action import Action, Confirmation, Targets
from tasktui.actions.each_shard import in_databases
from tasktui.actions.question import Ask, Dialog, Question
from tasktui.messages import Notice, Tone
from tasktui.render.render import content, line
from tasktui.session.session import Session
from tasktui.session.shards import ShardsSession


async def ask_in_each(action: Action, session: ShardsSession, parts: Mapping[str, Targets], ask: Ask) -> Dialog:
    """Ask once for the same change in each shard, except for those that have it already or do not answer.

    Args:
        parts: the queue or the handler in each shard, by its name.
        ask: returns the question about one shard.
    """

    async def of_shard(each: Session, targets: Targets) -> Dialog | None:
        dialog = ask(action, each, targets)
        return await dialog if isinstance(dialog, Coroutine) else dialog

    dialogs, errors = await in_databases(session, parts, of_shard)
    questions = {name: each for name, each in dialogs.items() if isinstance(each, Question)}
    if not questions:
        texts = [f"{name}: {each.text}" for name, each in dialogs.items() if isinstance(each, Notice)]
        texts += [f"{name}: {error}" for name, error in errors.items()]
        return Notice("\n".join(texts) or f"{action.label} applies to one {action.target.word}: select one", bad=True)
    titles = [each.title for each in questions.values() if each.action.prompt or each.parts]
    title = next(iter(titles), next(iter(questions.values())).title)
    same = {name: each for name, each in questions.items() if each.title == title}
    remarks = [f"{name} is left out: it has this already" for name in questions if name not in same]
    return _joined(same, [*remarks, *(f"Nothing is changed in {name}: {error}" for name, error in errors.items())])


def _joined(questions: Mapping[str, Question], remarks: Sequence[str]) -> Dialog:
    """One question with the facts of each shard, whose answer changes one shard after another."""
    first, names = next(iter(questions.values())), list(questions)
    values = {name: [(part.label, part.current) for part in each.parts] for name, each in questions.items()}
    if any(each != values[names[0]] for each in values.values()):
        texts = [f"{name} has {', '.join(': '.join(value) for value in each)}" for name, each in values.items()]
        return Notice("\n".join([f"The limits differ, so choose a shard: :db {names[0]}", *texts]), bad=True)
    about = [content((line(text), "bold retrying")) for text in remarks]
    for name, each in questions.items():
        about += [content((line(name), "bold strong")), *each.about]

    async def change(confirmation: Confirmation) -> Notice:
        texts, tone = [], Tone.DONE
        for name, each in questions.items():
            result = each.change(confirmation)
            try:
                texts.append(f"{name}: {(await result).text if isinstance(result, Coroutine) else ''}")
            except RunnerError as error:
                tone = Tone.PARTIAL
                texts.append(f"{name}: {error}")
        return Notice("\n".join(texts), tone=tone)

    subject = f"{first.subject} in {', '.join(map(line, names))}"
    return replace(first, about=about, count=len(names), change=change, sql=None, subject=subject)
