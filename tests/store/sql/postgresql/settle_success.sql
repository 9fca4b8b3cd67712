WITH gone AS (
    DELETE FROM task USING (
        SELECT
            place.ctid AS ctid,
            ending.id AS id,
            ending.fence AS fence,
            ending.duration AS duration,
            ending.result AS result,
            ending.error AS error
        FROM unnest(
            :ending_id::BIGINT[],
            :ending_fence::BIGINT[],
            :ending_duration::FLOAT[],
            :ending_result::TEXT[],
            :ending_error::TEXT[]
        ) AS ending(id, fence, duration, result, error)
        JOIN LATERAL (
            SELECT held.ctid AS ctid
            FROM task AS held
            WHERE held.id = ending.id AND held.fence = ending.fence AND coalesce(held.runner_id, 0) = :holder::BIGINT
            LIMIT ALL
            OFFSET 0
        ) AS place ON true
    ) AS found
    WHERE task.ctid = found.ctid
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
        task.unique_key,
        task.order_key,
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
    gone.unique_key,
    gone.order_key,
    gone.tags,
    gone.trace,
    gone.submitted_at,
    gone.submitted_by,
    gone.attempt,
    gone.fence,
    CASE WHEN (gone.version < 1000000000000000000) THEN gone.version + 1 ELSE 1 END AS anon_1,
    gone.releases,
    gone.rescues,
    gone.interruptions,
    gone.runner_id,
    gone.host,
    gone.claimed_at,
    gone.parents,
    'succeeded',
    coalesce(gone.new_error, gone.error) AS coalesce_1,
    gone.new_duration,
    CAST(gone.new_result AS JSON) AS new_result,
    statement_timestamp() AS anon_2
FROM gone
RETURNING task_history.id;
