"""What the ledger knows of one record and of the windows that it waits in, as facts to decide on."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from ledger.documents import rows
from ledger.facts import HoldKind
from ledger.instants import Window
from ledger.reports import only, window_numbers
from ledger.store import Connection

_LAST_DISPATCH = (
    "SELECT outcome, error, finished_at FROM runs WHERE window_id = %(window_id)s AND fence IS NOT NULL "
    "AND cause IN ('schedule', 'manual') ORDER BY fence DESC, started_at DESC LIMIT 1"
)
_VOID = (
    "SELECT void_reason FROM entries WHERE window_id = %(window_id)s AND group_digest = %(group_digest)s "
    "AND void_reason IS NOT NULL ORDER BY id DESC LIMIT 1"
)


class Claimed(msgspec.Struct, frozen=True):
    """One claim of the record, with what became of its entry.

    Attributes:
        booking_ns: the booking time that was claimed, nanoseconds since 1970.
        entry_id: as text.
        window: the window of the entry, None when the ledger has lost the entry, as with `state` and `job`.
        state: `pending`, `sending`, `confirmed` or `void`.
        confirmed_at: as text.
        receipt: the state of the consumer's receipt, None while there is none.
    """

    booking_ns: int
    generation: int
    entry_id: str
    window: Window | None
    state: str | None
    job: str | None
    confirmed_at: str | None
    receipt: str | None


class Standing(msgspec.Struct, frozen=True):
    """How a window stands.

    Attributes:
        ended: whether it has ended, on the database's clock.
        state: as in `report windows`.
        completed_at: when a dispatch last completed it; None when none has.
        last_outcome, last_error, last_ended_at: of the last dispatch that got it; None without one, or while it runs.
        void_reason: why the newest void entry of the record's group in this window is void; None without one.
    """

    window: Window
    ended: bool
    state: str
    held_reason: str | None = None
    held_kind: HoldKind | None = None
    completed_at: datetime | None = None
    last_outcome: str | None = None
    last_error: str | None = None
    last_ended_at: datetime | None = None
    void_reason: str | None = None


class RecordFacts(msgspec.Struct, frozen=True):
    """What is known of a record at one moment.

    Attributes:
        now: that moment, on the database's clock.
        claims: by booking time, then generation.
        findings: kind and cause of the open findings that name the record.
    """

    now: datetime
    claims: list[Claimed]
    standings: dict[Window, Standing]
    findings: list[tuple[str, str | None]]


def find_standings(
    connection: Connection, pipeline: str, windows: Iterable[Window], group_digest: bytes | None
) -> tuple[datetime, dict[Window, Standing]]:
    """Return the time on the database's clock, and how each of a few windows stands at that time.

    Args:
        group_digest: the record's group, whose void entries are looked for; None when it is not known.
    """
    moment: datetime = rows(connection, "SELECT ledger_now() AS now", {})[0]["now"]
    return moment, {one: _standing(connection, pipeline, one, group_digest, moment) for one in windows}


def _standing(
    connection: Connection, pipeline: str, window: Window, group_digest: bytes | None, moment: datetime
) -> Standing:
    ended = moment.timestamp() >= window.end_s
    found = window_numbers(connection, pipeline, only(window))
    if not found:
        return Standing(window, ended, "not_dispatched")
    key: dict[str, Any] = {"window_id": found[0]["id"], "group_digest": group_digest}
    last = next(iter(rows(connection, _LAST_DISPATCH, key)), {})
    void = next(iter(rows(connection, _VOID, key)), {})
    return Standing(
        window=window,
        ended=ended,
        state=found[0]["state"],
        held_reason=found[0]["held_reason"],
        held_kind=found[0]["held_kind"],
        completed_at=found[0]["completed_at"],
        last_outcome=last.get("outcome"),
        last_error=last.get("error"),
        last_ended_at=last.get("finished_at"),
        void_reason=void.get("void_reason"),
    )
