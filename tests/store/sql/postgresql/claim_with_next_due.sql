WITH RECURSIVE
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
    claimed AS (
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
                SELECT (statement_timestamp() + (CAST(lane.timeout AS FLOAT)) * interval '1 second') AS anon_2
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
            task.id AS id,
            task.key AS key,
            CASE WHEN (octet_length(task.payload::text) <= :payload_limit::BIGINT) THEN task.payload END AS payload,
            (date_part('epoch', task.run_at) * 1000000)::bigint AS run_at,
            task.attempt AS attempt,
            task.max_attempts AS max_attempts,
            task.fence AS fence,
            task.timeout AS timeout,
            task.rescues AS rescues,
            task.parents AS parents,
            CASE WHEN (octet_length(task.payload::text) > :payload_limit::BIGINT) THEN octet_length(task.payload::text) END AS oversize,
            extract(epoch from task.expires_at - statement_timestamp())::float AS expires_in,
            (date_part('epoch', task.claimed_at) * 1000000)::bigint AS claimed_at,
            task.ctid AS address,
            task.headers AS headers,
            task.order_key IS NOT NULL AS has_order_key,
            task.tenant AS tenant,
            CASE WHEN (octet_length(task.tags::text) <= :param_1::INTEGER) THEN task.tags END AS tags
    ),
    walk(queue, handler, priority, hosts, retried, run_at) AS (
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
            ORDER BY
                beyond.queue,
                beyond.handler,
                beyond.priority,
                beyond.hosts,
                beyond.retried,
                beyond.run_at,
                beyond.id
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
            ORDER BY
                beyond.queue,
                beyond.handler,
                beyond.priority,
                beyond.hosts,
                beyond.retried,
                beyond.run_at,
                beyond.id
            LIMIT 1
        ) AS candidate ON true
    )
SELECT
    CAST(NULL AS FLOAT) AS anon_1,
    claimed.id,
    claimed.key,
    claimed.payload,
    claimed.run_at,
    claimed.attempt,
    claimed.max_attempts,
    claimed.fence,
    claimed.timeout,
    claimed.rescues,
    claimed.parents,
    claimed.oversize,
    claimed.expires_in,
    claimed.claimed_at,
    claimed.address,
    claimed.headers,
    claimed.has_order_key,
    claimed.tenant,
    claimed.tags
FROM claimed
UNION ALL
SELECT
    (
        SELECT CASE WHEN (count(*) <= 8) THEN extract(epoch from min("some".at) - statement_timestamp())::float ELSE 0 END AS anon_4
        FROM (
            SELECT CASE WHEN (
                EXISTS (
                    SELECT *
                    FROM lane
                    WHERE
                        walk.queue = lane.queue
                        AND walk.handler = lane.handler
                        AND walk.priority = lane.priority
                        AND walk.hosts = lane.hosts
                        AND walk.retried = lane.retried
                )
            ) THEN (
                SELECT later.run_at
                FROM task AS later
                WHERE
                    later.state = 'waiting'
                    AND later.queue = walk.queue
                    AND later.handler = walk.handler
                    AND later.priority = walk.priority
                    AND later.hosts = walk.hosts
                    AND later.retried = walk.retried
                    AND later.run_at > statement_timestamp()
                ORDER BY later.run_at
                LIMIT 1
            ) ELSE walk.run_at END AS at
            FROM walk
            LIMIT 9
        ) AS "some"
    ) AS anon_3,
    NULL AS anon_1,
    NULL AS anon__1,
    NULL AS anon__2,
    NULL AS anon__3,
    NULL AS anon__4,
    NULL AS anon__5,
    NULL AS anon__6,
    NULL AS anon__7,
    NULL AS anon__8,
    NULL AS anon__9,
    NULL AS anon__10,
    NULL AS anon__11,
    NULL AS anon__12,
    NULL AS anon__13,
    NULL AS anon__14,
    NULL AS anon__15,
    NULL AS anon__16,
    NULL AS anon__17;
