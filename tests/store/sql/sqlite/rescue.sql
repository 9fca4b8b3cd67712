SELECT
    EXISTS (
        SELECT *
        FROM task_runner AS rescuer
        WHERE
            rescuer.id = :rescuer
            AND rescuer.lease_until >= strftime('%Y-%m-%d %H:%M:%f', 'now')
            AND rescuer.available_since <= strftime(
                '%Y-%m-%d %H:%M:%f',
                strftime('%Y-%m-%d %H:%M:%f', 'now'),
                round(CAST(:available_for AS FLOAT), 3) || ' seconds'
            )
    ) AS anon_1,
    NULL AS anon_2
WHERE 1 = 1;
SELECT task_runner.id
FROM task_runner
WHERE task_runner.lease_until < strftime('%Y-%m-%d %H:%M:%f', 'now')
ORDER BY task_runner.id;
INSERT INTO task_ended_runner(runner_id, host, pid, version, started_at, heartbeat_at, lost, tasks)
SELECT
    task_runner.id,
    task_runner.host,
    task_runner.pid,
    task_runner.version,
    task_runner.started_at,
    task_runner.heartbeat_at,
    :param_1 AS anon_1,
    (
        SELECT count(*) AS count_1
        FROM task
        WHERE task.runner_id = task_runner.id AND task.state = 'running'
    ) AS anon_2
FROM task_runner
WHERE task_runner.id IN (
    SELECT anon_3.value
    FROM json_each(:param_2) AS anon_3
)
ON CONFLICT DO NOTHING;
DELETE FROM task_runner
WHERE task_runner.id IN (
    SELECT anon_1.value
    FROM json_each(:param_1) AS anon_1
);
SELECT
    task.id,
    task.queue,
    task.handler,
    task."key",
    task.attempt,
    task.max_attempts,
    task.fence,
    task.cancel_requested,
    task.tenant,
    task.tags,
    task.headers,
    task.runner_id,
    task.host,
    CASE WHEN (
        task.claimed_at BETWEEN '1970-01-01 00:00:00.000' AND '9999-01-01 00:00:00.000'
    ) THEN task.claimed_at END AS claimed_at,
    task.started_at IS NOT NULL
    OR task.attempt = :attempt_1 AS began,
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
    EXISTS (
        SELECT *
        FROM task_runner
        WHERE task_runner.id = task.runner_id
    ) AS alive
FROM task
WHERE
    task.state = 'running'
    AND (
        NOT (
            EXISTS (
                SELECT *
                FROM task_runner
                WHERE task_runner.id = task.runner_id
            )
        )
        OR task.deadline_at < strftime(
            '%Y-%m-%d %H:%M:%f',
            strftime('%Y-%m-%d %H:%M:%f', 'now'),
            round(CAST(:param_1 AS FLOAT), 3) || ' seconds'
        )
    )
ORDER BY task.runner_id, task.claimed_at, task.id
LIMIT :param_2
OFFSET :param_3;
UPDATE task
SET
    state = 'waiting',
    deadline_at = NULL,
    started_at = NULL,
    attempt = (task.attempt - :attempt_1),
    fence = CASE WHEN (task.fence < 1000000000000000000) THEN task.fence + :fence_1 ELSE task.fence END,
    version = CASE WHEN (task.version < 1000000000000000000) THEN task.version + 1 ELSE 1 END,
    rescues = CASE WHEN (task.rescues < 1000000000) THEN task.rescues + :rescues_1 ELSE task.rescues END,
    runner_id = NULL,
    claimed_at = NULL,
    error = :error
WHERE task.id IN (:id_1_1);
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
INSERT INTO task_minute(minute, queue, handler, runner_id, part, bin_ms, submitted, rescued)
SELECT
    counts.minute,
    counts.queue,
    counts.handler,
    counts.runner_id,
    counts.part,
    counts.bin_ms,
    counts.submitted,
    counts.rescued
FROM (
    SELECT
        json_extract(counts_row.value, :json_extract_1) AS minute,
        json_extract(counts_row.value, :json_extract_2) AS queue,
        json_extract(counts_row.value, :json_extract_3) AS handler,
        json_extract(counts_row.value, :json_extract_4) AS runner_id,
        json_extract(counts_row.value, :json_extract_5) AS part,
        json_extract(counts_row.value, :json_extract_6) AS bin_ms,
        json_extract(counts_row.value, :json_extract_7) AS submitted,
        json_extract(counts_row.value, :json_extract_8) AS rescued
    FROM json_each(:counts) AS counts_row
) AS counts
ORDER BY counts.minute, counts.queue, counts.handler
ON CONFLICT (minute, queue, handler, runner_id, part, bin_ms) DO
UPDATE
SET submitted = (task_minute.submitted + excluded.submitted), rescued = (task_minute.rescued + excluded.rescued);
