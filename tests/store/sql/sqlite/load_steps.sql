SELECT
    task_step.name,
    task_step.kind,
    task_step.number,
    task_step.function,
    task_step.attempt,
    task_step.failures,
    ((julianday(task_step.due_at) - julianday('now')) * 86400.0) AS anon_1,
    task_step.done_at IS NOT NULL AS anon_2,
    CAST(task_step.result AS TEXT) AS result,
    task_dependency.parent_id,
    - ((julianday(task_step.at) - julianday('now')) * 86400.0) AS age
FROM task_step
LEFT OUTER JOIN task_dependency ON task_dependency.task_id = task_step.task_id AND task_dependency.step = task_step.name
WHERE task_step.task_id = :task_id;
