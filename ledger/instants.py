"""Instants and windows, exact to the last digit. Pure; no clock is read here.

Source: RFC 3339. Python's own parser drops the seventh fraction digit and PostgreSQL rounds it, so neither is used.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache

from ledger.errors import InputError

HOUR_S = 3600
DAY_S = 86_400
NS_PER_S = 1_000_000_000
# A booking time is kept as a 64-bit count of nanoseconds since 1970.
MIN_NS, MAX_NS = -(2**63), 2**63 - 1

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_FIRST_S = (date(1, 1, 1).toordinal() - _EPOCH_ORDINAL) * DAY_S
_LAST_S = (date(9999, 12, 31).toordinal() - _EPOCH_ORDINAL) * DAY_S + DAY_S - 1
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))",
)
_BOOKING = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(?:Z|\+00:00)",
)


def _seconds(year: str, month: str, day: str, hour: str, minute: str, second: str) -> int:
    if hour > "23" or minute > "59" or second > "59":
        reason = "a leap second names no hour of its own" if second == "60" else "no such time of day"
        raise ValueError(reason)
    return _day_s(year, month, day) + int(hour) * HOUR_S + int(minute) * 60 + int(second)


@lru_cache(maxsize=4096)  # neighbours in an index share their second, or come back to it
def _second_s(text: str) -> int:
    day, time = text[:10].split("-"), text[11:].split(":")
    return _seconds(*day, *time)


def _day_s(year: str, month: str, day: str) -> int:
    try:
        return (date(int(year), int(month), int(day)).toordinal() - _EPOCH_ORDINAL) * DAY_S
    except ValueError:
        raise ValueError("no such day in the calendar of the years 1 to 9999") from None


def parse_instant(text: str) -> tuple[int, str]:
    """Read an RFC 3339 timestamp with any zone and any number of fraction digits.

    Returns:
        Seconds since 1970 in UTC, rounded down, and the fraction's digits without trailing zeros.

    Raises:
        ValueError: when the text is anything else (no zone, a leap second, a day that does not exist), saying why.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError("not an RFC 3339 timestamp with a zone, such as 2026-09-17T16:01:10Z")
    *clock_face, fraction, zulu, sign, zone_h, zone_m = match.groups()
    seconds = _seconds(*clock_face)
    if not zulu:
        if int(zone_h) > 23 or int(zone_m) > 59:
            raise ValueError("no such zone offset")
        offset_s = int(zone_h) * HOUR_S + int(zone_m) * 60
        seconds += offset_s if sign == "-" else -offset_s
    return seconds, (fraction or "").rstrip("0")


def parse_booking_ns(text: str) -> int:
    """Read a booking time: a full RFC 3339 timestamp in `Z` or `+00:00` with 0 to 9 fraction digits.

    Returns:
        Nanoseconds since 1970.

    Raises:
        ValueError: when the text is anything else, or lies outside what 64 bits of nanoseconds hold (1677 to 2262).
    """
    match = _BOOKING.fullmatch(text)
    if match is None:
        raise ValueError("not a full RFC 3339 timestamp in Z or +00:00 with 0 to 9 fraction digits")
    second, fraction = match.groups()
    instant_ns = _second_s(second) * NS_PER_S + (int(fraction.ljust(9, "0")) if fraction else 0)
    if not MIN_NS <= instant_ns <= MAX_NS:
        raise ValueError("outside 1677-09-22 to 2262-04-11, which is what 64 bits of nanoseconds can hold")
    return instant_ns


def format_s(seconds: int) -> str:
    """Write seconds since 1970 as RFC 3339 in UTC, whole seconds, `Z`."""
    days, rest = divmod(seconds, DAY_S)
    day = date.fromordinal(days + _EPOCH_ORDINAL)
    return f"{day.year:04d}-{day.month:02d}-{day.day:02d}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}Z"


def format_ns(instant_ns: int) -> str:
    """Write nanoseconds since 1970 as RFC 3339 in UTC, with as many fraction digits as it takes."""
    seconds, fraction_ns = divmod(instant_ns, NS_PER_S)
    if not fraction_ns:
        return format_s(seconds)
    return f"{format_s(seconds)[:-1]}.{f'{fraction_ns:09d}'.rstrip('0')}Z"


def format_time(moment: datetime) -> str:
    """Write an aware datetime as RFC 3339 in UTC, with microseconds where it has any."""
    utc = moment.astimezone(UTC)
    text = utc.replace(tzinfo=None).isoformat(timespec="microseconds" if utc.microsecond else "seconds")
    return f"{text}Z"


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """One hour of booking time, named by its start; both ends belong to what is queried.

    Attributes:
        start_s: first second, in seconds since 1970; a whole hour.
    """

    start_s: int

    @property
    def end_s(self) -> int:
        """The last instant, in seconds since 1970: one hour after the start, inclusive."""
        return self.start_s + HOUR_S

    @property
    def start_ns(self) -> int:
        """The first instant in nanoseconds since 1970."""
        return self.start_s * NS_PER_S

    @property
    def end_ns(self) -> int:
        """The last instant in nanoseconds since 1970, inclusive."""
        return self.end_s * NS_PER_S

    @property
    def name(self) -> str:
        """The start as text, `2026-09-17T15:00:00Z`: how people and messages name the window."""
        return format_s(self.start_s)

    @property
    def end_name(self) -> str:
        """The end as text."""
        return format_s(self.end_s)

    @property
    def start(self) -> datetime:
        """The start as an aware datetime."""
        days, rest = divmod(self.start_s, DAY_S)
        day = date.fromordinal(days + _EPOCH_ORDINAL)
        return datetime(day.year, day.month, day.day, rest // HOUR_S, tzinfo=UTC)

    def __str__(self) -> str:
        return self.name


def window_at(start_s: int) -> Window:
    """Return the window that starts at `start_s`, a whole hour.

    Raises:
        InputError: when the window does not lie inside the years 1 to 9999.
    """
    if start_s < _FIRST_S or start_s + HOUR_S > _LAST_S:
        raise InputError("the window lies outside the years 1 to 9999; give a time that has a whole hour before it")
    return Window(start_s)


def window_of_execute_time(text: str) -> Window:
    """Return the window that a job executed at `text` has to dispatch: the whole hour before its own.

    Raises:
        InputError: when the text is no RFC 3339 timestamp with a zone, or the window is outside the years 1 to 9999.
    """
    try:
        seconds, _ = parse_instant(text)
    except ValueError as reason:
        raise InputError(f"ExecuteTime {text[:80]!r}: {reason}") from None
    return window_at(seconds // HOUR_S * HOUR_S - HOUR_S)


def parse_window(text: str) -> Window:
    """Return the window named `text` (its start, `2026-09-17T15:00:00Z`).

    Raises:
        InputError: when the text is no timestamp, not on the hour, or outside the years 1 to 9999.
    """
    try:
        seconds, fraction = parse_instant(text)
    except ValueError as reason:
        raise InputError(f"window {text[:80]!r}: {reason}") from None
    if seconds % HOUR_S or fraction:
        raise InputError(f"window {text[:80]!r} does not start on the hour (UTC); a window is named by its start")
    return window_at(seconds)
