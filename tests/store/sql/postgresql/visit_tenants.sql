WITH RECURSIVE walk(tenant, run_at, id, lower, upper) AS (
    SELECT
        candidate.tenant AS tenant,
        candidate.run_at AS run_at,
        candidate.id AS id,
        candidate.tenant AS lower,
        gap.upper AS upper
    FROM unnest(:gap_lower::TEXT[], :gap_upper::TEXT[]) AS gap(lower, upper)
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
            AND beyond.tenant > coalesce(gap.lower, :coalesce_1::VARCHAR)
            AND beyond.tenant < coalesce(gap.upper, :coalesce_2::VARCHAR)
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
    SELECT
        candidate.tenant AS tenant,
        candidate.run_at AS run_at,
        candidate.id AS id,
        candidate.tenant AS lower,
        walk.upper AS upper
    FROM walk
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
            AND beyond.tenant > coalesce(walk.lower, :coalesce_3::VARCHAR)
            AND beyond.tenant < coalesce(walk.upper, :coalesce_4::VARCHAR)
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
    SELECT others.tenant AS tenant, others.run_at AS run_at, others.id AS id
    FROM (
        SELECT walk.tenant AS tenant, walk.run_at AS run_at, walk.id AS id
        FROM walk
        LIMIT :visits::INTEGER
    ) AS others
    UNION ALL
    SELECT candidate.tenant AS tenant, candidate.run_at AS run_at, candidate.id AS id
    FROM unnest(
        :known_tenant::TEXT[],
        :known_since::BIGINT[],
        :known_since_id::BIGINT[]
    ) AS known(tenant, since, since_id)
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
            AND beyond.tenant = known.tenant
            AND (beyond.run_at, beyond.id) > (
                ('epoch'::timestamptz + known.since * interval '1 microsecond'),
                known.since_id
            )
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
) AS visits;
