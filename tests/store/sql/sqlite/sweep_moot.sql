UPDATE task_dependency
SET satisfied_at = strftime('%Y-%m-%d %H:%M:%f', 'now')
WHERE
    task_dependency.id IN (
        SELECT anon_1.value
        FROM json_each(:param_1) AS anon_1
    )
    AND task_dependency.satisfied_at IS NULL
    AND NOT (
        EXISTS (
            SELECT child.id
            FROM task AS child
            WHERE child.id = task_dependency.task_id AND child.state = 'blocked'
            LIMIT :param_2
            OFFSET 0
        )
    )
RETURNING id;
UPDATE task_dependency
SET satisfied_at = :satisfied_at
WHERE
    task_dependency.id IN (
        SELECT anon_1.value
        FROM json_each(:param_1) AS anon_1
    )
    AND (
        EXISTS (
            SELECT child.id
            FROM task AS child
            WHERE child.id = task_dependency.task_id AND child.state = 'blocked'
            LIMIT :param_2
            OFFSET 0
        )
    );
