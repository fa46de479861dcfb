"""Instants and windows, exact to the last digit."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from ledger.errors import InputError
from ledger.instants import (
    format_ns,
    format_s,
    format_time,
    parse_booking_ns,
    parse_instant,
    parse_window,
    window_at,
    window_of_execute_time,
)


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("2026-09-17T16:01:10Z", "2026-09-17T15:00:00Z"),
        ("2026-09-17T16:01:10.6854808+08:00", "2026-09-17T07:00:00Z"),
        ("2026-09-17t16:01:10z", "2026-09-17T15:00:00Z"),
        ("2026-09-17T16:00:00Z", "2026-09-17T15:00:00Z"),
        ("2026-09-17T15:59:59.977+08:00", "2026-09-17T06:00:00Z"),  # case 9
        ("2026-09-17T16:00:00.006+08:00", "2026-09-17T07:00:00Z"),
        ("2026-09-17T15:59:59.9999999Z", "2026-09-17T14:00:00Z"),  # never rounded up
        ("2026-09-17T15:59:59.99999999999999999999999999999999Z", "2026-09-17T14:00:00Z"),
        ("2026-09-17T16:59:59.9999999999999999999Z", "2026-09-17T15:00:00Z"),
        ("2026-09-17T16:00:00." + "0" * 500 + "1Z", "2026-09-17T15:00:00Z"),
        ("2026-01-01T00:30:00Z", "2025-12-31T23:00:00Z"),
        ("2026-01-01T00:30:00+05:30", "2025-12-31T18:00:00Z"),
        ("2026-01-01T00:30:00-00:00", "2025-12-31T23:00:00Z"),
        ("2024-03-01T00:00:00Z", "2024-02-29T23:00:00Z"),
        ("2026-09-17T00:00:00+23:59", "2026-09-15T23:00:00Z"),
        ("0001-01-01T01:00:00Z", "0001-01-01T00:00:00Z"),
        ("0001-01-01T00:00:00-01:00", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.9999999Z", "9999-12-31T22:00:00Z"),
        ("1969-12-31T23:59:59.5Z", "1969-12-31T22:00:00Z"),
    ],
)
def test_the_window_of_an_execute_time(text: str, window: str) -> None:
    assert window_of_execute_time(text).name == window


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-09-17T16:01:10", "zone"),
        ("2026-09-17", "RFC 3339"),
        ("", "RFC 3339"),
        (" 2026-09-17T16:01:10Z", "RFC 3339"),
        ("2026-09-17T16:01:10Z\n", "RFC 3339"),
        ("2026-09-17 16:01:10Z", "RFC 3339"),
        ("2026-09-17T16:01Z", "RFC 3339"),
        ("2026-9-17T16:01:10Z", "RFC 3339"),
        ("2026-09-17T16:01:10.Z", "RFC 3339"),
        ("2026-09-17T16:01:10,5Z", "RFC 3339"),
        ("2026-09-17T16:01:10+0800", "RFC 3339"),
        ("2026-09-17T16:01:10+08", "RFC 3339"),
        ("20260917T160110Z", "RFC 3339"),
        ("\u0662\u0660\u0662\u0666-09-17T16:01:10Z", "RFC 3339"),
        ("2026-09-17T16:01:10.\u0665Z", "RFC 3339"),
        ("02026-09-17T16:01:10Z", "RFC 3339"),
        ("2026-06-30T23:59:60Z", "leap second"),
        ("2016-12-31T23:59:60Z", "leap second"),
        ("2026-09-17T16:01:61Z", "time of day"),
        ("2026-09-17T24:00:00Z", "time of day"),
        ("2026-09-17T16:60:00Z", "time of day"),
        ("2026-02-29T16:00:00Z", "calendar"),
        ("1900-02-29T16:00:00Z", "calendar"),
        ("2026-13-01T16:00:00Z", "calendar"),
        ("2026-00-10T16:00:00Z", "calendar"),
        ("2026-04-31T16:00:00Z", "calendar"),
        ("0000-01-01T16:00:00Z", "calendar"),
        ("2026-09-17T16:01:10+24:00", "offset"),
        ("2026-09-17T16:01:10+08:60", "offset"),
        ("0001-01-01T00:59:59Z", "years 1 to 9999"),
        ("0001-01-01T01:30:00+01:00", "years 1 to 9999"),
        ("9999-12-31T23:59:59-01:00", "years 1 to 9999"),
        ("9999-12-31T23:00:00-23:59", "years 1 to 9999"),
    ],
)
def test_an_execute_time_that_names_no_window_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as refusal:
        window_of_execute_time(text)
    assert refusal.value.exit_code == 2
    assert "\n" not in str(refusal.value)


def test_an_instant_keeps_every_digit() -> None:
    assert parse_instant("1970-01-01T00:00:01.6854808Z") == (1, "6854808")
    assert parse_instant("1970-01-01T00:00:01.120Z") == (1, "12")
    assert parse_instant("1970-01-01T00:00:01.000Z") == (1, "")
    assert parse_instant("1969-12-31T23:59:59.5Z") == (-1, "5")
    assert parse_instant("1970-01-01T08:00:00+08:00") == (0, "")
    assert parse_instant("1969-12-31T16:00:00-08:00") == (0, "")
    assert parse_instant("1970-01-01T00:00:00." + "1" * 100 + "Z") == (0, "1" * 100)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00+00:00", 0),
        ("1970-01-01T00:00:00.0Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01T00:00:00.1Z", 100_000_000),
        ("1970-01-01T00:00:00.1234567+00:00", 123_456_700),
        ("1970-01-01T00:00:01.999999999Z", 1_999_999_999),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("1677-09-21T00:12:43.145224192Z", -(2**63)),
        ("2262-04-11T23:47:16.854775807Z", 2**63 - 1),
    ],
)
def test_a_booking_time(text: str, nanoseconds: int) -> None:
    assert parse_booking_ns(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-01T00:00:00",
        "1970-01-01t00:00:00Z",
        "1970-01-01T00:00:00z",
        "1970-01-01T00:00:00-00:00",
        "1970-01-01T00:00:00+01:00",
        "1970-01-01T00:00:00+0000",
        "1970-01-01T00:00:00.Z",
        "1970-01-01T00:00:00.1234567890Z",
        "1970-01-01T00:00:00.0000000000Z",
        "1970-01-01T00:00:00 Z",
        "1970-01-01T00:00:00Z ",
        "1970-01-01T00:00:00Z\n",
        "1970-01-01T00:00:60Z",
        "1970-01-01T24:00:00Z",
        "1970-02-30T00:00:00Z",
        "1970-01-01",
        "",
        "\uff11970-01-01T00:00:00Z",
        "1677-09-21T00:12:43.145224191Z",
        "2262-04-11T23:47:16.854775808Z",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
    ],
)
def test_any_other_booking_time_is_unreadable(text: str) -> None:
    with pytest.raises(ValueError):
        parse_booking_ns(text)


def test_a_window_by_its_name() -> None:
    window = parse_window("2026-09-17T15:00:00Z")
    assert (window.name, window.end_name, str(window)) == (
        "2026-09-17T15:00:00Z",
        "2026-09-17T16:00:00Z",
        "2026-09-17T15:00:00Z",
    )
    assert window.start == datetime(2026, 9, 17, 15, tzinfo=UTC)
    assert window.end_ns - window.start_ns == 3600 * 10**9
    assert parse_window("2026-09-17T23:00:00+08:00") == window
    assert parse_window("2026-09-17T15:00:00.000Z") == window
    assert parse_window("2026-09-17T20:30:00+05:30") == window


@pytest.mark.parametrize(
    "text",
    [
        "2026-09-17T15:00:01Z",
        "2026-09-17T15:30:00Z",
        "2026-09-17T15:00:00.1Z",
        "2026-09-17T15:00:00+05:30",
        "2026-09-17T15",
        "now",
    ],
)
def test_a_window_starts_on_the_hour(text: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_window(text)
    assert text in str(refusal.value)


def test_windows_lie_inside_the_years_1_to_9999() -> None:
    first, last = parse_window("0001-01-01T00:00:00Z"), parse_window("9999-12-31T22:00:00Z")
    assert first.start == datetime(1, 1, 1, tzinfo=UTC)
    assert last.end_name == "9999-12-31T23:00:00Z"
    for beyond in (first.start_s - 3600, last.start_s + 3600):
        with pytest.raises(InputError, match="years 1 to 9999"):
            window_at(beyond)


def test_instants_are_written_in_full() -> None:
    assert format_s(-62135596800) == "0001-01-01T00:00:00Z"
    assert format_s(0) == "1970-01-01T00:00:00Z"
    assert format_s(-1) == "1969-12-31T23:59:59Z"
    assert format_ns(1_500_000_000) == "1970-01-01T00:00:01.5Z"
    assert format_ns(-1) == "1969-12-31T23:59:59.999999999Z"
    assert format_ns(2_000_000_000) == "1970-01-01T00:00:02Z"
    assert format_time(datetime(2026, 9, 17, 15, tzinfo=UTC)) == "2026-09-17T15:00:00Z"
    assert format_time(datetime(2026, 9, 17, 15, 0, 0, 120, tzinfo=UTC)) == "2026-09-17T15:00:00.000120Z"
    assert format_time(datetime(2026, 9, 17, 15, tzinfo=timezone(timedelta(hours=8)))) == "2026-09-17T07:00:00Z"


def test_windows_sort_by_time() -> None:
    names = ["2026-09-17T15:00:00Z", "0999-01-01T00:00:00Z", "2026-09-17T03:00:00Z"]
    assert [one.name for one in sorted(map(parse_window, names))] == sorted(names)
