SELECT task.id, task.workflow
FROM task
WHERE
    task.id = :task_id::BIGINT
    AND task.fence = :fence::BIGINT
    AND task.runner_id = :holder::BIGINT
    AND (
        SELECT set_config(:set_config_2::VARCHAR, '10ms', true) AS set_config_1
    ) IS NOT NULL
FOR UPDATE;
SELECT
    task_signal.id,
    CAST(task_signal.payload AS TEXT) AS payload,
    CASE WHEN (
        task_signal.sent_at BETWEEN :sent_at_1::TIMESTAMP WITH TIME ZONE AND :sent_at_2::TIMESTAMP WITH TIME ZONE
    ) THEN task_signal.sent_at END AS anon_1,
    task_signal.actor
FROM task_signal
WHERE task_signal.task_id = :task_id::BIGINT AND task_signal.name = :signal::VARCHAR AND task_signal.received_at IS NULL
ORDER BY task_signal.id
LIMIT 1;
INSERT INTO task_step(
    task_id,
    fence,
    name,
    kind,
    number,
    function,
    signal,
    attempt,
    failures,
    error,
    duration,
    result,
    due_at,
    done_at,
    at
)
SELECT
    task.id,
    task.fence,
    CAST(:name::VARCHAR AS TEXT) AS anon_1,
    CAST(:kind::VARCHAR AS TEXT) AS anon_2,
    CAST(:number::INTEGER AS INTEGER) AS anon_3,
    CAST(:function::VARCHAR AS TEXT) AS anon_4,
    CAST(:signal::VARCHAR AS TEXT) AS anon_5,
    CAST(:attempt::INTEGER AS INTEGER) AS anon_6,
    CAST(:failures::INTEGER AS INTEGER) AS anon_7,
    CAST(:error::VARCHAR AS TEXT) AS anon_8,
    CAST(:duration AS FLOAT) AS anon_9,
    CAST(CAST(:result::VARCHAR AS TEXT) AS JSON) AS anon_10,
    (statement_timestamp() + (CAST(CAST(:due_in AS FLOAT) AS FLOAT)) * interval '1 second') AS anon_11,
    CASE WHEN CAST(:done AS BOOLEAN) THEN statement_timestamp() END AS anon_12,
    statement_timestamp() AS anon_13
FROM task
WHERE
    task.id = :task_id::BIGINT
    AND task.fence = :fence::BIGINT
    AND task.runner_id = :holder::BIGINT
    AND (
        SELECT set_config(:set_config_2::VARCHAR, '10ms', true) AS set_config_1
    ) IS NOT NULL
FOR UPDATE
ON CONFLICT (task_id, name) DO
UPDATE
SET
    kind = excluded.kind,
    number = excluded.number,
    function = excluded.function,
    signal = excluded.signal,
    fence = excluded.fence,
    attempt = excluded.attempt,
    failures = excluded.failures,
    error = excluded.error,
    due_at = CASE WHEN (task_step.kind = 'function') THEN excluded.due_at ELSE task_step.due_at END,
    at = excluded.at,
    done_at = excluded.done_at,
    duration = excluded.duration,
    result = excluded.result
WHERE task_step.done_at IS NULL OR task_step.fence = excluded.fence
RETURNING task_step.name;
