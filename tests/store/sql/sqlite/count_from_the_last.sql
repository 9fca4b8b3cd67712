SELECT
    counted.queue,
    counted.handler,
    counted.tenant,
    CASE WHEN (
        counted.claimed_at < strftime(
            '%Y-%m-%d %H:%M:%f',
            strftime('%Y-%m-%d %H:%M:%f', 'now'),
            round(CAST(-1.0 AS FLOAT), 3) || ' seconds'
        )
    ) THEN counted.id END AS anon_1,
    count(*) AS count_1
FROM (
    SELECT
        candidate.id AS id,
        candidate.queue AS queue,
        candidate.handler AS handler,
        candidate.tenant AS tenant,
        candidate.claimed_at AS claimed_at
    FROM (
        SELECT task_runner.id AS id
        FROM task_runner
        UNION ALL
        SELECT task_ended_runner.runner_id AS runner_id
        FROM task_ended_runner
        WHERE task_ended_runner.ended_at >= :since
    ) AS runners
    JOIN task AS candidate ON candidate.id IN (
        SELECT recent.id
        FROM task AS recent
        WHERE recent.runner_id = runners.id AND recent.state = 'running' AND recent.claimed_at >= :since
        LIMIT :param_1
        OFFSET 0
    )
    UNION ALL
    SELECT
        candidate.id AS id,
        candidate.queue AS queue,
        candidate.handler AS handler,
        candidate.tenant AS tenant,
        candidate.claimed_at AS claimed_at
    FROM (
        SELECT json_extract(older_row.value, :json_extract_1) AS id
        FROM json_each(:older) AS older_row
    ) AS older
    JOIN task AS candidate ON candidate.id IN (
        SELECT old.id
        FROM task AS old
        WHERE old.id = older.id AND old.state = 'running' AND old.claimed_at < :since
        LIMIT :param_2
        OFFSET 0
    )
) AS counted
WHERE
    counted.queue IN (
        SELECT queues.name
        FROM (
            SELECT json_extract(queues_row.value, :json_extract_2) AS name
            FROM json_each(:queues) AS queues_row
        ) AS queues
    )
    OR counted.handler IN (
        SELECT handlers.name
        FROM (
            SELECT json_extract(handlers_row.value, :json_extract_3) AS name
            FROM json_each(:handlers) AS handlers_row
        ) AS handlers
    )
GROUP BY
    counted.queue,
    counted.handler,
    counted.tenant,
    CASE WHEN (
        counted.claimed_at < strftime(
            '%Y-%m-%d %H:%M:%f',
            strftime('%Y-%m-%d %H:%M:%f', 'now'),
            round(CAST(-1.0 AS FLOAT), 3) || ' seconds'
        )
    ) THEN counted.id END;
