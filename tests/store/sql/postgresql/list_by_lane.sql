WITH RECURSIVE head(id) AS (
    SELECT (
        SELECT earliest.id
        FROM task AS earliest
        WHERE earliest.state = 'waiting'
        ORDER BY earliest.queue, earliest.handler, earliest.priority, earliest.run_at, earliest.id
        LIMIT 1
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
        ),
        (
            SELECT beyond.id
            FROM task AS beyond
            WHERE beyond.state = 'waiting' AND beyond.queue = found.queue AND beyond.handler > found.handler
            ORDER BY beyond.queue, beyond.handler, beyond.priority, beyond.run_at, beyond.id
            LIMIT 1
        ),
        (
            SELECT beyond.id
            FROM task AS beyond
            WHERE beyond.state = 'waiting' AND beyond.queue > found.queue
            ORDER BY beyond.queue, beyond.handler, beyond.priority, beyond.run_at, beyond.id
            LIMIT 1
        )
    ) AS coalesce_1
    FROM head
    JOIN LATERAL (
        SELECT
            here.id AS id,
            here.queue AS queue,
            here.handler AS handler,
            here.priority AS priority,
            here.run_at AS run_at
        FROM task AS here
        WHERE here.id = head.id
        LIMIT ALL
        OFFSET 0
    ) AS found ON true
)
SELECT
    found.queue,
    found.handler,
    found.priority,
    found.run_at,
    extract(epoch from found.run_at - statement_timestamp())::float AS anon_1,
    task_queue.paused_at IS NOT NULL
    AND (task_queue.paused_until IS NULL OR task_queue.paused_until > statement_timestamp())
    OR task_handler.paused_at IS NOT NULL
    AND (task_handler.paused_until IS NULL OR task_handler.paused_until > statement_timestamp()) AS anon_2
FROM head
JOIN LATERAL (
    SELECT here.id AS id, here.queue AS queue, here.handler AS handler, here.priority AS priority, here.run_at AS run_at
    FROM task AS here
    WHERE here.id = head.id
    LIMIT ALL
    OFFSET 0
) AS found ON true
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
    FROM unnest(
        :lane_queue::TEXT[],
        :lane_handler::TEXT[],
        :lane_priority::SMALLINT[],
        :lane_since::TEXT[],
        :lane_since_id::BIGINT[],
        :lane_until::TEXT[],
        :lane_until_id::BIGINT[]
    ) AS lane(queue, handler, priority, since, since_id, until, until_id)
)
SELECT found.id, found.priority, CAST(found.run_at AS TEXT) AS run_at
FROM lane
JOIN LATERAL (
    SELECT task.id AS id, task.run_at AS run_at, task.priority AS priority
    FROM task
    WHERE
        task.queue = lane.queue
        AND task.handler = lane.handler
        AND task.priority = lane.priority
        AND task.state = 'waiting'
        AND (task.run_at, task.id) > (CAST(lane.since AS TIMESTAMP WITH TIME ZONE), lane.since_id)
        AND (task.run_at, task.id) <= (CAST(lane.until AS TIMESTAMP WITH TIME ZONE), lane.until_id)
        AND task.state = 'waiting'
    ORDER BY task.run_at, task.id
    LIMIT :param_1::INTEGER
    OFFSET :param_2::INTEGER
) AS found ON true
ORDER BY found.priority DESC, found.run_at, found.id
LIMIT :param_3::INTEGER;
