UPDATE task_dependency
SET satisfied_at = statement_timestamp()
WHERE
    task_dependency.id = ANY (:param_1::BIGINT[])
    AND task_dependency.satisfied_at IS NULL
    AND NOT (
        EXISTS (
            SELECT child.id
            FROM task AS child
            WHERE child.id = task_dependency.task_id AND child.state = 'blocked'
            LIMIT ALL
            OFFSET 0
        )
    )
RETURNING task_dependency.id;
UPDATE task_dependency
SET satisfied_at = :satisfied_at::TIMESTAMP WITH TIME ZONE
WHERE
    task_dependency.id = ANY (:param_1::BIGINT[])
    AND (
        EXISTS (
            SELECT child.id
            FROM task AS child
            WHERE child.id = task_dependency.task_id AND child.state = 'blocked'
            LIMIT ALL
            OFFSET 0
        )
    );
