WITH
    inserted AS (
        INSERT INTO task(handler, payload, queue, priority, run_at)
        SELECT
            "new".handler AS handler,
            CAST("new".payload AS JSON) AS payload,
            coalesce("new".queue, 'default') AS coalesce_1,
            coalesce("new".priority, 1) AS coalesce_2,
            (
                statement_timestamp() + (CAST(coalesce("new".delay, :coalesce_3::INTEGER) AS FLOAT)) * interval '1 second'
            ) AS anon_1
        FROM unnest(
            :new_handler::TEXT[],
            :new_payload::TEXT[],
            :new_queue::TEXT[],
            :new_priority::SMALLINT[],
            :new_delay::FLOAT[]
        ) AS "new"(handler, payload, queue, priority, delay)
        RETURNING task.id
    ),
    notice AS MATERIALIZED (
        SELECT pg_notify(:pg_notify_1::VARCHAR, :pg_notify_2::VARCHAR) AS sent
    ),
    counted AS (
        SELECT count(*) AS number
        FROM inserted
    )
SELECT inserted.id
FROM inserted
JOIN notice ON notice.sent IS NOT NULL
UNION ALL
SELECT CAST(
    CAST(:expected::INTEGER - counted.number AS TEXT) || :param_1::VARCHAR || CAST(:expected::INTEGER AS TEXT) || :param_2::VARCHAR AS BIGINT
) AS anon_2
FROM counted
WHERE counted.number < :expected::INTEGER;
