WITH RECURSIVE walk(tenant, run_at, id, lower, upper) AS (
    SELECT
        candidate.tenant AS tenant,
        candidate.run_at AS run_at,
        candidate.id AS id,
        candidate.tenant AS lower,
        gap.upper AS upper
    FROM (
        SELECT
            json_extract(gap_row.value, :json_extract_1) AS lower,
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
            AND beyond.tenant > coalesce(gap.lower, :coalesce_1)
            AND beyond.tenant < coalesce(gap.upper, :coalesce_2)
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
    SELECT
        candidate.tenant AS tenant,
        candidate.run_at AS run_at,
        candidate.id AS id,
        candidate.tenant AS lower,
        walk.upper AS upper
    FROM walk
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
            AND beyond.tenant > coalesce(walk.lower, :coalesce_3)
            AND beyond.tenant < coalesce(walk.upper, :coalesce_4)
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
)
SELECT
    visits.tenant,
    visits.run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now') AS anon_1,
    CASE WHEN (visits.run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN visits.run_at ELSE strftime('%Y-%m-%d %H:%M:%f', 'now') END AS anon_2,
    visits.id
FROM (
    SELECT others.tenant AS tenant, others.run_at AS run_at, others.id AS id
    FROM (
        SELECT walk.tenant AS tenant, walk.run_at AS run_at, walk.id AS id
        FROM walk
        LIMIT :visits
        OFFSET :param_3
    ) AS others
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
        OFFSET :param_4
    )
) AS visits;
