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
