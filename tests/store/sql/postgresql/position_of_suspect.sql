SELECT count(*) AS count_1
FROM (
    SELECT before.id AS id
    FROM task AS before
    WHERE
        before.state = 'waiting'
        AND before.run_at <= statement_timestamp()
        AND before.rescues > 0
        AND (
            before.rescues >= 2
            OR before.rescues = 1
            AND before.attempt > 0
            AND before.max_attempts IS NOT NULL
            AND before.attempt + 1 >= before.max_attempts
        )
        AND (before.max_attempts IS NULL OR before.attempt < before.max_attempts)
        AND before.attempt != 1000000000
        AND before.fence != 1000000000000000000
        AND (before.expires_at <= statement_timestamp()) IS NOT true
        AND (
            before.order_key IS NULL
            OR NOT (
                EXISTS (
                    SELECT 1
                    FROM task AS earlier
                    WHERE earlier.order_key = before.order_key AND earlier.id < before.id
                    LIMIT ALL
                    OFFSET 0
                )
            )
            AND NOT (
                EXISTS (
                    SELECT 1
                    FROM task AS rival
                    WHERE
                        rival.order_key = before.order_key
                        AND rival.order_key IS NOT NULL
                        AND rival.state >= 'running'
                        AND rival.state <= 'running'
                    LIMIT ALL
                    OFFSET 0
                )
            )
        )
        AND (before.run_at, before.id) < (
            (
                SELECT own.run_at
                FROM task AS own
                WHERE own.id = :id_1::BIGINT
            ),
            (
                SELECT own.id
                FROM task AS own
                WHERE own.id = :id_2::BIGINT
            )
        )
    LIMIT :param_1::INTEGER
) AS anon_1;
