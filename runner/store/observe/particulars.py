"""particulars: what is to be said of one task in a line each, on the command line and in the console alike."""

from collections.abc import Iterator
from datetime import tzinfo

from runner.people import cells
from runner.people.terminal import counted
from runner.store.observe.story import Story


def particulars(story: Story, zone: tzinfo) -> Iterator[tuple[str, str]]:
    """Tell what a task is, where it is and what it has been through; what there is nothing to say of is left out.

    Args:
        story: of the task.
        zone: in which times are told.

    Yields:
        A name and a text; the texts hold what stands in the database, and are to be made safe before they are shown.
    """
    task = story.task
    yield "task", f"{task.id}   version {task.version}"
    yield "state", cells.state(task.shown) + ("   its end has been asked for" if task.cancel_requested else "")
    yield "handler", f"{task.handler}   in queue {task.queue}, priority {task.priority}"
    rescued = f"   rescued {counted(task.rescues, 'time')}" if task.rescues else ""
    yield "attempts", f"{cells.tries(task.attempt, task.max_attempts)}{rescued}"
    times = {"run at": task.run_at, "submitted": task.submitted_at, "claimed": task.claimed_at}
    times |= {"deadline": story.deadline_at, "finished": task.finished_at}
    yield from ((name, cells.exact(moment, story.at, zone)) for name, moment in times.items() if moment)
    yield from ((name, str(value)) for name, value in _rest(story) if value not in (None, ""))


def _rest(story: Story) -> Iterator[tuple[str, object]]:
    task, runner = story.task, story.runner
    yield "key", task.key
    yield "unique key", story.unique and story.unique.key
    yield "which is", story.unique and story.unique.told(task.id, story.at)
    yield "parents", story.family.progress
    yield "submitted by", story.submitted_by
    yield "handler took", cells.duration(task.duration) if task.duration is not None else None
    yield "progress", f"{task.progress:.0%}" if task.progress is not None else None
    yield "runner", f"{runner.id} on {runner.host}, silent for {cells.age(runner.silent)}" if runner else task.runner_id
    yield "host", None if runner else task.host
    yield "retry plan", story.retry
    yield "timeout", cells.age(story.timeout) if story.timeout is not None else None
    yield "tags", ", ".join(story.tags)
    yield "bucket", story.bucket
    yield "trace", story.trace
