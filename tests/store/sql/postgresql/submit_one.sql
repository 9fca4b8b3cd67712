WITH
    inserted AS (
        INSERT INTO task(handler, payload)
        SELECT "new".handler AS handler, CAST("new".payload AS JSON) AS payload
        FROM unnest(:new_handler::TEXT[], :new_payload::TEXT[]) AS "new"(handler, payload)
        RETURNING task.id
    ),
    notice AS MATERIALIZED (
        SELECT pg_notify(:pg_notify_1::VARCHAR, :pg_notify_2::VARCHAR) AS sent
    )
SELECT inserted.id
FROM inserted
JOIN notice ON notice.sent IS NOT NULL;
