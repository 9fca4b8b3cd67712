-- Four roles for the tables of one installation in PostgreSQL: producer, runner, operator and reader.
-- Run this as the owner of the tables, with the right to create roles, and again after each `runner migrate`. It first
-- revokes all rights of the four roles on these tables. Then make each login a member of one role:
--
--     CREATE ROLE shop LOGIN IN ROLE {producer};
--     GRANT {reader} TO ana;

BEGIN;

DO $$
DECLARE
    role_name name;
BEGIN
    FOREACH role_name IN ARRAY ARRAY[{role_list}] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
        END IF;
    END LOOP;
END
$$;

{schema_usage}
-- The functions below belong beside the tables, which may be in any schema of the search path.
DO $$
BEGIN
    PERFORM set_config('search_path', concat_ws(', ', relnamespace::regnamespace, current_setting('search_path')), true)
    FROM pg_class WHERE oid = '{task:inner}'::regclass;
END
$$;

REVOKE ALL ON {every_table} FROM {producer}, {runner}, {operator}, {reader};

-- The producer submits tasks, and reads the states of the tasks that hold a key or that a new task depends on.
-- It cannot read payloads or change tasks. The trigger dependency_guard refuses a dependency of a task that the same
-- transaction did not submit: such a row could block or cancel the task of another application.
GRANT SELECT ON {task_schema}, {task_dependency} TO {producer};
GRANT SELECT (id, handler, key, order_key, state) ON {task}, {task_history} TO {producer};
GRANT INSERT ON {task_dependency} TO {producer};
GRANT SELECT (id), INSERT (name, submitted_by) ON {task_workflow} TO {producer};
GRANT INSERT (
    handler, payload, {option_columns},
    hosts_until, state, blocked_by, parents
) ON {task} TO {producer};
-- A submit locks its unique keys, and takes free ones; the trigger key_guard refuses to take a key from another task.
-- Without a right to whole rows, a producer can neither delete keys nor lock the table.
GRANT SELECT, INSERT (handler, unique_key), UPDATE (task_id, scope, expires_at, duplicates, duplicate_at)
ON {task_unique} TO {producer};
-- A task with steps or checkpoints has started: it has lost a key until its start, and is not replaced.
GRANT SELECT (task_id) ON {task_step}, {task_checkpoint} TO {producer};
-- For unique="until started", the producer must be able to lock tasks, for which the right to update one column of
-- {task} is enough, such as bucket.
-- For on_duplicate="replace", the producer must be able to change tasks:
--     GRANT SELECT, UPDATE ON {task} TO {producer};

-- The runner claims, settles, rescues and prunes. It cannot insert or change audit rows.
GRANT SELECT ON {every_table} TO {runner};
GRANT INSERT, UPDATE, DELETE ON
    {task}, {task_history}, {task_attempt}, {task_unique}, {task_dependency}, {task_workflow}, {task_queue}, {task_handler},
    {task_runner}, {task_ended_runner}, {task_minute}, {task_schedule}, {task_tick}, {task_checkpoint}, {task_progress}, {task_log},
    {task_step}, {task_signal}, {task_alert}
TO {runner};
GRANT DELETE ON {task_audit} TO {runner};
-- All but producers compare the sequences of ids with the rows. With retention_succeeded = "0s" a runner reads the last
-- id of a dependency.
DO $$
DECLARE
    numbered text;
BEGIN
    FOREACH numbered IN ARRAY ARRAY['{task:inner}', '{task_dependency:inner}', '{task_workflow:inner}', '{task_runner:inner}', '{task_audit:inner}'] LOOP
        EXECUTE format(
            'GRANT SELECT ON SEQUENCE %s TO {runner:inner}, {operator:inner}, {reader:inner}', pg_get_serial_sequence(numbered, 'id')
        );
    END LOOP;
END
$$;

-- The operator reads everything and changes the columns that operations change. Terminating and retrying move tasks
-- between the live table and the history. Audit rows can be inserted, but not changed or deleted.
GRANT SELECT ON {every_table} TO {operator};
GRANT INSERT, DELETE ON {task}, {task_history} TO {operator};
GRANT INSERT, UPDATE (parent_id, parent_state, satisfied_at, satisfied_by) ON {task_dependency} TO {operator};
GRANT UPDATE (
    run_at, expires_at, hosts, max_attempts, priority, retry, timeout, payload, key, cancel_requested, runner_id,
    claimed_at, deadline_at, started_at, state, blocked_by, parents, attempt, rescues, interruptions, version -- the last ones also for undo
) ON {task} TO {operator};
-- `version` allows row locks; the others are the ending that the undo of a retry restores.
GRANT UPDATE (version, run_at, finished_at, claimed_at, runner_id, duration, expires_at) ON {task_history} TO {operator};
GRANT INSERT, UPDATE, DELETE ON {task_unique} TO {operator}; -- a retried task takes its unique key back
GRANT INSERT ON {task_queue}, {task_handler}, {task_checkpoint}, {task_signal} TO {operator};
GRANT DELETE ON {task_signal} TO {operator}; -- an undo withdraws a signal that was not received
GRANT DELETE ON {task_step}, {task_dependency} TO {operator}; -- rewind forgets steps, and calls of children
-- The undo of a retry brings failed steps back. The operator cannot write results.
GRANT INSERT (task_id, name, kind, number, function, fence, attempt, failures, error, due_at, at, duration)
    ON {task_step} TO {operator};
GRANT UPDATE (
    paused_at, paused_until, paused_by, paused_why,
    {limit_columns}, rate_spent, limited_at, limited_by, limited_why
) ON {task_queue}, {task_handler} TO {operator};
GRANT UPDATE (
    breaker_probes, breaker_wait, breaker_round, breaker_opened_at, breaker_probe_at, breaker_by, breaker_why,
    breaker_closed_at
) ON {task_handler} TO {operator};
GRANT UPDATE (command) ON {task_runner} TO {operator};
GRANT INSERT, DELETE ON {task_schedule} TO {operator};
GRANT UPDATE (
    handler, rule, timezone, payload, options, misfire, overlap, jitter, broadcast, next_at, run_requested_at, error,
    paused_at, paused_until, paused_by, paused_why, last_task_id, other_task_ids,
    version
) ON {task_schedule} TO {operator};
GRANT INSERT (name, silenced_until, silenced_by, silenced_why), UPDATE (silenced_until, silenced_by, silenced_why)
ON {task_alert} TO {operator};
-- Only the database fills `login` and `at`.
GRANT INSERT (operator, host, verb, task_id, target, reason, before, after, undo_of, change_group) ON {task_audit} TO {operator};
GRANT INSERT, UPDATE (submitted) ON {task_minute} TO {operator}; -- counts a task that is terminated before its first claim

-- The reader reads everything and changes nothing.
GRANT SELECT ON {every_table} TO {reader};

-- Triggers also audit the changes that an operator makes through plain SQL: at the end of the transaction, every changed
-- row without an audit row of the same transaction. They skip runners, the owner of the tables and superusers; that
-- check costs less than half a microsecond per row. docs/operating.md explains the limits of this audit.
SET LOCAL client_min_messages = warning;
SET LOCAL lock_timeout = '10s'; -- creating a trigger waits for writers and blocks new ones: fail instead

CREATE OR REPLACE FUNCTION {new_row_function}(row_xmin xid) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
-- True if a visible row with this xmin is new in the current transaction or in one of its savepoints, whose ids follow
-- that of the transaction. An xmin has no epoch: that of a frozen row may seem to lie in the future.
DECLARE
    own CONSTANT bigint := pg_current_xact_id()::text::bigint;
    inserted CONSTANT bigint := own + (row_xmin::text::bigint - own & 4294967295);
BEGIN
    RETURN inserted = own OR inserted < own + 2147483648 AND pg_xact_status(inserted::text::xid8) = 'in progress';
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION {audit_function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
-- Arguments: audit table, task table, column with the task id or '', kind of another target (such as "queue"), column
-- with its name, columns to ignore, and the statement with which a submit changes the table or ''.
DECLARE
    own_xid CONSTANT xid := pg_current_xact_id()::xid;
    old_row CONSTANT jsonb := to_jsonb(OLD) - string_to_array(TG_ARGV[5], ' ');
    new_row CONSTANT jsonb := to_jsonb(NEW) - string_to_array(TG_ARGV[5], ' ');
    row_ CONSTANT jsonb := coalesce(new_row, old_row);
    target_id CONSTANT bigint := row_ ->> nullif(TG_ARGV[2], '');
    target_name CONSTANT text := TG_ARGV[3] || ' ' || (row_ ->> nullif(TG_ARGV[4], ''));
    before_ jsonb;
    after_ jsonb;
    is_audited boolean;
BEGIN
    SELECT jsonb_object_agg(key, value) INTO before_ FROM jsonb_each(old_row)
    WHERE CASE WHEN new_row IS NULL THEN value <> 'null' ELSE value IS DISTINCT FROM new_row -> key END;
    SELECT jsonb_object_agg(key, value) INTO after_ FROM jsonb_each(new_row)
    WHERE CASE WHEN old_row IS NULL THEN value <> 'null' ELSE value IS DISTINCT FROM old_row -> key END;
    IF before_ IS NULL AND after_ IS NULL THEN
        RETURN NULL;
    END IF;
    IF target_id IS NULL THEN
        EXECUTE format(
            'SELECT EXISTS (SELECT FROM (SELECT xmin, target, verb FROM %1$I.%2$I ORDER BY id DESC LIMIT 1000) latest '
            'WHERE xmin = $1 AND target = $2 AND verb NOT LIKE ''SQL %%'')', TG_TABLE_SCHEMA, TG_ARGV[0]
        ) INTO is_audited USING own_xid, target_name;
    ELSE
        -- A submit that takes a free unique key, or adds the dependencies of its task, is not an operation.
        EXECUTE format(
            'SELECT EXISTS (SELECT FROM %1$I.%2$I WHERE task_id = $2 AND xmin = $1 AND verb NOT LIKE ''SQL %%'') '
            'OR $3 AND EXISTS (SELECT FROM %1$I.%3$I WHERE id = $2 AND %1$I.{new_row_name:inner}(xmin))',
            TG_TABLE_SCHEMA, TG_ARGV[0], TG_ARGV[1]
        ) INTO is_audited USING own_xid, target_id, TG_ARGV[2] = 'task_id' AND TG_OP = TG_ARGV[6];
    END IF;
    IF NOT is_audited THEN
        EXECUTE format(
            'INSERT INTO %I.%I (operator, host, verb, task_id, target, before, after) VALUES ($1, $2, $3, $4, $5, $6, $7)',
            TG_TABLE_SCHEMA, TG_ARGV[0]
        ) USING session_user, concat(coalesce(host(inet_client_addr()), 'local'), ' ', current_setting('application_name')),
            'SQL ' || TG_OP, target_id, target_name, coalesce(before_, '{{}}')::json, coalesce(after_, '{{}}')::json;
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION {audit_function}() FROM PUBLIC;

CREATE OR REPLACE FUNCTION {guard_function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
-- Argument: task table.
DECLARE
    task_exists boolean;
    holder_exists boolean;
    holder_waits boolean;
BEGIN
    EXECUTE format(
        'SELECT EXISTS (SELECT FROM %1$I.%2$I WHERE id = $1 AND handler = $2 AND unique_key = $3), '
        'EXISTS (SELECT FROM %1$I.%2$I WHERE id = $4), '
        'EXISTS (SELECT FROM %1$I.%2$I WHERE id = $4 AND state <> ''running'')', TG_TABLE_SCHEMA, TG_ARGV[0]
    ) INTO task_exists, holder_exists, holder_waits USING NEW.task_id, NEW.handler, NEW.unique_key, OLD.task_id;
    IF NOT task_exists OR OLD.scope = 'forever' OR OLD.scope = 'until finished' AND holder_exists
        OR OLD.scope = 'until started' AND holder_waits
        OR OLD.expires_at > clock_timestamp()
    THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('permission denied: unique key %s of %s belongs to task %s',
                             quote_literal(OLD.unique_key), OLD.handler, OLD.task_id),
            HINT = 'A producer may only take a free key, for a new task with this handler and key.';
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION {guard_function}() FROM PUBLIC;

CREATE OR REPLACE FUNCTION {dependency_function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
-- Argument: task table.
DECLARE
    is_new boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM %1$I.%2$I WHERE id = $1 AND %1$I.{new_row_name:inner}(xmin))', TG_TABLE_SCHEMA, TG_ARGV[0])
    INTO is_new USING NEW.task_id;
    IF NOT is_new THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('permission denied: this transaction did not submit task %s', NEW.task_id),
            HINT = 'A producer may only add dependencies to a task that it submits in the same transaction.';
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION {dependency_function}() FROM PUBLIC;

DO $$
DECLARE
    guard text[];
BEGIN
    FOREACH guard SLICE 1 IN ARRAY ARRAY[
        -- trigger, table, statement, condition, function
        ['key_guard', '{task_unique:inner}', 'UPDATE',
         '(OLD.task_id, OLD.scope, OLD.expires_at) IS DISTINCT FROM (NEW.task_id, NEW.scope, NEW.expires_at)',
         '{guard_function:inner}'],
        ['dependency_guard', '{task_dependency:inner}', 'INSERT', 'true', '{dependency_function:inner}']
    ] LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS %I ON %s', guard[1], guard[2]);
        -- After the statement, which may insert the task and take the key, or add the dependency, together.
        EXECUTE format(
            'CREATE TRIGGER %I AFTER %s ON %s FOR EACH ROW WHEN (%s '
            'AND NOT pg_has_role(session_user, %s::oid, ''MEMBER'') '
            'AND NOT pg_has_role(session_user, %s::oid, ''MEMBER'') '
            'AND pg_has_role(session_user, %s::oid, ''MEMBER'')) EXECUTE FUNCTION %s(%L)',
            guard[1], guard[3], guard[2], guard[4],
            '{runner:inner}'::regrole::oid, '{operator:inner}'::regrole::oid, '{producer:inner}'::regrole::oid, guard[5], '{task_name:inner}'
        );
    END LOOP;
END
$$;

DO $$
DECLARE
    audited text[];
BEGIN
    FOREACH audited SLICE 1 IN ARRAY ARRAY[
        -- table, statements, condition, task id column, kind of another target, its name column, columns to ignore,
        -- statement of a submit
        ['{task:inner}', 'UPDATE OR DELETE', 'true', 'id', '', '', '', ''],
        ['{task_history:inner}', 'INSERT OR UPDATE OR DELETE', 'true', 'id', '', '', '', ''],
        ['{task_dependency:inner}', 'INSERT OR UPDATE OR DELETE', 'true', 'task_id', '', '', '', 'INSERT'],
        ['{task_signal:inner}', 'INSERT OR UPDATE OR DELETE', 'true', 'task_id', '', '', 'noticed_at received_at', ''],
        ['{task_unique:inner}', 'UPDATE OR DELETE', 'OLD.task_id <> 0', 'task_id', '', '', 'duplicates duplicate_at', 'UPDATE'],
        ['{task_queue:inner}', 'INSERT OR UPDATE OR DELETE', 'true', '', 'queue', 'name', '', ''],
        ['{task_handler:inner}', 'INSERT OR UPDATE OR DELETE', 'true', '', 'handler', 'name', '', ''],
        ['{task_runner:inner}', 'UPDATE OR DELETE', 'true', '', 'runner', 'id', '', ''],
        ['{task_schedule:inner}', 'INSERT OR UPDATE OR DELETE', 'true', '', 'schedule', 'id', 'next_at version', ''],
        ['{task_alert:inner}', 'INSERT OR UPDATE OR DELETE', 'true', '', 'alert', 'name', '', '']
    ] LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS audited ON %s', audited[1]);
        -- Oids instead of names: checking them costs runners almost nothing, and dropping a role breaks nothing. Another
        -- cluster has other oids: run this script again there.
        EXECUTE format(
            'CREATE CONSTRAINT TRIGGER audited AFTER %s ON %s DEFERRABLE INITIALLY DEFERRED FOR EACH ROW '
            'WHEN (NOT pg_has_role(session_user, %s::oid, ''MEMBER'') '
            'AND pg_has_role(session_user, %s::oid, ''MEMBER'') AND %s) '
            'EXECUTE FUNCTION {audit_function:inner}(%L, %L, %L, %L, %L, %L, %L)',
            audited[2], audited[1], '{runner:inner}'::regrole::oid, '{operator:inner}'::regrole::oid, audited[3],
            '{audit_name:inner}', '{task_name:inner}', audited[4], audited[5], audited[6], audited[7],
            audited[8]
        );
    END LOOP;
END
$$;

COMMIT;
