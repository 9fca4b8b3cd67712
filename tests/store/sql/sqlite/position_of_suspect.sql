SELECT count(*) AS count_1
FROM (
    SELECT "before".id AS id
    FROM task AS "before"
    WHERE
        "before".state = 'waiting'
        AND "before".run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')
        AND "before".rescues > 0
        AND (
            "before".rescues >= 2
            OR "before".rescues = 1
            AND "before".attempt > 0
            AND "before".max_attempts IS NOT NULL
            AND "before".attempt + 1 >= "before".max_attempts
        )
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
                )
            )
            AND NOT (
                EXISTS (
                    SELECT 1
                    FROM task AS rival
                    WHERE rival.order_key = "before".order_key AND rival.state = 'running'
                )
            )
        )
        AND (
            CASE WHEN ("before".rescues >= 4 OR "before".max_attempts - "before".attempt <= 1) THEN 1 WHEN ("before".rescues >= 3 OR "before".max_attempts - "before".attempt <= 2) THEN 4 ELSE 16 END > (
                SELECT CASE WHEN (own.rescues >= 4 OR own.max_attempts - own.attempt <= 1) THEN 1 WHEN (own.rescues >= 3 OR own.max_attempts - own.attempt <= 2) THEN 4 ELSE 16 END AS anon_2
                FROM task AS own
                WHERE own.id = :id_1
            )
            OR CASE WHEN ("before".rescues >= 4 OR "before".max_attempts - "before".attempt <= 1) THEN 1 WHEN ("before".rescues >= 3 OR "before".max_attempts - "before".attempt <= 2) THEN 4 ELSE 16 END = (
                SELECT CASE WHEN (own.rescues >= 4 OR own.max_attempts - own.attempt <= 1) THEN 1 WHEN (own.rescues >= 3 OR own.max_attempts - own.attempt <= 2) THEN 4 ELSE 16 END AS anon_2
                FROM task AS own
                WHERE own.id = :id_1
            )
            AND ("before".run_at, "before".id) < (
                (
                    SELECT own.run_at
                    FROM task AS own
                    WHERE own.id = :id_2
                ),
                (
                    SELECT own.id
                    FROM task AS own
                    WHERE own.id = :id_3
                )
            )
        )
    LIMIT :param_1
    OFFSET :param_2
) AS anon_1;
