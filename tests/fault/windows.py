"""Small windows to break: five groups over three pages of four, one record not due; and what must come out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ledger.instants import parse_window
from tests.aws_servers import Item, World, booking
from tests.rig import Rig, records_of

DUE, PAGES = 10, 3
JOBS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "staged": (("a3", "a2", "a1"), ("b1", "b2"), ("c1", "c2"), ("d1",), ("e1", "e2")),
    "paged": (("a2", "a1"), ("b1",), ("c1",), ("d1",), ("c2",), ("a3",), ("b2",), ("e1", "e2")),
}


def jobs(flow: str) -> tuple[tuple[str, ...], ...]:
    """Give the records of each job that a window comes to."""
    return JOBS["paged" if flow == "paged" else "staged"]


def hours_ago(hours: int, now: datetime | None = None) -> str:
    """Name the window that began so many whole hours before this hour; 1 is the last closed one."""
    hour = (now or datetime.now(UTC)).replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours)
    return hour.strftime("%Y-%m-%dT%H:%M:%SZ")


def fill(world: World, *windows: str) -> None:
    """Put the eleven bookings of each window into the world."""
    world.put_many(item for window in windows for item in bookings(window))


def bookings(window: str) -> list[Item]:
    """Make the bookings of one window; their ids begin with its hour."""

    def one(name: str, minute: int, member: int, *, status: str = "WaitToReward", **more: Any) -> Item:
        time = f"{window[:13]}:{minute:02d}:00Z"
        return booking(f"{window[:13]}-{name}", time, member=member, status=status, **more)

    return [
        one("a1", 1, 1, order="2026-09-17T12:00:00Z"),
        one("b1", 2, 2, type="ECoupon"),
        one("c1", 3, 3),
        one("a2", 4, 1, order="2026-09-17T11:00:00Z"),
        one("x1", 5, 9, status="Rewarded"),
        one("d1", 6, 4, type="ECoupon"),
        one("c2", 7, 3),
        one("a3", 8, 1, order="2026-09-17T10:00:00Z"),
        one("b2", 9, 2, type="ECoupon"),
        one("e1", 10, 5),
        one("e2", 11, 5),
    ]


def drained(world: World) -> list[Any]:
    """Take all messages out of both queues."""
    return [message for queue in world.queues for message in world.messages(queue)]


def check_window(
    rig: Rig,
    window: str,
    flow: str,
    messages: Iterable[Any],
    objects: Mapping[str, bytes],
    sent_again: Iterable[str] = (),
) -> None:
    """Check that a window is finished: each job once, each record in one job, the books closed, nothing left over.

    Args:
        messages: of all windows.
        objects: of all windows.
        sent_again: idempotency keys that may have been sent twice, since the sends were unproven when the run died.
    """
    here = [one for one in messages if one["window"]["start"] == window]
    keys = Counter(one["idempotency_key"] for one in here)
    by_key = {one["idempotency_key"]: one["object"]["key"] for one in here}
    records = records_of({key: objects[key] for key in by_key.values()})
    expected = sorted(tuple(f"{window[:13]}-{name}" for name in job) for job in jobs(flow))
    assert sorted(map(tuple, records.values())) == expected, "each group once, whole and in order"
    assert {key for key, count in keys.items() if count > 1} <= set(sent_again), "sent twice without a reason"
    assert set(keys.values()) <= {1, 2}, "at most one more"

    start = parse_window(window)
    place = window[:13].replace("-", "/").replace("T", "/")
    assert sum(f"/{place}/" in key for key in objects) == len(expected), "an object for each entry, and no other"
    row = "(SELECT id FROM windows WHERE start_s = %s)"
    states = rig.rows(f"SELECT state, count(*) FROM entry_states WHERE window_id = {row} GROUP BY state", start.start_s)
    assert states == [("confirmed", len(expected))]
    claimed = "SELECT count(*), count(DISTINCT record_id) FROM claims WHERE booking_ns BETWEEN %s AND %s"
    assert rig.rows(claimed, start.start_ns, start.end_ns) == [(DUE, DUE)]
    assert rig.value(f"SELECT count(*) FROM payload_parts WHERE window_id = {row}", start.start_s) == 0
    staged = f"SELECT count(*) FROM staged_records WHERE run_id IN (SELECT id FROM runs WHERE window_id = {row})"
    assert rig.value(staged, start.start_s) == 0
    found = rig.rows(f"SELECT entry_id, kind, cause FROM findings WHERE window_id = {row}", start.start_s)
    assert {(kind, cause) for _, kind, cause in found} <= {("duplicate", "resent")}
    reported = {entry for entry, _, _ in found}
    attempts = f"SELECT entry_id FROM all_attempts JOIN entries ON entries.id = entry_id WHERE window_id = {row} "
    more_than_one = "GROUP BY entry_id HAVING count(*) > 1"
    open_ended = rig.rows(f"{attempts} AND outcome IN ('unknown', 'accepted') {more_than_one}", start.start_s)
    tried_again = {entry for (entry,) in rig.rows(attempts + more_than_one, start.start_s)}
    assert {entry for (entry,) in open_ended} <= reported <= tried_again, "a second try that may count is reported"
    twice = {key for key, count in keys.items() if count > 1}
    assert twice <= {
        bytes(key).hex()
        for (key,) in rig.rows("SELECT idempotency_key FROM entries WHERE id = ANY(%s)", list(reported))
    }, "a second message is reported"
    assert rig.value("SELECT completed_at IS NOT NULL FROM windows WHERE start_s = %s", start.start_s)
