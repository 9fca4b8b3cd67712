SELECT task.id
FROM task
WHERE task.id = ANY (:param_1::BIGINT[])
ORDER BY task.id
FOR UPDATE SKIP LOCKED;
SELECT task.id
FROM task
WHERE task.id = ANY (:param_1::BIGINT[]);
UPDATE task
SET
    run_at = statement_timestamp(),
    state = 'waiting',
    blocked_by = 0,
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END
WHERE
    task.id = ANY (:signalled_id::BIGINT[])
    AND (
        task.state = 'waiting'
        AND task.run_at > statement_timestamp()
        OR task.state = 'blocked'
        AND (
            EXISTS (
                SELECT child_of.id
                FROM task_dependency AS child_of
                WHERE child_of.task_id = task.id AND child_of.satisfied_at IS NULL AND child_of.step IS NOT NULL
                LIMIT ALL
                OFFSET 0
            )
        )
        AND NOT (
            EXISTS (
                SELECT other_of.id
                FROM task_dependency AS other_of
                WHERE other_of.task_id = task.id AND other_of.satisfied_at IS NULL AND other_of.step IS NULL
                LIMIT ALL
                OFFSET 0
            )
        )
    )
    AND (
        EXISTS (
            SELECT task_signal.id
            FROM task_signal, task_step
            WHERE
                task_step.task_id = task.id
                AND task_step.done_at IS NULL
                AND task_step.signal IS NOT NULL
                AND task_signal.task_id = task.id
                AND task_signal.name = task_step.signal
                AND task_signal.received_at IS NULL
        )
    )
RETURNING task.id;
UPDATE task_signal
SET noticed_at = statement_timestamp()
WHERE task_signal.task_id = ANY (:param_1::BIGINT[]) AND task_signal.noticed_at IS NULL;
