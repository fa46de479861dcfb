"""Why was this record dispatched, or why not? Decided from what the source and the ledger say of it. Pure."""

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from dispatch.lookup import Sighting
from ledger.holds import held
from ledger.instants import HOUR_S, Window, format_ns, format_time
from ledger.settings import Settings
from ledger.standing import Claimed, RecordFacts, Standing

Reason = Literal[
    "dispatched",
    "unfinished",
    "entry_lost",
    "source_unknown",
    "gone",
    "not_due",
    "set_aside",
    "not_in_index",
    "window_running",
    "window_open",
    "window_owed",
    "window_incomplete",
    "missed",
    "void",
    "window_held",
    "window_too_old",
    "window_not_owed",
]
# Of two windows that both read a record exactly on the hour, the one that comes first here decides what becomes of it.
_HOPE: tuple[Reason, ...] = (
    "window_running",
    "window_owed",
    "window_open",
    "window_incomplete",
    "void",
    "missed",
    "window_held",
    "window_too_old",
    "window_not_owed",
)
_RECEIPTS = {
    "in_work": " A worker has it in work.",
    "completed": " A worker has completed it.",
    "failed": " Its worker reported a failure.",
    "superseded": " Its receipt is superseded by a redo.",
}


class Answer(msgspec.Struct, frozen=True):
    """Why a record was dispatched, or why not.

    Attributes:
        reason: one word for programs.
        sentence: the same for a person, with what to do where there is something to do.
        window: the window that it speaks of; None when none has to do with it.
    """

    reason: Reason
    sentence: str
    window: Window | None = None


def explain(seen: Sighting, facts: RecordFacts, settings: Settings) -> Answer:
    """Return the answer for the record where it stands now, else for its last claim, else for what is known at all."""
    present = [one for one in facts.claims if one.booking_ns == seen.booking_ns]
    if present:
        return _of_claim(present[-1], facts, _afterwards(seen))
    if facts.claims and seen.verdict in {"gone", "unknown"}:
        return _of_claim(facts.claims[-1], facts, _afterwards(seen))
    answer = _unclaimed(seen, facts, settings)
    return msgspec.structs.replace(answer, sentence=answer.sentence + _elsewhen(facts))


# --- claimed ------------------------------------------------------------------------------------------------------


def _of_claim(claim: Claimed, facts: RecordFacts, afterwards: str) -> Answer:
    booked = format_ns(claim.booking_ns)
    if claim.state is None or claim.state == "void" or claim.window is None:
        what = f"its claim for {booked} names entry {claim.entry_id}, which is void or not in the ledger"
        return Answer("entry_lost", f"Unclear: {what}; run: dispatch-ledger audit verify.{afterwards}", claim.window)
    if claim.state == "confirmed":
        redo = f", redo {claim.generation}" if claim.generation else ""
        job = f"job {claim.job}{redo} (entry {claim.entry_id}) in window {claim.window}"
        when = f", taken by its queue at {claim.confirmed_at}" if claim.confirmed_at else ""
        receipt = _RECEIPTS.get(claim.receipt or "", "")
        return Answer("dispatched", f"Yes: for {booked}, as {job}{when}.{receipt}{afterwards}", claim.window)
    return Answer(
        "unfinished", f"Not for certain: {_unfinished(claim, claim.window, facts)}.{afterwards}", claim.window
    )


def _unfinished(claim: Claimed, window: Window, facts: RecordFacts) -> str:
    begun = "may have been sent, without proof" if claim.state == "sending" else "was not sent yet"
    what = f"it is claimed for {format_ns(claim.booking_ns)}, but its job (entry {claim.entry_id}) {begun}"
    standing = facts.standings.get(window)
    if standing is not None and standing.state == "running":
        return f"{what}; a run is working on window {window}"
    if standing is not None and standing.held_reason is not None:
        return f"{what}; {_held(standing)}"
    return f"{what}; what finishes it: dispatch-ledger dispatch --window {window}"


def _afterwards(seen: Sighting) -> str:
    """Say what the source makes of a record that is claimed already."""
    if seen.verdict == "unknown":
        return " What the source says of it now could not be asked."
    if seen.verdict == "gone":
        return " It is not in the table any more."
    if seen.verdict == "not_due":
        return f" It is not due now: {seen.why}."
    if seen.verdict == "set_aside":
        return f" It is still due, but could not be used as it is now: {seen.why}."
    return " The source still says due; what is claimed is not sent again."


def _elsewhen(facts: RecordFacts) -> str:
    if not facts.claims:
        return ""
    last = facts.claims[-1]
    return f" At another booking time, {format_ns(last.booking_ns)}, it was claimed (entry {last.entry_id})."


# --- not claimed where it stands now ------------------------------------------------------------------------------


def _unclaimed(seen: Sighting, facts: RecordFacts, settings: Settings) -> Answer:
    if seen.verdict == "unknown":
        return _not_asked(seen, facts)
    if seen.verdict == "gone":
        return Answer("gone", f"No: it was never claimed, and {seen.why}; check the id and source.table.")
    if seen.verdict == "not_due":
        return Answer("not_due", f"No: {seen.why}.", next(iter(seen.windows), None))
    if not seen.windows:
        return _not_in_index(seen, settings)
    if seen.verdict == "set_aside":
        return _set_aside(seen, facts.standings[seen.windows[-1]])
    answers = [_in_window(facts.standings[one], facts, settings) for one in seen.windows]
    return min(answers, key=lambda answer: _HOPE.index(answer.reason))


def _not_asked(seen: Sighting, facts: RecordFacts) -> Answer:
    named = ", ".join(f"{kind} ({cause})" if cause else kind for kind, cause in facts.findings)
    found = f"; open findings name it: {named}" if named else ""
    return Answer(
        "source_unknown", f"No: it was never claimed{found}; why, only the source can say.{_afterwards(seen)}"
    )


def _set_aside(seen: Sighting, at: Standing) -> Answer:
    then = f", then: dispatch-ledger dispatch --window {at.window}" if at.ended else f", before {at.window.end_name}"
    if seen.booking_ns is None:  # the window that reads it now is that of a text, which is about to change
        then = " and ask again: which window sends it depends on the time that it has then"
    why = f"it is due, but cannot be used ({seen.why})"
    return Answer("set_aside", f"No: {why}; mend it in the source{then}.", at.window)


def _not_in_index(seen: Sighting, settings: Settings) -> Answer:
    source = settings.source
    keys = ((source.date_attribute, seen.booking_date), (source.time_attribute, seen.booking_time))
    missing = [name for name, text in keys if text is None]
    spelled = " and ".join(f"its {name} {text!r}" for name, text in keys)
    wrong = f"it has no {' and no '.join(missing)}" if missing else f"{spelled} do not belong together"
    why = f"it is due, but {wrong}, so that no window finds it in the index"
    return Answer("not_in_index", f"No: {why}; mend it in the source.")


# --- due, and waiting in a window ---------------------------------------------------------------------------------


def _in_window(at: Standing, facts: RecordFacts, settings: Settings) -> Answer:
    window = at.window
    if not at.ended:
        return Answer("window_open", f"Not yet: window {window} ends at {window.end_name} and goes out then.", window)
    if at.held_reason is not None:
        return Answer("window_held", f"No: {_held(at)}.", window)
    if at.state == "running":
        return Answer("window_running", f"Not yet: a run is working on window {window}; ask again after it.", window)
    if at.void_reason is not None:
        why = f"a job of its group in window {window} is void, and its claims are free again ({at.void_reason})"
        return Answer("void", f"No: {why}; {_send(at)}.", window)
    if at.completed_at is not None:
        return Answer("missed", f"No: {_missed(at, facts, settings)}.", window)
    if at.state == "incomplete":
        why = f"the last dispatch of window {window} {_ending(at)}"
        return Answer("window_incomplete", f"No: {why}; {_send(at)}.", window)
    return _never_dispatched(at, facts.now, settings)


def _held(at: Standing) -> str:
    return str(held(at.window, at.held_reason or "", at.held_kind))


def _send(at: Standing) -> str:
    verb = "dispatch" if at.completed_at is None else "reconcile"
    return f"run: dispatch-ledger {verb} --window {at.window}"


def _ending(at: Standing) -> str:
    error = f" ({at.last_error.rstrip('.')})" if at.last_error else ""
    return f"ended {at.last_outcome}{error}" if at.last_outcome else "did not end, and holds the window no more"


def _missed(at: Standing, facts: RecordFacts, settings: Settings) -> str:
    assert at.completed_at is not None, "only a completed window can have missed something"
    cause = next((cause for kind, cause in facts.findings if kind == "missed"), None)
    named = f" ({cause})" if cause else ""
    when = f"the dispatch of window {at.window} that was completed at {format_time(at.completed_at)} missed it{named}"
    grace = settings.reconcile.grace
    until = max(at.last_ended_at or at.completed_at, at.window.start + timedelta(seconds=HOUR_S)) + grace
    wait = f" after {format_time(until)}, when its grace is over" if facts.now < until else ""
    return f"it is due, but {when}; run{wait}: dispatch-ledger reconcile --window {at.window}"


def _never_dispatched(at: Standing, now: datetime, settings: Settings) -> Answer:
    window, schedule = at.window, settings.schedule
    if schedule.not_before is not None and window.start_s < schedule.not_before.timestamp():
        why = (
            f"window {window} starts before schedule.not_before ({format_time(schedule.not_before)}), so it is not owed"
        )
        return Answer("window_not_owed", f"No: {why}; if it is yours to send, {_send(at)}.", window)
    if window.start_s < _first_owed_s(now, settings):
        why = f"nobody has dispatched window {window}, and --due no longer looks back so far (schedule.catch_up)"
        return Answer("window_too_old", f"No: {why}; {_send(at)}.", window)
    return Answer(
        "window_owed", f"Not yet: nobody has dispatched window {window}; run: dispatch-ledger dispatch --due.", window
    )


def _first_owed_s(now: datetime, settings: Settings) -> int:
    """Return the start of the oldest window that `--due` looks at, in seconds since 1970."""
    back_s = int(now.timestamp()) - int(settings.schedule.catch_up.total_seconds())
    return -(-back_s // HOUR_S) * HOUR_S
