"""The tables of the first release.

Databases were created with these statements. Do not change them when the schema changes.
"""

import sqlalchemy as sa

from runner.db.migrations.context import Operations
from runner.db.migrations.revisions import version_table
from runner.db.types import BigId, Instant, JsonText, Name, db_now, login, random_below

revision = "0001"
down_revision = None
additive = False

STORAGE = {
    # Every claim writes a new row version: leave room for it on the page, and vacuum early and often.
    "fillfactor": 70,
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_insert_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.05,
    "autovacuum_vacuum_cost_delay": 0,
}


def upgrade(op: Operations) -> None:
    op.plain.add_column(version_table(op.prefix), sa.Column("compatible_since", sa.Text), schema=op.schema)
    # A random id of the database, which its archives repeat.
    op.plain.add_column(version_table(op.prefix), sa.Column("database_id", sa.Text), schema=op.schema)
    _task(op)
    _task_history(op)
    _task_attempt(op)
    _task_unique(op)
    _task_dependency(op)
    _task_workflow(op)
    _task_notes(op)
    _task_queue(op)
    _task_handler(op)
    _task_runner(op)
    _task_ended_runner(op)
    _task_minute(op)
    _task_schedule(op)
    _task_tick(op)
    _task_alert(op)
    _task_audit(op)


def _task(op: Operations) -> None:
    op.create_table(
        "task",
        sa.Column("id", BigId, sa.Identity(), primary_key=True, autoincrement=True),
        # Values from the submit.
        sa.Column("queue", Name, nullable=False, server_default="default"),
        sa.Column("handler", Name, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("priority", sa.SmallInteger, nullable=False, server_default="1"),
        sa.Column("run_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("expires_at", Instant),
        sa.Column("max_attempts", sa.Integer),
        sa.Column("retry", sa.Text),
        sa.Column("timeout", sa.Float),
        sa.Column("bucket", sa.SmallInteger, nullable=False, server_default=random_below(1_000)),
        sa.Column("tenant", Name),
        sa.Column("hosts", Name, nullable=False, server_default=""),
        sa.Column("hosts_until", Instant),
        sa.Column("unique_key", sa.Text),
        sa.Column("order_key", sa.Text),
        sa.Column("order_on_failure", sa.Text),
        sa.Column("tags", JsonText),
        sa.Column("headers", JsonText),
        sa.Column("submitted_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("submitted_by", sa.Text),
        sa.Column("workflow", sa.BigInteger),
        # Present state.
        sa.Column("state", sa.Text, nullable=False, server_default="waiting"),
        sa.Column("blocked_by", sa.Integer, nullable=False, server_default="0"),
        sa.Column("deadline_at", Instant),
        sa.Column("started_at", Instant),
        # Part of the lane: some orders claim fresh tasks first.
        sa.Column("retried", sa.Boolean, sa.Computed("attempt > 0", persisted=True)),
        sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
        # Execution so far.
        sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),
        sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("releases", sa.Integer, nullable=False, server_default="0"),
        sa.Column("rescues", sa.Integer, nullable=False, server_default="0"),
        sa.Column("interruptions", sa.Integer, nullable=False, server_default="0"),
        sa.Column("runner_id", sa.BigInteger),
        sa.Column("host", sa.Text),
        sa.Column("claimed_at", Instant),
        sa.Column("parents", JsonText),
        sa.Column("error", sa.Text),
        # Last: SQLite reads all pages of a long value before the columns behind it.
        sa.Column("payload", JsonText, nullable=False, server_default="{}"),
        *_task_rules(),
        sqlite_autoincrement=True,
    )
    op.set_storage("task", STORAGE)
    lane = ("queue", "handler", "priority", "hosts", "retried")
    op.create_index("task", "ready", *lane, "run_at", "id", where="state = 'waiting'")
    # In this form, the index `ready` does not fit the search for the tasks of a tenant.
    waiting = "state >= 'waiting' AND state <= 'waiting' AND tenant IS NOT NULL"
    op.create_index("task", "tenant", *lane, "tenant", "run_at", "id", where=waiting)
    op.create_index("task", "rescued", "run_at", "id", where="state = 'waiting' AND rescues > 0")
    op.create_index("task", "running", "runner_id", "claimed_at", where="state = 'running'")
    op.create_index("task", "blocked", "id", where="state = 'blocked'")
    op.create_index("task", "expires", "expires_at", where="expires_at IS NOT NULL")
    op.create_index("task", "hosts", "hosts_until", where="hosts != ''")
    op.create_index("task", "order", "order_key", "id", where="order_key IS NOT NULL")
    # In this form, no other index fits the search for the running task of an order key.
    in_order = "order_key IS NOT NULL AND state >= 'running' AND state <= 'running'"
    op.create_index("task", "in_order", "order_key", where=in_order, unique=True)
    op.create_index("task", "key", "key", "handler", "id", where='"key" IS NOT NULL')
    op.create_index("task", "members", "workflow", "id", where="workflow IS NOT NULL")
    # A transaction that lets tasks with an order key fail waits for the commits of such tasks.
    commit = op.full_name("task_in_order_commit")
    op.execute_on(
        "postgresql",
        f"CREATE OR REPLACE FUNCTION {commit}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM"
        " pg_advisory_xact_lock_shared(1952543595, CAST(TG_RELID AS integer)); RETURN NULL; END $$",
    )
    op.execute_on(
        "postgresql",
        f"CREATE CONSTRAINT TRIGGER in_order_commit AFTER INSERT ON {op.full_name('task')}"
        f" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.order_key IS NOT NULL) EXECUTE FUNCTION {commit}()",
    )


def _task_rules() -> list[sa.CheckConstraint]:
    """Checks for rows inserted by hand, which must never break a claim, a list or a settle."""
    return [
        sa.CheckConstraint("state = 'waiting' or state = 'blocked' or state = 'running'", name="state"),
        sa.CheckConstraint("priority between 1 and 9", name="priority"),
        sa.CheckConstraint("max_attempts >= 1", name="max_attempts"),
        sa.CheckConstraint("bucket between 0 and 999", name="bucket"),
        sa.CheckConstraint("attempt between 0 and 1000000000", name="attempt"),
        sa.CheckConstraint("rescues between 0 and 1000000000", name="rescues"),
        sa.CheckConstraint("releases between 0 and 1000000000", name="releases"),
        sa.CheckConstraint("interruptions between 0 and 1000000000", name="interruptions"),
        sa.CheckConstraint("fence between 0 and 1000000000000000000", name="fence"),
        sa.CheckConstraint("version between 0 and 1000000000000000000", name="version"),
        sa.CheckConstraint("timeout > 0 and timeout < 1e9", name="timeout"),
        sa.CheckConstraint("length(handler) between 1 and 200", name="handler"),
        sa.CheckConstraint("length(queue) between 1 and 200", name="queue"),
        sa.CheckConstraint("length(tenant) between 1 and 200", name="tenant"),
        sa.CheckConstraint("length(hosts) <= 1000", name="hosts"),
        _on("postgresql", "headers", "json_typeof(headers) = 'object'"),
        _on("sqlite", "headers", "headers is null or json_valid(headers) and json_type(headers) = 'object'"),
        sa.CheckConstraint("length(CAST(headers AS TEXT)) <= 8192", name="headers_length"),
        sa.CheckConstraint(
            "order_on_failure = 'wait' or order_on_failure = 'cancel' or order_on_failure = 'run'",
            name="order_on_failure",
        ),
        _on("postgresql", "run_at", "run_at >= '1970-01-01Z' and run_at < '9999-01-01Z'"),
        _on("postgresql", "expires_at", "expires_at >= '1970-01-01Z' and expires_at < '9999-01-01Z'"),
        _on("postgresql", "hosts_until", "hosts_until >= '1970-01-01Z' and hosts_until < '9999-01-01Z'"),
        _on("postgresql", "payload", "json_typeof(payload) = 'object'"),
        _on(
            # Adding 0 days changes dates that do not exist (30 February); text that is not a time gives NULL, which a
            # check would accept.
            "sqlite",
            "run_at",
            "coalesce(run_at in (strftime('%Y-%m-%d %H:%M:%f', run_at, '+0 days'), datetime(run_at, '+0 days')), 0)"
            " and run_at >= '1970' and run_at < '9999'",
        ),
        _on(
            "sqlite",
            "expires_at",
            "expires_at is null or coalesce(expires_at in (strftime('%Y-%m-%d %H:%M:%f', expires_at, '+0 days'),"
            " datetime(expires_at, '+0 days')), 0) and expires_at >= '1970' and expires_at < '9999'",
        ),
        _on(
            "sqlite",
            "hosts_until",
            "hosts_until is null or coalesce(hosts_until in (strftime('%Y-%m-%d %H:%M:%f', hosts_until, '+0 days'),"
            " datetime(hosts_until, '+0 days')), 0) and hosts_until >= '1970' and hosts_until < '9999'",
        ),
        _on("sqlite", "payload", "json_valid(payload) and json_type(payload) = 'object'"),
        _on(
            # SQLite would accept text in a number column and bytes in a text column.
            "sqlite",
            "claim_types",
            "typeof(attempt + fence + version) = 'integer' and typeof(coalesce(max_attempts, 1)) = 'integer'",
        ),
        _on(
            "sqlite",
            "types",
            "typeof(priority + bucket + rescues + releases + interruptions) = 'integer'"
            " and typeof(coalesce(timeout, 1.0)) = 'real'"
            " and typeof(queue || handler) = 'text' and typeof(queue) <> 'blob' and typeof(handler) <> 'blob'"
            " and typeof(coalesce(tenant, '')) = 'text' and typeof(hosts) = 'text'",
        ),
    ]


def _on(dialect: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=name).ddl_if(dialect=dialect)


def _task_history(op: Operations) -> None:
    op.create_table(
        "task_history",
        sa.Column("id", BigId, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("id").ddl_if(dialect="sqlite"),
        # Values from the submit.
        sa.Column("queue", Name, nullable=False, server_default="default"),
        sa.Column("handler", Name, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("priority", sa.SmallInteger, nullable=False, server_default="1"),
        sa.Column("run_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("expires_at", Instant),
        sa.Column("max_attempts", sa.Integer),
        sa.Column("retry", sa.Text),
        sa.Column("timeout", sa.Float),
        sa.Column("bucket", sa.SmallInteger, nullable=False, server_default=random_below(1_000)),
        sa.Column("tenant", Name),
        sa.Column("hosts", Name, nullable=False, server_default=""),
        sa.Column("hosts_until", Instant),
        sa.Column("unique_key", sa.Text),
        sa.Column("order_key", sa.Text),
        sa.Column("order_on_failure", sa.Text),
        sa.Column("tags", JsonText),
        sa.Column("headers", JsonText),
        sa.Column("submitted_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("submitted_by", sa.Text),
        sa.Column("workflow", sa.BigInteger),
        # Final state.
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("finished_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("duration", sa.Float),
        # Execution.
        sa.Column("attempt", sa.Integer, nullable=False, server_default="0"),
        sa.Column("fence", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("releases", sa.Integer, nullable=False, server_default="0"),
        sa.Column("rescues", sa.Integer, nullable=False, server_default="0"),
        sa.Column("interruptions", sa.Integer, nullable=False, server_default="0"),
        sa.Column("runner_id", sa.BigInteger),
        sa.Column("host", sa.Text),
        sa.Column("claimed_at", Instant),
        sa.Column("parents", JsonText),
        sa.Column("error", sa.Text),
        sa.Column("result", JsonText),
        sa.Column("payload", JsonText, nullable=False, server_default="{}"),
        sa.CheckConstraint("state = 'succeeded' or state = 'dead' or state = 'cancelled'", name="state"),
        postgresql_partition_by="LIST (state)",
    )
    op.create_index("task_history", "finished", "finished_at", "id")
    op.create_index("task_history", "failed", "state", "queue", "id", where="state != 'succeeded'")
    op.create_index("task_history", "rare", "state", "id", where="state != 'succeeded'")
    op.create_index("task_history", "ended", "state", "finished_at", "id", where="state != 'succeeded'")
    op.create_index("task_history", "key", "key", "handler", "id", where='"key" IS NOT NULL')
    op.create_index("task_history", "members", "workflow", "id", where="workflow IS NOT NULL")
    for part, of, values in (
        ("others", "task_history", "(PRIMARY KEY (id)) FOR VALUES IN ('dead', 'cancelled')"),
        (
            "succeeded",
            "task_history",
            "(PRIMARY KEY (id)) FOR VALUES IN ('succeeded') PARTITION BY RANGE (id)",
        ),
        ("beyond", "task_history_succeeded", "DEFAULT"),
        ("from_1", "task_history_succeeded", "FOR VALUES FROM (1) TO (5000001)"),
    ):
        name = op.full_name(f"task_history_{part}")
        op.execute_on("postgresql", f"CREATE TABLE {name} PARTITION OF {op.full_name(of)} {values}")


def _task_attempt(op: Operations) -> None:
    op.create_table(
        "task_attempt",
        sa.Column("task_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("fence", BigId, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("queue", Name, nullable=False),
        sa.Column("handler", Name, nullable=False),
        sa.Column("started_at", Instant),
        sa.Column("ended_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("runner_id", sa.BigInteger),
        sa.Column("host", sa.Text),
        sa.Column("verb", sa.Text, nullable=False),
        sa.Column("error_type", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("traceback", sa.Text),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("delay", sa.Float),
        sa.Column("breaks", sa.Boolean),
        sa.Column("rule", sa.Text),
    )
    op.create_index("task_attempt", "fingerprint", "fingerprint", "ended_at")
    op.create_index("task_attempt", "ended", "ended_at")
    op.create_index("task_attempt", "breaks", "handler", "ended_at", where="breaks IS NOT NULL")


def _task_unique(op: Operations) -> None:
    op.create_table(
        "task_unique",
        sa.Column("handler", Name, primary_key=True),
        sa.Column("unique_key", Name, primary_key=True),
        # 0 for a row that was only created to be locked.
        sa.Column("task_id", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("scope", sa.Text, nullable=False, server_default="until finished"),
        sa.Column("expires_at", Instant),
        sa.Column("duplicates", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("duplicate_at", Instant),
        sa.CheckConstraint(
            "scope = 'forever' or scope = 'until started' or scope = 'until finished' or scope = 'for a time'",
            name="scope",
        ),
        sa.CheckConstraint("(scope = 'for a time') = (expires_at is not null)", name="expires_at"),
    )
    op.set_storage("task_unique", {"fillfactor": 90})
    op.create_index("task_unique", "expires", "expires_at", where="expires_at IS NOT NULL")


def _task_dependency(op: Operations) -> None:
    op.create_table(
        "task_dependency",
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("task_id", sa.BigInteger, nullable=False),
        sa.Column("parent_id", sa.BigInteger),
        sa.Column("parent_handler", Name),
        sa.Column("parent_key", sa.Text),
        sa.Column("on_failure", sa.Text, nullable=False, server_default="wait"),
        sa.Column("in_order", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("step", Name),
        sa.Column("parent_state", sa.Text),
        sa.Column("satisfied_at", Instant),
        sa.Column("satisfied_by", sa.Text),
        sa.CheckConstraint("on_failure = 'wait' or on_failure = 'cancel' or on_failure = 'run'", name="on_failure"),
        sa.CheckConstraint("parent_id is not null or parent_key is not null", name="parent"),
        sa.CheckConstraint("(parent_handler is null) = (parent_key is null)", name="parent_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("task_dependency", "task_id", "task_id")
    op.create_index("task_dependency", "parent_id", "parent_id")
    op.create_index("task_dependency", "open", "id", where="satisfied_at IS NULL AND id > 0")
    op.create_index(
        "task_dependency",
        "key",
        "parent_key",
        "parent_handler",
        where="satisfied_at IS NULL AND parent_key IS NOT NULL",
    )


def _task_workflow(op: Operations) -> None:
    op.create_table(
        "task_workflow",
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("name", sa.Text),
        sa.Column("submitted_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("submitted_by", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_index("task_workflow", "name", "name", "id", where="name IS NOT NULL")


def _task_notes(op: Operations) -> None:
    op.create_table(
        "task_checkpoint",
        sa.Column("task_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("at", Instant, nullable=False, server_default=db_now()),
        sa.Column("state", JsonText, nullable=False),
    )
    op.create_table(
        "task_step",
        sa.Column("task_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("name", Name, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("number", sa.Integer),
        sa.Column("function", sa.Text),
        sa.Column("signal", Name),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
        sa.Column("error", sa.Text),
        sa.Column("due_at", Instant),
        sa.Column("at", Instant, nullable=False, server_default=db_now()),
        sa.Column("done_at", Instant),
        sa.Column("duration", sa.Float),
        sa.Column("result", JsonText),
        sa.CheckConstraint("kind = 'function' or kind = 'call' or kind = 'sleep' or kind = 'wait'", name="kind"),
    )
    op.create_table(
        "task_signal",
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("task_id", sa.BigInteger, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("payload", JsonText),
        sa.Column("actor", sa.Text),
        sa.Column("sent_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("noticed_at", Instant),
        sa.Column("received_at", Instant),
        sa.CheckConstraint("length(name) between 1 and 200", name="name"),
        sqlite_autoincrement=True,
    )
    op.create_index("task_signal", "task", "task_id", "name", "id")
    op.create_index("task_signal", "new", "task_id", where="noticed_at IS NULL")
    op.create_table(
        "task_progress",
        sa.Column("task_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("done", sa.Float, nullable=False),
        sa.Column("total", sa.Float),
        sa.Column("unit", sa.Text),
        sa.Column("rate", sa.Float),
        sa.Column("at", Instant, nullable=False, server_default=db_now()),
    )
    op.create_table(
        "task_log",
        sa.Column("task_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("fence", BigId, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.Column("level", sa.Text, nullable=False),
        sa.Column("line", sa.Text, nullable=False),
    )


def _task_queue(op: Operations) -> None:
    op.create_table(
        "task_queue",
        sa.Column("name", Name, primary_key=True),
        *_pause(),
        *_limits(),
    )


def _task_handler(op: Operations) -> None:
    op.create_table(
        "task_handler",
        sa.Column("name", Name, primary_key=True),
        *_pause(),
        *_limits(),
        sa.Column("declared_limits", JsonText),
        sa.Column("signature", JsonText),
        *_breaker(),
        sa.Column("last_seen_at", Instant, nullable=False, server_default=db_now()),
    )


def _pause() -> list[sa.Column[object]]:
    return [
        sa.Column("paused_at", Instant),
        sa.Column("paused_until", Instant),
        sa.Column("paused_by", sa.Text),
        sa.Column("paused_why", sa.Text),
    ]


def _limits() -> list[sa.Column[object] | sa.CheckConstraint]:
    return [
        sa.Column("max_running", sa.Integer),
        sa.Column("max_per_tenant", sa.Integer),
        sa.Column("rate_limit", sa.Integer),
        sa.Column("rate_period", sa.Float),
        sa.Column("rate_spent", sa.Float),
        sa.Column("limited_at", Instant),
        sa.Column("limited_by", sa.Text),
        sa.Column("limited_why", sa.Text),
        sa.CheckConstraint("max_running >= 1", name="max_running"),
        sa.CheckConstraint("max_per_tenant >= 1", name="max_per_tenant"),
        sa.CheckConstraint("rate_limit >= 1", name="rate_limit"),
        sa.CheckConstraint("rate_period > 0 and rate_period < 1e9", name="rate_period"),
        sa.CheckConstraint("(rate_limit is null) = (rate_period is null)", name="rate"),
        _on(
            "sqlite",
            "limits",
            "typeof(coalesce(max_running, 1)) = 'integer' and typeof(coalesce(max_per_tenant, 1)) = 'integer'"
            " and typeof(coalesce(rate_limit, 1)) = 'integer'",
        ),
    ]


def _breaker() -> list[sa.Column[object] | sa.CheckConstraint]:
    return [
        sa.Column("breaker", JsonText),
        sa.Column("breaker_probes", sa.Integer),
        sa.Column("breaker_wait", sa.Float),
        sa.Column("breaker_round", sa.Integer),
        sa.Column("breaker_opened_at", Instant),
        sa.Column("breaker_probe_at", Instant),
        sa.Column("breaker_by", sa.Text),
        sa.Column("breaker_why", sa.Text),
        sa.Column("breaker_closed_at", Instant),
        sa.CheckConstraint("breaker_probes >= 1", name="breaker_probes"),
        sa.CheckConstraint("breaker_wait > 0 and breaker_wait < 1e9", name="breaker_wait"),
        sa.CheckConstraint(
            "breaker_probes is null or (breaker_wait is not null and breaker_round is not null"
            " and breaker_opened_at is not null and breaker_probe_at is not null)",
            name="breaker",
        ),
    ]


def _task_runner(op: Operations) -> None:
    op.create_table(
        "task_runner",
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("started_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("heartbeat_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("lease_until", Instant, nullable=False),
        sa.Column("available_since", Instant, nullable=False, server_default=db_now()),
        sa.Column("available_until", Instant, nullable=False, server_default=db_now()),
        sa.Column("handlers", JsonText, nullable=False, server_default="[]"),
        sa.Column("queues", JsonText, nullable=False, server_default="[]"),
        sa.Column("threaded", JsonText, nullable=False, server_default="[]"),
        sa.Column("capacity", sa.Integer, nullable=False, server_default="0"),
        sa.Column("threads", sa.Integer, nullable=False, server_default="0"),
        sa.Column("abandoned_threads", sa.Integer, nullable=False, server_default="0"),
        sa.Column("replaced_threads", sa.Integer, nullable=False, server_default="0"),
        sa.Column("processes", sa.Integer, nullable=False, server_default="0"),
        sa.Column("running", sa.Integer, nullable=False, server_default="0"),
        sa.Column("in_processes", JsonText, nullable=False, server_default="[]"),
        sa.Column("executors", JsonText, nullable=False, server_default="{}"),
        sa.Column("claim_order", sa.Text, nullable=False, server_default="strict"),
        sa.Column("polling", sa.Text, nullable=False, server_default=""),
        sa.Column("slice", sa.Text),
        sa.Column("slice_member", sa.Text),
        sa.Column("buckets", sa.Text),
        sa.Column("command", sa.Text),
        sa.Column("cpu", sa.Float),
        sa.Column("memory", sa.BigInteger),
        sa.Column("stall", JsonText),
        sa.Column("stuck", JsonText),
        sa.Column("schedules", JsonText, nullable=False, server_default="{}"),
        sqlite_autoincrement=True,
    )


def _task_ended_runner(op: Operations) -> None:
    op.create_table(
        "task_ended_runner",
        sa.Column("runner_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("heartbeat_at", Instant, nullable=False),
        sa.Column("ended_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("lost", sa.Boolean, nullable=False),
        sa.Column("tasks", sa.Integer, nullable=False),
    )
    op.create_index("task_ended_runner", "at", "ended_at")


def _task_minute(op: Operations) -> None:
    op.create_table(
        "task_minute",
        sa.Column("minute", Instant, primary_key=True),
        sa.Column("queue", Name, primary_key=True),
        sa.Column("handler", Name, primary_key=True),
        sa.Column("runner_id", BigId, primary_key=True, autoincrement=False),
        sa.Column("part", sa.SmallInteger, primary_key=True, autoincrement=False, server_default="0"),
        sa.Column("bin_ms", sa.Integer, primary_key=True, autoincrement=False, server_default="0"),
        sa.Column("submitted", sa.Integer, nullable=False, server_default="0"),
        sa.Column("succeeded", sa.Integer, nullable=False, server_default="0"),
        sa.Column("first_try", sa.Integer, nullable=False, server_default="0"),
        sa.Column("second_try", sa.Integer, nullable=False, server_default="0"),
        sa.Column("retried", sa.Integer, nullable=False, server_default="0"),
        sa.Column("died", sa.Integer, nullable=False, server_default="0"),
        sa.Column("cancelled", sa.Integer, nullable=False, server_default="0"),
        sa.Column("rescued", sa.Integer, nullable=False, server_default="0"),
        sa.Column("runs", sa.Integer, nullable=False, server_default="0"),
        sa.Column("run_time", sa.Float, nullable=False, server_default="0"),
        sa.Column("waits", sa.Integer, nullable=False, server_default="0"),
        sa.Column("wait_time", sa.Float, nullable=False, server_default="0"),
    )
    op.create_index("task_minute", "counts", "minute", where="bin_ms = 0")


def _task_schedule(op: Operations) -> None:
    op.create_table(
        "task_schedule",
        sa.Column("id", Name, primary_key=True),
        sa.Column("handler", Name, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("timezone", sa.Text, nullable=False, server_default="UTC"),
        sa.Column("payload", JsonText, nullable=False, server_default="{}"),
        sa.Column("options", JsonText, nullable=False, server_default="{}"),
        sa.Column("misfire", sa.Text, nullable=False, server_default="once"),
        sa.Column("overlap", sa.Text, nullable=False, server_default="skip"),
        sa.Column("jitter", sa.Float, nullable=False, server_default="0"),
        sa.Column("broadcast", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("next_at", Instant),
        sa.Column("last_tick", Instant),
        sa.Column("last_task_id", sa.BigInteger),
        sa.Column("other_task_ids", JsonText),
        sa.Column("run_requested_at", Instant),
        *_pause(),
        sa.Column("declared", JsonText),
        sa.Column("module", sa.Text),
        sa.Column("replaced", sa.Text),
        sa.Column("error", sa.Text),
        sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),
        sa.CheckConstraint("length(id) between 1 and 200", name="id"),
        sa.CheckConstraint("length(handler) between 1 and 200", name="handler"),
        sa.CheckConstraint("jitter >= 0 and jitter < 1e9", name="jitter"),
        sa.CheckConstraint(
            "overlap = 'skip' or overlap = 'queue' or overlap = 'replace' or overlap = 'allow'", name="overlap"
        ),
        _on("postgresql", "payload", "json_typeof(payload) = 'object'"),
        _on("sqlite", "payload", "json_valid(payload) and json_type(payload) = 'object'"),
        _on("postgresql", "options", "json_typeof(options) = 'object'"),
        _on("sqlite", "options", "json_valid(options) and json_type(options) = 'object'"),
        *_times("next_at", "run_requested_at", "paused_at", "paused_until"),
    )
    op.create_index("task_schedule", "next", "next_at", where="next_at IS NOT NULL")
    unplanned = "next_at IS NULL AND (paused_at IS NULL OR paused_until IS NOT NULL) AND error IS NULL"
    op.create_index("task_schedule", "unplanned", "id", where=unplanned)
    op.create_index("task_schedule", "requested", "run_requested_at", where="run_requested_at IS NOT NULL")


def _task_alert(op: Operations) -> None:
    op.create_table(
        "task_alert",
        sa.Column("name", Name, primary_key=True),
        sa.Column("severity", sa.Text, nullable=False, server_default=""),
        sa.Column("title", sa.Text, nullable=False, server_default=""),
        sa.Column("text", sa.Text, nullable=False, server_default=""),
        sa.Column("advice", sa.Text, nullable=False, server_default=""),
        sa.Column("since", Instant),
        sa.Column("seen_at", Instant),
        sa.Column("resolved_at", Instant),
        sa.Column("notified_at", Instant),
        sa.Column("silenced_until", Instant),
        sa.Column("silenced_by", sa.Text),
        sa.Column("silenced_why", sa.Text),
        sa.CheckConstraint("length(name) between 1 and 500", name="name"),
        *_times("silenced_until"),
    )


def _times(*columns: str) -> list[sa.CheckConstraint]:
    checks = []
    for name in columns:
        forms = f"strftime('%Y-%m-%d %H:%M:%f', {name}, '+0 days'), datetime({name}, '+0 days')"
        sqlite = f"{name} is null or coalesce({name} in ({forms}), 0) and {name} >= '1970' and {name} < '9999'"
        checks += [_on("postgresql", name, f"{name} >= '1970-01-01Z' and {name} < '9999-01-01Z'")]
        checks += [_on("sqlite", name, sqlite)]
    return checks


def _task_tick(op: Operations) -> None:
    op.create_table(
        "task_tick",
        sa.Column("schedule", Name, primary_key=True),
        sa.Column("tick", Instant, primary_key=True),
        sa.Column("runner_id", BigId, primary_key=True, autoincrement=False, server_default="0"),
        sa.Column("task_id", sa.BigInteger),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("at", Instant, nullable=False, server_default=db_now()),
        sa.CheckConstraint(
            "outcome = 'submitted' or outcome = 'skipped' or outcome = 'missed' or outcome = 'manual'", name="outcome"
        ),
    )
    op.create_index("task_tick", "at", "at")
    op.create_index("task_tick", "task", "task_id", where="task_id IS NOT NULL")


def _task_audit(op: Operations) -> None:
    op.create_table(
        "task_audit",
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("at", Instant, nullable=False, server_default=db_now()),
        sa.Column("operator", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("verb", sa.Text, nullable=False),
        sa.Column("task_id", sa.BigInteger),
        sa.Column("target", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("before", JsonText),
        sa.Column("after", JsonText),
        sa.Column("undo_of", sa.BigInteger),
        sa.Column("change_group", sa.Text),
        sa.Column("login", sa.Text, server_default=login()),
        sqlite_autoincrement=True,
    )
    op.create_index("task_audit", "task_id", "task_id")
    op.create_index("task_audit", "change_group", "change_group", "id", where="change_group IS NOT NULL")
