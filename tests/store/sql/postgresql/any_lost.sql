SELECT
    (
        EXISTS (
            SELECT *
            FROM task_runner AS rescuer
            WHERE
                rescuer.id = :rescuer::BIGINT
                AND rescuer.lease_until >= statement_timestamp()
                AND rescuer.available_since <= (
                    statement_timestamp() + (CAST(:available_for AS FLOAT)) * interval '1 second'
                )
        )
    )
    AND (
        (
            EXISTS (
                SELECT *
                FROM task_runner
                WHERE task_runner.lease_until < statement_timestamp()
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
                        OR task.deadline_at < (statement_timestamp() + (CAST(:grace AS FLOAT)) * interval '1 second')
                    )
            )
        )
    ) AS anon_1;
