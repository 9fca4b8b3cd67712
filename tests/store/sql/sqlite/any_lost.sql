SELECT
    (
        EXISTS (
            SELECT *
            FROM task_runner AS rescuer
            WHERE
                rescuer.id = :rescuer
                AND rescuer.lease_until >= strftime('%Y-%m-%d %H:%M:%f', 'now')
                AND rescuer.available_since <= strftime(
                    '%Y-%m-%d %H:%M:%f',
                    strftime('%Y-%m-%d %H:%M:%f', 'now'),
                    round(CAST(:available_for AS FLOAT), 3) || ' seconds'
                )
        )
    )
    AND (
        (
            EXISTS (
                SELECT *
                FROM task_runner
                WHERE task_runner.lease_until < strftime('%Y-%m-%d %H:%M:%f', 'now')
            )
        )
        OR (
            EXISTS (
                SELECT *
                FROM task
                WHERE
                    task.state = 'running'
                    AND (
                        NOT (
                            EXISTS (
                                SELECT *
                                FROM task_runner
                                WHERE task_runner.id = task.runner_id
                            )
                        )
                        OR task.deadline_at < strftime(
                            '%Y-%m-%d %H:%M:%f',
                            strftime('%Y-%m-%d %H:%M:%f', 'now'),
                            round(CAST(:grace AS FLOAT), 3) || ' seconds'
                        )
                    )
            )
        )
    ) AS anon_1;
