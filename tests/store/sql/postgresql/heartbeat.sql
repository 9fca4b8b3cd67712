SELECT
    task_runner.lease_until < statement_timestamp()
    OR task_runner.heartbeat_at < (statement_timestamp() + (CAST(:gap AS FLOAT)) * interval '1 second') AS anon_1,
    task_runner.command,
    task.id,
    task.fence,
    task.cancel_requested
FROM task_runner
LEFT OUTER JOIN task ON task.runner_id = task_runner.id AND task.state = 'running'
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
    running = :in_hand::INTEGER,
    cpu = :cpu,
    memory = :memory::BIGINT,
    stall = NULL
WHERE task_runner.id = :runner::BIGINT
RETURNING task_runner.id;
