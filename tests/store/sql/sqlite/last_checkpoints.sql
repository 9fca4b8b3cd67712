SELECT task_checkpoint.task_id, task_checkpoint.number, task_checkpoint.state
FROM task_checkpoint
WHERE
    task_checkpoint.task_id IN (
        SELECT resumed.id
        FROM (
            SELECT json_extract(resumed_row.value, :json_extract_1) AS id
            FROM json_each(:resumed) AS resumed_row
        ) AS resumed
    )
    AND task_checkpoint.number = (
        SELECT max(task_checkpoint_1.number) AS max_1
        FROM task_checkpoint AS task_checkpoint_1
        WHERE task_checkpoint_1.task_id = task_checkpoint.task_id
    );
