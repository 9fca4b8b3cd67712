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
        task.claimed_at BETWEEN :claimed_at_1::TIMESTAMP WITH TIME ZONE AND :claimed_at_2::TIMESTAMP WITH TIME ZONE
    ) THEN task.claimed_at END AS claimed_at,
    date_trunc('minute', statement_timestamp()) AS minute,
    CASE WHEN (
        coalesce(floor(date_part('epoch', task.submitted_at) / 60), -1) BETWEEN 0 AND floor(date_part('epoch', statement_timestamp()) / 60) + 60
    ) THEN to_timestamp(
        coalesce(floor(date_part('epoch', task.submitted_at) / 60), -1) * 60
    ) ELSE date_trunc('minute', statement_timestamp()) END AS submitted_minute,
    set_config('idle_in_transaction_session_timeout', '5000ms', true)
FROM task
WHERE task.id IN (:id_1_1::BIGINT, :id_1_2::BIGINT, :id_1_3::BIGINT) AND task.runner_id = :runner_id_1::BIGINT
ORDER BY task.id
FOR UPDATE;
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
VALUES (
    :task_id::BIGINT,
    :fence::BIGINT,
    :attempt::INTEGER,
    :queue::VARCHAR COLLATE "C",
    :handler::VARCHAR COLLATE "C",
    :started_at::TIMESTAMP WITH TIME ZONE,
    :runner_id::BIGINT,
    :host::VARCHAR,
    :verb::VARCHAR,
    :error_type::VARCHAR,
    :message::VARCHAR,
    :traceback::VARCHAR,
    :fingerprint::VARCHAR,
    :delay,
    :breaks,
    :rule::VARCHAR
);
DELETE FROM task_history
WHERE task_history.id = ANY (:param_1::BIGINT[]);
WITH deletion AS (
    DELETE FROM task USING (
        SELECT
            address.ctid AS ctid,
            ending.id AS id,
            ending.fence AS fence,
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
            SELECT target.ctid AS ctid
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
        task.trace,
        task.submitted_at,
        task.submitted_by,
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
)
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
    trace,
    submitted_at,
    submitted_by,
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
    deletion.id,
    deletion.queue,
    deletion.handler,
    deletion.key,
    deletion.priority,
    deletion.run_at,
    deletion.expires_at,
    deletion.max_attempts,
    deletion.retry,
    deletion.timeout,
    deletion.bucket,
    deletion.tenant,
    deletion.hosts,
    deletion.hosts_until,
    deletion.unique_key,
    deletion.order_key,
    deletion.order_on_failure,
    deletion.tags,
    deletion.trace,
    deletion.submitted_at,
    deletion.submitted_by,
    deletion.attempt,
    deletion.fence,
    CASE WHEN (deletion.version < 1000000000000000000) THEN deletion.version + 1 ELSE 1 END AS anon_1,
    deletion.releases,
    deletion.rescues,
    deletion.interruptions,
    deletion.runner_id,
    deletion.host,
    deletion.claimed_at,
    deletion.parents,
    deletion.payload,
    'dead',
    coalesce(deletion.new_error, deletion.error) AS coalesce_1,
    CAST(deletion.new_duration AS FLOAT) / 1000000 AS anon_2,
    CAST(deletion.new_result AS JSON) AS new_result,
    statement_timestamp() AS anon_3
FROM deletion
RETURNING task_history.id, task_history.order_key;
UPDATE task
SET
    run_at = CASE WHEN (match.released = :released_1::INTEGER) THEN task.run_at ELSE (
        statement_timestamp() + (CAST(match.delay AS FLOAT)) * interval '1 second'
    ) END,
    state = 'waiting',
    deadline_at = :deadline_at::TIMESTAMP WITH TIME ZONE,
    started_at = :started_at::TIMESTAMP WITH TIME ZONE,
    attempt = (task.attempt - match.uncounted),
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END,
    releases = CASE WHEN (task.releases < 1000000000) THEN task.releases + match.released ELSE task.releases END,
    rescues = CASE WHEN (match.released = :released_2::INTEGER) THEN task.rescues ELSE :param_1::INTEGER END,
    interruptions = CASE WHEN (task.interruptions < 1000000000) THEN task.interruptions + match.interrupted ELSE task.interruptions END,
    runner_id = :runner_id::BIGINT,
    claimed_at = :claimed_at::TIMESTAMP WITH TIME ZONE,
    error = coalesce(match.error, task.error)
FROM (
    SELECT
        address.ctid AS ctid,
        back.id AS id,
        back.delay AS delay,
        back.uncounted AS uncounted,
        back.released AS released,
        back.interrupted AS interrupted,
        back.error AS error
    FROM unnest(
        :back_id::BIGINT[],
        :back_delay::FLOAT[],
        :back_uncounted::INTEGER[],
        :back_released::INTEGER[],
        :back_interrupted::INTEGER[],
        :back_error::TEXT[]
    ) AS back(id, delay, uncounted, released, interrupted, error)
    JOIN LATERAL (
        SELECT target.ctid AS ctid
        FROM task AS target
        WHERE target.id = back.id
        LIMIT ALL
        OFFSET 0
    ) AS address ON true
) AS match
WHERE task.ctid = match.ctid;
INSERT INTO task_minute(minute, queue, handler, runner_id, part, bin_ms, submitted, retried, died)
VALUES (
    :minute::TIMESTAMP WITH TIME ZONE,
    :queue::VARCHAR COLLATE "C",
    :handler::VARCHAR COLLATE "C",
    :runner_id::BIGINT,
    :part::SMALLINT,
    :bin_ms::INTEGER,
    :submitted::INTEGER,
    :retried::INTEGER,
    :died::INTEGER
)
ON CONFLICT (minute, queue, handler, runner_id, part, bin_ms) DO
UPDATE
SET
    submitted = (task_minute.submitted + excluded.submitted),
    retried = (task_minute.retried + excluded.retried),
    died = (task_minute.died + excluded.died);
