"""The rows of the ledger. Facts travel as `ledger.facts`; these classes only describe what the database holds.

Every invariant that one row can show is a CHECK here; those between rows are unique keys, or are held by the
statements in `ledger/sql`. Text columns never hold raw NULs: ids are bytes, and JSON is canonical, thus escaped.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy import Uuid as UuidType
from sqlmodel import Field, SQLModel


def _moment(*, nullable: bool = True) -> Column[datetime]:
    return Column(DateTime(timezone=True), nullable=nullable)


def _uuid(*, primary_key: bool = False, nullable: bool = False) -> Column[UUID]:
    return Column(UuidType, primary_key=primary_key, nullable=nullable)


def _big(*, primary_key: bool = False, nullable: bool = False) -> Column[int]:
    return Column(BigInteger, primary_key=primary_key, nullable=nullable)


def _bytes(*, primary_key: bool = False, nullable: bool = False) -> Column[bytes]:
    return Column(LargeBinary, primary_key=primary_key, nullable=nullable)


def _text(*, nullable: bool = False) -> Column[str]:
    return Column(Text, nullable=nullable)


def _small(*, default: str | None = None) -> Column[int]:
    return Column(SmallInteger, nullable=False, server_default=text(default) if default else None)


def _count() -> Column[int]:
    return Column(BigInteger, nullable=False, server_default=text("0"))


def _link(target: str, kind: type = BigInteger, *, primary_key: bool = False, cascade: bool = False) -> Column[int]:
    link = ForeignKey(target, ondelete="CASCADE" if cascade else None)
    return Column(kind, link, primary_key=primary_key, nullable=False)


class PipelineRow(SQLModel, table=True):
    """One name that is stamped on everything else, kept as a number there."""

    __tablename__ = "pipelines"
    __table_args__ = (UniqueConstraint("name"),)
    id: int = Field(sa_column=Column(SmallInteger, Identity(always=True), primary_key=True))
    name: str = Field(sa_column=_text())
    restored_at: datetime | None = Field(sa_column=_moment())


class LedgerIdentityRow(SQLModel, table=True):
    """Which ledger this is: one row, made once with the tables, and the same in every copy of them."""

    __tablename__ = "ledger_identity"
    __table_args__ = (CheckConstraint('"only"', name="ledger_identity_one_row"),)
    only: bool = Field(sa_column=Column(Boolean, primary_key=True, server_default=text("true")))
    ledger_id: UUID = Field(sa_column=_uuid())


class JobRow(SQLModel, table=True):
    """Long-running work that somebody asked for: what to do, how far it has come, and who works on it."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("pipeline_id", "idempotency_key"),
        Index(
            "jobs_unfinished",
            "pipeline_id",
            "relay_at",
            postgresql_where=text("status IN ('pending', 'processing')"),
        ),
        CheckConstraint("kind IN ('dispatch', 'reconcile', 'redo', 'report')", name="jobs_kind"),
        CheckConstraint("queue IN ('fast', 'slow')", name="jobs_queue"),
        CheckConstraint("status IN ('pending', 'processing', 'completed', 'failed', 'cancelled')", name="jobs_status"),
        CheckConstraint("(status = 'processing') = (expires_at IS NOT NULL)", name="jobs_claim_expires"),
        CheckConstraint("expires_at IS NULL OR claim IS NOT NULL", name="jobs_work_has_claim"),
        CheckConstraint(
            "(finished_at IS NOT NULL) = (status IN ('completed', 'failed', 'cancelled'))", name="jobs_end_has_time"
        ),
        CheckConstraint("status <> 'failed' OR error IS NOT NULL", name="jobs_failure_has_error"),
        CheckConstraint("(idempotency_key IS NULL) = (request_hash IS NULL)", name="jobs_key_has_request"),
        CheckConstraint("attempts >= 0 AND done >= 0 AND total >= 0", name="jobs_counts_not_negative"),
    )
    id: UUID = Field(sa_column=_uuid(primary_key=True))
    pipeline_id: int = Field(sa_column=_link("pipelines.id", SmallInteger))
    kind: str = Field(sa_column=_text())
    params: str = Field(sa_column=_text())
    queue: str = Field(sa_column=_text())
    status: str = Field(sa_column=_text())
    attempts: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    done: int = Field(sa_column=_count())
    total: int | None = Field(sa_column=_big(nullable=True))
    claim: UUID | None = Field(sa_column=_uuid(nullable=True))
    heartbeat_at: datetime | None = Field(sa_column=_moment())
    expires_at: datetime | None = Field(sa_column=_moment())
    sent_at: datetime | None = Field(sa_column=_moment())
    relay_at: datetime = Field(sa_column=_moment(nullable=False))
    idempotency_key: str | None = Field(sa_column=_text(nullable=True))
    request_hash: bytes | None = Field(sa_column=_bytes(nullable=True))
    follow_up: str | None = Field(sa_column=_text(nullable=True))
    follows: UUID | None = Field(sa_column=_uuid(nullable=True))
    result: str | None = Field(sa_column=_text(nullable=True))
    error: str | None = Field(sa_column=_text(nullable=True))
    created_by: str = Field(sa_column=_text())
    created_at: datetime = Field(sa_column=_moment(nullable=False))
    started_at: datetime | None = Field(sa_column=_moment())
    finished_at: datetime | None = Field(sa_column=_moment())


class JobPartRow(SQLModel, table=True):
    """One step of an unfinished job whose outcome is kept, so that the next attempt goes on after it."""

    __tablename__ = "job_parts"
    job_id: UUID = Field(sa_column=Column(UuidType, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True))
    name: str = Field(sa_column=Column(Text, primary_key=True))
    document: str = Field(sa_column=_text())


class RefusalRow(SQLModel, table=True):
    """How often a fence has refused the write of somebody whose right to it had passed on."""

    __tablename__ = "refusals"
    __table_args__ = (CheckConstraint("kind IN ('window', 'job', 'receipt')", name="refusals_kind"),)
    pipeline_id: int = Field(sa_column=_link("pipelines.id", SmallInteger, primary_key=True))
    kind: str = Field(sa_column=Column(Text, primary_key=True))
    refused: int = Field(sa_column=Column(BigInteger, nullable=False))
    last_at: datetime = Field(sa_column=_moment(nullable=False))


class DestinationRow(SQLModel, table=True):
    """A combination of route, job, queue and place of objects that entries were ever promised to."""

    __tablename__ = "destinations"
    __table_args__ = (UniqueConstraint("pipeline_id", "route", "job", "queue", "bucket", "prefix"),)
    id: int = Field(sa_column=Column(Integer, Identity(always=True), primary_key=True))
    pipeline_id: int = Field(sa_column=_link("pipelines.id", SmallInteger))
    route: str = Field(sa_column=_text())
    job: str = Field(sa_column=_text())
    queue: str = Field(sa_column=_text())
    bucket: str = Field(sa_column=_text())
    prefix: str = Field(sa_column=_text())


class WindowRow(SQLModel, table=True):
    """An hour of one pipeline, its lease and fence, how far it has come, and whether a person has to look first.

    `seq` is raised by every run that gets the window, and by every opening of entries; so a ledger that was put back to
    an earlier state has a smaller one than the witness beside the objects.
    """

    __tablename__ = "windows"
    __table_args__ = (
        UniqueConstraint("pipeline_id", "start_s"),
        CheckConstraint("mod(start_s, 3600) = 0", name="windows_start_on_the_hour"),
        CheckConstraint("fence >= 0", name="windows_fence_not_negative"),
        CheckConstraint("(lease_run_id IS NULL) = (lease_until IS NULL)", name="windows_lease_whole"),
        CheckConstraint("(held_at IS NULL) = (held_reason IS NULL)", name="windows_hold_has_reason"),
        CheckConstraint(
            "held_kind IN ('guard', 'behind', 'adopting', 'adopted', 'person')",
            name="windows_held_kind",
        ),
        CheckConstraint("seq >= 0", name="windows_seq_not_negative"),
        CheckConstraint(
            "num_nulls(verified_at, verified_evaluated, verified_due, verified_claimed) IN (0, 4) "
            "AND verified_evaluated >= verified_due AND verified_due >= verified_claimed AND verified_claimed >= 0",
            name="windows_verified_whole",
        ),
    )
    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    pipeline_id: int = Field(sa_column=_link("pipelines.id", SmallInteger))
    start_s: int = Field(sa_column=_big())
    fence: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    lease_run_id: UUID | None = Field(sa_column=_uuid(nullable=True))
    lease_until: datetime | None = Field(sa_column=_moment())
    objects_checked_at: datetime | None = Field(sa_column=_moment())
    held_at: datetime | None = Field(sa_column=_moment())
    held_reason: str | None = Field(sa_column=_text(nullable=True))
    completed_at: datetime | None = Field(sa_column=_moment())
    verified_at: datetime | None = Field(sa_column=_moment())
    verified_evaluated: int | None = Field(sa_column=_big(nullable=True))
    verified_due: int | None = Field(sa_column=_big(nullable=True))
    verified_claimed: int | None = Field(sa_column=_big(nullable=True))
    seq: int = Field(sa_column=_count())
    held_kind: str | None = Field(sa_column=_text(nullable=True))


class EventRow(SQLModel, table=True):
    """What was decided about a window: that it is held, and by a person what became of it then."""

    __tablename__ = "events"
    __table_args__ = (
        Index("events_window", "window_id"),
        CheckConstraint("event IN ('held', 'adopted', 'vouched', 'released')", name="events_event"),
        CheckConstraint("by IS NOT NULL OR event NOT IN ('vouched', 'released')", name="events_decision_has_somebody"),
    )
    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    pipeline_id: int = Field(sa_column=_link("pipelines.id", SmallInteger))
    window_id: int = Field(sa_column=_link("windows.id"))
    at: datetime = Field(sa_column=_moment(nullable=False))
    event: str = Field(sa_column=_text())
    by: str | None = Field(sa_column=_text(nullable=True))
    reason: str = Field(sa_column=_text())
    run_id: UUID | None = Field(sa_column=_uuid(nullable=True))


class RunRow(SQLModel, table=True):
    """One process on one window with one frozen configuration, and its books."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("runs_window", "window_id", "started_at"),
        CheckConstraint("flow IN ('full', 'staged', 'paged')", name="runs_flow"),
        CheckConstraint("cause IN ('schedule', 'manual', 'reconcile', 'redo')", name="runs_cause"),
        CheckConstraint(
            "outcome IN ('completed', 'failed', 'cancelled', 'busy', 'held')",
            name="runs_outcome",
        ),
        CheckConstraint("(outcome IS NULL) = (finished_at IS NULL)", name="runs_end_has_outcome"),
        CheckConstraint("outcome <> 'failed' OR error IS NOT NULL", name="runs_failure_has_error"),
        CheckConstraint(
            "outcome <> 'completed' OR (evaluated = outside + not_due + set_aside + due "
            "AND (due = already_claimed + claimed OR cause = 'reconcile'))",
            name="runs_books_balance",
        ),
    )
    id: UUID = Field(sa_column=_uuid(primary_key=True))
    window_id: int = Field(sa_column=_link("windows.id"))
    fence: int | None = Field(sa_column=Column(Integer, nullable=True))
    flow: str = Field(sa_column=_text())
    page_size: int = Field(sa_column=Column(Integer, nullable=False))
    cause: str = Field(sa_column=_text())
    config: str = Field(sa_column=_text())
    holder: str = Field(sa_column=_text())
    outcome: str | None = Field(sa_column=_text(nullable=True))
    error: str | None = Field(sa_column=_text(nullable=True))
    started_at: datetime = Field(sa_column=_moment(nullable=False))
    finished_at: datetime | None = Field(sa_column=_moment())
    pages: int = Field(sa_column=_count())
    evaluated: int = Field(sa_column=_count())
    outside: int = Field(sa_column=_count())
    not_due: int = Field(sa_column=_count())
    set_aside: int = Field(sa_column=_count())
    due: int = Field(sa_column=_count())
    already_claimed: int = Field(sa_column=_count())
    claimed: int = Field(sa_column=_count())
    entries: int = Field(sa_column=_count())
    confirmed: int = Field(sa_column=_count())
    recovered: int = Field(sa_column=_count())


class PageRow(SQLModel, table=True):
    """One line of the read journal: which range was read, from which cursor, when."""

    __tablename__ = "pages"
    __table_args__ = (
        CheckConstraint("number >= 1", name="pages_number_from_one"),
        CheckConstraint("evaluated >= outside + not_due", name="pages_counts"),
    )
    run_id: UUID = Field(sa_column=Column(UuidType, ForeignKey("runs.id"), primary_key=True))
    number: int = Field(sa_column=Column(Integer, primary_key=True))
    cursor_json: str | None = Field(sa_column=_text(nullable=True))
    next_json: str | None = Field(sa_column=_text(nullable=True))
    first_time: str | None = Field(sa_column=_text(nullable=True))
    last_time: str | None = Field(sa_column=_text(nullable=True))
    evaluated: int = Field(sa_column=_count())
    outside: int = Field(sa_column=_count())
    not_due: int = Field(sa_column=_count())
    staged: int = Field(sa_column=_count())
    read_at: datetime = Field(sa_column=_moment(nullable=False))
    done_at: datetime | None = Field(sa_column=_moment())


class ClaimRow(SQLModel, table=True):
    """Who dispatches one record occurrence, and a fingerprint of what was promised of it.

    There is one row a record, for years. Booking time comes first in the key, so that a window's claims lie side by
    side; the columns stand in the order that wastes no bytes on alignment, in the row and in the key; and an id that
    is a UUID is kept as its 16 bytes (`ledger.canonical.packed_id`).

    For a question by record id alone there is a Bloom filter for every eight pages of rows, which an insert into new
    pages does not pay for: VACUUM makes the filters, so it comes early and often.
    """

    __tablename__ = "claims"
    __table_args__ = (
        PrimaryKeyConstraint("booking_ns", "record_id", "pipeline_id", "generation"),
        CheckConstraint("generation >= 0", name="claims_generation_not_negative"),
        Index(
            "claims_record",
            "record_id",
            postgresql_using="brin",
            postgresql_ops={"record_id": "bytea_bloom_ops(n_distinct_per_range = 800, false_positive_rate = 0.01)"},
            postgresql_with={"pages_per_range": 8},
        ),
        {
            "postgresql_with": {
                "autovacuum_vacuum_insert_scale_factor": 0,
                "autovacuum_vacuum_insert_threshold": 100_000,
            }
        },
    )
    booking_ns: int = Field(sa_column=_big(primary_key=True))
    fingerprint: int = Field(sa_column=_big())
    pipeline_id: int = Field(sa_column=Column(SmallInteger, primary_key=True))
    generation: int = Field(sa_column=Column(SmallInteger, primary_key=True))
    record_id: bytes = Field(sa_column=_bytes(primary_key=True))
    entry_id: UUID = Field(sa_column=_uuid())


class EntryRow(SQLModel, table=True):
    """The promise of one (window, group, content hash, generation), written once.

    How far it has come is not kept here, because a row that changes is a row that is written again: an entry is
    unfinished while it has payload parts, and sent when an attempt was accepted; the view `entry_states` says so. Only
    a void entry is written a second time; the key of its promise is then free to be made again.
    """

    __tablename__ = "entries"
    __table_args__ = (
        Index(
            "entries_one_live_promise",
            "idempotency_key",
            unique=True,
            postgresql_where=text("void_reason IS NULL"),
        ),
        Index("entries_void", "idempotency_key", postgresql_where=text("void_reason IS NOT NULL")),
        Index("entries_redone", "window_id", postgresql_where=text("generation > 0")),
        Index("entries_window", "window_id"),
        CheckConstraint("records_n >= 1", name="entries_have_records"),
        CheckConstraint("generation >= 0", name="entries_generation_not_negative"),
        CheckConstraint(
            "length(group_digest) = 16 AND length(content_hash) = 32 AND length(idempotency_key) = 32",
            name="entries_digest_lengths",
        ),
    )
    id: UUID = Field(sa_column=_uuid(primary_key=True))
    run_id: UUID = Field(sa_column=_uuid())
    window_id: int = Field(sa_column=_big())
    opened_at: datetime = Field(sa_column=_moment(nullable=False))
    destination_id: int = Field(sa_column=Column(Integer, nullable=False))
    records_n: int = Field(sa_column=Column(Integer, nullable=False))
    generation: int = Field(sa_column=_small())
    group_digest: bytes = Field(sa_column=_bytes())
    content_hash: bytes = Field(sa_column=_bytes())
    idempotency_key: bytes = Field(sa_column=_bytes())
    group_json: str = Field(sa_column=_text())
    void_reason: str | None = Field(sa_column=_text(nullable=True))


class PayloadPartRow(SQLModel, table=True):
    """The records of an entry that is not yet confirmed, as canonical JSON joined by commas, in parts.

    An entry has rows here exactly while it is unfinished: this small table is also the list of what is unfinished.
    """

    __tablename__ = "payload_parts"
    window_id: int = Field(sa_column=_big(primary_key=True))
    entry_id: UUID = Field(sa_column=Column(UuidType, primary_key=True))
    part: int = Field(sa_column=Column(Integer, primary_key=True))
    records_json: bytes = Field(sa_column=_bytes())


class OpenAttemptRow(SQLModel, table=True):
    """One try to send an entry whose outcome is unknown until proven; a small table, since most are proven at once."""

    __tablename__ = "open_attempts"
    __table_args__ = (CheckConstraint("number >= 1", name="open_attempts_number_from_one"),)
    entry_id: UUID = Field(sa_column=Column(UuidType, primary_key=True))
    number: int = Field(sa_column=Column(SmallInteger, primary_key=True))
    fence: int = Field(sa_column=Column(Integer, nullable=False))
    marked_at: datetime = Field(sa_column=_moment(nullable=False))
    object_bytes: int = Field(sa_column=_big())
    object_etag: str = Field(sa_column=_text())
    error: str | None = Field(sa_column=_text(nullable=True))


class AttemptRow(SQLModel, table=True):
    """One try to send an entry, with its proven outcome; written once, when it is proven.

    `accepted` is the queue's own answer; `received` means that the answer was lost, but a receipt proves the send.

    It keeps what the object store answered to the upload before it. The view `all_attempts` adds the open ones.
    """

    __tablename__ = "attempts"
    __table_args__ = (
        Index("attempts_repeated", "entry_id", postgresql_where=text("number > 1")),
        CheckConstraint("number >= 1", name="attempts_number_from_one"),
        CheckConstraint("outcome IN ('accepted', 'received', 'vouched', 'failed', 'refused')", name="attempts_outcome"),
        CheckConstraint("outcome <> 'accepted' OR message_id IS NOT NULL", name="attempts_accepted_has_message"),
    )
    entry_id: UUID = Field(sa_column=Column(UuidType, primary_key=True))
    marked_at: datetime = Field(sa_column=_moment(nullable=False))
    answered_at: datetime = Field(sa_column=_moment(nullable=False))
    object_bytes: int = Field(sa_column=_big())
    fence: int = Field(sa_column=Column(Integer, nullable=False))
    number: int = Field(sa_column=Column(SmallInteger, primary_key=True))
    outcome: str = Field(sa_column=_text())
    object_etag: str = Field(sa_column=_text())
    message_id: str | None = Field(sa_column=_text(nullable=True))
    error: str | None = Field(sa_column=_text(nullable=True))


class ReceiptRow(SQLModel, table=True):
    """A consumer's claim on an idempotency key, and what came of its work.

    The last claim stays when the work has ended, so that its end may be told twice. A row that a redo has made for a
    job that no worker ever claimed has no attempts.
    """

    __tablename__ = "receipts"
    __table_args__ = (
        Index("receipts_window", "window_id"),
        CheckConstraint("state IN ('in_work', 'completed', 'failed', 'superseded')", name="receipts_state"),
        CheckConstraint("state <> 'in_work' OR claim IS NOT NULL", name="receipts_work_has_claim"),
        CheckConstraint("(state = 'in_work') = (expires_at IS NOT NULL)", name="receipts_work_expires"),
        CheckConstraint("attempts > 0 OR (attempts = 0 AND state = 'superseded')", name="receipts_attempts"),
        CheckConstraint("attempts = 0 OR (worker IS NOT NULL AND claimed_at IS NOT NULL)", name="receipts_worker"),
        CheckConstraint("length(idempotency_key) = 32", name="receipts_key_length"),
    )
    pipeline_id: int = Field(sa_column=_link("pipelines.id", SmallInteger, primary_key=True))
    idempotency_key: bytes = Field(sa_column=_bytes(primary_key=True))
    window_id: int = Field(sa_column=_link("windows.id"))
    state: str = Field(sa_column=_text())
    claim: UUID | None = Field(sa_column=_uuid(nullable=True))
    worker: str | None = Field(sa_column=_text(nullable=True))
    attempts: int = Field(sa_column=Column(Integer, nullable=False))
    claimed_at: datetime | None = Field(sa_column=_moment())
    expires_at: datetime | None = Field(sa_column=_moment())
    finished_at: datetime | None = Field(sa_column=_moment())
    result: str | None = Field(sa_column=_text(nullable=True))
    reason: str | None = Field(sa_column=_text(nullable=True))


class PlanRow(SQLModel, table=True):
    """A redo that a person wants: what it covers, a hash over what it saw, and how far it has come.

    `run_id` is the run that applies it; `reconcile_json` the document of the reconcile that followed.
    """

    __tablename__ = "plans"
    __table_args__ = (
        Index("plans_window", "window_id"),
        CheckConstraint("state IN ('planned', 'applying', 'applied', 'cancelled', 'stale')", name="plans_state"),
        CheckConstraint("(state IN ('applying', 'applied')) = (run_id IS NOT NULL)", name="plans_applied_by_run"),
        CheckConstraint("(run_id IS NULL) = (applied_by IS NULL)", name="plans_applied_by_somebody"),
        CheckConstraint("(state IN ('planned', 'applying')) = (ended_at IS NULL)", name="plans_end"),
        CheckConstraint("state <> 'stale' OR stale_reason IS NOT NULL", name="plans_stale_has_reason"),
        CheckConstraint("length(hash) = 32", name="plans_hash_length"),
        CheckConstraint("least(jobs, records, already_worked, no_longer_due) >= 0", name="plans_counts"),
    )
    id: UUID = Field(sa_column=_uuid(primary_key=True))
    window_id: int = Field(sa_column=_link("windows.id"))
    state: str = Field(sa_column=_text())
    scope: str = Field(sa_column=_text())
    reason: str = Field(sa_column=_text())
    planned_by: str = Field(sa_column=_text())
    planned_at: datetime = Field(sa_column=_moment(nullable=False))
    hash: bytes = Field(sa_column=_bytes())
    jobs: int = Field(sa_column=_big())
    records: int = Field(sa_column=_big())
    already_worked: int = Field(sa_column=_big())
    no_longer_due: int = Field(sa_column=_big())
    run_id: UUID | None = Field(sa_column=_uuid(nullable=True))
    applied_by: str | None = Field(sa_column=_text(nullable=True))
    applying_at: datetime | None = Field(sa_column=_moment())
    ended_at: datetime | None = Field(sa_column=_moment())
    stale_reason: str | None = Field(sa_column=_text(nullable=True))
    reconcile_json: str | None = Field(sa_column=_text(nullable=True))


class PlanEntryRow(SQLModel, table=True):
    """One job of a plan, for a person to look at: at most so many records of a plan are listed here."""

    __tablename__ = "plan_entries"
    __table_args__ = (CheckConstraint("number >= 1", name="plan_entries_number_from_one"),)
    plan_id: UUID = Field(sa_column=Column(UuidType, ForeignKey("plans.id"), primary_key=True))
    number: int = Field(sa_column=Column(Integer, primary_key=True))
    generation: int = Field(sa_column=_small())
    group_json: str = Field(sa_column=_text())
    record_ids: list[bytes] = Field(sa_column=Column(ARRAY(LargeBinary), nullable=False))


class StagedRecordRow(SQLModel, table=True):
    """Due records of a running staged run, waiting to be read back in order. Unlogged: a crash may empty it.

    A run counts what it put here and what it got back, so an emptied table is noticed, never believed.
    """

    __tablename__ = "staged_records"
    __table_args__ = {"prefixes": ["UNLOGGED"]}
    run_id: UUID = Field(sa_column=Column(UuidType, primary_key=True))
    booking_ns: int = Field(sa_column=_big(primary_key=True))
    record_id: bytes = Field(sa_column=_bytes(primary_key=True))
    group_key: bytes = Field(sa_column=_bytes())
    order_key: bytes = Field(sa_column=_bytes())
    body: bytes = Field(sa_column=_bytes())
    fingerprint: int = Field(sa_column=_big())


class FindingRow(SQLModel, table=True):
    """Something that does not agree, one row a subject however often it is seen."""

    __tablename__ = "findings"
    __table_args__ = (
        UniqueConstraint("pipeline_id", "kind", "subject"),
        Index("findings_window", "window_id"),
        Index("findings_record", "record_id", postgresql_using="hash"),
        CheckConstraint("state IN ('open', 'repaired', 'acknowledged', 'closed')", name="findings_state"),
        CheckConstraint(
            "state <> 'acknowledged' OR acknowledged_reason IS NOT NULL",
            name="findings_acknowledged_has_reason",
        ),
        CheckConstraint("state <> 'repaired' OR repair IS NOT NULL", name="findings_repaired_has_repair"),
        CheckConstraint(
            "repair IN ('redispatched', 'completed', 'tagged', 'removed', 'rebuilt')",
            name="findings_repair",
        ),
        CheckConstraint(
            "kind IN ('missed', 'window_not_dispatched', 'unfinished', 'duplicate', 'orphan_object', 'missing_object', "
            "'changed_after_dispatch', 'stale_source_status', 'bad_record', 'overdue_receipt')",
            name="findings_kind",
        ),
    )
    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    pipeline_id: int = Field(sa_column=_link("pipelines.id", SmallInteger))
    window_id: int = Field(sa_column=_link("windows.id"))
    kind: str = Field(sa_column=_text())
    cause: str | None = Field(sa_column=_text(nullable=True))
    subject: bytes = Field(sa_column=_bytes())
    record_id: bytes | None = Field(sa_column=_bytes(nullable=True))
    entry_id: UUID | None = Field(sa_column=_uuid(nullable=True))
    object_key: str | None = Field(sa_column=_text(nullable=True))
    state: str = Field(sa_column=_text())
    repair: str | None = Field(sa_column=_text(nullable=True))
    detail: str = Field(sa_column=_text())
    first_seen_at: datetime = Field(sa_column=_moment(nullable=False))
    last_seen_at: datetime = Field(sa_column=_moment(nullable=False))
    last_run_id: UUID | None = Field(sa_column=_uuid(nullable=True))
    closed_at: datetime | None = Field(sa_column=_moment())
    acknowledged_by: str | None = Field(sa_column=_text(nullable=True))
    acknowledged_reason: str | None = Field(sa_column=_text(nullable=True))
