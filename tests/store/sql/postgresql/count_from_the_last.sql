SELECT
    counted.queue,
    counted.handler,
    counted.tenant,
    CASE WHEN (
        counted.claimed_at < (statement_timestamp() + (CAST(-1.0 AS FLOAT)) * interval '1 second')
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
        WHERE task_ended_runner.ended_at >= ('epoch'::timestamptz + :since::BIGINT * interval '1 microsecond')
    ) AS runners
    JOIN LATERAL (
        SELECT
            recent.id AS id,
            recent.queue AS queue,
            recent.handler AS handler,
            recent.tenant AS tenant,
            recent.claimed_at AS claimed_at
        FROM task AS recent
        WHERE
            recent.runner_id = runners.id
            AND recent.state = 'running'
            AND recent.claimed_at >= ('epoch'::timestamptz + :since::BIGINT * interval '1 microsecond')
        LIMIT ALL
        OFFSET 0
    ) AS candidate ON true
    UNION ALL
    SELECT
        candidate.id AS id,
        candidate.queue AS queue,
        candidate.handler AS handler,
        candidate.tenant AS tenant,
        candidate.claimed_at AS claimed_at
    FROM unnest(:older_id::BIGINT[]) AS older(id)
    JOIN LATERAL (
        SELECT
            "old".id AS id,
            "old".queue AS queue,
            "old".handler AS handler,
            "old".tenant AS tenant,
            "old".claimed_at AS claimed_at
        FROM task AS "old"
        WHERE
            "old".id = older.id
            AND "old".state = 'running'
            AND "old".claimed_at < ('epoch'::timestamptz + :since::BIGINT * interval '1 microsecond')
        LIMIT ALL
        OFFSET 0
    ) AS candidate ON true
) AS counted
WHERE
    counted.queue IN (
        SELECT queues.name
        FROM unnest(:queues_name::TEXT[]) AS queues(name)
    )
    OR counted.handler IN (
        SELECT handlers.name
        FROM unnest(:handlers_name::TEXT[]) AS handlers(name)
    )
GROUP BY
    counted.queue,
    counted.handler,
    counted.tenant,
    CASE WHEN (
        counted.claimed_at < (statement_timestamp() + (CAST(-1.0 AS FLOAT)) * interval '1 second')
    ) THEN counted.id END;
