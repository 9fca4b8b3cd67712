WITH RECURSIVE head(id) AS (
    SELECT (
        SELECT earliest.id
        FROM task AS earliest
        WHERE earliest.state = 'waiting'
        ORDER BY earliest.queue, earliest.handler, earliest.priority, earliest.run_at, earliest.id
        LIMIT 1
        OFFSET :param_1
    ) AS id
    UNION ALL
    SELECT coalesce(
        (
            SELECT beyond.id
            FROM task AS beyond
            WHERE
                beyond.state = 'waiting'
                AND beyond.queue = found.queue
                AND beyond.handler = found.handler
                AND beyond.priority > found.priority
            ORDER BY beyond.queue, beyond.handler, beyond.priority, beyond.run_at, beyond.id
            LIMIT 1
            OFFSET :param_2
        ),
        (
            SELECT beyond.id
            FROM task AS beyond
            WHERE beyond.state = 'waiting' AND beyond.queue = found.queue AND beyond.handler > found.handler
            ORDER BY beyond.queue, beyond.handler, beyond.priority, beyond.run_at, beyond.id
            LIMIT 1
            OFFSET :param_3
        ),
        (
            SELECT beyond.id
            FROM task AS beyond
            WHERE beyond.state = 'waiting' AND beyond.queue > found.queue
            ORDER BY beyond.queue, beyond.handler, beyond.priority, beyond.run_at, beyond.id
            LIMIT 1
            OFFSET :param_4
        )
    ) AS coalesce_1
    FROM head
    JOIN task AS found ON found.id IN (
        SELECT here.id
        FROM task AS here
        WHERE here.id = head.id
        LIMIT :param_5
        OFFSET 0
    )
)
SELECT
    found.queue,
    found.handler,
    found.priority,
    found.run_at,
    ((julianday(found.run_at) - julianday('now')) * 86400.0) AS anon_1,
    task_queue.paused_at IS NOT NULL
    AND (task_queue.paused_until IS NULL OR task_queue.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now'))
    OR task_handler.paused_at IS NOT NULL
    AND (
        task_handler.paused_until IS NULL
        OR task_handler.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now')
    ) AS anon_2
FROM head
JOIN task AS found ON found.id IN (
    SELECT here.id
    FROM task AS here
    WHERE here.id = head.id
    LIMIT :param_6
    OFFSET 0
)
LEFT OUTER JOIN task_queue ON task_queue.name = found.queue
LEFT OUTER JOIN task_handler ON task_handler.name = found.handler;
WITH lane AS (
    SELECT
        lane.queue AS queue,
        lane.handler AS handler,
        lane.priority AS priority,
        lane.since AS since,
        lane.since_id AS since_id,
        lane.until AS until,
        lane.until_id AS until_id
    FROM (
        SELECT
            json_extract(lane_row.value, :json_extract_1) AS queue,
            json_extract(lane_row.value, :json_extract_2) AS handler,
            json_extract(lane_row.value, :json_extract_3) AS priority,
            json_extract(lane_row.value, :json_extract_4) AS since,
            json_extract(lane_row.value, :json_extract_5) AS since_id,
            json_extract(lane_row.value, :json_extract_6) AS until,
            json_extract(lane_row.value, :json_extract_7) AS until_id
        FROM json_each(:lane) AS lane_row
    ) AS lane
)
SELECT found.id, found.priority, CAST(found.run_at AS TEXT) AS run_at
FROM lane
JOIN task AS found ON found.id IN (
    SELECT task.id
    FROM task
    WHERE
        task.queue = lane.queue
        AND task.handler = lane.handler
        AND task.priority = lane.priority
        AND task.state = 'waiting'
        AND (task.run_at, task.id) > (CAST(lane.since AS TEXT), lane.since_id)
        AND (task.run_at, task.id) <= (CAST(lane.until AS TEXT), lane.until_id)
        AND task.state = 'waiting'
    ORDER BY task.run_at, task.id
    LIMIT :param_1
    OFFSET :param_2
)
ORDER BY found.priority DESC, found.run_at, found.id
LIMIT :param_3
OFFSET :param_4;
