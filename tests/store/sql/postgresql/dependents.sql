SELECT changed.id, changed.task_id
FROM (
    SELECT
        judged.id AS id,
        judged.task_id AS task_id,
        judged.parent_id AS parent_id,
        judged.parent_handler AS parent_handler,
        judged.parent_key AS parent_key,
        judged.parent_state AS parent_state,
        judged.parent AS parent,
        judged.state AS state
    FROM (
        SELECT
            named.id AS id,
            named.task_id AS task_id,
            named.parent_id AS parent_id,
            named.parent_handler AS parent_handler,
            named.parent_key AS parent_key,
            named.parent_state AS parent_state,
            named.parent AS parent,
            coalesce(
                (
                    SELECT max(past.state) AS max_1
                    FROM task_history AS past
                    WHERE past.id = named.parent
                ),
                'gone'
            ) AS state
        FROM (
            SELECT
                dependency.id AS id,
                dependency.task_id AS task_id,
                dependency.parent_id AS parent_id,
                dependency.parent_handler AS parent_handler,
                dependency.parent_key AS parent_key,
                dependency.parent_state AS parent_state,
                CASE WHEN (dependency.parent_key IS NULL) THEN dependency.parent_id ELSE (
                    SELECT max(latest.id) AS max_2
                    FROM (
                        SELECT max(keyed.id) AS id
                        FROM task AS keyed
                        WHERE keyed.key = dependency.parent_key AND keyed.handler = dependency.parent_handler
                        UNION ALL
                        SELECT max(keyed.id) AS id
                        FROM task_history AS keyed
                        WHERE keyed.key = dependency.parent_key AND keyed.handler = dependency.parent_handler
                    ) AS latest
                ) END AS parent
            FROM (
                SELECT
                    candidate.id AS id,
                    candidate.task_id AS task_id,
                    candidate.parent_id AS parent_id,
                    candidate.parent_handler AS parent_handler,
                    candidate.parent_key AS parent_key,
                    candidate.parent_state AS parent_state
                FROM unnest(
                    :parents_id::BIGINT[],
                    :parents_handler::TEXT[],
                    :parents_key::TEXT[]
                ) AS parents(id, handler, key)
                JOIN LATERAL (
                    SELECT
                        task_dependency.id AS id,
                        task_dependency.task_id AS task_id,
                        task_dependency.parent_id AS parent_id,
                        task_dependency.parent_handler AS parent_handler,
                        task_dependency.parent_key AS parent_key,
                        task_dependency.parent_state AS parent_state
                    FROM task_dependency
                    WHERE
                        task_dependency.parent_id = parents.id
                        AND task_dependency.parent_key IS NULL
                        AND task_dependency.satisfied_at IS NULL
                    LIMIT ALL
                    OFFSET 0
                ) AS candidate ON true
                UNION ALL
                SELECT
                    candidate.id AS id,
                    candidate.task_id AS task_id,
                    candidate.parent_id AS parent_id,
                    candidate.parent_handler AS parent_handler,
                    candidate.parent_key AS parent_key,
                    candidate.parent_state AS parent_state
                FROM unnest(
                    :parents_id::BIGINT[],
                    :parents_handler::TEXT[],
                    :parents_key::TEXT[]
                ) AS parents(id, handler, key)
                JOIN LATERAL (
                    SELECT
                        task_dependency.id AS id,
                        task_dependency.task_id AS task_id,
                        task_dependency.parent_id AS parent_id,
                        task_dependency.parent_handler AS parent_handler,
                        task_dependency.parent_key AS parent_key,
                        task_dependency.parent_state AS parent_state
                    FROM task_dependency
                    WHERE
                        task_dependency.parent_key = parents.key
                        AND task_dependency.parent_handler = parents.handler
                        AND task_dependency.satisfied_at IS NULL
                    LIMIT ALL
                    OFFSET 0
                ) AS candidate ON true
            ) AS dependency
            LIMIT ALL
            OFFSET 0
        ) AS named
        WHERE
            named.parent IS NOT NULL
            AND NOT (
                EXISTS (
                    SELECT parent.id
                    FROM task AS parent
                    WHERE parent.id = named.parent
                    LIMIT ALL
                    OFFSET 0
                )
            )
        LIMIT ALL
        OFFSET 0
    ) AS judged
    WHERE judged.parent_state IS NULL OR judged.parent_state != judged.state OR judged.parent_id != judged.parent
) AS changed
WHERE EXISTS (
    SELECT child.id
    FROM task AS child
    WHERE child.id = changed.task_id AND child.state = 'blocked'
    LIMIT ALL
    OFFSET 0
)
LIMIT :most::INTEGER;
