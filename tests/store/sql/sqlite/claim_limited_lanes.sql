WITH
    locked_queue AS (
        SELECT
            task_queue.name AS name,
            task_queue.max_running AS max_running,
            task_queue.max_per_tenant AS max_per_tenant,
            task_queue.rate_limit AS rate_limit,
            task_queue.rate_period AS rate_period,
            task_queue.rate_spent AS rate_spent
        FROM task_queue
        WHERE
            task_queue.name IN (
                SELECT queues.name
                FROM (
                    SELECT json_extract(queues_row.value, :json_extract_1) AS name
                    FROM json_each(:queues) AS queues_row
                ) AS queues
            )
            AND (
                task_queue.max_running IS NOT NULL
                OR task_queue.max_per_tenant IS NOT NULL
                OR task_queue.rate_limit IS NOT NULL
            )
        ORDER BY task_queue.name
    ),
    locked_handler AS (
        SELECT
            task_handler.name AS name,
            task_handler.max_running AS max_running,
            task_handler.max_per_tenant AS max_per_tenant,
            task_handler.rate_limit AS rate_limit,
            task_handler.rate_period AS rate_period,
            task_handler.rate_spent AS rate_spent,
            task_handler.breaker_probes AS breaker_probes,
            task_handler.breaker_wait AS breaker_wait,
            task_handler.breaker_round AS breaker_round,
            task_handler.breaker_opened_at AS breaker_opened_at,
            task_handler.breaker_probe_at AS breaker_probe_at
        FROM task_handler
        WHERE
            task_handler.name IN (
                SELECT handlers.name
                FROM (
                    SELECT json_extract(handlers_row.value, :json_extract_2) AS name
                    FROM json_each(:handlers) AS handlers_row
                ) AS handlers
            )
            AND (
                task_handler.max_running IS NOT NULL
                OR task_handler.max_per_tenant IS NOT NULL
                OR task_handler.rate_limit IS NOT NULL
                OR task_handler.breaker_probes IS NOT NULL
            )
        ORDER BY task_handler.name
    )
SELECT
    'queue' AS kind,
    task_queue.name,
    - ((julianday('1970-01-01 00:00:00Z') - julianday('now')) * 86400.0) AS at,
    locked_queue.name IS NOT NULL AS locked,
    locked_queue.max_running,
    locked_queue.max_per_tenant,
    locked_queue.rate_limit,
    locked_queue.rate_period,
    locked_queue.rate_spent,
    CAST(NULL AS INTEGER) AS anon_1,
    CAST(NULL AS FLOAT) AS anon__1,
    CAST(NULL AS INTEGER) AS anon__2,
    CAST(NULL AS TEXT) AS anon__3,
    CAST(NULL AS TEXT) AS anon__4,
    CAST(NULL AS FLOAT) AS anon__5,
    NULL AS anon__6
FROM task_queue
LEFT OUTER JOIN locked_queue ON locked_queue.name = task_queue.name
WHERE
    task_queue.name IN (
        SELECT queues.name
        FROM (
            SELECT json_extract(queues_row.value, :json_extract_1) AS name
            FROM json_each(:queues) AS queues_row
        ) AS queues
    )
    AND (
        task_queue.max_running IS NOT NULL
        OR task_queue.max_per_tenant IS NOT NULL
        OR task_queue.rate_limit IS NOT NULL
    )
UNION ALL
SELECT
    'handler' AS kind,
    task_handler.name,
    - ((julianday('1970-01-01 00:00:00Z') - julianday('now')) * 86400.0) AS at,
    locked_handler.name IS NOT NULL AS locked,
    locked_handler.max_running,
    locked_handler.max_per_tenant,
    locked_handler.rate_limit,
    locked_handler.rate_period,
    locked_handler.rate_spent,
    locked_handler.breaker_probes,
    locked_handler.breaker_wait,
    locked_handler.breaker_round,
    locked_handler.breaker_opened_at,
    locked_handler.breaker_probe_at,
    ((julianday(locked_handler.breaker_probe_at) - julianday('now')) * 86400.0) AS anon_2,
    NULL AS anon_1
FROM task_handler
LEFT OUTER JOIN locked_handler ON locked_handler.name = task_handler.name
WHERE
    task_handler.name IN (
        SELECT handlers.name
        FROM (
            SELECT json_extract(handlers_row.value, :json_extract_2) AS name
            FROM json_each(:handlers) AS handlers_row
        ) AS handlers
    )
    AND (
        task_handler.max_running IS NOT NULL
        OR task_handler.max_per_tenant IS NOT NULL
        OR task_handler.rate_limit IS NOT NULL
        OR task_handler.breaker_probes IS NOT NULL
    );
SELECT task.queue, task.handler, task.tenant, count(*) AS count_1
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
GROUP BY task.queue, task.handler, task.tenant;
WITH
    lane AS MATERIALIZED (
        SELECT
            lane.number AS number,
            lane.queue AS queue,
            lane.handler AS handler,
            lane.priority AS priority,
            lane.hosts AS hosts,
            lane.retried AS retried,
            lane.since AS since,
            lane.since_id AS since_id,
            lane.max_attempts AS max_attempts,
            lane.timeout AS timeout,
            lane.queue_held AS queue_held,
            lane.handler_held AS handler_held,
            lane.queue_room AS queue_room,
            lane.handler_room AS handler_room
        FROM (
            SELECT
                json_extract(lane_row.value, :json_extract_1) AS number,
                json_extract(lane_row.value, :json_extract_2) AS queue,
                json_extract(lane_row.value, :json_extract_3) AS handler,
                json_extract(lane_row.value, :json_extract_4) AS priority,
                json_extract(lane_row.value, :json_extract_5) AS hosts,
                json_extract(lane_row.value, :json_extract_6) AS retried,
                json_extract(lane_row.value, :json_extract_7) AS since,
                json_extract(lane_row.value, :json_extract_8) AS since_id,
                json_extract(lane_row.value, :json_extract_9) AS max_attempts,
                json_extract(lane_row.value, :json_extract_10) AS timeout,
                json_extract(lane_row.value, :json_extract_11) AS queue_held,
                json_extract(lane_row.value, :json_extract_12) AS handler_held,
                json_extract(lane_row.value, :json_extract_13) AS queue_room,
                json_extract(lane_row.value, :json_extract_14) AS handler_room
            FROM json_each(:lane) AS lane_row
        ) AS lane
        WHERE
            NOT (
                EXISTS (
                    SELECT *
                    FROM task_queue
                    WHERE
                        task_queue.name = lane.queue
                        AND (
                            task_queue.paused_at IS NOT NULL
                            AND (
                                task_queue.paused_until IS NULL
                                OR task_queue.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now')
                            )
                            OR (
                                task_queue.max_running IS NOT NULL
                                OR task_queue.max_per_tenant IS NOT NULL
                                OR task_queue.rate_limit IS NOT NULL
                            )
                            AND lane.queue_held = 0
                        )
                )
            )
            AND NOT (
                EXISTS (
                    SELECT *
                    FROM task_handler
                    WHERE
                        task_handler.name = lane.handler
                        AND (
                            task_handler.paused_at IS NOT NULL
                            AND (
                                task_handler.paused_until IS NULL
                                OR task_handler.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now')
                            )
                            OR (
                                task_handler.max_running IS NOT NULL
                                OR task_handler.max_per_tenant IS NOT NULL
                                OR task_handler.rate_limit IS NOT NULL
                                OR task_handler.breaker_probes IS NOT NULL
                            )
                            AND lane.handler_held = 0
                        )
                )
            )
    ),
    ranked AS (
        SELECT
            lane.number AS number,
            lane.queue_room AS queue_room,
            lane.handler_room AS handler_room,
            candidate.id AS id,
            candidate.priority AS priority,
            candidate.retried AS retried,
            candidate.run_at AS run_at,
            row_number() OVER (
                PARTITION BY lane.queue ORDER BY candidate.priority DESC,
                candidate.run_at,
                candidate.id
            ) AS in_queue,
            row_number() OVER (
                PARTITION BY lane.handler ORDER BY candidate.priority DESC,
                candidate.run_at,
                candidate.id
            ) AS in_handler
        FROM lane
        JOIN task AS candidate ON candidate.id IN (
            SELECT due.id
            FROM task AS due
            WHERE
                due.state = 'waiting'
                AND due.run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')
                AND due.queue = lane.queue
                AND due.handler = lane.handler
                AND due.priority = lane.priority
                AND due.hosts = lane.hosts
                AND due.retried = lane.retried
                AND (due.run_at, due.id) > (lane.since, lane.since_id)
                AND (due.max_attempts IS NULL OR due.attempt < due.max_attempts)
                AND due.attempt != 1000000000
                AND due.fence != 1000000000000000000
                AND (due.expires_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) IS NOT 1
                AND (
                    due.order_key IS NULL
                    OR NOT (
                        EXISTS (
                            SELECT 1
                            FROM task AS earlier
                            WHERE earlier.order_key = due.order_key AND earlier.id < due.id
                            LIMIT :param_3
                            OFFSET 0
                        )
                    )
                    AND NOT (
                        EXISTS (
                            SELECT 1
                            FROM task AS rival
                            WHERE
                                rival.order_key = due.order_key
                                AND rival.order_key IS NOT NULL
                                AND rival.state >= 'running'
                                AND rival.state <= 'running'
                            LIMIT :param_4
                            OFFSET 0
                        )
                    )
                )
                AND NOT (
                    due.rescues >= 2
                    OR due.rescues = 1
                    AND due.attempt > 0
                    AND due.max_attempts IS NOT NULL
                    AND due.attempt + 1 >= due.max_attempts
                )
            ORDER BY due.run_at, due.id
            LIMIT :limit
            OFFSET :param_5
        )
    )
UPDATE task
SET
    max_attempts = coalesce(
        task.max_attempts,
        (
            SELECT lane.max_attempts
            FROM lane
            WHERE task.handler = lane.handler
            LIMIT 1
            OFFSET :param_1
        )
    ),
    state = 'running',
    deadline_at = CASE WHEN (task.timeout IS NULL) THEN (
        SELECT strftime(
            '%Y-%m-%d %H:%M:%f',
            strftime('%Y-%m-%d %H:%M:%f', 'now'),
            round(CAST(lane.timeout AS FLOAT), 3) || ' seconds'
        ) AS anon_1
        FROM lane
        WHERE task.handler = lane.handler
        LIMIT 1
        OFFSET :param_2
    ) ELSE strftime(
        '%Y-%m-%d %H:%M:%f',
        strftime('%Y-%m-%d %H:%M:%f', 'now'),
        round(CAST(task.timeout AS FLOAT), 3) || ' seconds'
    ) END,
    started_at = CASE WHEN :starts THEN strftime('%Y-%m-%d %H:%M:%f', 'now') END,
    attempt = (task.attempt + 1),
    fence = (task.fence + 1),
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END,
    runner_id = :runner_id,
    host = :host,
    claimed_at = strftime('%Y-%m-%d %H:%M:%f', 'now')
WHERE
    task.id IN (
        SELECT ranked.id
        FROM ranked
        WHERE ranked.in_queue <= ranked.queue_room AND ranked.in_handler <= ranked.handler_room
        ORDER BY ranked.priority DESC, ranked.run_at, ranked.id
        LIMIT :limit
        OFFSET :param_6
    )
    AND (
        EXISTS (
            SELECT *
            FROM task_runner
            WHERE task_runner.id = :runner_id AND task_runner.lease_until >= strftime('%Y-%m-%d %H:%M:%f', 'now')
        )
    )
RETURNING
    id,
    queue,
    handler,
    "key",
    CASE WHEN (length(cast(payload as blob)) <= :payload_limit) THEN payload END AS anon_2,
    priority,
    run_at AS anon_3,
    attempt,
    max_attempts,
    fence,
    timeout,
    rescues,
    parents,
    CASE WHEN (length(cast(payload as blob)) > :payload_limit) THEN length(cast(payload as blob)) END AS anon_4,
    ((julianday(expires_at) - julianday('now')) * 86400.0) AS anon_5,
    claimed_at AS anon_6,
    hosts,
    NULL AS anon_7,
    headers,
    order_key IS NOT NULL AS anon_8,
    tenant,
    CASE WHEN (length(cast(tags as blob)) <= :param_7) THEN tags END AS anon_9;
