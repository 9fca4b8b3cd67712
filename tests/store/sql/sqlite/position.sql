WITH lane AS (
    SELECT
        lane.queue AS queue,
        lane.handler AS handler,
        lane.priority AS priority,
        lane.hosts AS hosts,
        lane.retried AS retried
    FROM (
        SELECT
            json_extract(lane_row.value, :json_extract_1) AS queue,
            json_extract(lane_row.value, :json_extract_2) AS handler,
            json_extract(lane_row.value, :json_extract_3) AS priority,
            json_extract(lane_row.value, :json_extract_4) AS hosts,
            json_extract(lane_row.value, :json_extract_5) AS retried
        FROM json_each(:lane) AS lane_row
    ) AS lane
)
SELECT count(*) AS count_1
FROM (
    SELECT candidate.id AS id
    FROM lane
    JOIN task AS candidate ON candidate.id IN (
        SELECT "before".id
        FROM task AS "before"
        WHERE
            "before".state = 'waiting'
            AND "before".run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')
            AND "before".queue = lane.queue
            AND "before".handler = lane.handler
            AND "before".priority = lane.priority
            AND "before".hosts = lane.hosts
            AND "before".retried = lane.retried
            AND ("before".max_attempts IS NULL OR "before".attempt < "before".max_attempts)
            AND "before".attempt != 1000000000
            AND "before".fence != 1000000000000000000
            AND ("before".expires_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) IS NOT 1
            AND (
                "before".order_key IS NULL
                OR NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS earlier
                        WHERE earlier.order_key = "before".order_key AND earlier.id < "before".id
                        LIMIT :param_1
                        OFFSET 0
                    )
                )
                AND NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS rival
                        WHERE
                            rival.order_key = "before".order_key
                            AND rival.order_key IS NOT NULL
                            AND rival.state >= 'running'
                            AND rival.state <= 'running'
                        LIMIT :param_2
                        OFFSET 0
                    )
                )
            )
            AND NOT (
                "before".rescues >= 2
                OR "before".rescues = 1
                AND "before".attempt > 0
                AND "before".max_attempts IS NOT NULL
                AND "before".attempt + 1 >= "before".max_attempts
            )
        ORDER BY "before".run_at, "before".id
        LIMIT :param_3
        OFFSET :param_4
    )
    LIMIT :param_5
    OFFSET :param_6
) AS anon_1;
WITH lane AS (
    SELECT
        lane.queue AS queue,
        lane.handler AS handler,
        lane.priority AS priority,
        lane.hosts AS hosts,
        lane.retried AS retried
    FROM (
        SELECT
            json_extract(lane_row.value, :json_extract_1) AS queue,
            json_extract(lane_row.value, :json_extract_2) AS handler,
            json_extract(lane_row.value, :json_extract_3) AS priority,
            json_extract(lane_row.value, :json_extract_4) AS hosts,
            json_extract(lane_row.value, :json_extract_5) AS retried
        FROM json_each(:lane) AS lane_row
    ) AS lane
)
SELECT count(*) AS count_1
FROM (
    SELECT candidate.id AS id
    FROM lane
    JOIN task AS candidate ON candidate.id IN (
        SELECT "before".id
        FROM task AS "before"
        WHERE
            "before".state = 'waiting'
            AND "before".run_at < :param_1
            AND "before".queue = lane.queue
            AND "before".handler = lane.handler
            AND "before".priority = lane.priority
            AND "before".hosts = lane.hosts
            AND "before".retried = lane.retried
            AND ("before".max_attempts IS NULL OR "before".attempt < "before".max_attempts)
            AND "before".attempt != 1000000000
            AND "before".fence != 1000000000000000000
            AND ("before".expires_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) IS NOT 1
            AND (
                "before".order_key IS NULL
                OR NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS earlier
                        WHERE earlier.order_key = "before".order_key AND earlier.id < "before".id
                        LIMIT :param_2
                        OFFSET 0
                    )
                )
                AND NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS rival
                        WHERE
                            rival.order_key = "before".order_key
                            AND rival.order_key IS NOT NULL
                            AND rival.state >= 'running'
                            AND rival.state <= 'running'
                        LIMIT :param_3
                        OFFSET 0
                    )
                )
            )
            AND NOT (
                "before".rescues >= 2
                OR "before".rescues = 1
                AND "before".attempt > 0
                AND "before".max_attempts IS NOT NULL
                AND "before".attempt + 1 >= "before".max_attempts
            )
        ORDER BY "before".run_at, "before".id
        LIMIT :param_4
        OFFSET :param_5
    )
    LIMIT :param_6
    OFFSET :param_7
) AS anon_1;
WITH lane AS (
    SELECT
        lane.queue AS queue,
        lane.handler AS handler,
        lane.priority AS priority,
        lane.hosts AS hosts,
        lane.retried AS retried
    FROM (
        SELECT
            json_extract(lane_row.value, :json_extract_1) AS queue,
            json_extract(lane_row.value, :json_extract_2) AS handler,
            json_extract(lane_row.value, :json_extract_3) AS priority,
            json_extract(lane_row.value, :json_extract_4) AS hosts,
            json_extract(lane_row.value, :json_extract_5) AS retried
        FROM json_each(:lane) AS lane_row
    ) AS lane
)
SELECT count(*) AS count_1
FROM (
    SELECT candidate.id AS id
    FROM lane
    JOIN task AS candidate ON candidate.id IN (
        SELECT "before".id
        FROM task AS "before"
        WHERE
            "before".state = 'waiting'
            AND "before".run_at = :param_1
            AND "before".id < :id_1
            AND "before".queue = lane.queue
            AND "before".handler = lane.handler
            AND "before".priority = lane.priority
            AND "before".hosts = lane.hosts
            AND "before".retried = lane.retried
            AND ("before".max_attempts IS NULL OR "before".attempt < "before".max_attempts)
            AND "before".attempt != 1000000000
            AND "before".fence != 1000000000000000000
            AND ("before".expires_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) IS NOT 1
            AND (
                "before".order_key IS NULL
                OR NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS earlier
                        WHERE earlier.order_key = "before".order_key AND earlier.id < "before".id
                        LIMIT :param_2
                        OFFSET 0
                    )
                )
                AND NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS rival
                        WHERE
                            rival.order_key = "before".order_key
                            AND rival.order_key IS NOT NULL
                            AND rival.state >= 'running'
                            AND rival.state <= 'running'
                        LIMIT :param_3
                        OFFSET 0
                    )
                )
            )
            AND NOT (
                "before".rescues >= 2
                OR "before".rescues = 1
                AND "before".attempt > 0
                AND "before".max_attempts IS NOT NULL
                AND "before".attempt + 1 >= "before".max_attempts
            )
        ORDER BY "before".run_at, "before".id
        LIMIT :param_4
        OFFSET :param_5
    )
    LIMIT :param_6
    OFFSET :param_7
) AS anon_1;
