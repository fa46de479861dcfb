"""Every instant belongs to one hour; the text of every spelling lies within the bounds of every query that needs it."""

import random
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.aws.source import query_ranges
from ledger.instants import (
    HOUR_S,
    NS_PER_S,
    Window,
    format_ns,
    format_s,
    parse_booking_ns,
    parse_instant,
    parse_window,
    window_of_execute_time,
)

TIMESTAMPS = 100_000
FIRST_S, LAST_S = -62_135_596_800 + 2 * HOUR_S, 253_402_300_799 - 2 * HOUR_S
# where bookings can be: what 64 bits of nanoseconds hold, less a day at either end
BOOKING_S = st.integers(-(2**63) // NS_PER_S + 86_400, (2**63 - 1) // NS_PER_S - 86_400)


def test_a_hundred_thousand_timestamps_each_belong_to_one_hour() -> None:
    """As execute times they name the hour before their own; as bookings they lie in one start-inclusive hour."""
    rng = random.Random(2026)
    for number in range(TIMESTAMPS):
        seconds = rng.randrange(FIRST_S, LAST_S)
        if number % 5 == 0:
            seconds = seconds // HOUR_S * HOUR_S + rng.choice((0, 0, HOUR_S - 1, 1))
        digits = rng.randrange(10)
        fraction = "" if digits == 0 else f".{rng.choice((0, 1, 10**digits - 1, rng.randrange(10**digits))):0{digits}d}"
        offset_m = rng.choice((0, 0, 60, 480, -330, 839, -1, 1439))
        sign, size = ("-", -offset_m) if offset_m < 0 else ("+", offset_m)
        local = format_s(seconds + offset_m * 60)[:-1] if abs(seconds) < 60_000_000_000 else None
        text = (
            f"{local}{fraction}{sign}{size // 60:02d}:{size % 60:02d}"
            if local
            else f"{format_s(seconds)[:-1]}{fraction}Z"
        )
        window = window_of_execute_time(text)
        hour = Window(window.start_s + HOUR_S)
        assert hour.start_s <= seconds < hour.end_s, text
        assert hour.start_s % HOUR_S == 0
        assert parse_window(window.name) == window
        owners = [
            one for one in (hour.start_s - HOUR_S, hour.start_s, hour.start_s + HOUR_S) if one <= seconds < one + HOUR_S
        ]
        assert owners == [hour.start_s]


def spellings(seconds: int, fraction: str) -> list[str]:
    """Write one instant in every allowed way: 0 to 9 digits, `Z` or `+00:00`."""
    base = format_s(seconds)[:-1]
    shortest = fraction.rstrip("0")
    texts = [base] if not shortest else []
    texts += [f"{base}.{shortest.ljust(digits, '0')}" for digits in range(max(1, len(shortest)), 10)]
    return [text + zone for text in texts for zone in ("Z", "+00:00")]


def is_in_bounds(text: str, window: Window) -> bool:
    """Ask as DynamoDB does: date equal, time between, by UTF-8 bytes."""
    return any(
        part.date == text[:10] and part.first.encode() <= text.encode() <= part.last.encode()
        for part in query_ranges(window)
    )


@settings(max_examples=1500, deadline=None)
@given(
    seconds=st.one_of(
        BOOKING_S, BOOKING_S.map(lambda s: s // HOUR_S * HOUR_S), BOOKING_S.map(lambda s: s // 86_400 * 86_400)
    ),
    nudge=st.sampled_from([0, 0, 0, -1, 1, HOUR_S - 1]),
    fraction=st.one_of(
        st.just("0"),
        st.integers(0, 999_999_999).map(lambda n: f"{n:09d}"),
        st.sampled_from(["5", "000000001", "999999999"]),
    ),
)
def test_every_spelling_is_enclosed_by_the_bounds_of_its_windows(seconds: int, nudge: int, fraction: str) -> None:
    seconds += nudge
    exact_ns = seconds * NS_PER_S + int(fraction.ljust(9, "0"))
    hour = Window(seconds // HOUR_S * HOUR_S)
    belongs = [hour] + ([Window(hour.start_s - HOUR_S)] if exact_ns == hour.start_ns else [])
    for text in spellings(seconds, fraction):
        assert parse_booking_ns(text) == exact_ns
        for window in belongs:
            assert window.start_ns <= exact_ns <= window.end_ns
            assert is_in_bounds(text, window), (text, window.name)
        for shift in (-2, 2):  # and the bounds let in nothing from further than the hour's last second
            assert not is_in_bounds(text, Window(hour.start_s + shift * HOUR_S))


@given(seconds=BOOKING_S)
def test_the_bounds_let_in_at_most_one_second_too_much(seconds: int) -> None:
    window = Window(seconds // HOUR_S * HOUR_S)
    for text in spellings(window.end_s + 1, "0") + spellings(window.start_s - 1, "999999999"):
        assert not is_in_bounds(text, window)


def test_a_window_that_ends_at_midnight_asks_two_dates() -> None:
    assert [part.date for part in query_ranges(parse_window("2026-09-17T23:00:00Z"))] == ["2026-09-17", "2026-09-18"]
    assert [part.date for part in query_ranges(parse_window("2026-09-17T22:00:00Z"))] == ["2026-09-17"]
    assert [part.date for part in query_ranges(parse_window("2026-09-18T00:00:00Z"))] == ["2026-09-18"]
    assert [part.date for part in query_ranges(parse_window("2024-02-28T23:00:00Z"))] == ["2024-02-28", "2024-02-29"]
    assert [part.date for part in query_ranges(parse_window("0999-12-31T23:00:00Z"))] == ["0999-12-31", "1000-01-01"]


@given(instant_ns=st.integers(-(2**63), 2**63 - 1))
def test_what_is_written_is_read_back(instant_ns: int) -> None:
    text = format_ns(instant_ns)
    assert parse_booking_ns(text) == instant_ns
    seconds, fraction = parse_instant(text)
    exact = seconds + (Fraction(int(fraction), 10 ** len(fraction)) if fraction else 0)
    assert exact == Fraction(instant_ns, NS_PER_S)
