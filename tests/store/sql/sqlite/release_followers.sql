SELECT candidate.id, follower.id AS id_1
FROM (
    SELECT json_extract(parents_row.value, :json_extract_1) AS id
    FROM json_each(:parents) AS parents_row
) AS parents
JOIN task_dependency AS candidate ON candidate.id IN (
    SELECT task_dependency.id
    FROM task_dependency
    WHERE
        task_dependency.parent_id = parents.id
        AND task_dependency.parent_key IS NULL
        AND task_dependency.in_order = 1
        AND task_dependency.satisfied_at IS NULL
    LIMIT :param_1
    OFFSET 0
)
JOIN task AS follower ON follower.id = candidate.task_id AND follower.state = 'blocked' AND follower.blocked_by <= 1
WHERE
    (
        EXISTS (
            SELECT 1
            FROM task_history AS past
            WHERE past.id = parents.id AND past.state = 'succeeded'
            LIMIT :param_2
            OFFSET 0
        )
    )
    AND NOT (
        EXISTS (
            SELECT 1
            FROM task_dependency AS other
            WHERE
                other.task_id = candidate.task_id
                AND other.id != candidate.id
                AND (other.satisfied_at IS NULL OR other.in_order = 0)
            LIMIT :param_3
            OFFSET 0
        )
    );
