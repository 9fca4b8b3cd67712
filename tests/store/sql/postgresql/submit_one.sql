WITH
    inserted AS (
        INSERT INTO task(handler, payload)
        SELECT :shared_handler::VARCHAR AS anon_1, CAST(:shared_payload::VARCHAR AS JSON) AS anon_2
        RETURNING task.id
    ),
    notice AS MATERIALIZED (
        SELECT pg_notify(:pg_notify_1::VARCHAR, :pg_notify_2::VARCHAR) AS sent
    )
SELECT inserted.id
FROM inserted
JOIN notice ON notice.sent IS NOT NULL;
