"""Stored objects against entries: both in the byte order of their keys, merged without holding either."""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from dispatch.aws.objects import ListedObject
from dispatch.aws.pool import one_ahead
from dispatch.run import Run
from ledger import evidence, findings
from ledger.canonical import utf8
from ledger.evidence import PromisedObject
from ledger.findings import Seen
from ledger.keys import object_key, window_prefix
from reconcile.orphans import Orphan, handle_orphans
from reconcile.rebuild import rebuild_objects
from reconcile.rescan import Rescan

_AT_ONCE = 200
_COMPARED_AT_ONCE = 1000
T = TypeVar("T")


class Pair(NamedTuple):
    """What lies, or should lie, under one key."""

    key: str
    listed: ListedObject | None
    promised: list[PromisedObject]


def merge_by_key(listed: Iterable[ListedObject], promised: Iterable[tuple[str, PromisedObject]]) -> Iterator[Pair]:
    """Yield each key once, with what is stored there and which entries refer to it. Pure.

    Both come in the byte order of UTF-8, which is also the order of code points, by which Python compares text.
    """
    left, right = iter(listed), iter(promised)
    stored, wanted = next(left, None), next(right, None)
    while stored is not None or wanted is not None:
        keys = [one for one in (stored.key if stored else None, wanted[0] if wanted else None) if one is not None]
        key = min(keys)
        here: ListedObject | None = None
        if stored is not None and stored.key == key:
            here, stored = stored, next(left, None)
        entries: list[PromisedObject] = []
        while wanted is not None and wanted[0] == key:
            entries.append(wanted[1])
            wanted = next(right, None)
        yield Pair(key, here, entries)


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size`, the last of them shorter."""
    left = iter(items)
    while chunk := list(islice(left, size)):
        yield chunk


def differing(
    listed: Iterator[list[ListedObject]], promised: Iterator[list[tuple[str, PromisedObject]]]
) -> Iterator[Pair]:
    """Yield the keys as `merge_by_key`, without those at the beginning where both sides agree.

    Both come in chunks of one size. Where nothing differs they are compared whole, which is far cheaper than by key.
    """
    stored, wanted = next(listed, None), next(promised, None)
    while stored and wanted and [(one.key, one.stored) for one in stored] == [(key, one.sent) for key, one in wanted]:
        stored, wanted = next(listed, None), next(promised, None)
    whole = chain.from_iterable
    yield from merge_by_key(whole(chain([stored or []], listed)), whole(chain([wanted or []], promised)))


def lacks_its_object(pair: Pair) -> bool:
    """Say whether an entry was sent whose object is gone, or is no longer what was uploaded. Pure."""
    answers = [one.sent for one in pair.promised if one.sent is not None]
    return bool(answers) and (pair.listed is None or pair.listed.stored not in answers)


def compare_objects(rescan: Rescan) -> None:
    """Note orphaned, missing and altered objects of the window, and repair what is safe."""
    for bucket, pairs in _by_place(rescan):
        orphans: list[Orphan] = []
        lacking: list[Pair] = []
        for pair in pairs:
            if lacks_its_object(pair):
                lacking.append(pair)
            elif pair.listed is not None and not pair.promised:
                orphans.append(Orphan(bucket, pair.listed))
            if len(lacking) >= _AT_ONCE:
                _handle_lacking(rescan, bucket, lacking)
                lacking = []
            if len(orphans) >= _AT_ONCE:
                handle_orphans(rescan, orphans)
                orphans = []
        _handle_lacking(rescan, bucket, lacking)
        handle_orphans(rescan, orphans)


def _by_place(rescan: Rescan) -> Iterator[tuple[str, Iterator[Pair]]]:
    """Yield each bucket that the window's objects may lie in, with the keys of one prefix there that may differ."""
    run = rescan.run
    configured = {(one.bucket, one.prefix) for one in run.destinations.values()}
    for bucket, prefix in sorted(configured | evidence.places_of(run.store, run.tenure)):
        place = window_prefix(prefix, run.tenure.pipeline, run.tenure.window)
        wanted = (
            (object_key(place, one.group_digest, one.content_hash, one.generation), one)
            for one in evidence.promised_objects(run.store, run.tenure, bucket, prefix)
        )
        listed = one_ahead(in_chunks(run.objects.listing(bucket, place), _COMPARED_AT_ONCE))
        yield bucket, differing(_watched(run, listed), in_chunks(wanted, _COMPARED_AT_ONCE))


def _watched(run: Run, chunks: Iterator[T]) -> Iterator[T]:
    """Pass chunks on, as long as nobody asked to stop and the lease holds: there may be thousands of them."""
    for chunk in chunks:
        run.checkpoint()
        yield chunk


def unreferenced(rescan: Rescan) -> Iterator[Orphan]:
    """Yield the objects of the window that no entry refers to, however young."""
    for bucket, pairs in _by_place(rescan):
        for pair in pairs:
            if pair.listed is not None and not pair.promised:
                yield Orphan(bucket, pair.listed)


def _handle_lacking(rescan: Rescan, bucket: str, pairs: list[Pair]) -> None:
    """Look once more at each object, note those that are really gone or altered, and rebuild what can be rebuilt."""
    run = rescan.run
    run.checkpoint()
    again = [pair._replace(listed=run.objects.find(bucket, pair.key)) for pair in pairs]
    lacking = [pair for pair in again if lacks_its_object(pair)]
    ids = findings.record_seen(run.store, run.tenure, "missing_object", [_seen(bucket, pair) for pair in lacking])
    if rescan.options.repair and lacking:
        by_entry = {_sent_entry(pair).entry_id: ids[_subject(bucket, pair.key)] for pair in lacking}
        rebuilt = rebuild_objects(rescan, list(by_entry))
        findings.mark_repaired(run.store, run.tenure, [by_entry[entry_id] for entry_id in rebuilt], "rebuilt")


def _subject(bucket: str, key: str) -> bytes:
    return utf8(f"{bucket}/{key}")


def _sent_entry(pair: Pair) -> PromisedObject:
    return next(one for one in pair.promised if one.sent is not None)


def _seen(bucket: str, pair: Pair) -> Seen:
    entry = _sent_entry(pair)
    assert entry.sent is not None, "only a sent entry can lack its object"
    found = None if pair.listed is None else {"bytes": pair.listed.stored.size_bytes, "etag": pair.listed.stored.etag}
    return Seen(
        subject=_subject(bucket, pair.key),
        cause=None,
        entry_id=entry.entry_id,
        object_key=pair.key,
        detail={
            "bucket": bucket,
            "uploaded": {"bytes": entry.sent.size_bytes, "etag": entry.sent.etag},
            "found": found,
        },
    )
