SELECT
    EXISTS (
        SELECT *
        FROM task
        WHERE task.state = 'running' AND task.handler IN (:handler_1_1::VARCHAR COLLATE "C")
    ) AS anon_1,
    EXISTS (
        SELECT *
        FROM task
        WHERE
            task.state = 'waiting'
            AND task.handler IN (:handler_1_1::VARCHAR COLLATE "C")
            AND (
                task.hosts = ''
                OR (',' || replace(task.hosts, ' ', '') || ',') != replace(
                    ',' || replace(task.hosts, ' ', '') || ',',
                    :param_1::VARCHAR,
                    ','
                )
            )
            AND (task.max_attempts IS NULL OR task.attempt < task.max_attempts)
            AND task.attempt != 1000000000
            AND task.fence != 1000000000000000000
            AND (task.expires_at <= statement_timestamp()) IS NOT true
            AND (
                task.order_key IS NULL
                OR NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS earlier
                        WHERE earlier.order_key = task.order_key AND earlier.id < task.id
                    )
                )
                AND NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS rival
                        WHERE rival.order_key = task.order_key AND rival.state = 'running'
                    )
                )
            )
            AND NOT (
                (
                    EXISTS (
                        SELECT *
                        FROM task_queue
                        WHERE
                            task_queue.name = task.queue
                            AND task_queue.paused_at IS NOT NULL
                            AND (task_queue.paused_until IS NULL OR task_queue.paused_until > statement_timestamp())
                    )
                )
                OR (
                    EXISTS (
                        SELECT *
                        FROM task_handler
                        WHERE
                            task_handler.name = task.handler
                            AND task_handler.paused_at IS NOT NULL
                            AND (task_handler.paused_until IS NULL OR task_handler.paused_until > statement_timestamp())
                    )
                )
            )
            AND (task.fence > :fence_1::BIGINT OR task.run_at <= statement_timestamp())
    ) AS anon_2,
    (
        SELECT count(*) AS count_1
        FROM (
            SELECT task.id AS id
            FROM task
            WHERE
                task.state = 'waiting'
                AND task.handler IN (:handler_1_1::VARCHAR COLLATE "C")
                AND (
                    task.hosts = ''
                    OR (',' || replace(task.hosts, ' ', '') || ',') != replace(
                        ',' || replace(task.hosts, ' ', '') || ',',
                        :param_1::VARCHAR,
                        ','
                    )
                )
                AND (task.max_attempts IS NULL OR task.attempt < task.max_attempts)
                AND task.attempt != 1000000000
                AND task.fence != 1000000000000000000
                AND (task.expires_at <= statement_timestamp()) IS NOT true
                AND (
                    task.order_key IS NULL
                    OR NOT (
                        EXISTS (
                            SELECT 1
                            FROM task AS earlier
                            WHERE earlier.order_key = task.order_key AND earlier.id < task.id
                        )
                    )
                    AND NOT (
                        EXISTS (
                            SELECT 1
                            FROM task AS rival
                            WHERE rival.order_key = task.order_key AND rival.state = 'running'
                        )
                    )
                )
                AND NOT (
                    (
                        EXISTS (
                            SELECT *
                            FROM task_queue
                            WHERE
                                task_queue.name = task.queue
                                AND task_queue.paused_at IS NOT NULL
                                AND (task_queue.paused_until IS NULL OR task_queue.paused_until > statement_timestamp())
                        )
                    )
                    OR (
                        EXISTS (
                            SELECT *
                            FROM task_handler
                            WHERE
                                task_handler.name = task.handler
                                AND task_handler.paused_at IS NOT NULL
                                AND (
                                    task_handler.paused_until IS NULL
                                    OR task_handler.paused_until > statement_timestamp()
                                )
                        )
                    )
                )
                AND NOT (task.fence > :fence_1::BIGINT OR task.run_at <= statement_timestamp())
            LIMIT :param_2::INTEGER
        ) AS anon_4
    ) AS anon_3;
