SELECT
    task_runner.lease_until < strftime('%Y-%m-%d %H:%M:%f', 'now')
    OR task_runner.heartbeat_at < strftime(
        '%Y-%m-%d %H:%M:%f',
        strftime('%Y-%m-%d %H:%M:%f', 'now'),
        round(CAST(:gap AS FLOAT), 3) || ' seconds'
    ) AS late,
    task_runner.command,
    doomed.id
FROM task_runner
LEFT OUTER JOIN (
    SELECT candidate.id AS id
    FROM (
        SELECT json_extract(mine_row.value, :json_extract_1) AS id
        FROM json_each(:mine) AS mine_row
    ) AS mine
    JOIN task AS candidate ON candidate.id IN (
        SELECT task.id
        FROM task
        WHERE task.id = mine.id AND coalesce(task.runner_id, 0) = :runner AND task.cancel_requested = 1
        LIMIT :param_1
        OFFSET 0
    )
) AS doomed ON 1 = 1
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
    running = :in_flight,
    cpu = :cpu,
    memory = :memory,
    stall = NULL
WHERE task_runner.id = :runner
RETURNING id;
