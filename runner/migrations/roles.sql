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
    state, blocked_by, parents, version
) ON {task} TO {operator};
GRANT UPDATE (version) ON {task_history} TO {operator}; -- so that rows can be locked
GRANT INSERT, UPDATE, DELETE ON {task_unique} TO {operator}; -- what is run again takes its unique key again
GRANT INSERT ON {task_queue}, {task_handler} TO {operator};
GRANT UPDATE (paused_at, paused_until, paused_by, paused_why) ON {task_queue}, {task_handler} TO {operator};
GRANT UPDATE (wish) ON {task_runner} TO {operator};
GRANT INSERT ON {task_audit} TO {operator};
GRANT INSERT, UPDATE (submitted) ON {task_minute} TO {operator}; -- a task ended before its first claim still counts

-- The reader looks at everything, and changes nothing.
GRANT SELECT ON {every_table} TO {reader};

COMMIT;
