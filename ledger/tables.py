"""The rows of the ledger. Facts travel as `ledger.facts`; these classes only describe what the database holds.

Every invariant that one row can show is a CHECK here; those between rows are unique keys, or are held by the
statements in `ledger/sql`. Text columns never hold raw NULs: ids are bytes, and JSON is canonical, thus escaped.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
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
    id: int = Field(sa_column=Column(Integer, Identity(always=True), primary_key=True))
    name: str = Field(sa_column=_text())


class DestinationRow(SQLModel, table=True):
    """A combination of route, job, queue and place of objects that entries were ever promised to."""

    __tablename__ = "destinations"
    __table_args__ = (UniqueConstraint("pipeline_id", "route", "job", "queue", "bucket", "prefix"),)
    id: int = Field(sa_column=Column(Integer, Identity(always=True), primary_key=True))
    pipeline_id: int = Field(sa_column=_link("pipelines.id", Integer))
    route: str = Field(sa_column=_text())
    job: str = Field(sa_column=_text())
    queue: str = Field(sa_column=_text())
    bucket: str = Field(sa_column=_text())
    prefix: str = Field(sa_column=_text())


class WindowRow(SQLModel, table=True):
    """An hour of one pipeline, its lease and fence, and whether a person has to look first."""

    __tablename__ = "windows"
    __table_args__ = (
        UniqueConstraint("pipeline_id", "start_s"),
        CheckConstraint("mod(start_s, 3600) = 0", name="windows_start_on_the_hour"),
        CheckConstraint("fence >= 0", name="windows_fence_not_negative"),
        CheckConstraint("(lease_run_id IS NULL) = (lease_until IS NULL)", name="windows_lease_whole"),
        CheckConstraint("(held_at IS NULL) = (held_reason IS NULL)", name="windows_hold_has_reason"),
    )
    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    pipeline_id: int = Field(sa_column=_link("pipelines.id", Integer))
    start_s: int = Field(sa_column=_big())
    fence: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    lease_run_id: UUID | None = Field(sa_column=_uuid(nullable=True))
    lease_until: datetime | None = Field(sa_column=_moment())
    objects_checked_at: datetime | None = Field(sa_column=_moment())
    held_at: datetime | None = Field(sa_column=_moment())
    held_reason: str | None = Field(sa_column=_text(nullable=True))
    completed_at: datetime | None = Field(sa_column=_moment())


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
            "outcome <> 'completed' "
            "OR (evaluated = outside + not_due + set_aside + due AND due = already_claimed + claimed)",
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
    """Who dispatches one record occurrence. The key's order keeps a window's claims side by side (MEASURED)."""

    __tablename__ = "claims"
    __table_args__ = (CheckConstraint("generation >= 0", name="claims_generation_not_negative"),)
    pipeline_id: int = Field(sa_column=Column(Integer, primary_key=True))
    booking_ns: int = Field(sa_column=_big(primary_key=True))
    record_id: bytes = Field(sa_column=_bytes(primary_key=True))
    generation: int = Field(sa_column=Column(Integer, primary_key=True))
    entry_id: UUID = Field(sa_column=_uuid())


class EntryRow(SQLModel, table=True):
    """The outbox row of one (window, group, content hash, generation).

    `live` is true until the entry is void, and then NULL, so that a voided promise may be made again. No index covers a
    column that changes on the way from pending to confirmed, so that this way costs no index writes.
    """

    __tablename__ = "entries"
    __table_args__ = (
        UniqueConstraint("idempotency_key", "live", name="entries_one_live_promise"),
        Index("entries_window", "window_id"),
        CheckConstraint("state IN ('pending', 'sending', 'confirmed', 'void')", name="entries_state"),
        CheckConstraint("records_n >= 1", name="entries_have_records"),
        CheckConstraint("generation >= 0", name="entries_generation_not_negative"),
        CheckConstraint(
            "length(group_digest) = 16 AND length(content_hash) = 32 AND length(idempotency_key) = 32",
            name="entries_digest_lengths",
        ),
        CheckConstraint("state <> 'pending' OR attempts = 0", name="entries_pending_untried"),
        CheckConstraint(
            "state NOT IN ('sending', 'confirmed') OR (attempts > 0 AND num_nulls(object_etag, object_bytes) = 0)",
            name="entries_sent_has_object",
        ),
        CheckConstraint("(state = 'confirmed') = (confirmed_at IS NOT NULL)", name="entries_confirmed_has_time"),
        CheckConstraint("(state = 'void') = (void_reason IS NOT NULL)", name="entries_void_has_reason"),
        CheckConstraint("(state = 'void') = (live IS NULL) AND live IS NOT FALSE", name="entries_live_until_void"),
    )
    id: UUID = Field(sa_column=_uuid(primary_key=True))
    window_id: int = Field(sa_column=_big())
    run_id: UUID = Field(sa_column=_uuid())
    opened_at: datetime = Field(sa_column=_moment(nullable=False))
    confirmed_at: datetime | None = Field(sa_column=_moment())
    object_bytes: int | None = Field(sa_column=_big(nullable=True))
    destination_id: int = Field(sa_column=Column(Integer, nullable=False))
    generation: int = Field(sa_column=Column(Integer, nullable=False))
    records_n: int = Field(sa_column=Column(Integer, nullable=False))
    attempts: int = Field(sa_column=_small(default="0"))
    live: bool | None = Field(sa_column=Column(Boolean, nullable=True))
    state: str = Field(sa_column=_text())
    group_digest: bytes = Field(sa_column=_bytes())
    content_hash: bytes = Field(sa_column=_bytes())
    idempotency_key: bytes = Field(sa_column=_bytes())
    group_json: str = Field(sa_column=_text())
    object_etag: str | None = Field(sa_column=_text(nullable=True))
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


class AttemptRow(SQLModel, table=True):
    """One try to send an entry; unknown until proven."""

    __tablename__ = "attempts"
    __table_args__ = (
        CheckConstraint("number >= 1", name="attempts_number_from_one"),
        CheckConstraint("outcome IN ('unknown', 'accepted', 'failed', 'refused')", name="attempts_outcome"),
        CheckConstraint("outcome <> 'accepted' OR message_id IS NOT NULL", name="attempts_accepted_has_message"),
    )
    entry_id: UUID = Field(sa_column=Column(UuidType, primary_key=True))
    number: int = Field(sa_column=Column(SmallInteger, primary_key=True))
    fence: int = Field(sa_column=Column(Integer, nullable=False))
    marked_at: datetime = Field(sa_column=_moment(nullable=False))
    answered_at: datetime | None = Field(sa_column=_moment())
    outcome: str = Field(sa_column=_text())
    message_id: str | None = Field(sa_column=_text(nullable=True))
    error: str | None = Field(sa_column=_text(nullable=True))


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


class FindingRow(SQLModel, table=True):
    """Something that does not agree, one row a subject however often it is seen."""

    __tablename__ = "findings"
    __table_args__ = (
        UniqueConstraint("pipeline_id", "kind", "subject"),
        Index("findings_window", "window_id"),
        CheckConstraint("state IN ('open', 'repaired', 'acknowledged', 'closed')", name="findings_state"),
        CheckConstraint(
            "state <> 'acknowledged' OR acknowledged_reason IS NOT NULL",
            name="findings_acknowledged_has_reason",
        ),
    )
    id: int = Field(sa_column=Column(BigInteger, Identity(always=True), primary_key=True))
    pipeline_id: int = Field(sa_column=_link("pipelines.id", Integer))
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
