SELECT
    EXISTS (
        SELECT *
        FROM task_runner AS rescuer
        WHERE
            rescuer.id = :rescuer::BIGINT
            AND rescuer.lease_until >= statement_timestamp()
            AND rescuer.started_at <= (statement_timestamp() + (CAST(:registered_for AS FLOAT)) * interval '1 second')
    ) AS anon_1,
    set_config('idle_in_transaction_session_timeout', '5000ms', true);
SELECT task_runner.id
FROM task_runner
WHERE task_runner.lease_until < statement_timestamp()
ORDER BY task_runner.id
FOR UPDATE;
INSERT INTO task_lost_runner(runner_id, host, pid, version, heartbeat_at, tasks)
SELECT
    task_runner.id,
    task_runner.host,
    task_runner.pid,
    task_runner.version,
    task_runner.heartbeat_at,
    (
        SELECT count(*) AS count_1
        FROM task
        WHERE task.runner_id = task_runner.id AND task.state = 'running'
    ) AS anon_1
FROM task_runner
WHERE task_runner.id = ANY (:param_1::BIGINT[])
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
    task.runner_id,
    task.host,
    CASE WHEN (
        task.claimed_at BETWEEN :claimed_at_1::TIMESTAMP WITH TIME ZONE AND :claimed_at_2::TIMESTAMP WITH TIME ZONE
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
ORDER BY task.runner_id, task.id
LIMIT :param_2::INTEGER
FOR UPDATE OF task SKIP LOCKED;
UPDATE task
SET
    state = 'waiting',
    deadline_at = :deadline_at::TIMESTAMP WITH TIME ZONE,
    started_at = :started_at::TIMESTAMP WITH TIME ZONE,
    attempt = (task.attempt - :attempt_1::INTEGER),
    fence = CASE WHEN (task.fence < 1000000000000000000) THEN task.fence + :fence_1::BIGINT ELSE task.fence END,
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END,
    rescues = CASE WHEN (task.rescues < 1000000000) THEN task.rescues + :rescues_1::INTEGER ELSE task.rescues END,
    runner_id = :runner_id::BIGINT,
    claimed_at = :claimed_at::TIMESTAMP WITH TIME ZONE,
    error = :error::VARCHAR
WHERE task.id IN (:id_1_1::BIGINT);
UPDATE task
SET
    state = 'waiting',
    deadline_at = :deadline_at::TIMESTAMP WITH TIME ZONE,
    started_at = :started_at::TIMESTAMP WITH TIME ZONE,
    attempt = (task.attempt - :attempt_1::INTEGER),
    fence = CASE WHEN (task.fence < 1000000000000000000) THEN task.fence + :fence_1::BIGINT ELSE task.fence END,
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END,
    rescues = CASE WHEN (task.rescues < 1000000000) THEN task.rescues + :rescues_1::INTEGER ELSE task.rescues END,
    runner_id = :runner_id::BIGINT,
    claimed_at = :claimed_at::TIMESTAMP WITH TIME ZONE,
    error = :error::VARCHAR
WHERE task.id IN (NULL) AND (1 != 1);
UPDATE task
SET
    state = 'waiting',
    deadline_at = :deadline_at::TIMESTAMP WITH TIME ZONE,
    started_at = :started_at::TIMESTAMP WITH TIME ZONE,
    attempt = (task.attempt - :attempt_1::INTEGER),
    fence = CASE WHEN (task.fence < 1000000000000000000) THEN task.fence + :fence_1::BIGINT ELSE task.fence END,
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END,
    rescues = CASE WHEN (task.rescues < 1000000000) THEN task.rescues + :rescues_1::INTEGER ELSE task.rescues END,
    runner_id = :runner_id::BIGINT,
    claimed_at = :claimed_at::TIMESTAMP WITH TIME ZONE,
    error = :error::VARCHAR
WHERE task.id IN (NULL) AND (1 != 1);
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
INSERT INTO task_minute(minute, queue, handler, runner_id, part, bin_ms, submitted, rescued)
VALUES (
    :minute::TIMESTAMP WITH TIME ZONE,
    :queue::VARCHAR COLLATE "C",
    :handler::VARCHAR COLLATE "C",
    :runner_id::BIGINT,
    :part::SMALLINT,
    :bin_ms::INTEGER,
    :submitted::INTEGER,
    :rescued::INTEGER
)
ON CONFLICT (minute, queue, handler, runner_id, part, bin_ms) DO
UPDATE
SET submitted = (task_minute.submitted + excluded.submitted), rescued = (task_minute.rescued + excluded.rescued);
