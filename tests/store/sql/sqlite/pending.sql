SELECT
    EXISTS (
        SELECT *
        FROM task
        WHERE task.state = 'running' AND task.handler IN (:handler_1_1)
    ) AS anon_1,
    EXISTS (
        SELECT *
        FROM task
        WHERE
            task.state = 'waiting'
            AND task.handler IN (:handler_1_1)
            AND (
                task.hosts = ''
                OR (',' || replace(task.hosts, ' ', '') || ',') != replace(',' || replace(task.hosts, ' ', '') || ',', :param_1, ',')
            )
            AND (task.max_attempts IS NULL OR task.attempt < task.max_attempts)
            AND task.attempt != 1000000000
            AND task.fence != 1000000000000000000
            AND (task.expires_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) IS NOT 1
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
                            AND (
                                task_queue.paused_until IS NULL
                                OR task_queue.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now')
                            )
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
                                OR task_handler.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now')
                            )
                    )
                )
            )
            AND (task.fence > :fence_1 OR task.run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
    ) AS anon_2,
    (
        SELECT count(*) AS count_1
        FROM (
            SELECT task.id AS id
            FROM task
            WHERE
                task.state = 'waiting'
                AND task.handler IN (:handler_1_1)
                AND (
                    task.hosts = ''
                    OR (',' || replace(task.hosts, ' ', '') || ',') != replace(',' || replace(task.hosts, ' ', '') || ',', :param_1, ',')
                )
                AND (task.max_attempts IS NULL OR task.attempt < task.max_attempts)
                AND task.attempt != 1000000000
                AND task.fence != 1000000000000000000
                AND (task.expires_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) IS NOT 1
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
                                AND (
                                    task_queue.paused_until IS NULL
                                    OR task_queue.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now')
                                )
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
                                    OR task_handler.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now')
                                )
                        )
                    )
                )
                AND NOT (task.fence > :fence_1 OR task.run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
            LIMIT :param_2
            OFFSET :param_3
        ) AS anon_4
    ) AS anon_3;
