"""Cron lines fire when cron would: weekdays from Sunday, and either day field when both are restricted."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.schedule import trigger_of

START = datetime(2026, 2, 27, 23, 59, 30, tzinfo=UTC)


def numbers(field: str, low: int, high: int) -> set[int]:
    """Expand one field of a cron line."""
    found: set[int] = set()
    for item in field.split(","):
        span, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        end = int(last) if last else (high if step else int(first))
        found |= set(range(int(first), end + 1, int(step or 1)))
    return found


def fires(line: str, at: datetime) -> bool:
    """Say whether cron fires in this minute."""
    minute, hour, day, month, weekday = line.split()
    days, weekdays = numbers(day, 1, 31), {one % 7 for one in numbers(weekday, 0, 7 if weekday != "*" else 6)}
    by_day, by_weekday = at.day in days, at.isoweekday() % 7 in weekdays
    today = by_day or by_weekday if day != "*" and weekday != "*" else by_day and by_weekday
    return (
        today
        and at.minute in numbers(minute, 0, 59)
        and at.hour in numbers(hour, 0, 23)
        and (at.month in numbers(month, 1, 12))
    )


def field(low: int, high: int) -> st.SearchStrategy[str]:
    one = st.integers(low, high)
    span = st.tuples(one, one).map(sorted).map(lambda ends: f"{ends[0]}-{ends[1]}")
    stepped = st.tuples(st.just("*") | span, st.integers(1, 7)).map(lambda parts: f"{parts[0]}/{parts[1]}")
    return st.just("*") | st.lists(one.map(str) | span | stepped, min_size=1, max_size=3).map(",".join)


@given(
    st.sampled_from(["0", "30", "*/20", "5-10"]), st.sampled_from(["*", "0", "3,15", "*/6"]), field(1, 31),
    st.just("*") | st.just("2-4"), field(0, 7),
)  # fmt: skip
def test_the_next_times_are_those_of_cron(minute: str, hour: str, day: str, month: str, weekday: str) -> None:
    line = f"{minute} {hour} {day} {month} {weekday}"
    trigger, before, now = trigger_of(line), None, START
    for _ in range(3):
        fired = trigger.get_next_fire_time(before, now)
        if fired is None or fired - START > timedelta(days=60):
            return
        assert fires(line, fired), (line, fired)
        first = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
        if fired - first < timedelta(days=3):
            skipped = (first + timedelta(minutes=at) for at in range(int((fired - first).total_seconds() // 60)))
            assert not any(fires(line, at) for at in skipped), (line, fired)
        before, now = fired, fired + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("line", "fired"),
    [
        ("1 * * * *", "2026-02-28T00:01:00+00:00"),
        ("*/20 * * * *", "2026-02-28T00:00:00+00:00"),
        ("30 3 * * *", "2026-02-28T03:30:00+00:00"),
        ("0 0 * * 0", "2026-03-01T00:00:00+00:00"),
        ("0 0 * * 7", "2026-03-01T00:00:00+00:00"),
        ("0 0 * * 1-5", "2026-03-02T00:00:00+00:00"),
        ("0 0 5 * 0", "2026-03-01T00:00:00+00:00"),
    ],
)
def test_lines_that_people_write(line: str, fired: str) -> None:
    assert trigger_of(line).get_next_fire_time(None, START).isoformat() == fired
