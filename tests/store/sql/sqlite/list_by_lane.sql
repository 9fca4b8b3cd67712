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
    JOIN task AS candidate ON candidate.id = (
        SELECT beyond.id
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
        OFFSET :param_2
    )
    UNION ALL
    SELECT
        candidate.queue AS queue,
        candidate.handler AS handler,
        candidate.priority AS priority,
        candidate.hosts AS hosts,
        candidate.retried AS retried,
        candidate.run_at AS run_at
    FROM walk
    JOIN task AS candidate ON candidate.id = (
        SELECT beyond.id
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
        OFFSET :param_3
    )
)
SELECT
    selection.queue,
    selection.handler,
    selection.priority,
    selection.hosts,
    selection.retried,
    selection.run_at,
    ((julianday(selection.run_at) - julianday('now')) * 86400.0) AS anon_1,
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
        OFFSET :param_1
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
                AND (task_queue.paused_until IS NULL OR task_queue.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now'))
        )
        OR walk.handler IN (
            SELECT task_handler.name
            FROM task_handler
            WHERE
                task_handler.paused_at IS NOT NULL
                AND (
                    task_handler.paused_until IS NULL
                    OR task_handler.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now')
                )
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
    LIMIT :most
    OFFSET :param_4
) AS selection;
WITH lane AS (
    SELECT
        lane.queue AS queue,
        lane.handler AS handler,
        lane.priority AS priority,
        lane.hosts AS hosts,
        lane.retried AS retried,
        lane.since AS since,
        lane.since_id AS since_id,
        lane.until AS until,
        lane.until_id AS until_id
    FROM (
        SELECT
            json_extract(lane_row.value, :json_extract_1) AS queue,
            json_extract(lane_row.value, :json_extract_2) AS handler,
            json_extract(lane_row.value, :json_extract_3) AS priority,
            json_extract(lane_row.value, :json_extract_4) AS hosts,
            json_extract(lane_row.value, :json_extract_5) AS retried,
            json_extract(lane_row.value, :json_extract_6) AS since,
            json_extract(lane_row.value, :json_extract_7) AS since_id,
            json_extract(lane_row.value, :json_extract_8) AS until,
            json_extract(lane_row.value, :json_extract_9) AS until_id
        FROM json_each(:lane) AS lane_row
    ) AS lane
)
SELECT candidate.id, candidate.priority, CAST(candidate.run_at AS TEXT) AS run_at
FROM lane
JOIN task AS candidate ON candidate.id IN (
    SELECT task.id
    FROM task
    WHERE
        task.queue = lane.queue
        AND task.handler = lane.handler
        AND task.priority = lane.priority
        AND task.hosts = lane.hosts
        AND task.retried = lane.retried
        AND task.state = 'waiting'
        AND (task.run_at, task.id) > (CAST(lane.since AS TEXT), lane.since_id)
        AND (task.run_at, task.id) <= (CAST(lane.until AS TEXT), lane.until_id)
        AND task.state = 'waiting'
    ORDER BY task.run_at, task.id
    LIMIT :param_1
    OFFSET :param_2
)
ORDER BY candidate.priority DESC, candidate.run_at, candidate.id
LIMIT :param_3
OFFSET :param_4;
