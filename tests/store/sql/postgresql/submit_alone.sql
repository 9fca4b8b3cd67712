WITH
    inserted AS (
        INSERT INTO task(handler, payload)
        SELECT $1::VARCHAR AS anon_1, CAST($2::VARCHAR AS JSON) AS anon_2
        RETURNING task.id
    ),
    notice AS MATERIALIZED (
        SELECT pg_notify($3::VARCHAR, $4::VARCHAR) AS sent
    )
SELECT inserted.id
FROM inserted
JOIN notice ON notice.sent IS NOT NULL;
