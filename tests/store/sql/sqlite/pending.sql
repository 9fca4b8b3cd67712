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
        JOIN task AS candidate ON candidate.id = (
            SELECT beyond.id
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
            OFFSET :param_1
        )
        UNION ALL
        SELECT
            candidate.queue AS queue,
            candidate.handler AS handler,
            candidate.priority AS priority,
            candidate.hosts AS hosts,
            candidate.retried AS retried,
            candidate.run_at AS run_at
        FROM walk
        JOIN task AS candidate ON candidate.id = (
            SELECT beyond.id
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
            OFFSET :param_2
        )
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
                FROM (
                    SELECT json_extract(handlers_row.value, :json_extract_2) AS name
                    FROM json_each(:handlers) AS handlers_row
                ) AS handlers
            )
            AND (substr(walk.queue, 1, 1) != '@' OR walk.queue = :own)
            AND (
                walk.hosts = ''
                OR walk.hosts = 'failed'
                OR (',' || replace(walk.hosts, ' ', '') || ',') != replace(',' || replace(walk.hosts, ' ', '') || ',', :host, ',')
            )
            AND NOT (
                (
                    EXISTS (
                        SELECT *
                        FROM task_queue
                        WHERE
                            task_queue.name = walk.queue
                            AND task_queue.paused_at IS NOT NULL
                            AND (
                                task_queue.paused_until IS NULL
                                OR task_queue.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now')
                            )
                    )
                )
                OR (
                    EXISTS (
                        SELECT *
                        FROM task_handler
                        WHERE
                            task_handler.name = walk.handler
                            AND task_handler.paused_at IS NOT NULL
                            AND (
                                task_handler.paused_until IS NULL
                                OR task_handler.paused_until > strftime('%Y-%m-%d %H:%M:%f', 'now')
                            )
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
                FROM (
                    SELECT json_extract(handlers_row.value, :json_extract_1) AS name
                    FROM json_each(:handlers) AS handlers_row
                ) AS handlers
            )
            AND (substr(mine.queue, 1, 1) != '@' OR mine.queue = :own)
            AND (
                mine.hosts = ''
                OR mine.hosts = 'failed'
                OR (',' || replace(mine.hosts, ' ', '') || ',') != replace(',' || replace(mine.hosts, ' ', '') || ',', :host, ',')
            )
    ) AS anon_1,
    (
        SELECT candidate.id
        FROM lane
        JOIN task AS candidate ON candidate.id = (
            SELECT first.id
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
                AND (first.expires_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) IS NOT 1
                AND (
                    first.order_key IS NULL
                    OR NOT (
                        EXISTS (
                            SELECT 1
                            FROM task AS earlier
                            WHERE earlier.order_key = first.order_key AND earlier.id < first.id
                            LIMIT :param_3
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
                            LIMIT :param_4
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
                    OR first.run_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')
                )
            ORDER BY first.queue, first.handler, first.priority, first.hosts, first.retried, first.run_at, first.id
            LIMIT 1
            OFFSET :param_5
        )
        LIMIT 1
        OFFSET :param_6
    ) AS anon_2;
