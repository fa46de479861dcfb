"""Rows and tenures for tests that speak to the ledger alone, without AWS."""

from datetime import timedelta

import msgspec
import psycopg

from dispatch.ordering import group_key, order_key
from ledger import runs
from ledger.canonical import canonical_json, fingerprint, group_digest
from ledger.facts import Destination, Entry, Group, Record, StoredObject
from ledger.ids import new_id
from ledger.instants import Window, parse_window
from ledger.leases import Tenure
from ledger.outbox import destinations
from ledger.store import Store

HOUR_NS = 3600 * 10**9


def request(
    window: str = "2026-09-17T15:00:00Z", *, pipeline: str = "test", lease: timedelta = timedelta(seconds=60)
) -> runs.RunRequest:
    """Ask for a window."""
    return runs.RunRequest(
        run_id=new_id(),
        pipeline=pipeline,
        window=parse_window(window),
        flow="staged",
        page_size=10,
        cause="manual",
        config="{}",
        holder="test:1",
        lease=lease,
    )


def take(store: Store, window: str = "2026-09-17T15:00:00Z", *, pipeline: str = "test") -> Tenure:
    """Get a window for a new run."""
    return runs.start_run(store, request(window, pipeline=pipeline)).tenure


def take_over(store: Store, tenure: Tenure) -> Tenure:
    """Let a tenure's lease run out, and get its window for a new run."""
    expire(store, tenure)
    return take(store, tenure.window.name, pipeline=tenure.pipeline)


def expire(store: Store, tenure: Tenure) -> None:
    """Let a lease run out."""
    statement = "UPDATE windows SET lease_until = ledger_now() - interval '1 second' WHERE id = %s"
    store.transaction(lambda connection: connection.execute(statement, (tenure.window_id,)))


def routes(store: Store, tenure: Tenure) -> dict[str, Destination]:
    """Write down one destination."""
    point = Destination(id=0, route="Point", job="RewardPoint", queue="reward-point", bucket="b", prefix="p/")
    return destinations(store, tenure.pipeline_id, [point])


def record(identity: str, window: Window, offset_s: int = 0, *, group: int = 1) -> Record:
    """Make a due record `offset_s` seconds into the window."""
    booking_ns = window.start_ns + offset_s * 10**9
    typed = {"N": str(group)}
    body = canonical_json({"Id": identity, "at": booking_ns})
    return Record(
        record_id=identity,
        booking_ns=booking_ns,
        group_key=group_key([group], "Point", [typed]),
        order_key=order_key(None, booking_ns, identity),
        body=body,
        fingerprint=fingerprint(body, None),
    )


def group(records: list[Record], number: int = 1) -> Group:
    """Make a group of records."""
    digest = group_digest([number])
    return Group(digest=digest, values_json=canonical_json({"G": number}), route="Point", records=records)


def uploaded(entry: Entry) -> Entry:
    """Pretend that an entry's object was stored."""
    return msgspec.structs.replace(entry, stored=StoredObject(1, '"etag"'))


def ask(connection: psycopg.Connection, query: str, *parameters: object) -> list[tuple[object, ...]]:
    """Ask the ledger."""
    return connection.execute(query, parameters or None).fetchall()  # type: ignore[arg-type]
