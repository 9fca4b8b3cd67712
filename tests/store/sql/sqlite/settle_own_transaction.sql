SELECT task.id
FROM task
WHERE task.id = :task_id AND task.fence = :fence AND task.runner_id = :holder;
SELECT task_history.id
FROM task_history
WHERE task_history.id = :task_id;
SELECT json_group_array(task.id) AS json_group_array_1
FROM (
    SELECT CAST(fences_row."key" AS INTEGER) AS id, fences_row.value AS fence
    FROM json_each(:fences) AS fences_row
) AS ending
JOIN task ON task.id = ending.id AND task.fence = ending.fence AND coalesce(task.runner_id, 0) = :holder;
WITH run_group AS (
    SELECT
        run.queue AS queue,
        run.handler AS handler,
        CASE WHEN (run.attempt <= 2) THEN run.attempt END AS early,
        CASE WHEN (run.fence = 1) THEN coalesce(
            (cast(strftime('%s', run.submitted_at) as integer) / 60),
            -1
        ) END AS submitted,
        CAST(count(*) AS INTEGER) AS runs
    FROM (
        SELECT
            task.queue AS queue,
            task.handler AS handler,
            task.attempt AS attempt,
            task.fence AS fence,
            task.submitted_at AS submitted_at
        FROM task
        WHERE task.id IN (
            SELECT ids_row.value
            FROM json_each(:ids) AS ids_row
        )
    ) AS run
    GROUP BY queue, handler, early, submitted
)
INSERT INTO task_minute(minute, queue, handler, runner_id, part, submitted, succeeded, first_try, second_try)
SELECT
    "each".minute,
    "each".queue,
    "each".handler,
    :holder AS anon_1,
    :part AS anon_2,
    sum("each".submitted) AS sum_1,
    sum("each".succeeded) AS sum_2,
    sum("each".first_try) AS sum_3,
    sum("each".second_try) AS sum_4
FROM (
    SELECT
        strftime('%Y-%m-%d %H:%M:00.000', strftime('%Y-%m-%d %H:%M:%f', 'now')) AS minute,
        run_group.queue AS queue,
        run_group.handler AS handler,
        0 AS submitted,
        run_group.runs AS succeeded,
        CASE WHEN (run_group.early = 1) THEN run_group.runs ELSE 0 END AS first_try,
        CASE WHEN (run_group.early = 2) THEN run_group.runs ELSE 0 END AS second_try
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
        run_group.runs AS runs,
        0,
        0,
        0
    FROM run_group
    WHERE run_group.submitted IS NOT NULL
) AS "each"
GROUP BY "each".minute, "each".queue, "each".handler
ORDER BY "each".minute, "each".queue, "each".handler
ON CONFLICT (minute, queue, handler, runner_id, part, bin_ms) DO
UPDATE
SET
    submitted = (task_minute.submitted + excluded.submitted),
    succeeded = (task_minute.succeeded + excluded.succeeded),
    first_try = (task_minute.first_try + excluded.first_try),
    second_try = (task_minute.second_try + excluded.second_try);
INSERT INTO task_history(
    id,
    queue,
    handler,
    "key",
    priority,
    run_at,
    expires_at,
    max_attempts,
    retry,
    timeout,
    bucket,
    tenant,
    hosts,
    hosts_until,
    unique_key,
    order_key,
    order_on_failure,
    tags,
    headers,
    submitted_at,
    submitted_by,
    workflow,
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
    payload,
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
    task.priority,
    task.run_at,
    task.expires_at,
    task.max_attempts,
    task.retry,
    task.timeout,
    task.bucket,
    task.tenant,
    task.hosts,
    task.hosts_until,
    task.unique_key,
    task.order_key,
    task.order_on_failure,
    task.tags,
    task.headers,
    task.submitted_at,
    task.submitted_by,
    task.workflow,
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
    task.payload,
    'succeeded',
    coalesce(
        CASE WHEN (results_row.type = 'array') THEN json_extract(results_row.value, '$[2]') END,
        task.error
    ) AS coalesce_1,
    CAST(
        CASE WHEN (results_row.type = 'array') THEN json_extract(results_row.value, '$[0]') ELSE results_row.value END AS FLOAT
    ) / 1000000 AS anon_2,
    CAST(CASE WHEN (results_row.type = 'array') THEN json_extract(results_row.value, '$[1]') END AS TEXT) AS anon_3,
    strftime('%Y-%m-%d %H:%M:%f', 'now') AS anon_4
FROM json_each(:results) AS results_row
JOIN task ON task.id = CAST(results_row."key" AS INTEGER);
DELETE FROM task
WHERE
    task.id IN (
        SELECT ids_row.value
        FROM json_each(:ids) AS ids_row
    )
    AND (
        SELECT changes() AS changes_1
    ) = json_array_length(:ids);
SELECT changes() AS changes_1;
