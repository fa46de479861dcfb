"""Why was a record missed? Decided from the read journal and the record's own change time. Pure."""

from datetime import datetime

import msgspec

from ledger.instants import format_ns, format_time


class Evidence(msgspec.Struct, frozen=True):
    """What is known of a missed record.

    Attributes:
        set_aside: whether a dispatch once could not use it.
        page, read_at: the page of the last completed dispatch that covers its booking time, and when that was read.
        finished_at: when that dispatch ended.
        changed_at: when the record last changed, by its own word; None when no attribute says so.
        elsewhen_ns: another booking time at which it was claimed; None when there is none near this window.
    """

    set_aside: bool
    page: int | None
    read_at: datetime | None
    finished_at: datetime | None
    changed_at: datetime | None
    elsewhen_ns: int | None


def cause_of_missed(evidence: Evidence) -> str:
    """Return the cause, `unknown` only where the evidence does not decide.

    A record that changed before its range was read was there, and the index did not show it: `index_lag`. One that
    changed while the run was still reading on moved into a range already read: `moved_in`. One that changed after the
    run came too late for it: `late_insert`, unless it is known to have stood elsewhere before.
    """
    if evidence.set_aside:
        return "was_set_aside"
    changed_at, read_at, finished_at = evidence.changed_at, evidence.read_at, evidence.finished_at
    if changed_at is not None and read_at is not None and changed_at <= read_at:
        return "index_lag"
    if evidence.elsewhen_ns is not None:
        return "moved_in"
    if changed_at is None or finished_at is None:
        return "unknown"
    return "moved_in" if changed_at <= finished_at else "late_insert"


def detail_of(evidence: Evidence, booking_ns: int) -> dict[str, object]:
    """Return the evidence as the detail of a finding."""
    moments = {"read_at": evidence.read_at, "run_finished_at": evidence.finished_at, "changed_at": evidence.changed_at}
    known: dict[str, object] = {name: format_time(moment) for name, moment in moments.items() if moment is not None}
    if evidence.page is not None:
        known["page"] = evidence.page
    if evidence.elsewhen_ns is not None:
        known["also_claimed_for"] = format_ns(evidence.elsewhen_ns)
    return {"booking_time": format_ns(booking_ns), **known}
