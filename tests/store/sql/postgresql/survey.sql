WITH RECURSIVE walk(queue, handler, priority, hosts, retried, run_at) AS (
    SELECT
        candidate.queue AS queue,
        candidate.handler AS handler,
        candidate.priority AS priority,
        candidate.hosts AS hosts,
        candidate.retried AS retried,
        candidate.run_at AS run_at
    FROM (
        SELECT '' AS queue, '' AS handler, 0 AS priority, '' AS hosts, false AS retried
    ) AS start
    JOIN LATERAL (
        SELECT
            beyond.queue AS queue,
            beyond.handler AS handler,
            beyond.priority AS priority,
            beyond.hosts AS hosts,
            beyond.retried AS retried,
            beyond.run_at AS run_at,
            beyond.id AS id
        FROM task AS beyond
        WHERE
            beyond.state = 'waiting'
            AND (beyond.queue, beyond.handler, beyond.priority, beyond.hosts, beyond.retried, beyond.run_at) > (
                coalesce(start.queue, ''),
                coalesce(start.handler, ''),
                coalesce(start.priority, 0),
                coalesce(start.hosts, ''),
                coalesce(start.retried, false),
                '9999-12-31'
            )
        ORDER BY beyond.queue, beyond.handler, beyond.priority, beyond.hosts, beyond.retried, beyond.run_at, beyond.id
        LIMIT 1
    ) AS candidate ON true
    UNION ALL
    SELECT
        candidate.queue AS queue,
        candidate.handler AS handler,
        candidate.priority AS priority,
        candidate.hosts AS hosts,
        candidate.retried AS retried,
        candidate.run_at AS run_at
    FROM walk
    JOIN LATERAL (
        SELECT
            beyond.queue AS queue,
            beyond.handler AS handler,
            beyond.priority AS priority,
            beyond.hosts AS hosts,
            beyond.retried AS retried,
            beyond.run_at AS run_at,
            beyond.id AS id
        FROM task AS beyond
        WHERE
            beyond.state = 'waiting'
            AND (beyond.queue, beyond.handler, beyond.priority, beyond.hosts, beyond.retried, beyond.run_at) > (
                coalesce(walk.queue, ''),
                coalesce(walk.handler, ''),
                coalesce(walk.priority, 0),
                coalesce(walk.hosts, ''),
                coalesce(walk.retried, false),
                '9999-12-31'
            )
        ORDER BY beyond.queue, beyond.handler, beyond.priority, beyond.hosts, beyond.retried, beyond.run_at, beyond.id
        LIMIT 1
    ) AS candidate ON true
)
SELECT
    selection.queue,
    selection.handler,
    selection.priority,
    selection.hosts,
    selection.retried,
    selection.run_at,
    extract(epoch from selection.run_at - statement_timestamp())::float AS anon_1,
    selection.paused,
    (
        SELECT CASE WHEN (
            NOT (
                (first.max_attempts IS NULL OR first.attempt < first.max_attempts)
                AND first.attempt != 1000000000
                AND first.fence != 1000000000000000000
            )
        ) THEN first.id WHEN (first.order_key IS NOT NULL) THEN 0 END AS anon_3
        FROM task AS first
        WHERE
            first.state = 'waiting'
            AND first.queue = selection.queue
            AND first.handler = selection.handler
            AND first.priority = selection.priority
            AND first.hosts = selection.hosts
            AND first.retried = selection.retried
            AND first.run_at >= selection.run_at
        ORDER BY first.run_at, first.id
        LIMIT 1
    ) AS anon_2,
    selection.limited
FROM (
    SELECT
        walk.queue AS queue,
        walk.handler AS handler,
        walk.priority AS priority,
        walk.hosts AS hosts,
        walk.retried AS retried,
        walk.run_at AS run_at,
        walk.queue IN (
            SELECT task_queue.name
            FROM task_queue
            WHERE
                task_queue.paused_at IS NOT NULL
                AND (task_queue.paused_until IS NULL OR task_queue.paused_until > statement_timestamp())
        )
        OR walk.handler IN (
            SELECT task_handler.name
            FROM task_handler
            WHERE
                task_handler.paused_at IS NOT NULL
                AND (task_handler.paused_until IS NULL OR task_handler.paused_until > statement_timestamp())
        ) AS paused,
        walk.queue IN (
            SELECT task_queue.name
            FROM task_queue
            WHERE
                task_queue.max_running IS NOT NULL
                OR task_queue.max_per_tenant IS NOT NULL
                OR task_queue.rate_limit IS NOT NULL
        )
        OR walk.handler IN (
            SELECT task_handler.name
            FROM task_handler
            WHERE
                task_handler.max_running IS NOT NULL
                OR task_handler.max_per_tenant IS NOT NULL
                OR task_handler.rate_limit IS NOT NULL
                OR task_handler.breaker_probes IS NOT NULL
        ) AS limited
    FROM walk
) AS selection;
