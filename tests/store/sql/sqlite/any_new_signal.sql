SELECT EXISTS (
    SELECT task_signal.id
    FROM task_signal
    WHERE task_signal.noticed_at IS NULL
) AS anon_1;
