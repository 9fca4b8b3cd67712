INSERT INTO task(handler, payload)
SELECT :shared_handler AS anon_1, CAST(:shared_payload AS TEXT) AS anon_2
RETURNING id;
