SELECT EXISTS (
    SELECT *
    FROM task_dependency
    WHERE task_dependency.satisfied_at IS NULL AND task_dependency.id > 0
) AS anon_1;
