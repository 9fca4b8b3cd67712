WITH RECURSIVE
    at_end_walk(tenant, run_at, id) AS (
        SELECT candidate.tenant AS tenant, candidate.run_at AS run_at, candidate.id AS id
        FROM (
            SELECT :after AS tenant
        ) AS start
        JOIN task AS candidate ON candidate.id = (
            SELECT beyond.id
            FROM task AS beyond
            WHERE
                beyond.state >= 'waiting'
                AND beyond.state <= 'waiting'
                AND beyond.tenant IS NOT NULL
                AND beyond.queue = :queue
                AND beyond.handler = :handler
                AND beyond.priority = :priority
                AND beyond.hosts = :hosts
                AND beyond.retried = :retried
                AND beyond.tenant > coalesce(start.tenant, :coalesce_1)
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
            OFFSET :param_1
        )
        UNION ALL
        SELECT candidate.tenant AS tenant, candidate.run_at AS run_at, candidate.id AS id
        FROM at_end_walk
        JOIN task AS candidate ON candidate.id = (
            SELECT beyond.id
            FROM task AS beyond
            WHERE
                beyond.state >= 'waiting'
                AND beyond.state <= 'waiting'
                AND beyond.tenant IS NOT NULL
                AND beyond.queue = :queue
                AND beyond.handler = :handler
                AND beyond.priority = :priority
                AND beyond.hosts = :hosts
                AND beyond.retried = :retried
                AND beyond.tenant > coalesce(at_end_walk.tenant, :coalesce_2)
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
            OFFSET :param_2
        )
    ),
    in_gaps_walk(tenant, run_at, id, upper) AS (
        SELECT candidate.tenant AS tenant, candidate.run_at AS run_at, candidate.id AS id, gap.upper AS upper
        FROM (
            SELECT
                json_extract(gap_row.value, :json_extract_1) AS tenant,
                json_extract(gap_row.value, :json_extract_2) AS upper
            FROM json_each(:gap) AS gap_row
        ) AS gap
        JOIN task AS candidate ON candidate.id = (
            SELECT beyond.id
            FROM task AS beyond
            WHERE
                beyond.state >= 'waiting'
                AND beyond.state <= 'waiting'
                AND beyond.tenant IS NOT NULL
                AND beyond.queue = :queue
                AND beyond.handler = :handler
                AND beyond.priority = :priority
                AND beyond.hosts = :hosts
                AND beyond.retried = :retried
                AND beyond.tenant > coalesce(gap.tenant, :coalesce_3)
                AND beyond.tenant < coalesce(gap.upper, :coalesce_4)
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
            OFFSET :param_4
        )
        UNION ALL
        SELECT candidate.tenant AS tenant, candidate.run_at AS run_at, candidate.id AS id, in_gaps_walk.upper AS upper
        FROM in_gaps_walk
        JOIN task AS candidate ON candidate.id = (
            SELECT beyond.id
            FROM task AS beyond
            WHERE
                beyond.state >= 'waiting'
                AND beyond.state <= 'waiting'
                AND beyond.tenant IS NOT NULL
                AND beyond.queue = :queue
                AND beyond.handler = :handler
                AND beyond.priority = :priority
                AND beyond.hosts = :hosts
                AND beyond.retried = :retried
                AND beyond.tenant > coalesce(in_gaps_walk.tenant, :coalesce_5)
                AND beyond.tenant < coalesce(in_gaps_walk.upper, :coalesce_6)
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
            OFFSET :param_5
        )
    )
SELECT
    visits.tenant,
    visits.run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now') AS anon_1,
    CASE WHEN (visits.run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN visits.run_at ELSE strftime('%Y-%m-%d %H:%M:%f', 'now') END AS anon_2,
    visits.id
FROM (
    SELECT at_end.tenant AS tenant, at_end.run_at AS run_at, at_end.id AS id
    FROM (
        SELECT at_end_walk.tenant AS tenant, at_end_walk.run_at AS run_at, at_end_walk.id AS id
        FROM at_end_walk
        LIMIT :further
        OFFSET :param_3
    ) AS at_end
    UNION ALL
    SELECT in_gaps.tenant AS tenant, in_gaps.run_at AS run_at, in_gaps.id AS id
    FROM (
        SELECT in_gaps_walk.tenant AS tenant, in_gaps_walk.run_at AS run_at, in_gaps_walk.id AS id
        FROM in_gaps_walk
        LIMIT :visits
        OFFSET :param_6
    ) AS in_gaps
    UNION ALL
    SELECT candidate.tenant AS tenant, candidate.run_at AS run_at, candidate.id AS id
    FROM (
        SELECT
            json_extract(known_row.value, :json_extract_3) AS tenant,
            json_extract(known_row.value, :json_extract_4) AS since,
            json_extract(known_row.value, :json_extract_5) AS since_id
        FROM json_each(:known) AS known_row
    ) AS known
    JOIN task AS candidate ON candidate.id = (
        SELECT beyond.id
        FROM task AS beyond
        WHERE
            beyond.state >= 'waiting'
            AND beyond.state <= 'waiting'
            AND beyond.tenant IS NOT NULL
            AND beyond.queue = :queue
            AND beyond.handler = :handler
            AND beyond.priority = :priority
            AND beyond.hosts = :hosts
            AND beyond.retried = :retried
            AND beyond.tenant = known.tenant
            AND (beyond.run_at, beyond.id) > (known.since, known.since_id)
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
        OFFSET :param_7
    )
) AS visits;
