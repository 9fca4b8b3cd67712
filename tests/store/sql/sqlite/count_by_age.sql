SELECT
    task.queue,
    task.handler,
    task.tenant,
    CASE WHEN (
        task.claimed_at < strftime(
            '%Y-%m-%d %H:%M:%f',
            strftime('%Y-%m-%d %H:%M:%f', 'now'),
            round(CAST(-1.0 AS FLOAT), 3) || ' seconds'
        )
    ) THEN task.id END AS anon_1,
    count(*) AS count_1
FROM task
WHERE
    task.state = 'running'
    AND (
        task.queue IN (
            SELECT queues.name
            FROM (
                SELECT json_extract(queues_row.value, :json_extract_1) AS name
                FROM json_each(:queues) AS queues_row
            ) AS queues
        )
        OR task.handler IN (
            SELECT handlers.name
            FROM (
                SELECT json_extract(handlers_row.value, :json_extract_2) AS name
                FROM json_each(:handlers) AS handlers_row
            ) AS handlers
        )
    )
GROUP BY
    task.queue,
    task.handler,
    task.tenant,
    CASE WHEN (
        task.claimed_at < strftime(
            '%Y-%m-%d %H:%M:%f',
            strftime('%Y-%m-%d %H:%M:%f', 'now'),
            round(CAST(-1.0 AS FLOAT), 3) || ' seconds'
        )
    ) THEN task.id END;
