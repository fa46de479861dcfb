"""How far each window has come, which ledger this is, why a window is held, and what people decided."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_OUTCOMES = "outcome IN ('accepted', 'received', 'failed', 'refused')"
_OUTCOMES_VOUCHED = "outcome IN ('accepted', 'received', 'vouched', 'failed', 'refused')"
_HOLDS = "held_kind IN ('guard', 'behind', 'adopting', 'adopted', 'person')"
_ENTRY_STATES = """
CREATE OR REPLACE VIEW entry_states AS
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
                   WHERE entry_id = entries.id AND outcome IN ({proofs})
                   ORDER BY answered_at LIMIT 1) AS accepted ON true
"""


def upgrade() -> None:
    op.create_table(
        "ledger_identity",
        sa.Column("only", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("ledger_id", sa.Uuid(), nullable=False),
        sa.CheckConstraint('"only"', name="ledger_identity_one_row"),
        sa.PrimaryKeyConstraint("only"),
    )
    op.execute("INSERT INTO ledger_identity (ledger_id) VALUES (gen_random_uuid())")
    op.add_column("windows", sa.Column("seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("windows", sa.Column("held_kind", sa.Text(), nullable=True))
    op.create_check_constraint("windows_seq_not_negative", "windows", "seq >= 0")
    op.create_check_constraint("windows_held_kind", "windows", _HOLDS)
    op.execute(
        "UPDATE windows SET held_kind = CASE held_reason "
        "WHEN 'its objects are being adopted, which has not ended' THEN 'adopting' ELSE 'guard' END "
        "WHERE held_at IS NOT NULL"
    )
    op.add_column("pipelines", sa.Column("restored_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("pipeline_id", sa.SmallInteger(), nullable=False),
        sa.Column("window_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.CheckConstraint("event IN ('held', 'adopted', 'vouched', 'released')", name="events_event"),
        sa.CheckConstraint(
            "by IS NOT NULL OR event NOT IN ('vouched', 'released')", name="events_decision_has_somebody"
        ),
        sa.ForeignKeyConstraint(["pipeline_id"], ["pipelines.id"]),
        sa.ForeignKeyConstraint(["window_id"], ["windows.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("events_window", "events", ["window_id"], unique=False)
    op.drop_constraint("attempts_outcome", "attempts")
    op.create_check_constraint("attempts_outcome", "attempts", _OUTCOMES_VOUCHED)
    op.execute(_ENTRY_STATES.format(proofs="'accepted', 'received', 'vouched'"))


def downgrade() -> None:
    op.execute(_ENTRY_STATES.format(proofs="'accepted', 'received'"))
    op.drop_constraint("attempts_outcome", "attempts")
    op.create_check_constraint("attempts_outcome", "attempts", _OUTCOMES)
    op.drop_index("events_window", table_name="events")
    op.drop_table("events")
    op.drop_column("pipelines", "restored_at")
    op.drop_column("windows", "held_kind")
    op.drop_column("windows", "seq")
    op.drop_table("ledger_identity")
