SELECT task.id
FROM task
WHERE task.id IN (
    SELECT anon_1.value
    FROM json_each(:param_1) AS anon_1
)
ORDER BY task.id;
SELECT task.id
FROM task
WHERE task.id IN (
    SELECT anon_1.value
    FROM json_each(:param_1) AS anon_1
);
UPDATE task
SET
    run_at = strftime('%Y-%m-%d %H:%M:%f', 'now'),
    state = 'waiting',
    blocked_by = 0,
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END
WHERE
    task.id IN (
        SELECT signalled.id
        FROM (
            SELECT json_extract(signalled_row.value, :json_extract_1) AS id
            FROM json_each(:signalled) AS signalled_row
        ) AS signalled
    )
    AND (
        task.state = 'waiting'
        AND task.run_at > strftime('%Y-%m-%d %H:%M:%f', 'now')
        OR task.state = 'blocked'
        AND (
            EXISTS (
                SELECT child_of.id
                FROM task_dependency AS child_of
                WHERE child_of.task_id = task.id AND child_of.satisfied_at IS NULL AND child_of.step IS NOT NULL
                LIMIT :param_1
                OFFSET 0
            )
        )
        AND NOT (
            EXISTS (
                SELECT other_of.id
                FROM task_dependency AS other_of
                WHERE other_of.task_id = task.id AND other_of.satisfied_at IS NULL AND other_of.step IS NULL
                LIMIT :param_2
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
RETURNING id;
UPDATE task_signal
SET noticed_at = strftime('%Y-%m-%d %H:%M:%f', 'now')
WHERE
    task_signal.task_id IN (
        SELECT anon_1.value
        FROM json_each(:param_1) AS anon_1
    )
    AND task_signal.noticed_at IS NULL;
