WITH
    lane AS (
        SELECT
            lane.number AS number,
            lane.queue AS queue,
            lane.handler AS handler,
            lane.priority AS priority,
            lane.hosts AS hosts,
            lane.retried AS retried,
            ('epoch'::timestamptz + lane.since * interval '1 microsecond') AS since,
            lane.since_id AS since_id,
            lane.max_attempts AS max_attempts,
            lane.timeout AS timeout
        FROM unnest(
            :lane_number::INTEGER[],
            :lane_queue::TEXT[],
            :lane_handler::TEXT[],
            :lane_priority::SMALLINT[],
            :lane_hosts::TEXT[],
            :lane_retried::BOOLEAN[],
            :lane_since::BIGINT[],
            :lane_since_id::BIGINT[],
            :lane_max_attempts::INTEGER[],
            :lane_timeout::FLOAT[]
        ) AS lane(number, queue, handler, priority, hosts, retried, since, since_id, max_attempts, timeout)
        WHERE
            NOT (
                EXISTS (
                    SELECT *
                    FROM task_queue
                    WHERE
                        task_queue.name = lane.queue
                        AND (
                            task_queue.paused_at IS NOT NULL
                            AND (task_queue.paused_until IS NULL OR task_queue.paused_until > statement_timestamp())
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
                            AND (task_handler.paused_until IS NULL OR task_handler.paused_until > statement_timestamp())
                            OR task_handler.max_running IS NOT NULL
                            OR task_handler.max_per_tenant IS NOT NULL
                            OR task_handler.rate_limit IS NOT NULL
                            OR task_handler.breaker_probes IS NOT NULL
                        )
                )
            )
    ),
    head AS (
        SELECT lane.number AS number, candidate.id AS id
        FROM lane
        JOIN LATERAL (
            SELECT due.id AS id, due.priority AS priority, due.retried AS retried, due.run_at AS run_at
            FROM task AS due
            WHERE
                due.state = 'waiting'
                AND due.run_at <= statement_timestamp()
                AND due.queue = lane.queue
                AND due.handler = lane.handler
                AND due.priority = lane.priority
                AND due.hosts = lane.hosts
                AND due.retried = lane.retried
                AND (due.run_at, due.id) > (lane.since, lane.since_id)
                AND (due.max_attempts IS NULL OR due.attempt < due.max_attempts)
                AND due.attempt != 1000000000
                AND due.fence != 1000000000000000000
                AND (due.expires_at <= statement_timestamp()) IS NOT true
                AND (
                    due.order_key IS NULL
                    OR NOT (
                        EXISTS (
                            SELECT 1
                            FROM task AS earlier
                            WHERE earlier.order_key = due.order_key AND earlier.id < due.id
                            LIMIT ALL
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
                            LIMIT ALL
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
                AND (
                    due.id NOT IN (
                        SELECT unnest(string_to_array(:selected_without::VARCHAR, ',')::BIGINT[])
                    )
                )
            ORDER BY due.run_at, due.id
            LIMIT :limit::INTEGER
        ) AS candidate ON true
        ORDER BY candidate.priority DESC, candidate.run_at, candidate.id
        LIMIT :limit::INTEGER
    ),
    share AS (
        SELECT head.number AS number, count(*) AS tasks
        FROM head
        GROUP BY head.number
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
        )
    ),
    state = 'running',
    deadline_at = CASE WHEN (task.timeout IS NULL) THEN (
        SELECT (statement_timestamp() + (CAST(lane.timeout AS FLOAT)) * interval '1 second') AS anon_1
        FROM lane
        WHERE task.handler = lane.handler
        LIMIT 1
    ) ELSE (statement_timestamp() + (CAST(task.timeout AS FLOAT)) * interval '1 second') END,
    started_at = CASE WHEN :starts THEN statement_timestamp() END,
    attempt = (task.attempt + 1),
    fence = (task.fence + 1),
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END,
    runner_id = :runner_id::BIGINT,
    host = :host::VARCHAR,
    claimed_at = statement_timestamp()
WHERE
    task.ctid = any(
        array(
            (
                SELECT locked.ctid
                FROM share
                JOIN lane ON lane.number = share.number
                JOIN LATERAL (
                    SELECT due.ctid AS ctid
                    FROM task AS due
                    WHERE
                        due.state = 'waiting'
                        AND due.run_at <= statement_timestamp()
                        AND due.queue = lane.queue
                        AND due.handler = lane.handler
                        AND due.priority = lane.priority
                        AND due.hosts = lane.hosts
                        AND due.retried = lane.retried
                        AND (due.run_at, due.id) > (lane.since, lane.since_id)
                        AND (due.max_attempts IS NULL OR due.attempt < due.max_attempts)
                        AND due.attempt != 1000000000
                        AND due.fence != 1000000000000000000
                        AND (due.expires_at <= statement_timestamp()) IS NOT true
                        AND (
                            due.order_key IS NULL
                            OR NOT (
                                EXISTS (
                                    SELECT 1
                                    FROM task AS earlier
                                    WHERE earlier.order_key = due.order_key AND earlier.id < due.id
                                    LIMIT ALL
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
                                    LIMIT ALL
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
                        AND (
                            due.id NOT IN (
                                SELECT unnest(string_to_array(:selected_without::VARCHAR, ',')::BIGINT[])
                            )
                        )
                    ORDER BY due.run_at, due.id
                    LIMIT share.tasks
                    FOR UPDATE SKIP LOCKED
                ) AS locked ON true
            )
        )
    )
    AND (
        EXISTS (
            SELECT *
            FROM task_runner
            WHERE task_runner.id = :runner_id::BIGINT AND task_runner.lease_until >= statement_timestamp()
        )
    )
RETURNING
    task.id,
    task.queue,
    task.handler,
    task.key,
    CASE WHEN (octet_length(task.payload::text) <= :payload_limit::BIGINT) THEN task.payload END AS anon_2,
    task.priority,
    (date_part('epoch', task.run_at) * 1000000)::bigint AS anon_3,
    task.attempt,
    task.max_attempts,
    task.fence,
    task.timeout,
    task.rescues,
    task.parents,
    CASE WHEN (octet_length(task.payload::text) > :payload_limit::BIGINT) THEN octet_length(task.payload::text) END AS anon_4,
    extract(epoch from task.expires_at - statement_timestamp())::float AS anon_5,
    (date_part('epoch', task.claimed_at) * 1000000)::bigint AS anon_6,
    task.hosts,
    task.ctid,
    task.headers,
    task.order_key IS NOT NULL AS anon_7,
    task.tenant,
    CASE WHEN (octet_length(task.tags::text) <= :param_1::INTEGER) THEN task.tags END AS anon_8;
