SELECT task_checkpoint.task_id, task_checkpoint.number, task_checkpoint.state
FROM task_checkpoint
WHERE
    task_checkpoint.task_id = ANY (:resumed_id::BIGINT[])
    AND task_checkpoint.number = (
        SELECT max(task_checkpoint_1.number) AS max_1
        FROM task_checkpoint AS task_checkpoint_1
        WHERE task_checkpoint_1.task_id = task_checkpoint.task_id
    );
