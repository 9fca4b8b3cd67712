SELECT
    task.id,
    task.queue,
    task.handler,
    task.attempt,
    task.max_attempts,
    task.retry,
    task.releases,
    task.interruptions,
    task.cancel_requested,
    task.fence,
    task.state,
    task.runner_id,
    task.host,
    CASE WHEN (
        task.claimed_at BETWEEN '1970-01-01 00:00:00+00:00' AND '9999-01-01 00:00:00+00:00'
    ) THEN task.claimed_at END AS claimed_at,
    date_trunc('minute', statement_timestamp()) AS minute,
    CASE WHEN (
        coalesce(floor(date_part('epoch', task.submitted_at) / 60), -1) BETWEEN 0 AND floor(date_part('epoch', statement_timestamp()) / 60) + 60
    ) THEN to_timestamp(
        coalesce(floor(date_part('epoch', task.submitted_at) / 60), -1) * 60
    ) ELSE date_trunc('minute', statement_timestamp()) END AS submitted_minute,
    set_config('idle_in_transaction_session_timeout', '5000ms', true)
FROM task
WHERE
    task.id = ANY (:settled_id::BIGINT[])
    AND task.runner_id = :holder::BIGINT
    AND (
        SELECT set_config(:set_config_2::VARCHAR, '10ms', true) AS set_config_1
    ) IS NOT NULL
ORDER BY task.id
FOR UPDATE SKIP LOCKED;
SELECT task_history.id
FROM task_history
WHERE task_history.id = ANY (:reused_id::BIGINT[]);
INSERT INTO task_attempt(
    task_id,
    fence,
    attempt,
    queue,
    handler,
    started_at,
    runner_id,
    host,
    verb,
    error_type,
    message,
    traceback,
    fingerprint,
    delay,
    breaks,
    rule
)
SELECT
    failed.task_id,
    failed.fence,
    failed.attempt,
    failed.queue,
    failed.handler,
    failed.started_at,
    failed.runner_id,
    failed.host,
    failed.verb,
    failed.error_type,
    failed.message,
    failed.traceback,
    failed.fingerprint,
    failed.delay,
    failed.breaks,
    failed.rule
FROM unnest(
    :failed_task_id::BIGINT[],
    :failed_fence::BIGINT[],
    :failed_attempt::INTEGER[],
    :failed_queue::TEXT[],
    :failed_handler::TEXT[],
    :failed_started_at::TIMESTAMP WITH TIME ZONE[],
    :failed_runner_id::BIGINT[],
    :failed_host::TEXT[],
    :failed_verb::TEXT[],
    :failed_error_type::TEXT[],
    :failed_message::TEXT[],
    :failed_traceback::TEXT[],
    :failed_fingerprint::TEXT[],
    :failed_delay::FLOAT[],
    :failed_breaks::BOOLEAN[],
    :failed_rule::TEXT[]
) AS failed(
    task_id,
    fence,
    attempt,
    queue,
    handler,
    started_at,
    runner_id,
    host,
    verb,
    error_type,
    message,
    traceback,
    fingerprint,
    delay,
    breaks,
    rule
);
WITH
    deletion AS (
        DELETE FROM task USING (
            SELECT
                address.ctid AS ctid,
                ending.id AS id,
                address.fence AS fence,
                ending.duration AS duration,
                ending.result AS result,
                ending.error AS error
            FROM unnest(
                :ending_id::BIGINT[],
                :ending_fence::BIGINT[],
                :ending_duration::BIGINT[],
                :ending_result::TEXT[],
                :ending_error::TEXT[]
            ) AS ending(id, fence, duration, result, error)
            JOIN LATERAL (
                SELECT target.ctid AS ctid, target.fence AS fence
                FROM task AS target
                WHERE
                    target.id = ending.id
                    AND target.fence = ending.fence
                    AND coalesce(target.runner_id, 0) = :holder::BIGINT
                LIMIT ALL
                OFFSET 0
            ) AS address ON true
        ) AS match
        WHERE task.ctid = match.ctid AND task.fence = match.fence
        RETURNING
            task.id,
            task.queue,
            task.handler,
            task.key,
            task.priority,
            task.run_at,
            task.expires_at,
            task.max_attempts,
            task.retry,
            task.timeout,
            task.bucket,
            task.tenant,
            task.hosts,
            task.hosts_until,
            task.unique_key,
            task.order_key,
            task.order_on_failure,
            task.tags,
            task.headers,
            task.submitted_at,
            task.submitted_by,
            task.workflow,
            task.attempt,
            task.fence,
            task.version,
            task.releases,
            task.rescues,
            task.interruptions,
            task.runner_id,
            task.host,
            task.claimed_at,
            task.parents,
            task.payload,
            task.error,
            match.error AS new_error,
            match.duration AS new_duration,
            match.result AS new_result
    ),
    copied AS (
        INSERT INTO task_history(
            id,
            queue,
            handler,
            key,
            priority,
            run_at,
            expires_at,
            max_attempts,
            retry,
            timeout,
            bucket,
            tenant,
            hosts,
            hosts_until,
            unique_key,
            order_key,
            order_on_failure,
            tags,
            headers,
            submitted_at,
            submitted_by,
            workflow,
            attempt,
            fence,
            version,
            releases,
            rescues,
            interruptions,
            runner_id,
            host,
            claimed_at,
            parents,
            payload,
            state,
            error,
            duration,
            result,
            finished_at
        )
        SELECT
            deletion.id AS id,
            deletion.queue AS queue,
            deletion.handler AS handler,
            deletion.key AS key,
            deletion.priority AS priority,
            deletion.run_at AS run_at,
            deletion.expires_at AS expires_at,
            deletion.max_attempts AS max_attempts,
            deletion.retry AS retry,
            deletion.timeout AS timeout,
            deletion.bucket AS bucket,
            deletion.tenant AS tenant,
            deletion.hosts AS hosts,
            deletion.hosts_until AS hosts_until,
            deletion.unique_key AS unique_key,
            deletion.order_key AS order_key,
            deletion.order_on_failure AS order_on_failure,
            deletion.tags AS tags,
            deletion.headers AS headers,
            deletion.submitted_at AS submitted_at,
            deletion.submitted_by AS submitted_by,
            deletion.workflow AS workflow,
            deletion.attempt AS attempt,
            deletion.fence AS fence,
            CASE WHEN (deletion.version < 1000000000000000000) THEN deletion.version + 1 ELSE 1 END AS anon_1,
            deletion.releases AS releases,
            deletion.rescues AS rescues,
            deletion.interruptions AS interruptions,
            deletion.runner_id AS runner_id,
            deletion.host AS host,
            deletion.claimed_at AS claimed_at,
            deletion.parents AS parents,
            deletion.payload AS payload,
            'dead',
            coalesce(deletion.new_error, deletion.error) AS coalesce_1,
            CAST(deletion.new_duration AS FLOAT) / 1000000 AS anon_2,
            CAST(deletion.new_result AS JSON) AS new_result,
            statement_timestamp() AS anon_3
        FROM deletion
        RETURNING task_history.id, task_history.order_key
    )
SELECT copied.id, copied.order_key
FROM copied
UNION ALL
SELECT
    CAST(
        CAST(deletions.number - copies.number AS TEXT) || ' of the deleted rows not stored in the history: probably a trigger returns NULL' AS BIGINT
    ) AS anon_4,
    NULL AS anon_5
FROM
    (
        SELECT count(*) AS number
        FROM deletion
    ) AS deletions,
    (
        SELECT count(*) AS number
        FROM copied
    ) AS copies
WHERE deletions.number > copies.number;
UPDATE task
SET
    run_at = CASE WHEN (match.released = :released_1::INTEGER) THEN task.run_at ELSE (
        statement_timestamp() + (CAST(match.delay AS FLOAT)) * interval '1 second'
    ) END,
    hosts = CASE WHEN (match.failed = :failed_1::INTEGER) THEN CASE WHEN (task.hosts = 'failed' AND task.host IS NOT NULL) THEN 'failed,' || task.host ELSE task.hosts END ELSE task.hosts END,
    headers = coalesce(CAST(match.headers AS JSON), task.headers),
    state = 'waiting',
    deadline_at = NULL,
    started_at = NULL,
    attempt = (task.attempt - match.uncounted),
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END,
    releases = CASE WHEN (task.releases < 1000000000) THEN task.releases + match.released ELSE task.releases END,
    rescues = CASE WHEN (match.released = :released_2::INTEGER) THEN task.rescues ELSE :param_1::INTEGER END,
    interruptions = CASE WHEN (task.interruptions < 1000000000) THEN task.interruptions + match.interrupted ELSE task.interruptions END,
    runner_id = NULL,
    claimed_at = NULL,
    error = coalesce(match.error, task.error)
FROM (
    SELECT
        address.ctid AS ctid,
        back.id AS id,
        back.delay AS delay,
        back.uncounted AS uncounted,
        back.released AS released,
        back.interrupted AS interrupted,
        back.failed AS failed,
        back.error AS error,
        back.headers AS headers
    FROM unnest(
        :back_id::BIGINT[],
        :back_delay::FLOAT[],
        :back_uncounted::INTEGER[],
        :back_released::INTEGER[],
        :back_interrupted::INTEGER[],
        :back_failed::INTEGER[],
        :back_error::TEXT[],
        :back_headers::TEXT[]
    ) AS back(id, delay, uncounted, released, interrupted, failed, error, headers)
    JOIN LATERAL (
        SELECT target.ctid AS ctid
        FROM task AS target
        WHERE target.id = back.id
        LIMIT ALL
        OFFSET 0
    ) AS address ON true
) AS match
WHERE task.ctid = match.ctid
RETURNING task.id;
INSERT INTO task_minute(minute, queue, handler, runner_id, part, bin_ms, submitted, retried, died)
SELECT
    counts.minute,
    counts.queue,
    counts.handler,
    counts.runner_id,
    counts.part,
    counts.bin_ms,
    counts.submitted,
    counts.retried,
    counts.died
FROM unnest(
    :counts_minute::TIMESTAMP WITH TIME ZONE[],
    :counts_queue::TEXT[],
    :counts_handler::TEXT[],
    :counts_runner_id::BIGINT[],
    :counts_part::SMALLINT[],
    :counts_bin_ms::INTEGER[],
    :counts_submitted::INTEGER[],
    :counts_retried::INTEGER[],
    :counts_died::INTEGER[]
) AS counts(minute, queue, handler, runner_id, part, bin_ms, submitted, retried, died)
ORDER BY counts.minute, counts.queue, counts.handler
ON CONFLICT (minute, queue, handler, runner_id, part, bin_ms) DO
UPDATE
SET
    submitted = (task_minute.submitted + excluded.submitted),
    retried = (task_minute.retried + excluded.retried),
    died = (task_minute.died + excluded.died);
