"""What successful answers look like, as models for the description of the API.

Nothing is encoded with them: answers are the bytes that the command line prints. A client's generated types are made
from them, and the tests hold real answers against those. Members may be added later, so a client ignores what it does
not know.
"""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, RootModel

from dispatch.explaining import Reason
from dispatch.lookup import SourceVerdict
from ledger.facts import Cause, FindingState, Flow, HoldKind, Repair, RunOutcome
from ledger.jobs import Kind, Lane, Status
from ledger.plans import PlanState

EntryState = Literal["pending", "sending", "confirmed", "void"]
WindowState = Literal["dispatched", "incomplete", "not_dispatched", "held", "running"]
FindingKind = Literal[
    "missed", "window_not_dispatched", "unfinished", "duplicate", "orphan_object", "missing_object",
    "changed_after_dispatch", "stale_source_status", "bad_record", "overdue_receipt",
]  # fmt: skip


# Windows and findings


class EntryCounts(BaseModel):
    """What windows amount to; `entries` is the sum of its four states."""

    entries: int
    pending: int
    sending: int
    confirmed: int
    void: int
    records: int = Field(description="In the entries that are not void.")


class Totals(EntryCounts):
    """The sums over all windows of a report."""

    open_findings: int


class WindowNumbers(EntryCounts):
    """A window in numbers."""

    window: datetime = Field(description="Its start.")
    state: WindowState
    open_findings: int
    verified_at: datetime | None = Field(description="When a reconcile last looked at all of it.")
    coverage: float | None = Field(description="Claimed by due at that time; null before.")


class WindowsReport(BaseModel):
    """`report windows`."""

    windows: list[WindowNumbers]
    totals: Totals


class Finding(BaseModel):
    """Something that does not agree, or did not."""

    id: int
    kind: FindingKind
    cause: str | None
    window: datetime
    record_id: str | None
    entry_id: UUID | None
    object_key: str | None
    state: FindingState
    repair: Repair | None
    first_seen_at: datetime
    detail: dict[str, Any]


class AcknowledgedFinding(Finding):
    """A finding that a person has taken note of."""

    acknowledged_by: str
    acknowledged_reason: str


class FindingsList(BaseModel):
    """`findings list`."""

    findings: list[Finding]
    left_off: int | None = Field(default=None, description="How many more there are beyond the limit.")


# Stories


class Event(BaseModel):
    """Something that happened, with more members that say what."""

    model_config = ConfigDict(extra="allow")

    at: datetime
    event: str


class Told(BaseModel):
    """The end of every story."""

    findings: list[Finding]
    events: list[Event] = Field(description="In order of time.")


class RunCounts(BaseModel):
    """The books of a run."""

    pages: int
    evaluated: int
    outside: int
    not_due: int
    set_aside: int
    due: int
    already_claimed: int
    claimed: int
    entries: int
    confirmed: int
    recovered: int


class RunRecord(RunCounts):
    """A run, as the story of its window has it."""

    run_id: UUID
    fence: int | None
    flow: Flow
    page_size: int
    cause: Cause
    holder: str
    outcome: RunOutcome | None
    error: str | None
    started_at: datetime
    finished_at: datetime | None


class PageRead(BaseModel):
    """A line of the read journal."""

    run_id: UUID
    number: int
    cursor_json: str | None
    next_json: str | None
    first_time: str | None
    last_time: str | None
    evaluated: int
    outside: int
    not_due: int
    staged: int
    read_at: datetime
    done_at: datetime | None


class StoredObject(BaseModel):
    """Where the object of an entry is; size and ETag once it was uploaded."""

    bucket: str
    key: str
    bytes: int | None
    etag: str | None


class Entry(BaseModel):
    """A promise to send one group of a window."""

    entry_id: UUID
    window: datetime
    state: EntryState
    void_reason: str | None
    group: dict[str, Any]
    route: str
    job: str
    queue: str
    records: int
    generation: int
    attempts: int
    content_hash: str
    idempotency_key: str
    object: StoredObject
    run_id: UUID
    opened_at: datetime
    confirmed_at: datetime | None


class PlanFacts(BaseModel):
    """A redo's plan, as the story of its window has it."""

    plan_id: UUID
    window: datetime
    by: str
    state: PlanState
    reason: str
    jobs: int
    records: int
    already_worked: int
    no_longer_due: int
    applied_by: str | None
    stale_reason: str | None
    planned_at: datetime
    applying_at: datetime | None
    ended_at: datetime | None


class WindowStory(Told):
    """`show window`; of one that nobody has worked on, without what only work brings."""

    window: datetime
    end: datetime
    pipeline: str
    state: WindowState
    held: str | None = Field(default=None, description="Why a person has to look first.")
    held_kind: HoldKind | None = Field(default=None, description="What kind of reason that is.")
    held_at: datetime | None = None
    seq: int = Field(description="How far the window has come; its witness beside the objects has no greater number.")
    completed_at: datetime | None = None
    verified_at: datetime | None = None
    coverage: float | None = None
    open_findings: int
    totals: EntryCounts
    runs: list[RunRecord]
    pages: list[PageRead]
    entries: list[Entry]
    plans: list[PlanFacts]


class Send(BaseModel):
    """A try to send an entry; `unknown` until its answer or a receipt proves more."""

    number: int
    fence: int
    marked_at: datetime
    answered_at: datetime | None
    outcome: Literal["unknown", "accepted", "received", "vouched", "failed", "refused"]
    object_bytes: int
    object_etag: str
    message_id: str | None
    error: str | None


class SendOfEntry(Send):
    """The same, in the story of an entry."""

    entry_id: UUID


class Occurrence(BaseModel):
    """A record at a booking time, which keeps every digit: up to nine of a second."""

    record_id: str
    booking_time: datetime


class EntryStory(Entry, Told):
    """`show entry`."""

    occurrences: list[Occurrence]
    sends: list[SendOfEntry]


class Receipt(BaseModel):
    """What a consumer has said of a job."""

    state: Literal["in_work", "completed", "failed", "superseded"]
    worker: str | None
    attempts: int
    claimed_at: datetime | None
    expires_at: datetime | None
    finished_at: datetime | None
    reason: str | None
    result: Any = Field(description="Any JSON.")


class EntryOfRecord(Entry):
    """An entry with what became of it."""

    receipt: Receipt | None
    sends: list[Send]


class ClaimOfRecord(BaseModel):
    """A claim of the record; without its entry when the ledger has lost that."""

    booking_time: datetime
    generation: int
    entry: EntryOfRecord | None


class SourceNow(BaseModel):
    """What the base table says of the record now; `error` says why it could not be asked."""

    found: bool | None
    verdict: SourceVerdict
    why: str | None
    booking_time: str | None = Field(description="As the source spells it.")
    status: str | None
    window: datetime | None = Field(description="The window that the answer speaks of.")
    windows: list[datetime] = Field(description="Those that read the record where it stands now.")
    error: str | None


class RecordStory(Told):
    """`show record`."""

    record_id: str
    pipeline: str
    answer: str
    reason: Reason
    source: SourceNow
    occurrences: list[ClaimOfRecord]


# Redo


class PlannedEntry(BaseModel):
    """A job that a plan would send."""

    group: dict[str, Any]
    records: list[str]
    generation: int


class Plan(BaseModel):
    """`redo show`."""

    plan_id: UUID
    window: datetime
    reason: str
    by: str
    state: PlanState
    hash: str
    jobs: int
    records: int
    already_worked: int
    no_longer_due: int
    entries: list[PlannedEntry]
    applied_by: str | None
    stale_reason: str | None


# Jobs, and what comes of them


class Bounds(BaseModel):
    """The first and the last instant of a window."""

    start: datetime
    end: datetime


class Run(RunCounts):
    """`dispatch`."""

    run_id: UUID
    pipeline: str
    window: Bounds
    flow: Flow
    page_size: int
    outcome: RunOutcome
    cause: Cause
    started_at: datetime
    finished_at: datetime
    error: str | None


class Runs(BaseModel):
    """`dispatch --due`."""

    runs: list[Run]


class Coverage(BaseModel):
    """What a reconcile has read."""

    evaluated: int
    due: int
    claimed: int


class ReconciledWindow(BaseModel):
    """A window of a reconcile."""

    window: datetime
    run_id: UUID | None
    coverage: Coverage
    findings: list[Finding]
    held: bool
    late: int = Field(description="Differences that are too young to be called one.")
    left_alone: str | None = Field(description="Why it was not looked at.")
    error: str | None


class Reconciled(BaseModel):
    """`reconcile`."""

    run_id: UUID
    windows: list[ReconciledWindow]
    open: int
    repaired: int


class Applied(Plan):
    """`redo apply`."""

    run: Run | None
    reconcile: Reconciled | None


class Place(BaseModel):
    """An object in the bucket."""

    bucket: str
    key: str


class ReportFile(BaseModel):
    """Where a report is."""

    model_config = ConfigDict(populate_by_name=True)

    report: Literal["windows", "duplicates", "missed", "orphans", "findings"]
    format: Literal["json", "csv", "html"]
    since: datetime = Field(alias="from")
    until: datetime = Field(alias="to")
    object: Place
    bytes: int
    left_off: int | None = None


class LargeResult(BaseModel):
    """A result that is too large for the ledger: where it is, and its plain members."""

    model_config = ConfigDict(extra="allow")

    object: Place
    bytes: int


class Progress(BaseModel):
    """Windows, when there are several; of a single one the records read."""

    done: int
    total: int | None = Field(description="Null while it is not known.")


class ListedJob(BaseModel):
    """A job, without its result."""

    job_id: UUID
    kind: Kind
    status: Status
    progress: Progress
    attempts: int
    heartbeat_at: datetime | None
    error: str | None
    params: dict[str, Any]
    queue: Lane
    follows: UUID | None
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Job(ListedJob):
    """A job as it is now."""

    result: Run | Runs | Reconciled | Applied | Plan | ReportFile | LargeResult | None = Field(
        description="What came of it; of a failed job what was done all the same."
    )


class JobsPage(BaseModel):
    """A page of jobs, newest first."""

    jobs: list[ListedJob]
    next: UUID | None = Field(description="The `before` of the next page; null on the last.")


class Accepted(BaseModel):
    """A job that was written down; `Location` says where to look at it."""

    job_id: UUID
    status: Literal["pending"]


# Receipts


class GoAhead(BaseModel):
    """The job is this worker's until the claim runs out."""

    claim: UUID
    expires_at: datetime
    attempts: int


class WorkedAlready(BaseModel):
    """Do not work: somebody has completed the job."""

    status: Literal["completed"]
    result: Any = Field(description="Any JSON.")
    finished_at: datetime


class ReplacedByRedo(BaseModel):
    """Do not work: a redo has replaced the job."""

    status: Literal["superseded"]


class DoNotWork(RootModel[WorkedAlready | ReplacedByRedo]):
    """Somebody has completed the job, or a redo has replaced it."""


class Renewed(BaseModel):
    """The claim lasts longer."""

    expires_at: datetime


class Ended(BaseModel):
    """The job has ended."""

    status: Literal["completed", "failed"]
    finished_at: datetime


class Health(BaseModel):
    """The server lives, or is ready."""

    status: Literal["ok", "ready"]
