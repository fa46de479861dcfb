"""The first schema: windows, runs, pages, claims, entries, attempts, staged records, findings, jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Every statement takes the time from here, so that one clock decides: the database's, and in simulations a fake.
    op.execute(
        "CREATE FUNCTION ledger_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()'",
    )
    op.create_table(
        "open_attempts",
        sa.Column("entry_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.SmallInteger(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("marked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("object_bytes", sa.BigInteger(), nullable=False),
        sa.Column("object_etag", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint("number >= 1", name="open_attempts_number_from_one"),
        sa.PrimaryKeyConstraint("entry_id", "number"),
    )
    op.create_table(
        "attempts",
        sa.Column("entry_id", sa.Uuid(), nullable=False),
        sa.Column("marked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("object_bytes", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("number", sa.SmallInteger(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("object_etag", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint("outcome <> 'accepted' OR message_id IS NOT NULL", name="attempts_accepted_has_message"),
        sa.CheckConstraint("outcome IN ('accepted', 'received', 'failed', 'refused')", name="attempts_outcome"),
        sa.CheckConstraint("number >= 1", name="attempts_number_from_one"),
        sa.PrimaryKeyConstraint("entry_id", "number"),
    )
    op.create_index("attempts_repeated", "attempts", ["entry_id"], postgresql_where=sa.text("number > 1"))
    op.create_table(
        "claims",
        sa.Column("booking_ns", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.BigInteger(), nullable=False),
        sa.Column("pipeline_id", sa.SmallInteger(), nullable=False),
        sa.Column("generation", sa.SmallInteger(), nullable=False),
        sa.Column("record_id", sa.LargeBinary(), nullable=False),
        sa.Column("entry_id", sa.Uuid(), nullable=False),
        sa.CheckConstraint("generation >= 0", name="claims_generation_not_negative"),
        sa.PrimaryKeyConstraint("booking_ns", "record_id", "pipeline_id", "generation"),
        postgresql_with={"autovacuum_vacuum_insert_scale_factor": 0, "autovacuum_vacuum_insert_threshold": 100_000},
    )
    op.create_index(
        "claims_record",
        "claims",
        ["record_id"],
        unique=False,
        postgresql_using="brin",
        postgresql_ops={"record_id": "bytea_bloom_ops(n_distinct_per_range = 800, false_positive_rate = 0.01)"},
        postgresql_with={"pages_per_range": 8},
    )
    op.create_table(
        "entries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("window_id", sa.BigInteger(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("destination_id", sa.Integer(), nullable=False),
        sa.Column("records_n", sa.Integer(), nullable=False),
        sa.Column("generation", sa.SmallInteger(), nullable=False),
        sa.Column("group_digest", sa.LargeBinary(), nullable=False),
        sa.Column("content_hash", sa.LargeBinary(), nullable=False),
        sa.Column("idempotency_key", sa.LargeBinary(), nullable=False),
        sa.Column("group_json", sa.Text(), nullable=False),
        sa.Column("void_reason", sa.Text(), nullable=True),
        sa.CheckConstraint("generation >= 0", name="entries_generation_not_negative"),
        sa.CheckConstraint(
            "length(group_digest) = 16 AND length(content_hash) = 32 AND length(idempotency_key) = 32",
            name="entries_digest_lengths",
        ),
        sa.CheckConstraint("records_n >= 1", name="entries_have_records"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("entries_window", "entries", ["window_id"], unique=False)
    op.create_index("entries_redone", "entries", ["window_id"], postgresql_where=sa.text("generation > 0"))
    op.create_index(
        "entries_one_live_promise",
        "entries",
        ["idempotency_key"],
        unique=True,
        postgresql_where=sa.text("void_reason IS NULL"),
    )
    op.create_index(
        "entries_void",
        "entries",
        ["idempotency_key"],
        unique=False,
        postgresql_where=sa.text("void_reason IS NOT NULL"),
    )
    op.create_table(
        "payload_parts",
        sa.Column("window_id", sa.BigInteger(), nullable=False),
        sa.Column("entry_id", sa.Uuid(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("records_json", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("window_id", "entry_id", "part"),
    )
    op.create_table(
        "pipelines",
        sa.Column("id", sa.SmallInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("pipeline_id", sa.SmallInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("done", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("claim", sa.Uuid(), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("relay_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("request_hash", sa.LargeBinary(), nullable=True),
        sa.Column("follow_up", sa.Text(), nullable=True),
        sa.Column("follows", sa.Uuid(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind IN ('dispatch', 'reconcile', 'redo', 'report')", name="jobs_kind"),
        sa.CheckConstraint("queue IN ('fast', 'slow')", name="jobs_queue"),
        sa.CheckConstraint(
            "status IN ('pending', 'processing', 'completed', 'failed', 'cancelled')", name="jobs_status"
        ),
        sa.CheckConstraint("(status = 'processing') = (expires_at IS NOT NULL)", name="jobs_claim_expires"),
        sa.CheckConstraint("expires_at IS NULL OR claim IS NOT NULL", name="jobs_work_has_claim"),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled'))", name="jobs_end_has_time"
        ),
        sa.CheckConstraint("status <> 'failed' OR error IS NOT NULL", name="jobs_failure_has_error"),
        sa.CheckConstraint("(idempotency_key IS NULL) = (request_hash IS NULL)", name="jobs_key_has_request"),
        sa.CheckConstraint("attempts >= 0 AND done >= 0 AND total >= 0", name="jobs_counts_not_negative"),
        sa.ForeignKeyConstraint(["pipeline_id"], ["pipelines.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("pipeline_id", "idempotency_key"),
    )
    op.create_index(
        "jobs_unfinished",
        "jobs",
        ["pipeline_id", "relay_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('pending', 'processing')"),
    )
    op.create_table(
        "job_parts",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "name"),
    )
    op.create_table(
        "refusals",
        sa.Column("pipeline_id", sa.SmallInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("refused", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("kind IN ('window', 'job', 'receipt')", name="refusals_kind"),
        sa.ForeignKeyConstraint(["pipeline_id"], ["pipelines.id"]),
        sa.PrimaryKeyConstraint("pipeline_id", "kind"),
    )
    op.create_table(
        "staged_records",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("booking_ns", sa.BigInteger(), nullable=False),
        sa.Column("record_id", sa.LargeBinary(), nullable=False),
        sa.Column("group_key", sa.LargeBinary(), nullable=False),
        sa.Column("order_key", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("fingerprint", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "booking_ns", "record_id"),
        prefixes=["UNLOGGED"],
    )
    op.create_table(
        "destinations",
        sa.Column("id", sa.Integer(), sa.Identity(always=True), nullable=False),
        sa.Column("pipeline_id", sa.SmallInteger(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("bucket", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["pipeline_id"],
            ["pipelines.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("pipeline_id", "route", "job", "queue", "bucket", "prefix"),
    )
    op.create_table(
        "windows",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("pipeline_id", sa.SmallInteger(), nullable=False),
        sa.Column("start_s", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_run_id", sa.Uuid(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("objects_checked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("held_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("held_reason", sa.Text(), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("verified_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("verified_evaluated", sa.BigInteger(), nullable=True),
        sa.Column("verified_due", sa.BigInteger(), nullable=True),
        sa.Column("verified_claimed", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("(held_at IS NULL) = (held_reason IS NULL)", name="windows_hold_has_reason"),
        sa.CheckConstraint(
            "num_nulls(verified_at, verified_evaluated, verified_due, verified_claimed) IN (0, 4) "
            "AND verified_evaluated >= verified_due AND verified_due >= verified_claimed AND verified_claimed >= 0",
            name="windows_verified_whole",
        ),
        sa.CheckConstraint("(lease_run_id IS NULL) = (lease_until IS NULL)", name="windows_lease_whole"),
        sa.CheckConstraint("fence >= 0", name="windows_fence_not_negative"),
        sa.CheckConstraint("mod(start_s, 3600) = 0", name="windows_start_on_the_hour"),
        sa.ForeignKeyConstraint(
            ["pipeline_id"],
            ["pipelines.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("pipeline_id", "start_s"),
    )
    op.create_table(
        "findings",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("pipeline_id", sa.SmallInteger(), nullable=False),
        sa.Column("window_id", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("subject", sa.LargeBinary(), nullable=False),
        sa.Column("record_id", sa.LargeBinary(), nullable=True),
        sa.Column("entry_id", sa.Uuid(), nullable=True),
        sa.Column("object_key", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("repair", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_run_id", sa.Uuid(), nullable=True),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("acknowledged_by", sa.Text(), nullable=True),
        sa.Column("acknowledged_reason", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state <> 'acknowledged' OR acknowledged_reason IS NOT NULL", name="findings_acknowledged_has_reason"
        ),
        sa.CheckConstraint("state IN ('open', 'repaired', 'acknowledged', 'closed')", name="findings_state"),
        sa.CheckConstraint("state <> 'repaired' OR repair IS NOT NULL", name="findings_repaired_has_repair"),
        sa.CheckConstraint(
            "repair IN ('redispatched', 'completed', 'tagged', 'removed', 'rebuilt')",
            name="findings_repair",
        ),
        sa.CheckConstraint(
            "kind IN ('missed', 'window_not_dispatched', 'unfinished', 'duplicate', 'orphan_object', 'missing_object', "
            "'changed_after_dispatch', 'stale_source_status', 'bad_record', 'overdue_receipt')",
            name="findings_kind",
        ),
        sa.ForeignKeyConstraint(
            ["pipeline_id"],
            ["pipelines.id"],
        ),
        sa.ForeignKeyConstraint(
            ["window_id"],
            ["windows.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("pipeline_id", "kind", "subject"),
    )
    op.create_index("findings_window", "findings", ["window_id"], unique=False)
    op.create_index("findings_record", "findings", ["record_id"], unique=False, postgresql_using="hash")
    op.create_table(
        "runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("window_id", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=True),
        sa.Column("flow", sa.Text(), nullable=False),
        sa.Column("page_size", sa.Integer(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pages", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("evaluated", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("outside", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("not_due", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("set_aside", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("due", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("already_claimed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("claimed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("entries", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("confirmed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("recovered", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint("cause IN ('schedule', 'manual', 'reconcile', 'redo')", name="runs_cause"),
        sa.CheckConstraint("flow IN ('full', 'staged', 'paged')", name="runs_flow"),
        sa.CheckConstraint(
            "outcome <> 'completed' OR (evaluated = outside + not_due + set_aside + due "
            "AND (due = already_claimed + claimed OR cause = 'reconcile'))",
            name="runs_books_balance",
        ),
        sa.CheckConstraint("outcome <> 'failed' OR error IS NOT NULL", name="runs_failure_has_error"),
        sa.CheckConstraint("outcome IN ('completed', 'failed', 'cancelled', 'busy', 'held')", name="runs_outcome"),
        sa.CheckConstraint("(outcome IS NULL) = (finished_at IS NULL)", name="runs_end_has_outcome"),
        sa.ForeignKeyConstraint(
            ["window_id"],
            ["windows.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("runs_window", "runs", ["window_id", "started_at"], unique=False)
    op.create_table(
        "pages",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("cursor_json", sa.Text(), nullable=True),
        sa.Column("next_json", sa.Text(), nullable=True),
        sa.Column("first_time", sa.Text(), nullable=True),
        sa.Column("last_time", sa.Text(), nullable=True),
        sa.Column("evaluated", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("outside", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("not_due", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("staged", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("read_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("evaluated >= outside + not_due", name="pages_counts"),
        sa.CheckConstraint("number >= 1", name="pages_number_from_one"),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["runs.id"],
        ),
        sa.PrimaryKeyConstraint("run_id", "number"),
    )
    op.create_table(
        "receipts",
        sa.Column("pipeline_id", sa.SmallInteger(), nullable=False),
        sa.Column("idempotency_key", sa.LargeBinary(), nullable=False),
        sa.Column("window_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("claim", sa.Uuid(), nullable=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.CheckConstraint("state IN ('in_work', 'completed', 'failed', 'superseded')", name="receipts_state"),
        sa.CheckConstraint("state <> 'in_work' OR claim IS NOT NULL", name="receipts_work_has_claim"),
        sa.CheckConstraint("(state = 'in_work') = (expires_at IS NOT NULL)", name="receipts_work_expires"),
        sa.CheckConstraint("attempts > 0 OR (attempts = 0 AND state = 'superseded')", name="receipts_attempts"),
        sa.CheckConstraint("attempts = 0 OR (worker IS NOT NULL AND claimed_at IS NOT NULL)", name="receipts_worker"),
        sa.CheckConstraint("length(idempotency_key) = 32", name="receipts_key_length"),
        sa.ForeignKeyConstraint(["pipeline_id"], ["pipelines.id"]),
        sa.ForeignKeyConstraint(["window_id"], ["windows.id"]),
        sa.PrimaryKeyConstraint("pipeline_id", "idempotency_key"),
    )
    op.create_index("receipts_window", "receipts", ["window_id"], unique=False)
    op.create_table(
        "plans",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("window_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("planned_by", sa.Text(), nullable=False),
        sa.Column("planned_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("already_worked", sa.BigInteger(), nullable=False),
        sa.Column("no_longer_due", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("applied_by", sa.Text(), nullable=True),
        sa.Column("applying_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stale_reason", sa.Text(), nullable=True),
        sa.Column("reconcile_json", sa.Text(), nullable=True),
        sa.CheckConstraint("state IN ('planned', 'applying', 'applied', 'cancelled', 'stale')", name="plans_state"),
        sa.CheckConstraint("(state IN ('applying', 'applied')) = (run_id IS NOT NULL)", name="plans_applied_by_run"),
        sa.CheckConstraint("(run_id IS NULL) = (applied_by IS NULL)", name="plans_applied_by_somebody"),
        sa.CheckConstraint("(state IN ('planned', 'applying')) = (ended_at IS NULL)", name="plans_end"),
        sa.CheckConstraint("state <> 'stale' OR stale_reason IS NOT NULL", name="plans_stale_has_reason"),
        sa.CheckConstraint("length(hash) = 32", name="plans_hash_length"),
        sa.CheckConstraint("least(jobs, records, already_worked, no_longer_due) >= 0", name="plans_counts"),
        sa.ForeignKeyConstraint(["window_id"], ["windows.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("plans_window", "plans", ["window_id"], unique=False)
    op.create_table(
        "plan_entries",
        sa.Column("plan_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("generation", sa.SmallInteger(), nullable=False),
        sa.Column("group_json", sa.Text(), nullable=False),
        sa.Column("record_ids", sa.ARRAY(sa.LargeBinary()), nullable=False),
        sa.CheckConstraint("number >= 1", name="plan_entries_number_from_one"),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"]),
        sa.PrimaryKeyConstraint("plan_id", "number"),
    )
    # Payloads live for seconds: compressing them would cost more than it saves.
    op.execute("ALTER TABLE payload_parts ALTER COLUMN records_json SET STORAGE EXTERNAL")
    op.execute("ALTER TABLE staged_records ALTER COLUMN body SET STORAGE EXTERNAL")
    op.execute(_ALL_ATTEMPTS)
    op.execute(_ENTRY_STATES)
    op.execute(_SAME_PROMISES)


_ALL_ATTEMPTS = """
CREATE VIEW all_attempts AS
SELECT entry_id, number, fence, marked_at, answered_at, outcome, object_bytes, object_etag, message_id, error
FROM attempts
UNION ALL
SELECT entry_id, number, fence, marked_at, NULL, 'unknown', object_bytes, object_etag, NULL, error
FROM open_attempts
"""
# An entry is unfinished while it has payload parts; of the rest, what is not void has been accepted by its queue.
_ENTRY_STATES = """
CREATE VIEW entry_states AS
SELECT entries.*,
       CASE WHEN void_reason IS NOT NULL THEN 'void'
            WHEN NOT EXISTS (SELECT 1 FROM payload_parts AS part
                             WHERE part.window_id = entries.window_id AND part.entry_id = entries.id) THEN 'confirmed'
            WHEN last.number IS NULL THEN 'pending'
            ELSE 'sending' END AS state,
       coalesce(last.number, 0) AS attempts,
       CASE WHEN void_reason IS NULL THEN accepted.answered_at END AS confirmed_at,
       coalesce(accepted.object_bytes, last.object_bytes) AS object_bytes,
       coalesce(accepted.object_etag, last.object_etag) AS object_etag
FROM entries
LEFT JOIN LATERAL (SELECT number, object_bytes, object_etag FROM all_attempts
                   WHERE entry_id = entries.id ORDER BY number DESC LIMIT 1) AS last ON true
LEFT JOIN LATERAL (SELECT answered_at, object_bytes, object_etag FROM attempts
                   WHERE entry_id = entries.id AND outcome IN ('accepted', 'received')
                   ORDER BY answered_at LIMIT 1) AS accepted ON true
"""
# For each entry, all entries of its idempotency key, itself included: at most one live, and the void ones.
_SAME_PROMISES = """
CREATE VIEW same_promises AS
SELECT entries.id AS entry_id, same.id AS same_id
FROM entries
CROSS JOIN LATERAL (SELECT id FROM entries AS live
                    WHERE live.idempotency_key = entries.idempotency_key AND live.void_reason IS NULL
                    UNION ALL
                    SELECT id FROM entries AS void
                    WHERE void.idempotency_key = entries.idempotency_key AND void.void_reason IS NOT NULL) AS same
"""


def downgrade() -> None:
    op.execute("DROP VIEW same_promises")
    op.execute("DROP VIEW entry_states")
    op.execute("DROP VIEW all_attempts")
    op.drop_table("plan_entries")
    op.drop_index("plans_window", table_name="plans")
    op.drop_table("plans")
    op.drop_index("receipts_window", table_name="receipts")
    op.drop_table("receipts")
    op.drop_table("pages")
    op.drop_index("runs_window", table_name="runs")
    op.drop_table("runs")
    op.drop_index("findings_record", table_name="findings")
    op.drop_index("findings_window", table_name="findings")
    op.drop_table("findings")
    op.drop_table("windows")
    op.drop_table("destinations")
    op.drop_table("staged_records")
    op.drop_table("refusals")
    op.drop_table("job_parts")
    op.drop_index("jobs_unfinished", table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("pipelines")
    op.drop_table("payload_parts")
    op.drop_index("entries_void", table_name="entries")
    op.drop_index("entries_redone", table_name="entries")
    op.drop_index("entries_one_live_promise", table_name="entries")
    op.drop_index("entries_window", table_name="entries")
    op.drop_table("entries")
    op.drop_index("claims_record", table_name="claims")
    op.drop_table("claims")
    op.drop_index("attempts_repeated", table_name="attempts")
    op.drop_table("attempts")
    op.drop_table("open_attempts")
    op.execute("DROP FUNCTION ledger_now()")
