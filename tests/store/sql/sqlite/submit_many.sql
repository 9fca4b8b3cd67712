INSERT INTO task(handler, payload, queue, priority, run_at)
SELECT
    new.handler,
    CAST(new.payload AS TEXT) AS payload,
    coalesce(new.queue, 'default') AS coalesce_1,
    coalesce(new.priority, 1) AS coalesce_2,
    strftime(
        '%Y-%m-%d %H:%M:%f',
        strftime('%Y-%m-%d %H:%M:%f', 'now'),
        round(CAST(coalesce(new.delay, :coalesce_3) AS FLOAT), 3) || ' seconds'
    ) AS anon_1
FROM (
    SELECT
        json_extract(new_row.value, :json_extract_1) AS handler,
        json_extract(new_row.value, :json_extract_2) AS payload,
        json_extract(new_row.value, :json_extract_3) AS queue,
        json_extract(new_row.value, :json_extract_4) AS priority,
        json_extract(new_row.value, :json_extract_5) AS delay
    FROM json_each(:new) AS new_row
) AS new
RETURNING id;
