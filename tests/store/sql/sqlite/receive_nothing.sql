SELECT task.id, task.workflow
FROM task
WHERE task.id = :task_id AND task.fence = :fence AND task.runner_id = :holder;
SELECT task_signal.id, CAST(task_signal.payload AS TEXT) AS payload, task_signal.sent_at AS sent_at, task_signal.actor
FROM task_signal
WHERE task_signal.task_id = :task_id AND task_signal.name = :signal AND task_signal.received_at IS NULL
ORDER BY task_signal.id
LIMIT 1
OFFSET :param_1;
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
    CAST(:name AS TEXT) AS anon_1,
    CAST(:kind AS TEXT) AS anon_2,
    CAST(:number AS INTEGER) AS anon_3,
    CAST(:function AS TEXT) AS anon_4,
    CAST(:signal AS TEXT) AS anon_5,
    CAST(:attempt AS INTEGER) AS anon_6,
    CAST(:failures AS INTEGER) AS anon_7,
    CAST(:error AS TEXT) AS anon_8,
    CAST(:duration AS FLOAT) AS anon_9,
    CAST(CAST(:result AS TEXT) AS TEXT) AS anon_10,
    strftime(
        '%Y-%m-%d %H:%M:%f',
        strftime('%Y-%m-%d %H:%M:%f', 'now'),
        round(CAST(CAST(:due_in AS FLOAT) AS FLOAT), 3) || ' seconds'
    ) AS anon_11,
    CASE WHEN CAST(:done AS BOOLEAN) THEN strftime('%Y-%m-%d %H:%M:%f', 'now') END AS anon_12,
    strftime('%Y-%m-%d %H:%M:%f', 'now') AS anon_13
FROM task
WHERE task.id = :task_id AND task.fence = :fence AND task.runner_id = :holder
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
RETURNING name;
