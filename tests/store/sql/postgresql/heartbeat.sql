SELECT
    task_runner.lease_until < statement_timestamp()
    OR task_runner.heartbeat_at < (statement_timestamp() + (CAST(:gap AS FLOAT)) * interval '1 second') AS late,
    task_runner.command,
    doomed.id
FROM task_runner
LEFT OUTER JOIN (
    SELECT candidate.id AS id
    FROM unnest(:mine_id::BIGINT[]) AS mine(id)
    JOIN LATERAL (
        SELECT task.id AS id
        FROM task
        WHERE task.id = mine.id AND coalesce(task.runner_id, 0) = :runner::BIGINT AND task.cancel_requested
        LIMIT ALL
        OFFSET 0
    ) AS candidate ON true
) AS doomed ON true
WHERE task_runner.id = :runner::BIGINT;
UPDATE task_runner
SET
    heartbeat_at = statement_timestamp(),
    lease_until = (statement_timestamp() + (CAST(:lease AS FLOAT)) * interval '1 second'),
    available_since = CASE WHEN (
        task_runner.available_until < (statement_timestamp() + (CAST(:gap AS FLOAT)) * interval '1 second')
        OR task_runner.lease_until < statement_timestamp()
        OR task_runner.available_since > statement_timestamp()
    ) THEN statement_timestamp() ELSE task_runner.available_since END,
    available_until = statement_timestamp(),
    abandoned_threads = :abandoned::INTEGER,
    replaced_threads = :replaced::INTEGER,
    running = :in_flight::INTEGER,
    cpu = :cpu,
    memory = :memory::BIGINT,
    stall = NULL
WHERE task_runner.id = :runner::BIGINT
RETURNING task_runner.id;
