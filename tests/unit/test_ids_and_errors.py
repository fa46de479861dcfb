"""Identifiers sort by time; errors are one line and know their exit code."""

from datetime import UTC, datetime

import pytest

from ledger import clock, errors
from ledger.ids import jitter, new_id


def test_ids_sort_by_the_millisecond_they_were_made_in(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for micros in (0, 1000, 2000, 999_000):
        monkeypatch.setattr(clock, "utc_now", lambda micros=micros: datetime(2026, 9, 17, 15, 0, 0, micros, tzinfo=UTC))
        made.append(new_id())
    monkeypatch.setattr(clock, "utc_now", lambda: datetime(2036, 9, 17, tzinfo=UTC))
    made.append(new_id())
    assert made == sorted(made)
    assert [str(one) for one in made] == sorted(str(one) for one in made)
    assert [one.bytes for one in made] == sorted(one.bytes for one in made)


def test_an_id_is_a_uuid_of_version_7() -> None:
    made = {new_id() for _ in range(2000)}
    assert len(made) == 2000
    assert {(one.version, one.variant) for one in made} == {(7, "specified in RFC 4122")}


def test_jitter_is_between_half_and_all() -> None:
    values = [jitter(2.0) for _ in range(500)]
    assert all(1.0 <= value <= 2.0 for value in values)
    assert len(set(values)) > 50
    assert jitter(0.0) == 0.0


def test_exit_codes_are_those_of_the_contract() -> None:
    assert {
        kind.__name__: kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.DispatchLedgerError)
    } | {} == {
        "DispatchLedgerError": 1,
        "InputError": 2,
        "BusyError": 4,
        "GuardError": 5,
        "UnavailableError": 1,
        "FencedError": 1,
        "LeaseLostError": 1,
        "CorruptError": 1,
        "CancelledError": 1,
        "NotFoundError": 1,
        "MissingError": 2,
        "ClaimLostError": 4,
        "UnknownKeyError": 2,
    }
    assert errors.CancelledError(15).signal_number == 15


def test_a_message_is_one_line() -> None:
    text = str(errors.UnavailableError("first line\nDETAIL:  second\r\n\tthird  \u2028 fourth\n"))
    assert text == "first line DETAIL: second third fourth"
    assert "\n" not in str(errors.CancelledError(2))
