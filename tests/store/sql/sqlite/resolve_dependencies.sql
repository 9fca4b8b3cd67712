SELECT task.id, task.fence, task.queue, task.handler, task."key", task.attempt, NULL AS anon_1
FROM task
WHERE
    task.id IN (
        SELECT anon_2.value
        FROM json_each(:param_1) AS anon_2
    )
    AND task.state = 'blocked'
ORDER BY task.id;
WITH changed AS MATERIALIZED (
    SELECT
        judged.id AS id,
        judged.task_id AS task_id,
        judged.parent_id AS parent_id,
        judged.parent_handler AS parent_handler,
        judged.parent_key AS parent_key,
        judged.parent_state AS parent_state,
        judged.address AS address,
        judged.parent AS parent,
        judged.state AS state
    FROM (
        SELECT
            named.id AS id,
            named.task_id AS task_id,
            named.parent_id AS parent_id,
            named.parent_handler AS parent_handler,
            named.parent_key AS parent_key,
            named.parent_state AS parent_state,
            named.address AS address,
            named.parent AS parent,
            coalesce(
                (
                    SELECT max(past.state) AS max_1
                    FROM task_history AS past
                    WHERE past.id = named.parent
                ),
                'gone'
            ) AS state
        FROM (
            SELECT
                dependency.id AS id,
                dependency.task_id AS task_id,
                dependency.parent_id AS parent_id,
                dependency.parent_handler AS parent_handler,
                dependency.parent_key AS parent_key,
                dependency.parent_state AS parent_state,
                dependency.address AS address,
                CASE WHEN (dependency.parent_key IS NULL) THEN dependency.parent_id ELSE (
                    SELECT max(latest.id) AS max_2
                    FROM (
                        SELECT max(keyed.id) AS id
                        FROM task AS keyed
                        WHERE keyed."key" = dependency.parent_key AND keyed.handler = dependency.parent_handler
                        UNION ALL
                        SELECT max(keyed.id) AS id
                        FROM task_history AS keyed
                        WHERE keyed."key" = dependency.parent_key AND keyed.handler = dependency.parent_handler
                    ) AS latest
                ) END AS parent
            FROM (
                SELECT
                    task_dependency.id AS id,
                    task_dependency.task_id AS task_id,
                    task_dependency.parent_id AS parent_id,
                    task_dependency.parent_handler AS parent_handler,
                    task_dependency.parent_key AS parent_key,
                    task_dependency.parent_state AS parent_state,
                    task_dependency.id AS address
                FROM task_dependency
                WHERE
                    task_dependency.id IN (
                        SELECT anon_1.value
                        FROM json_each(:param_1) AS anon_1
                    )
                    AND task_dependency.satisfied_at IS NULL
            ) AS dependency
            LIMIT :param_2
            OFFSET 0
        ) AS named
        WHERE
            named.parent IS NOT NULL
            AND NOT (
                EXISTS (
                    SELECT parent.id
                    FROM task AS parent
                    WHERE parent.id = named.parent
                    LIMIT :param_3
                    OFFSET 0
                )
            )
        LIMIT :param_4
        OFFSET 0
    ) AS judged
    WHERE judged.parent_state IS NULL OR judged.parent_state != judged.state OR judged.parent_id != judged.parent
)
UPDATE task_dependency
SET
    parent_id = changed.parent,
    parent_state = changed.state,
    satisfied_at = CASE WHEN (
        changed.state = 'succeeded'
        OR task_dependency.on_failure = :on_failure_1
    ) THEN strftime('%Y-%m-%d %H:%M:%f', 'now') END
FROM changed
WHERE task_dependency.id = changed.address AND task_dependency.id = changed.id
RETURNING task_id, parent_id, parent_state, on_failure;
SELECT task_history.id
FROM task_history
WHERE task_history.id IN (
    SELECT reused.id
    FROM (
        SELECT json_extract(reused_row.value, :json_extract_1) AS id
        FROM json_each(:reused) AS reused_row
    ) AS reused
);
UPDATE task
SET deadline_at = NULL, started_at = NULL, runner_id = NULL, claimed_at = NULL
WHERE task.id IN (
    SELECT anon_1.value
    FROM json_each(:param_1) AS anon_1
);
SELECT
    strftime('%Y-%m-%d %H:%M:00.000', strftime('%Y-%m-%d %H:%M:%f', 'now')) AS anon_1,
    task.queue,
    task.handler,
    count(*) AS count_1
FROM task
WHERE task.id IN (
    SELECT anon_2.value
    FROM json_each(:param_1) AS anon_2
)
GROUP BY strftime('%Y-%m-%d %H:%M:00.000', strftime('%Y-%m-%d %H:%M:%f', 'now')), task.queue, task.handler;
SELECT
    CASE WHEN (
        coalesce((cast(strftime('%s', task.submitted_at) as integer) / 60), -1) BETWEEN 0 AND (
            cast(strftime('%s', strftime('%Y-%m-%d %H:%M:%f', 'now')) as integer) / 60
        ) + 60
    ) THEN strftime(
        '%Y-%m-%d %H:%M:%f',
        coalesce((cast(strftime('%s', task.submitted_at) as integer) / 60), -1) * 60,
        'unixepoch'
    ) ELSE strftime('%Y-%m-%d %H:%M:00.000', strftime('%Y-%m-%d %H:%M:%f', 'now')) END AS anon_1,
    task.queue,
    task.handler,
    count(*) AS count_1
FROM task
WHERE
    task.id IN (
        SELECT anon_2.value
        FROM json_each(:param_1) AS anon_2
    )
    AND task.fence = :fence_1
GROUP BY
    CASE WHEN (
        coalesce((cast(strftime('%s', task.submitted_at) as integer) / 60), -1) BETWEEN 0 AND (
            cast(strftime('%s', strftime('%Y-%m-%d %H:%M:%f', 'now')) as integer) / 60
        ) + 60
    ) THEN strftime(
        '%Y-%m-%d %H:%M:%f',
        coalesce((cast(strftime('%s', task.submitted_at) as integer) / 60), -1) * 60,
        'unixepoch'
    ) ELSE strftime('%Y-%m-%d %H:%M:00.000', strftime('%Y-%m-%d %H:%M:%f', 'now')) END,
    task.queue,
    task.handler;
INSERT INTO task_minute(minute, queue, handler, runner_id, part, bin_ms, submitted, cancelled)
SELECT
    counts.minute,
    counts.queue,
    counts.handler,
    counts.runner_id,
    counts.part,
    counts.bin_ms,
    counts.submitted,
    counts.cancelled
FROM (
    SELECT
        json_extract(counts_row.value, :json_extract_1) AS minute,
        json_extract(counts_row.value, :json_extract_2) AS queue,
        json_extract(counts_row.value, :json_extract_3) AS handler,
        json_extract(counts_row.value, :json_extract_4) AS runner_id,
        json_extract(counts_row.value, :json_extract_5) AS part,
        json_extract(counts_row.value, :json_extract_6) AS bin_ms,
        json_extract(counts_row.value, :json_extract_7) AS submitted,
        json_extract(counts_row.value, :json_extract_8) AS cancelled
    FROM json_each(:counts) AS counts_row
) AS counts
ORDER BY counts.minute, counts.queue, counts.handler
ON CONFLICT (minute, queue, handler, runner_id, part, bin_ms) DO
UPDATE
SET submitted = (task_minute.submitted + excluded.submitted), cancelled = (task_minute.cancelled + excluded.cancelled);
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
    'cancelled',
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
UPDATE task_dependency
SET satisfied_at = strftime('%Y-%m-%d %H:%M:%f', 'now')
WHERE
    task_dependency.task_id IN (
        SELECT anon_1.value
        FROM json_each(:param_1) AS anon_1
    )
    AND task_dependency.satisfied_at IS NULL;
