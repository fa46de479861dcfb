"""Reads the witnesses beside the objects before a run does anything, and writes them as it goes on.

Before a window is worked on, its witness and both neighbours' are compared with the ledger: one that says more than the
ledger does holds the window, since whatever is sent then may have been sent before. While it is worked on, the witness
says how far the window has come, and has landed before anything is sent.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Protocol
from uuid import UUID

from dispatch.aws.objects import ConditionFailedError, S3Objects, Upload
from dispatch.aws.pool import at_once
from dispatch.run import Run
from ledger import clock, evidence, windows
from ledger.acknowledging import Note
from ledger.errors import GuardError, UnavailableError
from ledger.holds import held
from ledger.instants import HOUR_S, Window, format_time
from ledger.keys import window_prefix
from ledger.leases import Tenure, count_on
from ledger.witness import FoundWitness, Witness, contradiction, decode_witness, encode_witness, witness_key

Place = tuple[str, str]

_READS_AT_ONCE = 32
_WRITES_MAX = 8
_COMPARED_AT_ONCE = 1000


class Fetcher(Protocol):
    """Whatever can read a small object."""

    def fetch(self, bucket: str, key: str) -> tuple[bytes, str] | None:
        """Return an object with its entity tag; None when it is not there."""


def read_witnesses(
    objects: Fetcher, places: Iterable[Place], pipeline: str, chosen: Iterable[Window]
) -> dict[Window, list[FoundWitness]]:
    """Read the witnesses of these windows, from every place where there may be one.

    Raises:
        CorruptError: when an object that should be one is none.
    """
    found: dict[Window, list[FoundWitness]] = {window: [] for window in chosen}
    wanted = [
        (window, bucket, witness_key(prefix, pipeline, window)) for window in found for bucket, prefix in set(places)
    ]

    def read(one: tuple[Window, str, str]) -> FoundWitness | None:
        return read_witness(objects, *one[1:])

    for (window, *_), witness in zip(wanted, at_once(read, wanted, _READS_AT_ONCE), strict=True):
        if witness is not None:
            found[window].append(witness)
    return found


def read_witness(objects: Fetcher, bucket: str, key: str) -> FoundWitness | None:
    """Read the witness under a key; None when there is none."""
    answer = objects.fetch(bucket, key)
    if answer is None:
        return None
    body, etag = answer
    return FoundWitness(bucket, key, etag, decode_witness(body, f"s3://{bucket}/{key}"))


def neighbours(window: Window) -> tuple[Window, Window]:
    """Return the windows before and after, which share the records on the hour."""
    return Window(window.start_s - HOUR_S), Window(window.start_s + HOUR_S)


class RunWitness:
    """The witness of the window that a run works on: written with each step, and never over one that says more.

    Args:
        place: bucket and prefix where this configuration stores objects.
        ledger_id: which ledger the run works with.
    """

    def __init__(self, objects: S3Objects, tenure: Tenure, place: Place, ledger_id: UUID) -> None:
        self.bucket, prefix = place
        self.key = witness_key(prefix, tenure.pipeline, tenure.window)
        self._objects, self._tenure, self._ledger_id = objects, tenure, ledger_id
        self._etag: str | None = None
        self._landed_seq = 0
        self.spent = False  # whether jobs were marked since the number that has landed

    def begin(self, found: Iterable[FoundWitness]) -> None:
        """Take note of what lies there, to be replaced by this run."""
        self._etag = next((one.etag for one in found if (one.bucket, one.key) == (self.bucket, self.key)), None)
        self._landed_seq = 0

    def land(self) -> str | None:
        """Write how far the window has come by now, unless that is there already.

        Returns:
            Why it was not written: somebody else has come further, or works under the same name; None when it lies
            there.

        Raises:
            UnavailableError: when the store does not take it after bounded tries.
        """
        seq = self._tenure.progress.seq
        if self._landed_seq == seq:
            return None
        witness = Witness(seq, self._ledger_id, self._tenure.run_id, format_time(clock.utc_now()))
        upload = Upload(self.key, encode_witness(witness), {})
        for _ in range(_WRITES_MAX):
            try:
                self._etag = self._objects.put_if(self.bucket, upload, self._etag)
            except ConditionFailedError:
                found = read_witness(self._objects, self.bucket, self.key)
                self._etag = None if found is None else found.etag
                if found is not None and (found.witness.run_id, found.witness.seq) != (witness.run_id, seq):
                    overtaken = contradiction([found], seq - 1, self._ledger_id)
                    if overtaken is not None:
                        return overtaken
                    continue
                if found is None:
                    continue
            self._landed_seq, self.spent = seq, False
            return None
        raise UnavailableError(
            f"s3://{self.bucket}/{self.key} was written by others all the time; nothing more was sent, run the window "
            "again"
        )


def enter(run: Run, note: Note | None = None, *, adopted: bool = False) -> None:
    """Make sure that this ledger knows what was promised in the window, and count the run; before all else.

    Args:
        note: who lets a held window go on, and why.
        adopted: whether what the ledger had forgotten of it is known again, so that its witness is brought to this
            ledger's word.

    Raises:
        GuardError: when the window is held now, or a neighbour is behind.
        LeaseLostError: when the window is no longer this run's: it is not held then, whatever the witness says.
    """
    tenure, beside = run.tenure, neighbours(run.tenure.window)
    found = read_witnesses(run.objects, run.places, tenure.pipeline, [tenure.window, *beside])
    mine = found.pop(tenure.window)
    if not adopted:
        _require_known(run, mine, looked_at=note is not None)
    floor = max((one.witness.seq for one in mine), default=0) if adopted else 0
    for window, reason in windows.enter(run.store, tenure, found, run.origin.ledger_id, floor).items():
        raise held_by_neighbour(tenure.window, window, reason)
    run.witness.begin(mine)
    land(run, run.witness.land())
    if note is not None:
        windows.release(run.store, tenure, note)


def land(run: Run, overtaken: str | None) -> None:
    """Go on when the witness has landed.

    Args:
        overtaken: what `RunWitness.land` has answered.

    Raises:
        GuardError: when it was overtaken although the window is this run's: the ledger was put back, or is not alone.
        LeaseLostError: when the window is no longer this run's; whoever has it by now has written the witness.
    """
    if overtaken is not None:
        raise windows.hold_behind(run.store, run.tenure, overtaken)


def step_on(run: Run) -> None:
    """Make sure, before jobs are marked, that the number which has landed stands for them alone.

    So what a ledger can have forgotten without its showing is one send: what was marked on the last number it knows.

    Raises:
        GuardError: when somebody else has come further, although the window is this run's.
        LeaseLostError: when the window is no longer this run's.
    """
    if run.witness.spent:
        count_on(run.store, run.tenure)
        land(run, run.witness.land())
    run.witness.spent = True


def held_by_neighbour(window: Window, beside: Window, reason: str) -> GuardError:
    """Return the error that says that a window waits for its neighbour, which is held."""
    shared = f"window {window} waits for window {beside}, with which it shares the records on the hour"
    return GuardError(f"{shared}; {held(beside, reason, 'behind')}")


def _require_known(run: Run, mine: list[FoundWitness], *, looked_at: bool) -> None:
    """Hold the window unless everything that it has promised is in this ledger.

    Args:
        looked_at: whether a person has looked at the objects of a window without any run.
    """
    tenure = run.tenure
    if mine:
        reason = contradiction(mine, tenure.progress.seq, run.origin.ledger_id)
        if reason is not None:
            raise windows.hold_behind(run.store, tenure, reason)
    elif tenure.progress.seq:
        reason = _find_unpromised(run)
        if reason is not None:
            raise windows.hold_behind(run.store, tenure, reason)
    elif not run.objects_checked and not looked_at:
        _require_no_objects(run)


def _require_no_objects(run: Run) -> None:
    """Hold a window without any run that has objects: the ledger was lost, or another dispatcher works."""
    tenure = run.tenure
    for bucket, prefix in run.places:
        place = window_prefix(prefix, tenure.pipeline, tenure.window)
        if run.objects.has_any(bucket, place):
            reason = f"no run of it is in the ledger, but objects are already under s3://{bucket}/{place}"
            windows.hold(run.store, tenure, "guard", reason)
            raise held(tenure.window, reason)


def _find_unpromised(run: Run) -> str | None:
    """Look for an object that no entry refers to, where the witness is gone; one that was seen before says nothing."""
    tenure = run.tenure
    for bucket, prefix in run.places:
        place = window_prefix(prefix, tenure.pipeline, tenure.window)
        listed = run.objects.listing(bucket, place)
        while keys := [one.key for one in islice(listed, _COMPARED_AT_ONCE)]:
            run.checkpoint()
            for key in evidence.list_unpromised(run.store, tenure, bucket, keys):
                return f"its witness is gone, and no entry refers to the object s3://{bucket}/{key}"
    return None
