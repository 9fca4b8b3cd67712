INSERT INTO task(handler, payload)
SELECT new.handler, CAST(new.payload AS TEXT) AS payload
FROM (
    SELECT
        json_extract(new_row.value, :json_extract_1) AS handler,
        json_extract(new_row.value, :json_extract_2) AS payload
    FROM json_each(:new) AS new_row
) AS new
RETURNING id;
