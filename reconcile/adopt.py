"""After a ledger was lost or put back: what objects prove was promised becomes entries again, whose send is unknown."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import Any

import msgspec

from dispatch.aws.objects import ListedObject
from dispatch.dispatcher import Dispatcher
from dispatch.feeders import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from dispatch.judging import Rules, promised
from dispatch.run import Run
from dispatch.witnesses import Place
from ledger import evidence, outbox, runs, windows
from ledger.canonical import canonical_json, fingerprint, group_digest, idempotency_key, members, sha256
from ledger.errors import BusyError, DispatchLedgerError, InputError
from ledger.facts import Destination, Entry, HoldKind, Record, RunCounts
from ledger.holds import ADOPTED, ADOPTING
from ledger.ids import new_id
from ledger.instants import Window, parse_window
from ledger.keys import parse_object_key, window_prefix
from reconcile.documents import DocumentReader
from reconcile.orphans import TAG

_FORMAT = 1
_AT_ONCE = 500


@dataclass
class Adopted:
    """What came of one window.

    Attributes:
        behind: why this ledger cannot know all of it; None when nothing speaks against it.
        entries, records: what was adopted now.
        known: objects that entries refer to already.
        suspected: entries that were opened and not sent as far as this ledger knows, but whose objects are stored.
        held: whether the window waits for a person now.
        refused: objects that prove no promise, by key, with the reason.
    """

    window: Window
    behind: str | None = None
    entries: int = 0
    records: int = 0
    known: int = 0
    suspected: int = 0
    held: bool = False
    refused: dict[str, str] = field(default_factory=dict)


class _NotAPromiseError(Exception):
    """Why an object is no promise of this pipeline."""


@dataclass
class Adoption:
    """What came of it, window by window, and what ended it early."""

    windows: list[Adopted] = field(default_factory=list)
    error: DispatchLedgerError | None = None


# Objects of one window, by the bucket and prefix that they lie under.
Stored = Iterable[tuple[Place, Iterable[ListedObject]]]


def adopt_objects(dispatcher: Dispatcher) -> Adoption:
    """Adopt every object below the pipeline's prefix, window by window, oldest first; each window is held then.

    Safe to repeat: what is known already stays as it is. A failure is in the report, not raised: a window that a run
    works on, which is passed over; a partner that does not answer, or a signal, which end it.
    """
    settings, objects = dispatcher.settings, dispatcher.partners.objects
    place = (objects.bucket, settings.objects.prefix)
    folder = f"{settings.objects.prefix}{settings.pipeline}/"
    adoption = Adoption()
    try:
        listed = ((_window_of(one.key, folder), one) for one in objects.listing(objects.bucket, folder))
        for window, group in groupby(listed, key=lambda pair: pair[0]):
            if window is not None:
                adopted = Adopted(window)
                adoption.windows.append(adopted)
                adopt_and_note(dispatcher, adoption, adopted, [(place, (one for _, one in group))])
    except DispatchLedgerError as error:
        adoption.error = error
    return adoption


def adopt_and_note(dispatcher: Dispatcher, adoption: Adoption, adopted: Adopted, stored: Stored | None = None) -> None:
    """Adopt the objects of one window; that a run works on it is noted, and the others are gone on with.

    Args:
        stored: its objects; by default, all that lie wherever the pipeline has ever stored any.
    """
    try:
        _adopt_window(dispatcher, adopted, stored)
    except BusyError as error:
        adoption.error = error


def _window_of(key: str, place: str) -> Window | None:
    """Read the window back from where an object lies; None when it lies elsewhere."""
    parts = key.removeprefix(place).split("/")
    try:
        return parse_window("{}-{}-{}T{}:00:00Z".format(*parts))
    except (IndexError, InputError):
        return None


def _adopt_window(dispatcher: Dispatcher, adopted: Adopted, stored: Stored | None) -> None:
    store, pipeline, window = dispatcher.store, dispatcher.settings.pipeline, adopted.window
    before = evidence.window_facts(store, pipeline, window).held_kind
    started = runs.start_run(store, dispatcher.request(window, "reconcile"), even_held=True)
    counts = RunCounts()
    with dispatcher.working(started, counts, lambda _: None) as run:
        adopt_within(run, adopted, before, stored)
        counts.entries = adopted.entries
        runs.end_adoption(run.store, run.tenure, counts)
    adopted.held = evidence.window_facts(store, pipeline, window).held_reason is not None


def adopt_within(run: Run, adopted: Adopted, before: HoldKind | None, stored: Stored | None = None) -> None:
    """Adopt a window's objects, in a run that goes on with a held window; it waits for a person's word then.

    Args:
        before: why it was held before.
    """
    forgotten = before in windows.FORGOTTEN
    for place, objects in _all_stored(run) if stored is None else stored:
        waiting = iter(objects)
        while chunk := list(islice(waiting, _AT_ONCE)):
            run.checkpoint()
            _adopt_chunk(run, place, chunk, adopted, forgotten=forgotten)
    if adopted.entries or forgotten:
        outbox.supersede_replaced(run.store, run.tenure)
        windows.hold(run.store, run.tenure, "adopted", ADOPTED)


def _all_stored(run: Run) -> Iterator[tuple[Place, Iterable[ListedObject]]]:
    for bucket, prefix in run.places:
        folder = window_prefix(prefix, run.tenure.pipeline, run.tenure.window)
        yield (bucket, prefix), run.objects.listing(bucket, folder)


def _adopt_chunk(run: Run, place: Place, chunk: list[ListedObject], adopted: Adopted, *, forgotten: bool) -> None:
    """Adopt what no entry refers to; where the ledger has forgotten, suspect of the rest what was never marked."""
    keys = [one.key for one in chunk]
    unknown = set(evidence.list_unpromised(run.store, run.tenure, place[0], keys, even_noted=True))
    for listed in chunk:
        if listed.key in unknown:
            _adopt_object(run, place, listed, adopted)
    known = {evidence.promise_of(run.tenure, one.key): one.stored for one in chunk if one.key not in unknown}
    adopted.known += len(known)
    if forgotten and known:
        adopted.suspected += outbox.suspect(run.store, run.tenure, known)


def _adopt_object(run: Run, place: Place, listed: ListedObject, adopted: Adopted) -> None:
    try:
        entry = _read_promise(run, place, listed)
        if not adopted.entries:  # before anything is adopted: a process that dies in the middle leaves it held
            windows.hold(run.store, run.tenure, "adopting", ADOPTING)
        chunks = partial(_chunks, run, place[0], listed)
        if not outbox.adopt(run.store, run.tenure, entry, chunks, listed.stored):
            raise _NotAPromiseError("some of its records are claimed by another entry")  # noqa: TRY301 - one way to refuse
    except _NotAPromiseError as reason:
        adopted.refused[listed.key] = str(reason)
        return
    run.objects.untag(place[0], listed.key, TAG)
    adopted.entries += 1
    adopted.records += entry.records_n


def _read_promise(run: Run, place: Place, listed: ListedObject) -> Entry:
    """Read an object once, holding nothing, and check that it is what its key says."""
    parts = parse_object_key(listed.key)
    if parts is None:
        raise _NotAPromiseError("its key is none that an entry would have")
    digest, content, generation = parts
    whole, records_n = hashlib.sha256(), 0
    reader = DocumentReader(run.objects.read(place[0], listed.key))
    for body in reader:
        records_n += 1
        whole.update(sha256(body))
    if reader.frame is None or not records_n:
        raise _NotAPromiseError("it is no document of a group")
    if whole.digest() != content:
        raise _NotAPromiseError("its records do not have the hash that its key names")
    group = _group_json(reader.frame, run.rules, digest)
    key = idempotency_key(run.tenure.pipeline, run.tenure.window.name, digest, content, generation)
    expected = {"format": _FORMAT, "pipeline": run.tenure.pipeline, "idempotency_key": key.hex()}
    if any(bytes(reader.frame.get(name, b"")) != canonical_json(value) for name, value in expected.items()):
        raise _NotAPromiseError("it belongs to another pipeline, window or format")
    return Entry(
        id=new_id(),
        pipeline=run.tenure.pipeline,
        window=run.tenure.window,
        group_digest=digest,
        content_hash=content,
        idempotency_key=key,
        generation=generation,
        records_n=records_n,
        group_json=group,
        destination=_destination(run, place, bytes(reader.frame.get("job", b""))),
    )


def _group_json(frame: dict[str, msgspec.Raw], rules: Rules, digest: bytes) -> bytes:
    group = bytes(frame.get("group", b""))
    values = members(group) if group.startswith(b"{") else {}
    if set(values) != set(rules.group_by):
        raise _NotAPromiseError(f"it is not grouped by {', '.join(rules.group_by)}")
    if group_digest([values[name] for name in rules.group_by]) != digest:
        raise _NotAPromiseError("its group is not the one that its key names")
    return group


def _destination(run: Run, place: Place, job: bytes) -> Destination:
    bucket, prefix = place
    for one in run.destinations.values():
        if canonical_json(one.job) == job:
            there = msgspec.structs.replace(one, bucket=bucket, prefix=prefix)
            return outbox.destinations(run.store, run.tenure.pipeline_id, [there])[one.route]
    raise _NotAPromiseError("no route has its job")


def _chunks(run: Run, bucket: str, listed: ListedObject) -> Iterator[list[Record]]:
    """Read an object's records again, a bounded number at a time."""
    chunk: list[Record] = []
    size = 0
    for body in DocumentReader(run.objects.read(bucket, listed.key)):
        chunk.append(_record(run.rules, body))
        size += len(body)
        if len(chunk) == BATCH_RECORDS_MAX or size > BATCH_BYTES_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _record(rules: Rules, body: bytes) -> Record:
    try:
        booking_ns, record_id = promised(body, rules)
    except ValueError as reason:
        raise _NotAPromiseError(f"one of its records cannot be read: {reason}") from None
    return Record(record_id, booking_ns, b"", b"", body, fingerprint(body, rules.updated_at_attribute))


def adoption_document(adoption: Adoption) -> dict[str, Any]:
    """Return the document of `recover --json`."""
    windows = [
        {
            "window": one.window.name,
            "behind": one.behind,
            "entries": one.entries,
            "records": one.records,
            "known": one.known,
            "suspected": one.suspected,
            "refused": [{"object_key": key, "reason": reason} for key, reason in one.refused.items()],
            "held": one.held,
        }
        for one in adoption.windows
    ]
    error = None if adoption.error is None else str(adoption.error)
    return {"windows": windows, "entries": sum(one.entries for one in adoption.windows), "error": error}
