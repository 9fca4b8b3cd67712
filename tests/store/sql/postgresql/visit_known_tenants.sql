WITH RECURSIVE
    at_end_walk(tenant, run_at, id) AS (
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
    ),
    in_gaps_walk(tenant, run_at, id, upper) AS (
        SELECT candidate.tenant AS tenant, candidate.run_at AS run_at, candidate.id AS id, gap.upper AS upper
        FROM unnest(:gap_tenant::TEXT[], :gap_upper::TEXT[]) AS gap(tenant, upper)
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
                AND beyond.tenant > coalesce(gap.tenant, :coalesce_3::VARCHAR)
                AND beyond.tenant < coalesce(gap.upper, :coalesce_4::VARCHAR)
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
        SELECT candidate.tenant AS tenant, candidate.run_at AS run_at, candidate.id AS id, in_gaps_walk.upper AS upper
        FROM in_gaps_walk
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
                AND beyond.tenant > coalesce(in_gaps_walk.tenant, :coalesce_5::VARCHAR)
                AND beyond.tenant < coalesce(in_gaps_walk.upper, :coalesce_6::VARCHAR)
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
    UNION ALL
    SELECT in_gaps.tenant AS tenant, in_gaps.run_at AS run_at, in_gaps.id AS id
    FROM (
        SELECT in_gaps_walk.tenant AS tenant, in_gaps_walk.run_at AS run_at, in_gaps_walk.id AS id
        FROM in_gaps_walk
        LIMIT :visits::INTEGER
    ) AS in_gaps
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
