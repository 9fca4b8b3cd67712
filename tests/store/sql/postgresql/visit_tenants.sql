WITH RECURSIVE at_end_walk(tenant, run_at, id) AS (
    SELECT candidate.tenant AS tenant, candidate.run_at AS run_at, candidate.id AS id
    FROM (
        SELECT :after::VARCHAR AS tenant
    ) AS start
    JOIN LATERAL (
        SELECT beyond.tenant AS tenant, beyond.run_at AS run_at, beyond.id AS id
        FROM task AS beyond
        WHERE
            beyond.state >= 'waiting'
            AND beyond.state <= 'waiting'
            AND beyond.tenant IS NOT NULL
            AND beyond.queue = :queue::VARCHAR COLLATE "C"
            AND beyond.handler = :handler::VARCHAR COLLATE "C"
            AND beyond.priority = :priority::SMALLINT
            AND beyond.hosts = :hosts::VARCHAR COLLATE "C"
            AND beyond.retried = :retried
            AND beyond.tenant > coalesce(start.tenant, :coalesce_1::VARCHAR)
        ORDER BY
            beyond.queue,
            beyond.handler,
            beyond.priority,
            beyond.hosts,
            beyond.retried,
            beyond.tenant,
            beyond.run_at,
            beyond.id
        LIMIT 1
    ) AS candidate ON true
    UNION ALL
    SELECT candidate.tenant AS tenant, candidate.run_at AS run_at, candidate.id AS id
    FROM at_end_walk
    JOIN LATERAL (
        SELECT beyond.tenant AS tenant, beyond.run_at AS run_at, beyond.id AS id
        FROM task AS beyond
        WHERE
            beyond.state >= 'waiting'
            AND beyond.state <= 'waiting'
            AND beyond.tenant IS NOT NULL
            AND beyond.queue = :queue::VARCHAR COLLATE "C"
            AND beyond.handler = :handler::VARCHAR COLLATE "C"
            AND beyond.priority = :priority::SMALLINT
            AND beyond.hosts = :hosts::VARCHAR COLLATE "C"
            AND beyond.retried = :retried
            AND beyond.tenant > coalesce(at_end_walk.tenant, :coalesce_2::VARCHAR)
        ORDER BY
            beyond.queue,
            beyond.handler,
            beyond.priority,
            beyond.hosts,
            beyond.retried,
            beyond.tenant,
            beyond.run_at,
            beyond.id
        LIMIT 1
    ) AS candidate ON true
)
SELECT
    visits.tenant,
    visits.run_at <= statement_timestamp() AS anon_1,
    (
        date_part(
            'epoch',
            CASE WHEN (visits.run_at <= statement_timestamp()) THEN visits.run_at ELSE statement_timestamp() END
        ) * 1000000
    ) ::bigint AS anon_2,
    visits.id
FROM (
    SELECT at_end.tenant AS tenant, at_end.run_at AS run_at, at_end.id AS id
    FROM (
        SELECT at_end_walk.tenant AS tenant, at_end_walk.run_at AS run_at, at_end_walk.id AS id
        FROM at_end_walk
        LIMIT :further::INTEGER
    ) AS at_end
) AS visits;
