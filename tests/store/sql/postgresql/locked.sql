SELECT task.id
FROM task
WHERE task.id IN (
    SELECT unnest(string_to_array(:ids::VARCHAR, ',')::BIGINT[])
)
FOR UPDATE SKIP LOCKED;
