WITH
    gone AS (
        DELETE FROM task USING (
            SELECT
                place.ctid AS ctid,
                ending.id AS id,
                ending.fence AS fence,
                ending.duration AS duration,
                ending.result AS result,
                ending.error AS error,
                ending.place AS place
            FROM unnest(
                :ending_id::BIGINT[],
                :ending_fence::BIGINT[],
                :ending_duration::BIGINT[],
                :ending_result::TEXT[],
                :ending_error::TEXT[],
                :ending_place::TEXT[]
            ) AS ending(id, fence, duration, result, error, place)
            JOIN LATERAL (
                SELECT held.ctid AS ctid
                FROM task AS held
                WHERE
                    held.ctid = CAST(ending.place AS TID)
                    AND (
                        held.id = ending.id
                        AND held.fence = ending.fence
                        AND coalesce(held.runner_id, 0) = :holder::BIGINT
                    ) IS true
                LIMIT ALL
                OFFSET 0
            ) AS place ON true
        ) AS found
        WHERE task.ctid = found.ctid AND task.fence = found.fence
        RETURNING
            task.id,
            task.queue,
            task.handler,
            task.key,
            task.payload,
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
            task.trace,
            task.submitted_at,
            task.submitted_by,
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
            task.error,
            found.error AS new_error,
            found.duration AS new_duration,
            found.result AS new_result
    ),
    run_group AS (
        SELECT
            gone.queue AS queue,
            gone.handler AS handler,
            CASE WHEN (gone.attempt <= 2) THEN gone.attempt END AS early,
            CASE WHEN (gone.fence = 1) THEN coalesce(floor(date_part('epoch', gone.submitted_at) / 60), -1) END AS submitted,
            CAST(count(*) AS INTEGER) AS runs
        FROM gone
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
    )
INSERT INTO task_history(
    id,
    queue,
    handler,
    key,
    payload,
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
    gone.id,
    gone.queue,
    gone.handler,
    gone.key,
    gone.payload,
    gone.priority,
    gone.run_at,
    gone.expires_at,
    gone.max_attempts,
    gone.retry,
    gone.timeout,
    gone.bucket,
    gone.tenant,
    gone.hosts,
    gone.hosts_until,
    gone.unique_key,
    gone.order_key,
    gone.order_on_failure,
    gone.tags,
    gone.trace,
    gone.submitted_at,
    gone.submitted_by,
    gone.attempt,
    gone.fence,
    CASE WHEN (gone.version < 1000000000000000000) THEN gone.version + 1 ELSE 1 END AS anon_4,
    gone.releases,
    gone.rescues,
    gone.interruptions,
    gone.runner_id,
    gone.host,
    gone.claimed_at,
    gone.parents,
    'succeeded',
    coalesce(gone.new_error, gone.error) AS coalesce_1,
    CAST(gone.new_duration AS FLOAT) / 1000000 AS anon_5,
    CAST(gone.new_result AS JSON) AS new_result,
    statement_timestamp() AS anon_6
FROM gone
RETURNING task_history.id;
