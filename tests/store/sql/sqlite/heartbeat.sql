SELECT
    task_runner.lease_until < strftime('%Y-%m-%d %H:%M:%f', 'now')
    OR task_runner.heartbeat_at < strftime(
        '%Y-%m-%d %H:%M:%f',
        strftime('%Y-%m-%d %H:%M:%f', 'now'),
        round(CAST(:gap AS FLOAT), 3) || ' seconds'
    ) AS anon_1,
    task_runner.command,
    task.id,
    task.fence,
    task.cancel_requested
FROM task_runner
LEFT OUTER JOIN task ON task.runner_id = task_runner.id AND task.state = 'running'
WHERE task_runner.id = :runner;
UPDATE task_runner
SET
    heartbeat_at = strftime('%Y-%m-%d %H:%M:%f', 'now'),
    lease_until = strftime(
        '%Y-%m-%d %H:%M:%f',
        strftime('%Y-%m-%d %H:%M:%f', 'now'),
        round(CAST(:lease AS FLOAT), 3) || ' seconds'
    ),
    available_since = CASE WHEN (
        task_runner.available_until < strftime(
            '%Y-%m-%d %H:%M:%f',
            strftime('%Y-%m-%d %H:%M:%f', 'now'),
            round(CAST(:gap AS FLOAT), 3) || ' seconds'
        )
        OR task_runner.lease_until < strftime('%Y-%m-%d %H:%M:%f', 'now')
        OR task_runner.available_since > strftime('%Y-%m-%d %H:%M:%f', 'now')
    ) THEN strftime('%Y-%m-%d %H:%M:%f', 'now') ELSE task_runner.available_since END,
    available_until = strftime('%Y-%m-%d %H:%M:%f', 'now'),
    abandoned_threads = :abandoned,
    replaced_threads = :replaced,
    running = :in_hand,
    cpu = :cpu,
    memory = :memory,
    stall = NULL
WHERE task_runner.id = :runner
RETURNING id;
