WITH RECURSIVE at_end_walk(tenant, run_at, id) AS (
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
) AS visits;
