SELECT
    EXISTS (
        SELECT *
        FROM task_runner AS rescuer
        WHERE
            rescuer.id = :rescuer::BIGINT
            AND rescuer.lease_until >= statement_timestamp()
            AND rescuer.available_since <= (
                statement_timestamp() + (CAST(:available_for AS FLOAT)) * interval '1 second'
            )
    ) AS anon_1,
    set_config('idle_in_transaction_session_timeout', '5000ms', true)
WHERE (
    SELECT set_config(:set_config_2::VARCHAR, '2s', true) AS set_config_1
) IS NOT NULL;
SELECT task_runner.id
FROM task_runner
WHERE task_runner.lease_until < statement_timestamp()
ORDER BY task_runner.id
FOR UPDATE SKIP LOCKED;
INSERT INTO task_ended_runner(runner_id, host, pid, version, started_at, heartbeat_at, lost, tasks)
SELECT
    task_runner.id,
    task_runner.host,
    task_runner.pid,
    task_runner.version,
    task_runner.started_at,
    task_runner.heartbeat_at,
    :param_1 AS anon_1,
    (
        SELECT count(*) AS count_1
        FROM task
        WHERE task.runner_id = task_runner.id AND task.state = 'running'
    ) AS anon_2
FROM task_runner
WHERE task_runner.id = ANY (:param_2::BIGINT[])
ON CONFLICT DO NOTHING;
DELETE FROM task_runner
WHERE task_runner.id = ANY (:param_1::BIGINT[]);
SELECT
    task.id,
    task.queue,
    task.handler,
    task.key,
    task.attempt,
    task.max_attempts,
    task.fence,
    task.cancel_requested,
    task.tenant,
    task.tags,
    task.headers,
    task.runner_id,
    task.host,
    CASE WHEN (
        task.claimed_at BETWEEN '1970-01-01 00:00:00+00:00' AND '9999-01-01 00:00:00+00:00'
    ) THEN task.claimed_at END AS claimed_at,
    task.started_at IS NOT NULL
    OR task.attempt = :attempt_1::INTEGER AS began,
    date_trunc('minute', statement_timestamp()) AS minute,
    CASE WHEN (
        coalesce(floor(date_part('epoch', task.submitted_at) / 60), -1) BETWEEN 0 AND floor(date_part('epoch', statement_timestamp()) / 60) + 60
    ) THEN to_timestamp(
        coalesce(floor(date_part('epoch', task.submitted_at) / 60), -1) * 60
    ) ELSE date_trunc('minute', statement_timestamp()) END AS submitted_minute,
    EXISTS (
        SELECT *
        FROM task_runner
        WHERE task_runner.id = task.runner_id
    ) AS alive
FROM task
WHERE
    task.state = 'running'
    AND (
        NOT (
            EXISTS (
                SELECT *
                FROM task_runner
                WHERE task_runner.id = task.runner_id
            )
        )
        OR task.deadline_at < (statement_timestamp() + (CAST(:param_1 AS FLOAT)) * interval '1 second')
    )
ORDER BY task.runner_id, task.claimed_at, task.id
LIMIT :param_2::INTEGER
FOR UPDATE OF task SKIP LOCKED;
UPDATE task
SET
    state = 'waiting',
    deadline_at = NULL,
    started_at = NULL,
    attempt = (task.attempt - :attempt_1::INTEGER),
    fence = CASE WHEN (task.fence < 1000000000000000000) THEN task.fence + :fence_1::BIGINT ELSE task.fence END,
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END,
    rescues = CASE WHEN (task.rescues < 1000000000) THEN task.rescues + :rescues_1::INTEGER ELSE task.rescues END,
    runner_id = NULL,
    claimed_at = NULL,
    error = :error::VARCHAR
WHERE task.id IN (:id_1_1::BIGINT);
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
INSERT INTO task_minute(minute, queue, handler, runner_id, part, bin_ms, submitted, rescued)
SELECT
    counts.minute,
    counts.queue,
    counts.handler,
    counts.runner_id,
    counts.part,
    counts.bin_ms,
    counts.submitted,
    counts.rescued
FROM unnest(
    :counts_minute::TIMESTAMP WITH TIME ZONE[],
    :counts_queue::TEXT[],
    :counts_handler::TEXT[],
    :counts_runner_id::BIGINT[],
    :counts_part::SMALLINT[],
    :counts_bin_ms::INTEGER[],
    :counts_submitted::INTEGER[],
    :counts_rescued::INTEGER[]
) AS counts(minute, queue, handler, runner_id, part, bin_ms, submitted, rescued)
ORDER BY counts.minute, counts.queue, counts.handler
ON CONFLICT (minute, queue, handler, runner_id, part, bin_ms) DO
UPDATE
SET submitted = (task_minute.submitted + excluded.submitted), rescued = (task_minute.rescued + excluded.rescued);
