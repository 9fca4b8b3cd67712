WITH lane AS (
    SELECT
        lane.queue AS queue,
        lane.handler AS handler,
        lane.priority AS priority,
        lane.hosts AS hosts,
        lane.retried AS retried
    FROM unnest(
        :lane_queue::TEXT[],
        :lane_handler::TEXT[],
        :lane_priority::SMALLINT[],
        :lane_hosts::TEXT[],
        :lane_retried::BOOLEAN[]
    ) AS lane(queue, handler, priority, hosts, retried)
)
SELECT count(*) AS count_1
FROM (
    SELECT candidate.id AS id
    FROM lane
    JOIN LATERAL (
        SELECT before.id AS id
        FROM task AS before
        WHERE
            before.state = 'waiting'
            AND before.run_at <= statement_timestamp()
            AND before.queue = lane.queue
            AND before.handler = lane.handler
            AND before.priority = lane.priority
            AND before.hosts = lane.hosts
            AND before.retried = lane.retried
            AND (before.max_attempts IS NULL OR before.attempt < before.max_attempts)
            AND before.attempt != 1000000000
            AND before.fence != 1000000000000000000
            AND (before.expires_at <= statement_timestamp()) IS NOT true
            AND (
                before.order_key IS NULL
                OR NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS earlier
                        WHERE earlier.order_key = before.order_key AND earlier.id < before.id
                        LIMIT ALL
                        OFFSET 0
                    )
                )
                AND NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS rival
                        WHERE
                            rival.order_key = before.order_key
                            AND rival.order_key IS NOT NULL
                            AND rival.state >= 'running'
                            AND rival.state <= 'running'
                        LIMIT ALL
                        OFFSET 0
                    )
                )
            )
            AND NOT (
                before.rescues >= 2
                OR before.rescues = 1
                AND before.attempt > 0
                AND before.max_attempts IS NOT NULL
                AND before.attempt + 1 >= before.max_attempts
            )
        ORDER BY before.run_at, before.id
        LIMIT :param_1::INTEGER
    ) AS candidate ON true
    LIMIT :param_2::INTEGER
) AS anon_1;
WITH lane AS (
    SELECT
        lane.queue AS queue,
        lane.handler AS handler,
        lane.priority AS priority,
        lane.hosts AS hosts,
        lane.retried AS retried
    FROM unnest(
        :lane_queue::TEXT[],
        :lane_handler::TEXT[],
        :lane_priority::SMALLINT[],
        :lane_hosts::TEXT[],
        :lane_retried::BOOLEAN[]
    ) AS lane(queue, handler, priority, hosts, retried)
)
SELECT count(*) AS count_1
FROM (
    SELECT candidate.id AS id
    FROM lane
    JOIN LATERAL (
        SELECT before.id AS id
        FROM task AS before
        WHERE
            before.state = 'waiting'
            AND before.run_at < :param_1::TIMESTAMP WITH TIME ZONE
            AND before.queue = lane.queue
            AND before.handler = lane.handler
            AND before.priority = lane.priority
            AND before.hosts = lane.hosts
            AND before.retried = lane.retried
            AND (before.max_attempts IS NULL OR before.attempt < before.max_attempts)
            AND before.attempt != 1000000000
            AND before.fence != 1000000000000000000
            AND (before.expires_at <= statement_timestamp()) IS NOT true
            AND (
                before.order_key IS NULL
                OR NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS earlier
                        WHERE earlier.order_key = before.order_key AND earlier.id < before.id
                        LIMIT ALL
                        OFFSET 0
                    )
                )
                AND NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS rival
                        WHERE
                            rival.order_key = before.order_key
                            AND rival.order_key IS NOT NULL
                            AND rival.state >= 'running'
                            AND rival.state <= 'running'
                        LIMIT ALL
                        OFFSET 0
                    )
                )
            )
            AND NOT (
                before.rescues >= 2
                OR before.rescues = 1
                AND before.attempt > 0
                AND before.max_attempts IS NOT NULL
                AND before.attempt + 1 >= before.max_attempts
            )
        ORDER BY before.run_at, before.id
        LIMIT :param_2::INTEGER
    ) AS candidate ON true
    LIMIT :param_3::INTEGER
) AS anon_1;
WITH lane AS (
    SELECT
        lane.queue AS queue,
        lane.handler AS handler,
        lane.priority AS priority,
        lane.hosts AS hosts,
        lane.retried AS retried
    FROM unnest(
        :lane_queue::TEXT[],
        :lane_handler::TEXT[],
        :lane_priority::SMALLINT[],
        :lane_hosts::TEXT[],
        :lane_retried::BOOLEAN[]
    ) AS lane(queue, handler, priority, hosts, retried)
)
SELECT count(*) AS count_1
FROM (
    SELECT candidate.id AS id
    FROM lane
    JOIN LATERAL (
        SELECT before.id AS id
        FROM task AS before
        WHERE
            before.state = 'waiting'
            AND before.run_at = :param_1::TIMESTAMP WITH TIME ZONE
            AND before.id < :id_1::BIGINT
            AND before.queue = lane.queue
            AND before.handler = lane.handler
            AND before.priority = lane.priority
            AND before.hosts = lane.hosts
            AND before.retried = lane.retried
            AND (before.max_attempts IS NULL OR before.attempt < before.max_attempts)
            AND before.attempt != 1000000000
            AND before.fence != 1000000000000000000
            AND (before.expires_at <= statement_timestamp()) IS NOT true
            AND (
                before.order_key IS NULL
                OR NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS earlier
                        WHERE earlier.order_key = before.order_key AND earlier.id < before.id
                        LIMIT ALL
                        OFFSET 0
                    )
                )
                AND NOT (
                    EXISTS (
                        SELECT 1
                        FROM task AS rival
                        WHERE
                            rival.order_key = before.order_key
                            AND rival.order_key IS NOT NULL
                            AND rival.state >= 'running'
                            AND rival.state <= 'running'
                        LIMIT ALL
                        OFFSET 0
                    )
                )
            )
            AND NOT (
                before.rescues >= 2
                OR before.rescues = 1
                AND before.attempt > 0
                AND before.max_attempts IS NOT NULL
                AND before.attempt + 1 >= before.max_attempts
            )
        ORDER BY before.run_at, before.id
        LIMIT :param_2::INTEGER
    ) AS candidate ON true
    LIMIT :param_3::INTEGER
) AS anon_1;
