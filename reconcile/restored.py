"""After a ledger was put back: which windows are behind, what their objects prove, and what a person says of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from dispatch.dispatcher import Dispatcher
from dispatch.run import Run
from dispatch.witnesses import Place, enter, read_witnesses
from ledger import evidence, runs, windows
from ledger.acknowledging import Note
from ledger.errors import BusyError, DispatchLedgerError
from ledger.facts import RunCounts
from ledger.holds import held
from ledger.instants import Window
from ledger.witness import FoundWitness, window_of_key, witness_folder
from reconcile.adopt import Adopted, Adoption, adopt_and_note, adopt_within

Word = Literal["sent", "unknown"]
_COMPARED_AT_ONCE = 1000


@dataclass
class Decided:
    """What became of a window of which a person has said what its adopted jobs are.

    Attributes:
        adopted: what was adopted right before that.
        vouched: how many jobs are confirmed on the person's word.
        unfinished: how many will be sent again, under their old keys.
        released: whether the window was held, and is not any more.
    """

    adopted: Adopted
    word: Word
    vouched: int = 0
    unfinished: int = 0
    released: bool = False


def recover_restored(dispatcher: Dispatcher) -> Adoption:
    """Compare every window with its witness, hold those that are behind, and adopt what their objects prove.

    That it is asked for is remembered, since receipts may be forgotten where nothing else is. Safe to repeat. A failure
    is in the report, not raised; see `adopt_objects`. Windows that need nothing are not in the report.
    """
    adoption = Adoption()
    try:
        windows.note_restored(dispatcher.store, dispatcher.settings.pipeline)
        for adopted in _suspects(dispatcher, find_windows(dispatcher)):
            adoption.windows.append(adopted)
            adopt_and_note(dispatcher, adoption, adopted)
    except DispatchLedgerError as error:
        adoption.error = error
    adoption.windows = [one for one in adoption.windows if one.behind or one.held or one.entries or one.refused]
    return adoption


def places_of(dispatcher: Dispatcher) -> list[Place]:
    """Return every bucket and prefix where witnesses of the pipeline may lie."""
    here = (dispatcher.partners.objects.bucket, dispatcher.settings.objects.prefix)
    return list(dict.fromkeys([here, *windows.read_origin(dispatcher.store, dispatcher.settings.pipeline).places]))


def find_windows(dispatcher: Dispatcher) -> list[Window]:
    """List every window that has a witness, or that the ledger knows, oldest first."""
    pipeline, objects = dispatcher.settings.pipeline, dispatcher.partners.objects
    found: set[Window] = set(windows.how_far(dispatcher.store, pipeline))
    for bucket, prefix in places_of(dispatcher):
        folder = witness_folder(prefix, pipeline)
        for one in objects.listing(bucket, folder):
            window = window_of_key(folder, one.key)
            if window is not None:
                found.add(window)
    return sorted(found)


def _suspects(dispatcher: Dispatcher, chosen: list[Window]) -> Iterable[Adopted]:
    """Yield the windows whose objects have to be looked at, a bounded number of witnesses at a time."""
    store, pipeline = dispatcher.store, dispatcher.settings.pipeline
    origin, places = windows.read_origin(store, pipeline), places_of(dispatcher)
    for at in range(0, len(chosen), _COMPARED_AT_ONCE):
        dispatcher.cancellation.check()
        part = chosen[at : at + _COMPARED_AT_ONCE]
        found = read_witnesses(dispatcher.partners.objects, places, pipeline, part)
        behind = windows.hold_if_behind(store, pipeline, found, origin.ledger_id)
        known = windows.how_far(store, pipeline, part)
        for window in part:
            if window in behind or _may_have_forgotten(found[window], known.get(window, windows.HowFar())):
                yield Adopted(window, behind.get(window))


def _may_have_forgotten(found: list[FoundWitness], known: windows.HowFar) -> bool:
    """Say whether a window's objects are to be looked at although no witness speaks against this ledger."""
    return known.held_kind in windows.FORGOTTEN or (not found and known.seq > 0)


def decide(dispatcher: Dispatcher, window: Window, word: Word, note: Note) -> Decided:
    """Take a person's word for what a window's adopted jobs are, and let it go on.

    What was forgotten is adopted first. Safe to repeat; a window that nothing is wrong with stays as it is.

    Raises:
        BusyError: when a run is working on it.
        GuardError: when it is held for another reason, or a neighbour is behind.
    """
    store, pipeline = dispatcher.store, dispatcher.settings.pipeline
    decided = Decided(next(iter(_suspects(dispatcher, [window])), Adopted(window)), word)
    facts = evidence.window_facts(store, pipeline, window)
    if facts.leased:
        raise BusyError(f"window {window} is being worked on; try again later")
    if facts.held_kind is None:
        return decided
    if facts.held_kind in {"person", "guard"}:
        raise held(window, facts.held_reason or "", facts.held_kind)
    started = runs.start_run(store, dispatcher.request(window, "reconcile"), even_held=True)

    def begin(run: Run) -> None:
        if facts.held_kind != "adopted":
            adopt_within(run, decided.adopted, facts.held_kind)
        if word == "sent":
            decided.vouched = windows.vouch(run.store, run.tenure, note)
        enter(run, note, adopted=True)

    counts = RunCounts()
    with dispatcher.working(started, counts, begin) as run:
        counts.entries = decided.adopted.entries
        runs.end_adoption(run.store, run.tenure, counts)
    decided.released = True
    decided.unfinished = evidence.count_unfinished(store, pipeline, window)
    return decided


def decided_document(decided: Decided) -> dict[str, Any]:
    """Return the document of `recover --restored --window … --as … --json`."""
    adopted = decided.adopted
    return {
        "window": adopted.window.name,
        "as": decided.word,
        "behind": adopted.behind,
        "entries": adopted.entries,
        "suspected": adopted.suspected,
        "refused": [{"object_key": key, "reason": reason} for key, reason in adopted.refused.items()],
        "vouched": decided.vouched,
        "to_be_sent_again": decided.unfinished,
        "released": decided.released,
    }
