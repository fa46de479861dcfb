"""A hundred thousand stored timestamps in an index: each is found, and claimed, by one window and no other.

A window holds both its ends, so a record exactly on the hour is seen by two windows. It is one occurrence all the same:
the window that comes first claims it, the other finds it claimed (CONTRACT: both ends inclusive, one claim).
"""

import random
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime

from dispatch.aws.source import query_ranges
from dispatch.items import Item, TableSchema
from dispatch.judging import Left, Rules, judge, rules_of, sighted
from ledger.facts import Occurrence, Record
from ledger.instants import HOUR_S, NS_PER_S, Window, format_s, parse_booking_ns
from ledger.settings import SourceSettings

TIMESTAMPS = 100_000
HOURS = 3_000
SOURCE = SourceSettings()
SCHEMA = TableSchema({"Id": "S"}, projects_all=True)
# Where calendars turn: years and centuries, leap days and the lack of them, the ends of what a booking time can be.
TURNS = [
    "1677-09-23", "1699-12-31", "1700-02-28", "1899-12-31", "1900-02-28", "1969-12-31", "1970-01-01", "1999-12-31",
    "2000-02-28", "2000-02-29", "2024-02-28", "2024-02-29", "2025-12-31", "2026-02-28", "2026-09-17", "2100-02-28",
    "2261-12-31", "2262-04-10",
]  # fmt: skip
# Seconds from the hour, mostly at its edges.
OFFSETS_S = (0, 0, 0, 1, 59, 60, 1800, HOUR_S - 1, HOUR_S - 1)


def hours(rng: random.Random) -> list[int]:
    """Draw hours, in seconds since 1970: every hour of the days on which calendars turn, and any others."""
    days = [int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) for day in TURNS]
    turning = [day_s + at * HOUR_S for day_s in days for at in range(24)]
    first_h, last_h = turning[0] // HOUR_S, turning[-1] // HOUR_S
    return turning + [rng.randint(first_h, last_h) * HOUR_S for _ in range(HOURS - len(turning))]


def spelling(rng: random.Random, hour_s: int) -> tuple[str, int]:
    """Write an instant of an hour in one of the ways that are allowed, 0 to 9 fraction digits and `Z` or `+00:00`.

    Returns:
        The text, and the nanoseconds since 1970 that it means.
    """
    second_s = hour_s + rng.choice((*OFFSETS_S, rng.randrange(HOUR_S)))
    digits = rng.randrange(10)
    fraction = rng.choice((0, 0, 1, 5 * 10 ** max(0, digits - 1), 10**digits - 1, rng.randrange(10**digits)))
    fraction %= 10**digits
    shown = f".{fraction:0{digits}d}" if digits else ""
    text = format_s(second_s)[:-1] + shown + rng.choice(("Z", "+00:00"))
    return text, second_s * NS_PER_S + fraction * 10 ** (9 - digits)


class Index:
    """Answers as DynamoDB's does: date equal, range key between two texts, by the bytes of UTF-8."""

    def __init__(self, texts: list[str]) -> None:
        by_date: defaultdict[str, list[tuple[bytes, str]]] = defaultdict(list)
        for number, text in enumerate(texts):
            by_date[text[:10]].append((text.encode(), f"r{number}"))
        self._by_date = {date: sorted(rows) for date, rows in by_date.items()}

    def query(self, window: Window) -> Iterator[Item]:
        for part in query_ranges(window):
            rows = self._by_date.get(part.date, [])
            first = bisect_left(rows, part.first.encode(), key=lambda row: row[0])
            for raw, record_id in rows[first : bisect_right(rows, part.last.encode(), key=lambda row: row[0])]:
                yield item(record_id, raw.decode())


def item(record_id: str, time: str) -> Item:
    return {
        "Id": {"S": record_id},
        SOURCE.date_attribute: {"S": time[:10]},
        SOURCE.time_attribute: {"S": time},
        SOURCE.status_attribute: {"S": SOURCE.due_status},
        SOURCE.route_by: {"S": "Point"},
    } | {name: {"N": "1"} for name in SOURCE.group_by}


def rules(window: Window) -> Rules:
    return rules_of(SOURCE, SCHEMA, window, {"Point": 1000})


def occurrences(index: Index, window: Window) -> Iterator[Occurrence]:
    """Yield what a dispatch of this window would claim.

    It is asked by the quick look that leaves out what is claimed already; and, where it takes the hour to the second,
    by the whole judgement as well, which takes ten times as long.
    """
    judged_by = rules(window)
    for found in index.query(window):
        occurrence = sighted(found, judged_by)
        if found[SOURCE.time_attribute]["S"][14:19] == "00:00":
            verdict = judge(found, judged_by)
            assert verdict is Left.OUTSIDE if occurrence is None else isinstance(verdict, Record)
            assert not isinstance(verdict, Record) or verdict.occurrence == occurrence
        if occurrence is not None:
            yield occurrence


def test_a_hundred_thousand_timestamps_are_each_claimed_by_one_window() -> None:
    rng = random.Random(20260917)
    drawn = hours(rng)
    written = [spelling(rng, rng.choice(drawn)) for _ in range(TIMESTAMPS)]
    index = Index([text for text, _ in written])
    looked_at = {Window(hour_s + near * HOUR_S) for hour_s in drawn for near in (-1, 0, 1)}
    claims: dict[Occurrence, Window] = {}
    seen: Counter[Occurrence] = Counter()
    for window in sorted(looked_at):
        for occurrence in occurrences(index, window):
            seen[occurrence] += 1
            claims.setdefault(occurrence, window)
    assert claims.keys() == {(booking_ns, f"r{number}") for number, (_, booking_ns) in enumerate(written)}
    on_the_hour = 0
    for (booking_ns, record_id), window in claims.items():
        edge = booking_ns % (HOUR_S * NS_PER_S) == 0
        on_the_hour += edge
        hour_s = booking_ns // NS_PER_S // HOUR_S * HOUR_S
        assert window.start_s == hour_s - (HOUR_S if edge else 0), (record_id, window.name)
        assert seen[booking_ns, record_id] == (2 if edge else 1), (record_id, window.name)
    assert on_the_hour > TIMESTAMPS // 20


def test_all_spellings_of_an_instant_are_one_occurrence() -> None:
    rng = random.Random(1709)
    for hour_s in hours(rng)[:500]:
        digits = rng.randrange(10)
        fraction = f"{rng.randrange(10**digits):0{digits}d}" if digits else ""
        base = format_s(hour_s + rng.choice(OFFSETS_S))[:-1]
        texts = [
            f"{base}{f'.{fraction}'.ljust(length + 1, '0') if length else ''}{zone}"
            for length in range(digits, 10)
            for zone in ("Z", "+00:00")
        ]
        assert len({parse_booking_ns(text) for text in texts}) == 1, texts
