WITH RECURSIVE
    walk(queue, handler, priority, hosts, retried, run_at) AS (
        SELECT
            candidate.queue AS queue,
            candidate.handler AS handler,
            candidate.priority AS priority,
            candidate.hosts AS hosts,
            candidate.retried AS retried,
            candidate.run_at AS run_at
        FROM (
            SELECT '' AS queue, '' AS handler, 0 AS priority, '' AS hosts, false AS retried
        ) AS start
        JOIN LATERAL (
            SELECT
                beyond.queue AS queue,
                beyond.handler AS handler,
                beyond.priority AS priority,
                beyond.hosts AS hosts,
                beyond.retried AS retried,
                beyond.run_at AS run_at,
                beyond.id AS id
            FROM task AS beyond
            WHERE
                beyond.state = 'waiting'
                AND (beyond.queue, beyond.handler, beyond.priority, beyond.hosts, beyond.retried, beyond.run_at) > (
                    coalesce(start.queue, ''),
                    coalesce(start.handler, ''),
                    coalesce(start.priority, 0),
                    coalesce(start.hosts, ''),
                    coalesce(start.retried, false),
                    '9999-12-31'
                )
            ORDER BY
                beyond.queue,
                beyond.handler,
                beyond.priority,
                beyond.hosts,
                beyond.retried,
                beyond.run_at,
                beyond.id
            LIMIT 1
        ) AS candidate ON true
        UNION ALL
        SELECT
            candidate.queue AS queue,
            candidate.handler AS handler,
            candidate.priority AS priority,
            candidate.hosts AS hosts,
            candidate.retried AS retried,
            candidate.run_at AS run_at
        FROM walk
        JOIN LATERAL (
            SELECT
                beyond.queue AS queue,
                beyond.handler AS handler,
                beyond.priority AS priority,
                beyond.hosts AS hosts,
                beyond.retried AS retried,
                beyond.run_at AS run_at,
                beyond.id AS id
            FROM task AS beyond
            WHERE
                beyond.state = 'waiting'
                AND (beyond.queue, beyond.handler, beyond.priority, beyond.hosts, beyond.retried, beyond.run_at) > (
                    coalesce(walk.queue, ''),
                    coalesce(walk.handler, ''),
                    coalesce(walk.priority, 0),
                    coalesce(walk.hosts, ''),
                    coalesce(walk.retried, false),
                    '9999-12-31'
                )
            ORDER BY
                beyond.queue,
                beyond.handler,
                beyond.priority,
                beyond.hosts,
                beyond.retried,
                beyond.run_at,
                beyond.id
            LIMIT 1
        ) AS candidate ON true
    ),
    lane AS (
        SELECT
            walk.queue AS queue,
            walk.handler AS handler,
            walk.priority AS priority,
            walk.hosts AS hosts,
            walk.retried AS retried,
            walk.run_at AS run_at
        FROM walk
        WHERE
            walk.handler IN (
                SELECT handlers.name
                FROM unnest(:handlers_name::TEXT[]) AS handlers(name)
            )
            AND (substr(walk.queue, 1, 1) != '@' OR walk.queue = :own::VARCHAR)
            AND (
                walk.hosts = ''
                OR walk.hosts = 'failed'
                OR (',' || replace(walk.hosts, ' ', '') || ',') != replace(
                    ',' || replace(walk.hosts, ' ', '') || ',',
                    :host::VARCHAR,
                    ','
                )
            )
            AND NOT (
                (
                    EXISTS (
                        SELECT *
                        FROM task_queue
                        WHERE
                            task_queue.name = walk.queue
                            AND task_queue.paused_at IS NOT NULL
                            AND (task_queue.paused_until IS NULL OR task_queue.paused_until > statement_timestamp())
                    )
                )
                OR (
                    EXISTS (
                        SELECT *
                        FROM task_handler
                        WHERE
                            task_handler.name = walk.handler
                            AND task_handler.paused_at IS NOT NULL
                            AND (task_handler.paused_until IS NULL OR task_handler.paused_until > statement_timestamp())
                    )
                )
            )
    )
SELECT
    EXISTS (
        SELECT mine.id
        FROM task AS mine
        WHERE
            mine.state = 'running'
            AND mine.handler IN (
                SELECT handlers.name
                FROM unnest(:handlers_name::TEXT[]) AS handlers(name)
            )
            AND (substr(mine.queue, 1, 1) != '@' OR mine.queue = :own::VARCHAR)
            AND (
                mine.hosts = ''
                OR mine.hosts = 'failed'
                OR (',' || replace(mine.hosts, ' ', '') || ',') != replace(
                    ',' || replace(mine.hosts, ' ', '') || ',',
                    :host::VARCHAR,
                    ','
                )
            )
    ) AS anon_1,
    (
        SELECT candidate.id
        FROM lane
        JOIN LATERAL (
            SELECT
                first.queue AS queue,
                first.handler AS handler,
                first.priority AS priority,
                first.hosts AS hosts,
                first.retried AS retried,
                first.run_at AS run_at,
                first.id AS id
            FROM task AS first
            WHERE
                first.state = 'waiting'
                AND first.queue = lane.queue
                AND first.handler = lane.handler
                AND first.priority = lane.priority
                AND first.hosts = lane.hosts
                AND first.retried = lane.retried
                AND (first.max_attempts IS NULL OR first.attempt < first.max_attempts)
                AND first.attempt != 1000000000
                AND first.fence != 1000000000000000000
                AND (first.expires_at <= statement_timestamp()) IS NOT true
                AND (
                    first.order_key IS NULL
                    OR NOT (
                        EXISTS (
                            SELECT 1
                            FROM task AS earlier
                            WHERE earlier.order_key = first.order_key AND earlier.id < first.id
                            LIMIT ALL
                            OFFSET 0
                        )
                    )
                    AND NOT (
                        EXISTS (
                            SELECT 1
                            FROM task AS rival
                            WHERE
                                rival.order_key = first.order_key
                                AND rival.order_key IS NOT NULL
                                AND rival.state >= 'running'
                                AND rival.state <= 'running'
                            LIMIT ALL
                            OFFSET 0
                        )
                    )
                )
                AND (
                    first.fence > 0
                    AND NOT (
                        EXISTS (
                            SELECT task_step.name
                            FROM task_step
                            WHERE
                                task_step.task_id = first.id
                                AND task_step.done_at IS NULL
                                AND task_step.signal IS NOT NULL
                        )
                    )
                    OR first.run_at <= statement_timestamp()
                )
            ORDER BY first.queue, first.handler, first.priority, first.hosts, first.retried, first.run_at, first.id
            LIMIT 1
        ) AS candidate ON true
        LIMIT 1
    ) AS anon_2;
