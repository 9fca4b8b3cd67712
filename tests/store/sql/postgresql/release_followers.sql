WITH
    selection AS MATERIALIZED (
        SELECT candidate.ctid AS address, locked.ctid AS task_row
        FROM unnest(:parents_id::BIGINT[]) AS parents(id)
        JOIN LATERAL (
            SELECT task_dependency.id AS id, task_dependency.task_id AS task_id, task_dependency.ctid AS ctid
            FROM task_dependency
            WHERE
                task_dependency.parent_id = parents.id
                AND task_dependency.parent_key IS NULL
                AND task_dependency.in_order
                AND task_dependency.satisfied_at IS NULL
            LIMIT ALL
            OFFSET 0
        ) AS candidate ON true
        JOIN LATERAL (
            SELECT follower.ctid AS ctid
            FROM task AS follower
            WHERE follower.id = candidate.task_id AND follower.state = 'blocked' AND follower.blocked_by <= 1
            FOR UPDATE SKIP LOCKED
        ) AS locked ON true
        WHERE
            (
                EXISTS (
                    SELECT 1
                    FROM task_history AS past
                    WHERE past.id = parents.id AND past.state = 'succeeded'
                    LIMIT ALL
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
                        AND (other.satisfied_at IS NULL OR NOT other.in_order)
                    LIMIT ALL
                    OFFSET 0
                )
            )
    ),
    closed AS (
        UPDATE task_dependency
        SET parent_state = 'succeeded', satisfied_at = statement_timestamp()
        FROM selection
        WHERE task_dependency.ctid = selection.address
        RETURNING task_dependency.id
    ),
    inserted AS (
        UPDATE task
        SET
            run_at = CASE WHEN (task.run_at > statement_timestamp()) THEN task.run_at ELSE statement_timestamp() END,
            state = 'waiting',
            blocked_by = 0,
            version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END
        FROM selection
        WHERE task.ctid = selection.task_row
        RETURNING task.id
    ),
    notice AS MATERIALIZED (
        SELECT pg_notify(:pg_notify_1::VARCHAR, :pg_notify_2::VARCHAR) AS sent
    )
SELECT inserted.id
FROM inserted
JOIN notice ON notice.sent IS NOT NULL;
