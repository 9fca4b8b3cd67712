-- Four roles for the tables of one installation in PostgreSQL: who submits, who runs, who intervenes, who looks.
-- Run this as the owner of the tables, who may create roles, and again after each `runner migrate`: it begins by taking
-- all rights on these tables from the four roles. Then let a login be a member of one of them:
--
--     CREATE ROLE shop LOGIN IN ROLE {producer};
--     GRANT {reader} TO ana;

BEGIN;

DO $$
DECLARE
    wanted name;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['{producer}', '{runner}', '{operator}', '{reader}'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
        END IF;
    END LOOP;
END
$$;

{schema_usage}
REVOKE ALL ON {every_table} FROM {producer}, {runner}, {operator}, {reader};

-- The producer submits, asks whether there is unfinished work for a key, and how that stands which a task is to wait for.
-- It sees no payloads, and changes nothing.
GRANT SELECT ON {task_schema}, {task_dependency} TO {producer};
GRANT SELECT (id, handler, key, state) ON {task}, {task_history} TO {producer};
GRANT INSERT ON {task_dependency} TO {producer};
GRANT INSERT (
    queue, handler, key, payload, priority, run_at, max_attempts, retry, timeout, tags, trace, submitted_by, bucket,
    unique_key, state, blocked_by, parents
) ON {task} TO {producer};
GRANT SELECT, INSERT, UPDATE, DELETE ON {task_unique} TO {producer};
-- Where a duplicate is to replace the task that is there (on_duplicate), the producer must be able to change tasks:
--     GRANT SELECT, UPDATE ON {task} TO {producer};

-- The runner claims, settles, rescues and prunes. It cannot make or change entries of the audit.
GRANT SELECT ON {every_table} TO {runner};
GRANT INSERT, UPDATE, DELETE ON
    {task}, {task_history}, {task_attempt}, {task_unique}, {task_dependency}, {task_queue}, {task_handler},
    {task_runner}, {task_schedule}, {task_minute}
TO {runner};
GRANT DELETE ON {task_audit} TO {runner};

-- The operator looks at everything, and changes what an intervention changes. Tasks move between the live table and the
-- history when they are terminated and retried. Entries of the audit can be made, but neither changed nor deleted.
GRANT SELECT ON {every_table} TO {operator};
GRANT INSERT, DELETE ON {task}, {task_history} TO {operator};
GRANT INSERT, UPDATE (satisfied_at, satisfied_by) ON {task_dependency} TO {operator};
GRANT UPDATE (
    run_at, max_attempts, priority, retry, timeout, payload, key, cancel_requested, runner_id, claimed_at, deadline_at,
    state, blocked_by, parents, attempt, rescues, version -- the last ones also when changes are taken back
) ON {task} TO {operator};
GRANT UPDATE (version) ON {task_history} TO {operator}; -- so that rows can be locked
GRANT INSERT, UPDATE, DELETE ON {task_unique} TO {operator}; -- what is run again takes its unique key again
GRANT INSERT ON {task_queue}, {task_handler} TO {operator};
GRANT UPDATE (paused_at, paused_until, paused_by, paused_why) ON {task_queue}, {task_handler} TO {operator};
GRANT UPDATE (wish) ON {task_runner} TO {operator};
-- As whom and when something was written down is the database's to say: `login` and `at` can be given by nobody.
GRANT INSERT (operator, host, verb, task_id, target, reason, before, after, undo_of, batch) ON {task_audit} TO {operator};
GRANT INSERT, UPDATE (submitted) ON {task_minute} TO {operator}; -- a task ended before its first claim still counts

-- The reader looks at everything, and changes nothing.
GRANT SELECT ON {every_table} TO {reader};

-- What an operator changes with plain SQL is written down too, at the end of the transaction: every row whose change no
-- entry of the same transaction tells of. Runners, the owner of the tables and superusers are not watched; the question
-- who they are costs less than half a microsecond a row. docs/operating.md says what this proves and what not.
SET LOCAL client_min_messages = warning;
SET LOCAL lock_timeout = '10s'; -- triggers wait for those who change these tables, and others for them: do not insist

CREATE OR REPLACE FUNCTION {audit_function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
-- Arguments: the table of the audit, that of tasks, the column that names a task or '', what else it is (as "queue"),
-- the column that names that, and columns that do not matter.
DECLARE
    mine CONSTANT xid := pg_current_xact_id()::xid;
    was CONSTANT jsonb := to_jsonb(OLD) - string_to_array(TG_ARGV[5], ' ');
    is_now CONSTANT jsonb := to_jsonb(NEW) - string_to_array(TG_ARGV[5], ' ');
    row_ CONSTANT jsonb := coalesce(is_now, was);
    subject CONSTANT bigint := row_ ->> nullif(TG_ARGV[2], '');
    place CONSTANT text := TG_ARGV[3] || ' ' || (row_ ->> nullif(TG_ARGV[4], ''));
    before_ jsonb;
    after_ jsonb;
    told boolean;
BEGIN
    SELECT jsonb_object_agg(key, value) INTO before_ FROM jsonb_each(was)
    WHERE CASE WHEN is_now IS NULL THEN value <> 'null' ELSE value IS DISTINCT FROM is_now -> key END;
    SELECT jsonb_object_agg(key, value) INTO after_ FROM jsonb_each(is_now)
    WHERE CASE WHEN was IS NULL THEN value <> 'null' ELSE value IS DISTINCT FROM was -> key END;
    IF before_ IS NULL AND after_ IS NULL THEN
        RETURN NULL;
    END IF;
    IF subject IS NULL THEN
        EXECUTE format(
            'SELECT EXISTS (SELECT FROM (SELECT xmin, target, verb FROM %1$I.%2$I ORDER BY id DESC LIMIT 1000) latest '
            'WHERE xmin = $1 AND target = $2 AND verb NOT LIKE ''SQL %%'')', TG_TABLE_SCHEMA, TG_ARGV[0]
        ) INTO told USING mine, place;
    ELSE
        -- What a submit does to a unique key that was free is no intervention.
        EXECUTE format(
            'SELECT EXISTS (SELECT FROM %1$I.%2$I WHERE task_id = $2 AND xmin = $1 AND verb NOT LIKE ''SQL %%'') '
            'OR $3 AND EXISTS (SELECT FROM %1$I.%3$I WHERE id = $2 AND xmin = $1)',
            TG_TABLE_SCHEMA, TG_ARGV[0], TG_ARGV[1]
        ) INTO told USING mine, subject, TG_ARGV[5] <> '' AND TG_OP = 'UPDATE';
    END IF;
    IF NOT told THEN
        EXECUTE format(
            'INSERT INTO %I.%I (operator, host, verb, task_id, target, before, after) VALUES ($1, $2, $3, $4, $5, $6, $7)',
            TG_TABLE_SCHEMA, TG_ARGV[0]
        ) USING session_user, concat(coalesce(host(inet_client_addr()), 'local'), ' ', current_setting('application_name')),
            'SQL ' || TG_OP, subject, place, coalesce(before_, '{{}}')::json, coalesce(after_, '{{}}')::json;
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION {audit_function}() FROM PUBLIC;

DO $$
DECLARE
    watched text[];
BEGIN
    FOREACH watched SLICE 1 IN ARRAY ARRAY[
        -- table, what is done to it, which rows, the column of the task, what else it is, its name, what does not matter
        ['{task}', 'UPDATE OR DELETE', 'true', 'id', '', '', ''],
        ['{task_history}', 'INSERT OR UPDATE OR DELETE', 'true', 'id', '', '', ''],
        ['{task_dependency}', 'UPDATE OR DELETE', 'true', 'task_id', '', '', ''],
        ['{task_unique}', 'UPDATE OR DELETE', 'OLD.task_id <> 0', 'task_id', '', '', 'duplicates duplicate_at'],
        ['{task_queue}', 'INSERT OR UPDATE OR DELETE', 'true', '', 'queue', 'name', ''],
        ['{task_handler}', 'INSERT OR UPDATE OR DELETE', 'true', '', 'handler', 'name', ''],
        ['{task_runner}', 'UPDATE OR DELETE', 'true', '', 'runner', 'id', '']
    ] LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS audited ON %s', watched[1]);
        -- By their numbers, which cost runners next to nothing, and break nothing when a role is dropped. They are others in
        -- another cluster: run this again there.
        EXECUTE format(
            'CREATE CONSTRAINT TRIGGER audited AFTER %s ON %s DEFERRABLE INITIALLY DEFERRED FOR EACH ROW '
            'WHEN (NOT pg_has_role(session_user, %s::oid, ''MEMBER'') '
            'AND pg_has_role(session_user, %s::oid, ''MEMBER'') AND %s) '
            'EXECUTE FUNCTION {audit_function}(%L, %L, %L, %L, %L, %L)',
            watched[2], watched[1], '{runner}'::regrole::oid, '{operator}'::regrole::oid, watched[3],
            '{audit_name}', '{task_name}', watched[4], watched[5], watched[6], watched[7]
        );
    END LOOP;
END
$$;

COMMIT;
