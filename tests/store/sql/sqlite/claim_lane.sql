WITH lane AS (
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
        lane.timeout AS timeout
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
            json_extract(lane_row.value, :json_extract_10) AS timeout
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
                        OR task_queue.max_running IS NOT NULL
                        OR task_queue.max_per_tenant IS NOT NULL
                        OR task_queue.rate_limit IS NOT NULL
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
                        OR task_handler.max_running IS NOT NULL
                        OR task_handler.max_per_tenant IS NOT NULL
                        OR task_handler.rate_limit IS NOT NULL
                        OR task_handler.breaker_probes IS NOT NULL
                    )
            )
        )
)
UPDATE task
SET
    max_attempts = coalesce(
        task.max_attempts,
        (
            SELECT lane.max_attempts
            FROM lane
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
        SELECT due.id
        FROM task AS due
        WHERE
            due.state = 'waiting'
            AND due.run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')
            AND due.queue = (
                SELECT lane.queue
                FROM lane
            )
            AND due.handler = (
                SELECT lane.handler
                FROM lane
            )
            AND due.priority = (
                SELECT lane.priority
                FROM lane
            )
            AND due.hosts = (
                SELECT lane.hosts
                FROM lane
            )
            AND due.retried = (
                SELECT lane.retried
                FROM lane
            )
            AND (due.run_at, due.id) > (
                (
                    SELECT lane.since
                    FROM lane
                ),
                (
                    SELECT lane.since_id
                    FROM lane
                )
            )
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
                        LIMIT :param_1
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
                        LIMIT :param_2
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
        OFFSET :param_3
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
    "key",
    CASE WHEN (length(cast(payload as blob)) <= :payload_limit) THEN payload END AS anon_2,
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
    NULL AS anon_7,
    headers,
    order_key IS NOT NULL AS anon_8,
    tenant,
    CASE WHEN (length(cast(tags as blob)) <= :param_4) THEN tags END AS anon_9;
