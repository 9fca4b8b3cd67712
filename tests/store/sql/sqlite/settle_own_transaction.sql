SELECT task.id
FROM task
WHERE task.id = :task_id AND task.fence = :given_fence AND task.runner_id = :holder;
DELETE FROM task_history
WHERE task_history.id = :task_id;
WITH run_group AS (
    SELECT
        run.queue AS queue,
        run.handler AS handler,
        run.run_ms AS run_ms,
        run.wait_ms AS wait_ms,
        CASE WHEN (run.attempt <= 2) THEN run.attempt END AS early,
        CASE WHEN (run.fence = 1) THEN coalesce(
            (cast(strftime('%s', run.submitted_at) as integer) / 60),
            -1
        ) END AS submitted,
        CAST(count(*) AS INTEGER) AS runs,
        sum(run.new_duration) AS run_time,
        sum(run.wait) AS wait_time
    FROM (
        SELECT
            task.queue AS queue,
            task.handler AS handler,
            task.attempt AS attempt,
            task.fence AS fence,
            task.submitted_at AS submitted_at,
            ending.duration AS new_duration,
            ending.run_ms AS run_ms,
            ending.wait AS wait,
            ending.wait_ms AS wait_ms
        FROM (
            SELECT
                json_extract(ending_row.value, :json_extract_1) AS id,
                json_extract(ending_row.value, :json_extract_2) AS fence,
                json_extract(ending_row.value, :json_extract_3) AS duration,
                json_extract(ending_row.value, :json_extract_4) AS result,
                json_extract(ending_row.value, :json_extract_5) AS error,
                json_extract(ending_row.value, :json_extract_6) AS wait,
                json_extract(ending_row.value, :json_extract_7) AS run_ms,
                json_extract(ending_row.value, :json_extract_8) AS wait_ms
            FROM json_each(:ending) AS ending_row
        ) AS ending
        JOIN task ON task.id = ending.id AND task.fence = ending.fence AND coalesce(task.runner_id, 0) = :holder
    ) AS run
    GROUP BY queue, handler, run_ms, wait_ms, early, submitted
)
INSERT INTO task_minute(
    minute,
    queue,
    handler,
    bin_ms,
    runner_id,
    part,
    submitted,
    succeeded,
    first_try,
    second_try,
    runs,
    run_time,
    waits,
    wait_time
)
SELECT
    "each".minute,
    "each".queue,
    "each".handler,
    "each".bin_ms,
    :holder AS anon_1,
    :part AS anon_2,
    sum("each".submitted) AS sum_1,
    sum("each".succeeded) AS sum_2,
    sum("each".first_try) AS sum_3,
    sum("each".second_try) AS sum_4,
    sum("each".runs) AS sum_5,
    sum("each".run_time) AS sum_6,
    sum("each".waits) AS sum_7,
    sum("each".wait_time) AS sum_8
FROM (
    SELECT
        strftime('%Y-%m-%d %H:%M:00.000', strftime('%Y-%m-%d %H:%M:%f', 'now')) AS minute,
        run_group.queue AS queue,
        run_group.handler AS handler,
        0 AS bin_ms,
        0 AS submitted,
        run_group.runs AS succeeded,
        CASE WHEN (run_group.early = 1) THEN run_group.runs ELSE 0 END AS first_try,
        CASE WHEN (run_group.early = 2) THEN run_group.runs ELSE 0 END AS second_try,
        0 AS runs,
        0 AS run_time,
        0 AS waits,
        0 AS wait_time
    FROM run_group
    UNION ALL
    SELECT
        CASE WHEN (
            run_group.submitted BETWEEN 0 AND (
                cast(strftime('%s', strftime('%Y-%m-%d %H:%M:%f', 'now')) as integer) / 60
            ) + 60
        ) THEN strftime('%Y-%m-%d %H:%M:%f', run_group.submitted * 60, 'unixepoch') ELSE strftime(
            '%Y-%m-%d %H:%M:00.000',
            strftime('%Y-%m-%d %H:%M:%f', 'now')
        ) END AS anon_3,
        run_group.queue AS queue,
        run_group.handler AS handler,
        0 AS bin_ms,
        run_group.runs AS submitted,
        0 AS succeeded,
        0 AS first_try,
        0 AS second_try,
        0 AS runs,
        0 AS run_time,
        0 AS waits,
        0 AS wait_time
    FROM run_group
    WHERE run_group.submitted IS NOT NULL
    UNION ALL
    SELECT
        strftime('%Y-%m-%d %H:%M:00.000', strftime('%Y-%m-%d %H:%M:%f', 'now')) AS minute,
        run_group.queue AS queue,
        run_group.handler AS handler,
        run_group.run_ms AS bin_ms,
        0 AS submitted,
        0 AS succeeded,
        0 AS first_try,
        0 AS second_try,
        run_group.runs AS runs,
        run_group.run_time AS run_time,
        0 AS waits,
        0 AS wait_time
    FROM run_group
    WHERE run_group.run_ms > 0
    UNION ALL
    SELECT
        strftime('%Y-%m-%d %H:%M:00.000', strftime('%Y-%m-%d %H:%M:%f', 'now')) AS minute,
        run_group.queue AS queue,
        run_group.handler AS handler,
        run_group.wait_ms AS bin_ms,
        0 AS submitted,
        0 AS succeeded,
        0 AS first_try,
        0 AS second_try,
        0 AS runs,
        0 AS run_time,
        run_group.runs AS waits,
        run_group.wait_time AS wait_time
    FROM run_group
    WHERE run_group.wait_ms > 0
) AS "each"
GROUP BY "each".minute, "each".queue, "each".handler, "each".bin_ms
ORDER BY "each".minute, "each".queue, "each".handler, "each".bin_ms
ON CONFLICT (minute, queue, handler, runner_id, part, bin_ms) DO
UPDATE
SET
    submitted = (task_minute.submitted + excluded.submitted),
    succeeded = (task_minute.succeeded + excluded.succeeded),
    first_try = (task_minute.first_try + excluded.first_try),
    second_try = (task_minute.second_try + excluded.second_try),
    runs = (task_minute.runs + excluded.runs),
    run_time = (task_minute.run_time + excluded.run_time),
    waits = (task_minute.waits + excluded.waits),
    wait_time = (task_minute.wait_time + excluded.wait_time);
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
        json_extract(ending_row.value, :json_extract_5) AS error,
        json_extract(ending_row.value, :json_extract_6) AS wait,
        json_extract(ending_row.value, :json_extract_7) AS run_ms,
        json_extract(ending_row.value, :json_extract_8) AS wait_ms
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
            json_extract(ending_row.value, :json_extract_5) AS error,
            json_extract(ending_row.value, :json_extract_6) AS wait,
            json_extract(ending_row.value, :json_extract_7) AS run_ms,
            json_extract(ending_row.value, :json_extract_8) AS wait_ms
        FROM json_each(:ending) AS ending_row
    ) AS ending
    JOIN task ON task.id = ending.id AND task.fence = ending.fence AND coalesce(task.runner_id, 0) = :holder
)
RETURNING id;
