SELECT
    task.id,
    task.fence,
    task.queue,
    task.handler,
    task.key,
    task.attempt,
    set_config('idle_in_transaction_session_timeout', '5000ms', true)
FROM task
WHERE
    task.id = ANY (:param_1::BIGINT[])
    AND task.state = 'blocked'
    AND (
        SELECT set_config(:set_config_2::VARCHAR, '2s', true) AS set_config_1
    ) IS NOT NULL
ORDER BY task.id
FOR UPDATE SKIP LOCKED;
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
                        WHERE keyed.key = dependency.parent_key AND keyed.handler = dependency.parent_handler
                        UNION ALL
                        SELECT max(keyed.id) AS id
                        FROM task_history AS keyed
                        WHERE keyed.key = dependency.parent_key AND keyed.handler = dependency.parent_handler
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
                    task_dependency.ctid AS address
                FROM task_dependency
                WHERE task_dependency.id = ANY (:param_1::BIGINT[]) AND task_dependency.satisfied_at IS NULL
            ) AS dependency
            LIMIT ALL
            OFFSET 0
        ) AS named
        WHERE
            named.parent IS NOT NULL
            AND NOT (
                EXISTS (
                    SELECT parent.id
                    FROM task AS parent
                    WHERE parent.id = named.parent
                    LIMIT ALL
                    OFFSET 0
                )
            )
        LIMIT ALL
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
        OR task_dependency.on_failure = :on_failure_1::VARCHAR
    ) THEN statement_timestamp() END
FROM changed
WHERE task_dependency.ctid = changed.address AND task_dependency.id = changed.id
RETURNING task_dependency.task_id, task_dependency.parent_id, task_dependency.parent_state, task_dependency.on_failure;
SELECT task_history.id
FROM task_history
WHERE task_history.id = ANY (:reused_id::BIGINT[]);
UPDATE task
SET deadline_at = NULL, started_at = NULL, runner_id = NULL, claimed_at = NULL
WHERE task.id = ANY (:param_1::BIGINT[]);
SELECT date_trunc('minute', statement_timestamp()) AS anon_1, task.queue, task.handler, count(*) AS count_1
FROM task
WHERE task.id = ANY (:param_1::BIGINT[])
GROUP BY date_trunc('minute', statement_timestamp()), task.queue, task.handler;
SELECT
    CASE WHEN (
        coalesce(floor(date_part('epoch', task.submitted_at) / 60), -1) BETWEEN 0 AND floor(date_part('epoch', statement_timestamp()) / 60) + 60
    ) THEN to_timestamp(
        coalesce(floor(date_part('epoch', task.submitted_at) / 60), -1) * 60
    ) ELSE date_trunc('minute', statement_timestamp()) END AS anon_1,
    task.queue,
    task.handler,
    count(*) AS count_1
FROM task
WHERE task.id = ANY (:param_1::BIGINT[]) AND task.fence = :fence_1::BIGINT
GROUP BY
    CASE WHEN (
        coalesce(floor(date_part('epoch', task.submitted_at) / 60), -1) BETWEEN 0 AND floor(date_part('epoch', statement_timestamp()) / 60) + 60
    ) THEN to_timestamp(
        coalesce(floor(date_part('epoch', task.submitted_at) / 60), -1) * 60
    ) ELSE date_trunc('minute', statement_timestamp()) END,
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
FROM unnest(
    :counts_minute::TIMESTAMP WITH TIME ZONE[],
    :counts_queue::TEXT[],
    :counts_handler::TEXT[],
    :counts_runner_id::BIGINT[],
    :counts_part::SMALLINT[],
    :counts_bin_ms::INTEGER[],
    :counts_submitted::INTEGER[],
    :counts_cancelled::INTEGER[]
) AS counts(minute, queue, handler, runner_id, part, bin_ms, submitted, cancelled)
ORDER BY counts.minute, counts.queue, counts.handler
ON CONFLICT (minute, queue, handler, runner_id, part, bin_ms) DO
UPDATE
SET submitted = (task_minute.submitted + excluded.submitted), cancelled = (task_minute.cancelled + excluded.cancelled);
WITH
    deletion AS (
        DELETE FROM task USING (
            SELECT
                address.ctid AS ctid,
                ending.id AS id,
                address.fence AS fence,
                ending.duration AS duration,
                ending.result AS result,
                ending.error AS error
            FROM unnest(
                :ending_id::BIGINT[],
                :ending_fence::BIGINT[],
                :ending_duration::BIGINT[],
                :ending_result::TEXT[],
                :ending_error::TEXT[]
            ) AS ending(id, fence, duration, result, error)
            JOIN LATERAL (
                SELECT target.ctid AS ctid, target.fence AS fence
                FROM task AS target
                WHERE
                    target.id = ending.id
                    AND target.fence = ending.fence
                    AND coalesce(target.runner_id, 0) = :holder::BIGINT
                LIMIT ALL
                OFFSET 0
            ) AS address ON true
        ) AS match
        WHERE task.ctid = match.ctid AND task.fence = match.fence
        RETURNING
            task.id,
            task.queue,
            task.handler,
            task.key,
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
            task.version,
            task.releases,
            task.rescues,
            task.interruptions,
            task.runner_id,
            task.host,
            task.claimed_at,
            task.parents,
            task.payload,
            task.error,
            match.error AS new_error,
            match.duration AS new_duration,
            match.result AS new_result
    ),
    copied AS (
        INSERT INTO task_history(
            id,
            queue,
            handler,
            key,
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
            deletion.id AS id,
            deletion.queue AS queue,
            deletion.handler AS handler,
            deletion.key AS key,
            deletion.priority AS priority,
            deletion.run_at AS run_at,
            deletion.expires_at AS expires_at,
            deletion.max_attempts AS max_attempts,
            deletion.retry AS retry,
            deletion.timeout AS timeout,
            deletion.bucket AS bucket,
            deletion.tenant AS tenant,
            deletion.hosts AS hosts,
            deletion.hosts_until AS hosts_until,
            deletion.unique_key AS unique_key,
            deletion.order_key AS order_key,
            deletion.order_on_failure AS order_on_failure,
            deletion.tags AS tags,
            deletion.headers AS headers,
            deletion.submitted_at AS submitted_at,
            deletion.submitted_by AS submitted_by,
            deletion.workflow AS workflow,
            deletion.attempt AS attempt,
            deletion.fence AS fence,
            CASE WHEN (deletion.version < 1000000000000000000) THEN deletion.version + 1 ELSE 1 END AS anon_1,
            deletion.releases AS releases,
            deletion.rescues AS rescues,
            deletion.interruptions AS interruptions,
            deletion.runner_id AS runner_id,
            deletion.host AS host,
            deletion.claimed_at AS claimed_at,
            deletion.parents AS parents,
            deletion.payload AS payload,
            'cancelled',
            coalesce(deletion.new_error, deletion.error) AS coalesce_1,
            CAST(deletion.new_duration AS FLOAT) / 1000000 AS anon_2,
            CAST(deletion.new_result AS JSON) AS new_result,
            statement_timestamp() AS anon_3
        FROM deletion
        RETURNING task_history.id, task_history.order_key
    )
SELECT copied.id, copied.order_key
FROM copied
UNION ALL
SELECT
    CAST(
        CAST(deletions.number - copies.number AS TEXT) || ' of the deleted rows not stored in the history: probably a trigger returns NULL' AS BIGINT
    ) AS anon_4,
    NULL AS anon_5
FROM
    (
        SELECT count(*) AS number
        FROM deletion
    ) AS deletions,
    (
        SELECT count(*) AS number
        FROM copied
    ) AS copies
WHERE deletions.number > copies.number;
UPDATE task_dependency
SET satisfied_at = statement_timestamp()
WHERE task_dependency.task_id = ANY (:param_1::BIGINT[]) AND task_dependency.satisfied_at IS NULL;
