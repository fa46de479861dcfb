"""The plain values that travel through a run. They hold no behaviour beyond what follows from their own fields."""

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from ledger.instants import Window

AttemptOutcome = Literal["unknown", "accepted", "failed", "refused"]
RunOutcome = Literal["completed", "failed", "cancelled", "busy", "held"]
Flow = Literal["full", "staged", "paged"]
FindingState = Literal["open", "repaired", "acknowledged", "closed"]
Repair = Literal["redispatched", "completed", "tagged", "removed", "rebuilt"]
# Booking time in nanoseconds since 1970, and record id.
Occurrence = tuple[int, str]
Cause = Literal["schedule", "manual", "reconcile", "redo"]
# Why a window waits for a person: a guard found something odd; its witness shows that this ledger has forgotten
# something; what was forgotten is being adopted from its objects, or has been; or a person wanted it.
HoldKind = Literal["guard", "behind", "adopting", "adopted", "person"]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One due record occurrence, ready to be grouped.

    Attributes:
        record_id: the table's key as text.
        booking_ns: booking time, nanoseconds since 1970.
        group_key: bytes that compare as the group does: group-by values, then route.
        order_key: bytes that compare as the record does inside its group; unique there.
        body: the whole record as canonical JSON.
        fingerprint: 64 bits of a hash of its content, without what changes although nothing is owed anew.
    """

    record_id: str
    booking_ns: int
    group_key: bytes
    order_key: bytes
    body: bytes
    fingerprint: int

    @property
    def occurrence(self) -> Occurrence:
        """The key by which the ledger knows it."""
        return self.booking_ns, self.record_id


class Group(msgspec.Struct, frozen=True):
    """Records that share group key and route, in payload order.

    Attributes:
        digest: 16 bytes that name the group-by values.
        values_json: canonical JSON object of the group-by values.
        route: the value that picks job and queue.
    """

    digest: bytes
    values_json: bytes
    route: str
    records: list[Record]


class Destination(msgspec.Struct, frozen=True):
    """Where entries of one route go: promised when the entry is opened, and kept if the configuration changes later."""

    id: int
    route: str
    job: str
    queue: str
    bucket: str
    prefix: str


class StoredObject(msgspec.Struct, frozen=True):
    """What an object store answered to an upload: size in bytes, and its entity tag as given."""

    size_bytes: int
    etag: str


class Entry(msgspec.Struct, frozen=True):
    """One promise: the outbox row for (window, group, content hash, generation).

    Attributes:
        attempts: how many tries to send it have been marked so far.
        unproven: whether an earlier try may have reached the queue without our knowing.
        stored: what the object store answered, once uploaded.
    """

    id: UUID
    pipeline: str
    window: Window
    group_digest: bytes
    content_hash: bytes
    idempotency_key: bytes
    generation: int
    records_n: int
    group_json: bytes
    destination: Destination
    attempts: int = 0
    unproven: bool = False
    stored: StoredObject | None = None


class SendAnswer(msgspec.Struct, frozen=True):
    """What became of one message of one attempt.

    `unknown` is an outcome of its own: the queue may or may not have taken the message.
    """

    outcome: AttemptOutcome
    message_id: str | None = None
    error: str | None = None


class BadRecord(msgspec.Struct, frozen=True):
    """A due record that cannot be used, and why.

    Attributes:
        cause: `missing_attribute`, `unreadable_time`, `unknown_route` or `too_large`.
        booking_time: its booking time as the source spells it.
    """

    record_id: str
    booking_time: str
    cause: str
    detail: str


class RunCounts(msgspec.Struct):
    """The books of one run; `evaluated = outside + not_due + set_aside + due`, `due = already_claimed + claimed`."""

    pages: int = 0
    evaluated: int = 0
    outside: int = 0
    not_due: int = 0
    set_aside: int = 0
    due: int = 0
    already_claimed: int = 0
    claimed: int = 0
    entries: int = 0
    confirmed: int = 0
    recovered: int = 0


class PageFacts(msgspec.Struct, frozen=True):
    """One line of the read journal.

    Attributes:
        number: from 1, in the order of reading.
        cursor_json: the key that the read started from, as canonical JSON; None for the first.
        next_json: the key it ended with; None at the end.
        first_time, last_time: the range of booking time it returned, as the source spells it; None when it was empty.
        evaluated: records returned.
        staged: records put into the staging table, in a staged run.
    """

    number: int
    cursor_json: str | None
    next_json: str | None
    first_time: str | None
    last_time: str | None
    evaluated: int
    outside: int
    not_due: int
    read_at: datetime
    staged: int = 0
