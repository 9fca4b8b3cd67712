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
                FROM unnest(:queues_name::TEXT[]) AS queues(name)
            )
            AND (
                task_queue.max_running IS NOT NULL
                OR task_queue.max_per_tenant IS NOT NULL
                OR task_queue.rate_limit IS NOT NULL
            )
        ORDER BY task_queue.name FOR NO KEY
        UPDATE SKIP LOCKED
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
                FROM unnest(:handlers_name::TEXT[]) AS handlers(name)
            )
            AND (
                task_handler.max_running IS NOT NULL
                OR task_handler.max_per_tenant IS NOT NULL
                OR task_handler.rate_limit IS NOT NULL
                OR task_handler.breaker_probes IS NOT NULL
            )
        ORDER BY task_handler.name FOR NO KEY
        UPDATE SKIP LOCKED
    )
SELECT
    'queue' AS kind,
    task_queue.name,
    -extract(epoch from '1970-01-01 00:00:00Z' - statement_timestamp())::float AS at,
    locked_queue.name IS NOT NULL AS locked,
    locked_queue.max_running,
    locked_queue.max_per_tenant,
    locked_queue.rate_limit,
    locked_queue.rate_period,
    locked_queue.rate_spent,
    CAST(NULL AS INTEGER) AS anon_1,
    CAST(NULL AS FLOAT) AS anon__1,
    CAST(NULL AS INTEGER) AS anon__2,
    CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS anon__3,
    CAST(NULL AS TIMESTAMP WITH TIME ZONE) AS anon__4,
    CAST(NULL AS FLOAT) AS anon__5,
    set_config('idle_in_transaction_session_timeout', '5000ms', true)
FROM task_queue
LEFT OUTER JOIN locked_queue ON locked_queue.name = task_queue.name
WHERE
    task_queue.name IN (
        SELECT queues.name
        FROM unnest(:queues_name::TEXT[]) AS queues(name)
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
    -extract(epoch from '1970-01-01 00:00:00Z' - statement_timestamp())::float AS at,
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
    extract(epoch from locked_handler.breaker_probe_at - statement_timestamp())::float AS anon_2,
    set_config('idle_in_transaction_session_timeout', '5000ms', true)
FROM task_handler
LEFT OUTER JOIN locked_handler ON locked_handler.name = task_handler.name
WHERE
    task_handler.name IN (
        SELECT handlers.name
        FROM unnest(:handlers_name::TEXT[]) AS handlers(name)
    )
    AND (
        task_handler.max_running IS NOT NULL
        OR task_handler.max_per_tenant IS NOT NULL
        OR task_handler.rate_limit IS NOT NULL
        OR task_handler.breaker_probes IS NOT NULL
    );
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
        SELECT task_lost_runner.runner_id AS runner_id
        FROM task_lost_runner
        WHERE task_lost_runner.lost_at >= ('epoch'::timestamptz + :since::BIGINT * interval '1 microsecond')
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
WITH lane AS (
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
        lane.timeout AS timeout,
        lane.queue_held AS queue_held,
        lane.handler_held AS handler_held,
        lane.queue_room AS queue_room,
        lane.handler_room AS handler_room
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
        :lane_timeout::FLOAT[],
        :lane_queue_held::BOOLEAN[],
        :lane_handler_held::BOOLEAN[],
        :lane_queue_room::INTEGER[],
        :lane_handler_room::INTEGER[]
    ) AS lane(
        number,
        queue,
        handler,
        priority,
        hosts,
        retried,
        since,
        since_id,
        max_attempts,
        timeout,
        queue_held,
        handler_held,
        queue_room,
        handler_room
    )
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
                        OR (
                            task_queue.max_running IS NOT NULL
                            OR task_queue.max_per_tenant IS NOT NULL
                            OR task_queue.rate_limit IS NOT NULL
                        )
                        AND NOT lane.queue_held
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
                        OR (
                            task_handler.max_running IS NOT NULL
                            OR task_handler.max_per_tenant IS NOT NULL
                            OR task_handler.rate_limit IS NOT NULL
                            OR task_handler.breaker_probes IS NOT NULL
                        )
                        AND NOT lane.handler_held
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
        SELECT (statement_timestamp() + (CAST(lane.timeout AS FLOAT)) * interval '1 second') AS anon_1
        FROM lane
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
                FROM lane
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
                    ORDER BY due.run_at, due.id
                    LIMIT :limit::INTEGER
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
    task.key,
    CASE WHEN (octet_length(task.payload::text) <= :payload_limit::BIGINT) THEN task.payload END AS anon_2,
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
    task.ctid,
    task.headers,
    task.order_key IS NOT NULL AS anon_7,
    task.tenant,
    CASE WHEN (octet_length(task.tags::text) <= :param_1::INTEGER) THEN task.tags END AS anon_8;
