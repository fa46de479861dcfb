"""The entries of the ledger on their way: opened with their claims, marked before they are sent, confirmed after."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count, groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec
import psycopg

from ledger import findings, gathering
from ledger.canonical import content_hash, idempotency_key, packed_id, sha256
from ledger.facts import Destination, Entry, Group, Occurrence, Record, SendAnswer, StoredObject
from ledger.ids import new_id
from ledger.leases import Tenure, check_fence, execute_fenced, raise_seq
from ledger.store import Connection, Store, byte_array, number_array, sql

_COPY_PARTS = "COPY payload_parts (window_id, entry_id, part, records_json) FROM STDIN (FORMAT BINARY)"
FIRST_ID = UUID(int=0)


@dataclass
class Opened:
    """What became of a batch: the entries that were opened and how many records they claimed.

    Attributes:
        bodies: for each entry, its records as canonical JSON joined by commas.
    """

    entries: list[Entry] = field(default_factory=list)
    bodies: dict[UUID, bytes] = field(default_factory=dict)
    claimed: int = 0


def destinations(store: Store, pipeline_id: int, wanted: Iterable[Destination]) -> dict[str, Destination]:
    """Write down where the entries of each route go; returns them by route, with their numbers. Safe to repeat."""

    def work(connection: Connection) -> dict[str, Destination]:
        return {one.route: _destination(connection, pipeline_id, one) for one in wanted}

    return store.transaction(work)


def _destination(connection: Connection, pipeline_id: int, wanted: Destination) -> Destination:
    values = (pipeline_id, wanted.route, wanted.job, wanted.queue, wanted.bucket, wanted.prefix)
    columns = "(pipeline_id, route, job, queue, bucket, prefix)"
    find = f"SELECT id FROM destinations WHERE {columns} = (%s, %s, %s, %s, %s, %s)"  # noqa: S608 - constants only
    found = connection.execute(find, values).fetchone()
    if found is None:
        insert = f"INSERT INTO destinations {columns} VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"  # noqa: S608
        connection.execute(insert, values)
        found = connection.execute(find, values).fetchone()
    assert found is not None, "it was just inserted"
    return msgspec.structs.replace(wanted, id=int(found[0]))


def open_entries(
    store: Store, tenure: Tenure, groups: Sequence[Group], by_route: Mapping[str, Destination], generation: int = 0
) -> Opened:
    """Claim the groups' records and write an entry with its payload for what could be claimed, in one transaction.

    Safe to repeat: the entries' ids are fixed before the first try, so a commit whose answer was lost is recognised.

    Raises:
        LeaseLostError: when the window is no longer this run's; nothing was claimed.
        PutBackError: when the ledger was put back to an earlier state since; nothing was claimed.
    """
    ids = [new_id() for _ in groups]
    tries = count()

    def work(connection: Connection) -> Opened:
        check_fence(connection, tenure)
        if next(tries) and _exists(connection, ids):
            opened = _reload(connection, tenure, ids)
        else:
            opened = open_in(connection, tenure, ids, groups, by_route, generation)
        if opened.entries:
            raise_seq(connection, tenure)
        return opened

    opened = store.transaction(work)
    tenure.progress.seq += bool(opened.entries)
    return opened


def open_in(
    connection: Connection,
    tenure: Tenure,
    ids: Sequence[UUID],
    groups: Sequence[Group],
    by_route: Mapping[str, Destination],
    generation: int,
) -> Opened:
    """Do what `open_entries` does, in a transaction that has more to do, checks the fence and counts the window on.

    Args:
        ids: of the entries, one a group.
    """
    mine = _claim(connection, tenure, ids, groups, generation)
    opened = Opened()
    for entry_id, group in zip(ids, groups, strict=True):
        records = group.records if mine is None else [one for one in group.records if _occurrence(one) in mine]
        if records:
            entry = _entry(tenure, entry_id, group, [one.body for one in records], by_route, generation)
            opened.entries.append(entry)
            opened.bodies[entry.id] = b",".join(one.body for one in records)
            opened.claimed += len(records)
    if opened.entries:
        _insert_entries(connection, tenure, opened.entries, generation)
        _insert_parts(connection, tenure, ((entry_id, 0, body) for entry_id, body in opened.bodies.items()))
    return opened


def has_claims(store: Store, tenure: Tenure) -> bool:
    """Say whether any occurrence of the window is claimed, by whichever run of whichever window."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM claims WHERE pipeline_id = %(pipeline_id)s "
        "AND booking_ns BETWEEN %(start_ns)s AND %(end_ns)s)"
    )
    parameters = {
        "pipeline_id": tenure.pipeline_id,
        "start_ns": tenure.window.start_ns,
        "end_ns": tenure.window.end_ns,
    }
    row = store.transaction(lambda connection: connection.execute(query, parameters).fetchone())
    return bool(row and row[0])


def occurrence_arrays(tenure: Tenure, occurrences: Sequence[Occurrence]) -> dict[str, Any]:
    """The parameters that these occurrences are in a statement that looks them up among the claims."""
    return {
        "pipeline_id": tenure.pipeline_id,
        "booking_ns": number_array(booking_ns for booking_ns, _ in occurrences),
        "record_ids": byte_array(packed_id(record_id) for _, record_id in occurrences),
    }


def claimed_already(store: Store, tenure: Tenure, occurrences: Sequence[Occurrence]) -> dict[int, UUID]:
    """Return which of these occurrences are claimed, by their place in the sequence, with the last entry of each."""
    if not occurrences:
        return {}
    parameters = occurrence_arrays(tenure, occurrences)
    return dict(store.transaction(lambda connection: connection.execute(sql("claimed_already"), parameters).fetchall()))


def _occurrence(record: Record) -> tuple[int, bytes]:
    return record.booking_ns, packed_id(record.record_id)


def _claim(
    connection: Connection, tenure: Tenure, ids: Sequence[UUID], groups: Sequence[Group], generation: int
) -> set[tuple[int, bytes]] | None:
    """Claim every record of the groups; returns the occurrences that are now ours, or None when all are."""
    wanted = [(one, number) for number, group in enumerate(groups, 1) for one in group.records]
    parameters = {
        "pipeline_id": tenure.pipeline_id,
        "generation": generation,
        "entry_ids": list(ids),
        "booking_ns": number_array(one.booking_ns for one, _ in wanted),
        "record_ids": byte_array(packed_id(one.record_id) for one, _ in wanted),
        "fingerprints": number_array(one.fingerprint for one, _ in wanted),
        "entry_nos": number_array(number for _, number in wanted),
    }
    rows = connection.execute(sql("open_claims"), parameters).fetchall()
    return None if len(rows) == len(wanted) else set(rows)


def _entry(
    tenure: Tenure,
    entry_id: UUID,
    group: Group,
    bodies: Sequence[bytes],
    by_route: Mapping[str, Destination],
    generation: int,
) -> Entry:
    return _entry_of(tenure, entry_id, group, content_hash(bodies), len(bodies), by_route, generation)


def _entry_of(
    tenure: Tenure,
    entry_id: UUID,
    group: Group,
    content: bytes,
    records_n: int,
    by_route: Mapping[str, Destination],
    generation: int,
) -> Entry:
    return Entry(
        id=entry_id,
        pipeline=tenure.pipeline,
        window=tenure.window,
        group_digest=group.digest,
        content_hash=content,
        idempotency_key=idempotency_key(tenure.pipeline, tenure.window.name, group.digest, content, generation),
        generation=generation,
        records_n=records_n,
        group_json=group.values_json,
        destination=by_route[group.route],
    )


def key_of(tenure: Tenure, group: Group, generation: int = 0) -> bytes:
    """Return the idempotency key that an entry of this group as it is would have."""
    content = content_hash([one.body for one in group.records])
    return idempotency_key(tenure.pipeline, tenure.window.name, group.digest, content, generation)


def list_refused(store: Store, keys: Sequence[bytes], within: timedelta) -> list[bytes]:
    """Return which of these idempotency keys a queue has refused so recently that another try is too early."""
    query = (
        "SELECT DISTINCT idempotency_key FROM entries JOIN attempts ON attempts.entry_id = entries.id "
        "WHERE idempotency_key = ANY(%s::bytea[]) AND void_reason IS NOT NULL AND outcome = 'refused' "
        "AND answered_at > ledger_now() - %s::interval"
    )
    parameters = (byte_array(keys), within)
    return [key for (key,) in store.transaction(lambda connection: connection.execute(query, parameters).fetchall())]


def _insert_entries(connection: Connection, tenure: Tenure, entries: Sequence[Entry], generation: int) -> None:
    parameters = {
        "window_id": tenure.window_id,
        "run_id": tenure.run_id,
        "generation": generation,
        "ids": [entry.id for entry in entries],
        "destination_ids": number_array(entry.destination.id for entry in entries),
        "records_n": number_array(entry.records_n for entry in entries),
        "group_digests": byte_array(entry.group_digest for entry in entries),
        "content_hashes": byte_array(entry.content_hash for entry in entries),
        "idempotency_keys": byte_array(entry.idempotency_key for entry in entries),
        "group_jsons": [entry.group_json.decode() for entry in entries],
    }
    connection.execute(sql("open_entries"), parameters)


def _insert_parts(connection: Connection, tenure: Tenure, parts: Iterable[tuple[UUID, int, bytes]]) -> None:
    with connection.cursor() as cursor, cursor.copy(_COPY_PARTS) as copy:
        copy.set_types(["int8", "uuid", "int4", "bytea"])
        for entry_id, number, body in parts:
            copy.write_row((tenure.window_id, entry_id, number, body))


def _exists(connection: Connection, ids: Sequence[UUID]) -> bool:
    query = "SELECT 1 FROM entries WHERE id = ANY(%s::uuid[]) LIMIT 1"
    return connection.execute(query, (list(ids),)).fetchone() is not None


def _reload(connection: Connection, tenure: Tenure, ids: Sequence[UUID], *, bodies: bool = True) -> Opened:
    entries = _by_id(connection, tenure, ids)
    loaded = _payloads(connection, tenure, [entry.id for entry in entries]) if bodies else {}
    return Opened(entries, loaded, sum(entry.records_n for entry in entries))


def open_streamed(
    store: Store,
    tenure: Tenure,
    group: Group,
    chunks: Callable[[], Iterable[list[Record]]],
    by_route: Mapping[str, Destination],
    generation: int = 0,
) -> Entry | None:
    """Do what `open_entries` does for one group that is too large to hold, chunk by chunk, in one transaction.

    The lease is locked only at the end, so that it can be renewed in the meantime. Safe to repeat like `open_entries`.

    Args:
        group: the group; its own records are not looked at.
        chunks: starts to read its records in payload order; called again when the transaction has to be repeated.

    Returns:
        The entry, or None when every record was claimed already.
    """
    entry_id = new_id()
    tries = count()

    def work(connection: Connection) -> Entry | None:
        if next(tries) and _exists(connection, [entry_id]):
            entry: Entry | None = _reload(connection, tenure, [entry_id], bodies=False).entries[0]
        else:
            entry = open_chunks_in(connection, tenure, entry_id, group, chunks(), by_route, generation)
        check_fence(connection, tenure)
        if entry is not None:
            raise_seq(connection, tenure)
        return entry

    entry = store.transaction(work)
    tenure.progress.seq += entry is not None
    return entry


def open_chunks_in(
    connection: Connection,
    tenure: Tenure,
    entry_id: UUID,
    group: Group,
    chunks: Iterable[list[Record]],
    by_route: Mapping[str, Destination],
    generation: int,
) -> Entry | None:
    """Do what `open_streamed` does, in a transaction that has more to do, checks the fence and counts the window on."""
    whole, records_n = hashlib.sha256(), 0
    for number, chunk in enumerate(chunks):
        part = msgspec.structs.replace(group, records=chunk)
        mine = _claim(connection, tenure, [entry_id], [part], generation)
        bodies = [one.body for one in chunk if mine is None or _occurrence(one) in mine]
        if bodies:
            records_n += len(bodies)
            for body in bodies:
                whole.update(sha256(body))
            _insert_parts(connection, tenure, [(entry_id, number, b",".join(bodies))])
    if not records_n:
        return None
    entry = _entry_of(tenure, entry_id, group, whole.digest(), records_n, by_route, generation)
    _insert_entries(connection, tenure, [entry], generation)
    return entry


def adopt(
    store: Store,
    tenure: Tenure,
    entry: Entry,
    chunks: Callable[[], Iterable[list[Record]]],
    stored: StoredObject,
) -> bool:
    """Take an entry into the ledger that an object proves, with its claims and payload; its send is unknown.

    Safe to repeat like `open_entries`.

    Args:
        chunks: starts to read its records; called again when the transaction has to be repeated.

    Returns:
        False when one of its records is claimed by another entry; nothing is kept then.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """
    tries = count()

    def work(connection: Connection) -> bool:
        if next(tries) and _exists(connection, [entry.id]):
            return True
        group = Group(
            digest=entry.group_digest, values_json=entry.group_json, route=entry.destination.route, records=[]
        )
        for number, chunk in enumerate(chunks()):
            part = msgspec.structs.replace(group, records=chunk)
            if _claim(connection, tenure, [entry.id], [part], entry.generation) is not None:
                raise psycopg.Rollback
            _insert_parts(connection, tenure, [(entry.id, number, b",".join(one.body for one in chunk))])
        check_fence(connection, tenure)
        _insert_entries(connection, tenure, [entry], entry.generation)
        insert = (
            "INSERT INTO open_attempts (entry_id, number, fence, marked_at, object_bytes, object_etag, error) "
            "VALUES (%s, 1, %s, ledger_now(), %s, %s, 'adopted from its object')"
        )
        connection.execute(insert, (entry.id, tenure.fence, stored.size_bytes, stored.etag))
        return True

    return bool(store.transaction(work))


def suspect(store: Store, tenure: Tenure, stored: Mapping[bytes, StoredObject]) -> int:
    """Take the send of entries for unknown that were never marked here, but whose objects are stored.

    So it is where this ledger has forgotten what came after their opening. Safe to repeat.

    Args:
        stored: the objects, by the idempotency key of their entries.

    Returns:
        How many entries are suspected now.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """
    parameters = {
        "window_id": tenure.window_id,
        "fence": tenure.fence,
        "keys": byte_array(stored),
        "object_bytes": number_array(one.size_bytes for one in stored.values()),
        "object_etags": [one.etag for one in stored.values()],
    }

    def work(connection: Connection) -> int:
        check_fence(connection, tenure)
        return connection.execute(sql("suspect_entries"), parameters).rowcount

    return store.transaction(work)


def supersede_replaced(store: Store, tenure: Tenure) -> None:
    """Keep the jobs of the window from being worked that a redo has replaced, as far as they owe nothing else.

    For redos that were adopted from their objects; safe to repeat.
    """

    def work(connection: Connection) -> None:
        check_fence(connection, tenure)
        gathering.begin_gathering(connection)
        gathering.supersede(connection, tenure, "replaced by a redo that was adopted from its objects", of_any_run=True)

    store.transaction(work)


def iter_parts(store: Store, tenure: Tenure, entry: Entry) -> Iterator[bytes]:
    """Yield the payload of an unfinished entry part by part, each a few megabytes at the most."""
    query = (
        "SELECT part, records_json FROM payload_parts WHERE window_id = %s AND entry_id = %s AND part > %s "
        "ORDER BY part LIMIT 1"
    )
    after = -1
    while True:
        parameters = (tenure.window_id, entry.id, after)
        row = store.transaction(_one_row(query, parameters))
        if row is None:
            return
        after = row[0]
        yield row[1]


def payloads(store: Store, tenure: Tenure, entries: Sequence[Entry]) -> dict[UUID, bytes]:
    """Return the whole payload of each of these unfinished entries; the caller knows that they are small."""
    return store.transaction(lambda connection: _payloads(connection, tenure, [entry.id for entry in entries]))


def _payloads(connection: Connection, tenure: Tenure, ids: Sequence[UUID]) -> dict[UUID, bytes]:
    query = (
        "SELECT entry_id, records_json FROM payload_parts WHERE window_id = %s AND entry_id = ANY(%s::uuid[]) "
        "ORDER BY entry_id, part"
    )
    rows = connection.cursor(binary=True).execute(query, (tenure.window_id, list(ids))).fetchall()
    return {entry_id: b",".join(row[1] for row in parts) for entry_id, parts in groupby(rows, itemgetter(0))}


def _one_row(query: Any, parameters: tuple[Any, ...]) -> Callable[[Connection], tuple[Any, ...] | None]:
    return lambda connection: connection.cursor(binary=True).execute(query, parameters).fetchone()


def load_sent(store: Store, tenure: Tenure, ids: Sequence[UUID]) -> list[Entry]:
    """Return these entries of the window, as they were promised."""
    return store.transaction(lambda connection: _by_id(connection, tenure, ids))


def _by_id(connection: Connection, tenure: Tenure, ids: Sequence[UUID]) -> list[Entry]:
    return [_entry_from(row, tenure) for row in connection.execute(sql("entries_by_id"), {"ids": list(ids)})]


def record_rebuilt(store: Store, tenure: Tenure, entry: Entry, stored: StoredObject) -> None:
    """Write down what the object store answered when the lost object of a sent entry was stored again.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """
    update = (
        "UPDATE attempts SET object_bytes = %s, object_etag = %s "
        "WHERE entry_id = %s AND outcome IN ('accepted', 'received', 'vouched')"
    )
    execute_fenced(store, tenure, update, (stored.size_bytes, stored.etag, entry.id))


def payload_bytes(store: Store, tenure: Tenure, entries: Sequence[Entry]) -> dict[UUID, int]:
    """Return how large the payload of each unfinished entry is, in bytes."""
    query = (
        "SELECT entry_id, sum(length(records_json)) FROM payload_parts "
        "WHERE window_id = %s AND entry_id = ANY(%s::uuid[]) GROUP BY entry_id"
    )
    parameters = (tenure.window_id, [entry.id for entry in entries])
    return store.transaction(lambda connection: {one: int(n) for one, n in connection.execute(query, parameters)})


def list_unfinished(
    store: Store, tenure: Tenure, after: UUID | None, limit: int, quiet: timedelta = timedelta()
) -> list[Entry]:
    """List up to `limit` unfinished entries of the window, opened after the one given, in the order of opening.

    Args:
        quiet: leave out those that were opened or tried more recently than this.
    """
    return store.transaction(lambda connection: _unfinished(connection, tenure, after or FIRST_ID, limit, quiet))


def _unfinished(
    connection: Connection, tenure: Tenure, after: UUID, limit: int, quiet: timedelta = timedelta()
) -> list[Entry]:
    parameters = {"window_id": tenure.window_id, "after": after, "limit": limit, "quiet": quiet}
    return [_entry_from(row, tenure) for row in connection.execute(sql("unfinished_entries"), parameters)]


def _entry_from(row: tuple[Any, ...], tenure: Tenure) -> Entry:
    entry_id, digest, content, key, generation, records_n, group_json, *rest = row
    *destination, attempts, unproven = rest
    return Entry(
        id=entry_id,
        pipeline=tenure.pipeline,
        window=tenure.window,
        group_digest=digest,
        content_hash=content,
        idempotency_key=key,
        generation=generation,
        records_n=records_n,
        group_json=group_json.encode(),
        destination=Destination(*destination),
        attempts=attempts,
        unproven=unproven,
    )


def prove_received(store: Store, tenure: Tenure) -> int:
    """Confirm the window's entries whose send is unknown, but whose job a consumer has taken up: any receipt proves it.

    Safe to repeat.

    Returns:
        How many are confirmed by it.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """
    parameters = {"pipeline_id": tenure.pipeline_id, "window_id": tenure.window_id}

    def work(connection: Connection) -> int:
        check_fence(connection, tenure)
        return len(connection.execute(sql("prove_received"), parameters).fetchall())

    return store.transaction(work)


def mark_sending(store: Store, tenure: Tenure, entries: Sequence[Entry]) -> list[Entry]:
    """Mark uploaded entries as being sent, one attempt each; from here on a crash means that the send is unknown.

    Safe to repeat before anything is sent: an attempt of this very run that is already there counts as marked.

    Returns:
        The entries to send, with their new number of attempts; those that somebody else has moved are left out.

    Raises:
        LeaseLostError: when the window is no longer this run's; nothing may be sent.
    """
    parameters = {
        **tenure.key(),
        "ids": [entry.id for entry in entries],
        "attempts": number_array(entry.attempts for entry in entries),
        "object_bytes": number_array(entry.stored.size_bytes for entry in entries if entry.stored),
        "object_etags": [entry.stored.etag for entry in entries if entry.stored],
    }

    def work(connection: Connection) -> set[UUID]:
        check_fence(connection, tenure)
        marked = {row[0] for row in connection.execute(sql("mark_sending"), parameters)}
        missing = [entry for entry in entries if entry.id not in marked]
        return marked | _already_marked(connection, tenure, missing)

    marked = store.transaction(work)
    return [msgspec.structs.replace(entry, attempts=entry.attempts + 1) for entry in entries if entry.id in marked]


def _already_marked(connection: Connection, tenure: Tenure, entries: Sequence[Entry]) -> set[UUID]:
    if not entries:
        return set()
    query = (
        "SELECT entry_id FROM open_attempts JOIN unnest(%s::uuid[], %s::int[]) AS wanted (entry_id, number) "
        "USING (entry_id, number) WHERE fence = %s"
    )
    numbers = number_array(entry.attempts + 1 for entry in entries)
    rows = connection.execute(query, ([entry.id for entry in entries], numbers, tenure.fence)).fetchall()
    return {row[0] for row in rows}


def record_answers(store: Store, tenure: Tenure, answers: Sequence[tuple[Entry, SendAnswer]]) -> int:
    """Record what is known of attempts: accepted ones confirm their entries, refused ones void them.

    By attempt, not by fence: a true answer is never thrown away. A void entry frees its claims. Safe to repeat.

    Returns:
        How many of the entries are confirmed now.
    """

    def work(connection: Connection) -> int:
        parameters = {
            "window_id": tenure.window_id,
            "entry_ids": [entry.id for entry, _ in answers],
            "numbers": number_array(entry.attempts for entry, _ in answers),
            "outcomes": [answer.outcome for _, answer in answers],
            "message_ids": [answer.message_id for _, answer in answers],
            "errors": [None if answer.error is None else answer.error.replace("\0", "") for _, answer in answers],
        }
        connection.execute(sql("record_answers"), parameters)
        accepted = [entry for entry, answer in answers if answer.outcome == "accepted"]
        _note_repeated(connection, tenure, accepted)
        _close_unrepeated(connection, tenure, [entry.id for entry, answer in answers if answer.outcome == "failed"])
        _void_refused(connection, tenure, answers)
        return len(accepted)

    return store.transaction(work)


def _note_repeated(connection: Connection, tenure: Tenure, accepted: Sequence[Entry]) -> None:
    by_id = {entry.id: entry for entry in accepted}
    rows = connection.execute(sql("repeated_sends"), {"ids": list(by_id)}).fetchall()
    repeated = [findings.Repeated(by_id[entry_id], count, age_s) for entry_id, count, age_s in rows]
    findings.record(connection, tenure, "duplicate", [findings.judge_repeated(one) for one in repeated])


def _close_unrepeated(connection: Connection, tenure: Tenure, failed: list[UUID]) -> None:
    """A try that turns out never to have been made may disprove what another run had to suspect."""
    if failed:
        connection.execute(sql("close_unrepeated"), {"ids": failed, "pipeline_id": tenure.pipeline_id})


def _void_refused(connection: Connection, tenure: Tenure, answers: Sequence[tuple[Entry, SendAnswer]]) -> None:
    refused = {entry.id: (entry, answer.error or "") for entry, answer in answers if answer.outcome == "refused"}
    if not refused:
        return
    redone = [entry.id for entry, _ in refused.values() if entry.generation]
    if redone:
        connection.execute(sql("restore_receipts"), _voiding(tenure, redone))
    # The same message would have been refused before, so a try without an answer was not taken either.
    _void(connection, tenure, list(refused), "refused by the queue", unless=["accepted"])
    findings.record_refused(connection, tenure, list(refused.values()))


def void_entries(store: Store, tenure: Tenure, entries: Sequence[Entry], reason: str) -> None:
    """Make entries void that were never sent, and free their claims, in one transaction; safe to repeat.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """

    def work(connection: Connection) -> None:
        check_fence(connection, tenure)
        _void(connection, tenure, [entry.id for entry in entries], reason, unless=["accepted", "unknown"])

    store.transaction(work)


def _void(connection: Connection, tenure: Tenure, ids: list[UUID], reason: str, *, unless: list[str]) -> None:
    parameters = _voiding(tenure, ids) | {"reason": reason, "unless": unless}
    connection.execute(sql("void_entries"), parameters)


def _voiding(tenure: Tenure, ids: list[UUID]) -> dict[str, Any]:
    window = tenure.window
    return {
        **tenure.key(),
        "pipeline_id": tenure.pipeline_id,
        "start_ns": window.start_ns,
        "end_ns": window.end_ns,
        "ids": ids,
    }
