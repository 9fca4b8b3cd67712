SELECT task.id
FROM task
WHERE task.id = :task_id::BIGINT AND task.fence = :fence::BIGINT AND task.runner_id = :holder::BIGINT
FOR UPDATE;
SELECT task_history.id
FROM task_history
WHERE task_history.id = :task_id::BIGINT;
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
        WHERE
            task.ctid = match.ctid
            AND task.fence = match.fence
            AND (
                task.id > coalesce(
                    (
                        SELECT max(others.id) AS max_1
                        FROM task_history AS others
                        WHERE others.state IN ('dead', 'cancelled')
                    ),
                    0
                )
                OR NOT (
                    EXISTS (
                        SELECT *
                        FROM task_history AS others
                        WHERE others.id = task.id AND others.state IN ('dead', 'cancelled')
                    )
                )
            )
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
    run_group AS (
        SELECT
            deletion.queue AS queue,
            deletion.handler AS handler,
            CASE WHEN (deletion.attempt <= 2) THEN deletion.attempt END AS early,
            CASE WHEN (deletion.fence = 1) THEN coalesce(floor(date_part('epoch', deletion.submitted_at) / 60), -1) END AS submitted,
            CAST(count(*) AS INTEGER) AS runs
        FROM deletion
        GROUP BY queue, handler, early, submitted
    ),
    counted AS (
        INSERT INTO task_minute(minute, queue, handler, runner_id, part, submitted, succeeded, first_try, second_try)
        SELECT
            each.minute AS minute,
            each.queue AS queue,
            each.handler AS handler,
            :holder::BIGINT AS anon_1,
            :part::SMALLINT AS anon_2,
            sum(each.submitted) AS sum_1,
            sum(each.succeeded) AS sum_2,
            sum(each.first_try) AS sum_3,
            sum(each.second_try) AS sum_4
        FROM (
            SELECT
                date_trunc('minute', statement_timestamp()) AS minute,
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
                    run_group.submitted BETWEEN 0 AND floor(date_part('epoch', statement_timestamp()) / 60) + 60
                ) THEN to_timestamp(run_group.submitted * 60) ELSE date_trunc('minute', statement_timestamp()) END AS anon_3,
                run_group.queue AS queue,
                run_group.handler AS handler,
                run_group.runs AS runs,
                0,
                0,
                0
            FROM run_group
            WHERE run_group.submitted IS NOT NULL
        ) AS each
        GROUP BY each.minute, each.queue, each.handler
        ORDER BY each.minute, each.queue, each.handler
        ON CONFLICT (minute, queue, handler, runner_id, part, bin_ms) DO
        UPDATE
        SET
            submitted = (task_minute.submitted + excluded.submitted),
            succeeded = (task_minute.succeeded + excluded.succeeded),
            first_try = (task_minute.first_try + excluded.first_try),
            second_try = (task_minute.second_try + excluded.second_try)
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
            CASE WHEN (deletion.version < 1000000000000000000) THEN deletion.version + 1 ELSE 1 END AS anon_4,
            deletion.releases AS releases,
            deletion.rescues AS rescues,
            deletion.interruptions AS interruptions,
            deletion.runner_id AS runner_id,
            deletion.host AS host,
            deletion.claimed_at AS claimed_at,
            deletion.parents AS parents,
            deletion.payload AS payload,
            'succeeded',
            coalesce(deletion.new_error, deletion.error) AS coalesce_1,
            CAST(deletion.new_duration AS FLOAT) / 1000000 AS anon_5,
            CAST(deletion.new_result AS JSON) AS new_result,
            statement_timestamp() AS anon_6
        FROM deletion
        RETURNING task_history.id
    )
SELECT copied.id
FROM copied
UNION ALL
SELECT CAST(
    CAST(deletions.number - copies.number AS TEXT) || ' of the deleted rows not stored in the history: probably a trigger returns NULL' AS BIGINT
) AS anon_7
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
