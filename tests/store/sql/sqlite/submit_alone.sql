INSERT INTO task(handler, payload)
SELECT ? AS anon_1, CAST(? AS TEXT) AS anon_2;
