INSERT INTO task_history(
    id,
    queue,
    handler,
    "key",
    payload,
    priority,
    run_at,
    expires_at,
    max_attempts,
    retry,
    timeout,
    bucket,
    tenant,
    unique_key,
    order_key,
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
    state,
    error,
    duration,
    result,
    finished_at
)
SELECT
    task.id,
    task.queue,
    task.handler,
    task."key",
    task.payload,
    task.priority,
    task.run_at,
    task.expires_at,
    task.max_attempts,
    task.retry,
    task.timeout,
    task.bucket,
    task.tenant,
    task.unique_key,
    task.order_key,
    task.tags,
    task.trace,
    task.submitted_at,
    task.submitted_by,
    task.attempt,
    task.fence,
    CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END AS anon_1,
    task.releases,
    task.rescues,
    task.interruptions,
    task.runner_id,
    task.host,
    task.claimed_at,
    task.parents,
    'succeeded',
    coalesce(ending.error, task.error) AS coalesce_1,
    ending.duration,
    CAST(ending.result AS TEXT) AS result,
    strftime('%Y-%m-%d %H:%M:%f', 'now') AS anon_2
FROM (
    SELECT
        json_extract(ending_row.value, :json_extract_1) AS id,
        json_extract(ending_row.value, :json_extract_2) AS fence,
        json_extract(ending_row.value, :json_extract_3) AS duration,
        json_extract(ending_row.value, :json_extract_4) AS result,
        json_extract(ending_row.value, :json_extract_5) AS error
    FROM json_each(:ending) AS ending_row
) AS ending
JOIN task ON task.id = ending.id AND task.fence = ending.fence AND coalesce(task.runner_id, 0) = :holder;
DELETE FROM task
WHERE task.id IN (
    SELECT task.id
    FROM (
        SELECT
            json_extract(ending_row.value, :json_extract_1) AS id,
            json_extract(ending_row.value, :json_extract_2) AS fence,
            json_extract(ending_row.value, :json_extract_3) AS duration,
            json_extract(ending_row.value, :json_extract_4) AS result,
            json_extract(ending_row.value, :json_extract_5) AS error
        FROM json_each(:ending) AS ending_row
    ) AS ending
    JOIN task ON task.id = ending.id AND task.fence = ending.fence AND coalesce(task.runner_id, 0) = :holder
)
RETURNING id;
