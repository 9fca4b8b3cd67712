SELECT
    task.queue,
    task.handler,
    task.tenant,
    CASE WHEN (
        task.claimed_at < (statement_timestamp() + (CAST(-1.0 AS FLOAT)) * interval '1 second')
    ) THEN task.id END AS anon_1,
    count(*) AS count_1
FROM task
WHERE
    task.state = 'running'
    AND (
        task.queue IN (
            SELECT queues.name
            FROM unnest(:queues_name::TEXT[]) AS queues(name)
        )
        OR task.handler IN (
            SELECT handlers.name
            FROM unnest(:handlers_name::TEXT[]) AS handlers(name)
        )
    )
GROUP BY
    task.queue,
    task.handler,
    task.tenant,
    CASE WHEN (task.claimed_at < (statement_timestamp() + (CAST(-1.0 AS FLOAT)) * interval '1 second')) THEN task.id END;
