SELECT
    task.id,
    task.queue,
    task.handler,
    task.attempt,
    task.max_attempts,
    task.retry,
    task.releases,
    task.interruptions,
    task.cancel_requested,
    task.fence,
    task.state,
    task.runner_id,
    task.host,
    CASE WHEN (
        task.claimed_at BETWEEN '1970-01-01 00:00:00.000' AND '9999-01-01 00:00:00.000'
    ) THEN task.claimed_at END AS claimed_at,
    strftime('%Y-%m-%d %H:%M:00.000', strftime('%Y-%m-%d %H:%M:%f', 'now')) AS minute,
    CASE WHEN (
        coalesce((cast(strftime('%s', task.submitted_at) as integer) / 60), -1) BETWEEN 0 AND (
            cast(strftime('%s', strftime('%Y-%m-%d %H:%M:%f', 'now')) as integer) / 60
        ) + 60
    ) THEN strftime(
        '%Y-%m-%d %H:%M:%f',
        coalesce((cast(strftime('%s', task.submitted_at) as integer) / 60), -1) * 60,
        'unixepoch'
    ) ELSE strftime('%Y-%m-%d %H:%M:00.000', strftime('%Y-%m-%d %H:%M:%f', 'now')) END AS submitted_minute,
    NULL AS anon_1
FROM task
WHERE
    task.id IN (
        SELECT settled.id
        FROM (
            SELECT json_extract(settled_row.value, :json_extract_1) AS id
            FROM json_each(:settled) AS settled_row
        ) AS settled
    )
    AND task.runner_id = :holder
ORDER BY task.id;
SELECT task_history.id
FROM task_history
WHERE task_history.id IN (
    SELECT reused.id
    FROM (
        SELECT json_extract(reused_row.value, :json_extract_1) AS id
        FROM json_each(:reused) AS reused_row
    ) AS reused
);
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
SELECT
    failed.task_id,
    failed.fence,
    failed.attempt,
    failed.queue,
    failed.handler,
    failed.started_at,
    failed.runner_id,
    failed.host,
    failed.verb,
    failed.error_type,
    failed.message,
    failed.traceback,
    failed.fingerprint,
    failed.delay,
    failed.breaks,
    failed.rule
FROM (
    SELECT
        json_extract(failed_row.value, :json_extract_1) AS task_id,
        json_extract(failed_row.value, :json_extract_2) AS fence,
        json_extract(failed_row.value, :json_extract_3) AS attempt,
        json_extract(failed_row.value, :json_extract_4) AS queue,
        json_extract(failed_row.value, :json_extract_5) AS handler,
        json_extract(failed_row.value, :json_extract_6) AS started_at,
        json_extract(failed_row.value, :json_extract_7) AS runner_id,
        json_extract(failed_row.value, :json_extract_8) AS host,
        json_extract(failed_row.value, :json_extract_9) AS verb,
        json_extract(failed_row.value, :json_extract_10) AS error_type,
        json_extract(failed_row.value, :json_extract_11) AS message,
        json_extract(failed_row.value, :json_extract_12) AS traceback,
        json_extract(failed_row.value, :json_extract_13) AS fingerprint,
        json_extract(failed_row.value, :json_extract_14) AS delay,
        json_extract(failed_row.value, :json_extract_15) AS breaks,
        json_extract(failed_row.value, :json_extract_16) AS rule
    FROM json_each(:failed) AS failed_row
) AS failed;
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
    'dead',
    coalesce(ending.error, task.error) AS coalesce_1,
    CAST(ending.duration AS FLOAT) / 1000000 AS anon_2,
    CAST(ending.result AS TEXT) AS result,
    strftime('%Y-%m-%d %H:%M:%f', 'now') AS anon_3
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
WHERE
    task.id IN (
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
    AND (
        EXISTS (
            SELECT *
            FROM task_history
            WHERE task_history.id = task.id
        )
    )
RETURNING id, order_key;
UPDATE task
SET
    run_at = CASE WHEN (back.released = :released_1) THEN task.run_at ELSE strftime(
        '%Y-%m-%d %H:%M:%f',
        strftime('%Y-%m-%d %H:%M:%f', 'now'),
        round(CAST(back.delay AS FLOAT), 3) || ' seconds'
    ) END,
    hosts = CASE WHEN (back.failed = :failed_1) THEN CASE WHEN (task.hosts = 'failed' AND task.host IS NOT NULL) THEN 'failed,' || task.host ELSE task.hosts END ELSE task.hosts END,
    headers = coalesce(CAST(back.headers AS TEXT), task.headers),
    state = 'waiting',
    deadline_at = NULL,
    started_at = NULL,
    attempt = (task.attempt - back.uncounted),
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END,
    releases = CASE WHEN (task.releases < 1000000000) THEN task.releases + back.released ELSE task.releases END,
    rescues = CASE WHEN (back.released = :released_2) THEN task.rescues ELSE :param_1 END,
    interruptions = CASE WHEN (task.interruptions < 1000000000) THEN task.interruptions + back.interrupted ELSE task.interruptions END,
    runner_id = NULL,
    claimed_at = NULL,
    error = coalesce(back.error, task.error)
FROM (
    SELECT
        json_extract(back_row.value, :json_extract_1) AS id,
        json_extract(back_row.value, :json_extract_2) AS delay,
        json_extract(back_row.value, :json_extract_3) AS uncounted,
        json_extract(back_row.value, :json_extract_4) AS released,
        json_extract(back_row.value, :json_extract_5) AS interrupted,
        json_extract(back_row.value, :json_extract_6) AS failed,
        json_extract(back_row.value, :json_extract_7) AS error,
        json_extract(back_row.value, :json_extract_8) AS headers
    FROM json_each(:back) AS back_row
) AS back
WHERE task.id = back.id
RETURNING id;
INSERT INTO task_minute(minute, queue, handler, runner_id, part, bin_ms, submitted, retried, died)
SELECT
    counts.minute,
    counts.queue,
    counts.handler,
    counts.runner_id,
    counts.part,
    counts.bin_ms,
    counts.submitted,
    counts.retried,
    counts.died
FROM (
    SELECT
        json_extract(counts_row.value, :json_extract_1) AS minute,
        json_extract(counts_row.value, :json_extract_2) AS queue,
        json_extract(counts_row.value, :json_extract_3) AS handler,
        json_extract(counts_row.value, :json_extract_4) AS runner_id,
        json_extract(counts_row.value, :json_extract_5) AS part,
        json_extract(counts_row.value, :json_extract_6) AS bin_ms,
        json_extract(counts_row.value, :json_extract_7) AS submitted,
        json_extract(counts_row.value, :json_extract_8) AS retried,
        json_extract(counts_row.value, :json_extract_9) AS died
    FROM json_each(:counts) AS counts_row
) AS counts
ORDER BY counts.minute, counts.queue, counts.handler
ON CONFLICT (minute, queue, handler, runner_id, part, bin_ms) DO
UPDATE
SET
    submitted = (task_minute.submitted + excluded.submitted),
    retried = (task_minute.retried + excluded.retried),
    died = (task_minute.died + excluded.died);
