"""Why a record was missed: every combination of what is known has one cause, and the evidence is told."""

from datetime import UTC, datetime, timedelta
from itertools import product

import msgspec
import pytest

from reconcile.causes import Evidence, cause_of_missed, detail_of

READ = datetime(2026, 9, 17, 16, 1, tzinfo=UTC)
ENDED = READ + timedelta(minutes=5)
NOTHING = Evidence(set_aside=False, page=3, read_at=READ, finished_at=ENDED, changed_at=None, elsewhen_ns=None)
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("known", "cause"),
    [
        ({}, "unknown"),
        ({"changed_at": READ - SECOND}, "index_lag"),
        ({"changed_at": READ}, "index_lag"),
        ({"changed_at": READ + SECOND}, "moved_in"),
        ({"changed_at": ENDED}, "moved_in"),
        ({"changed_at": ENDED + SECOND}, "late_insert"),
        ({"elsewhen_ns": 1}, "moved_in"),
        ({"elsewhen_ns": 1, "changed_at": READ - SECOND}, "index_lag"),
        ({"elsewhen_ns": 1, "changed_at": ENDED + SECOND}, "moved_in"),
        ({"set_aside": True, "elsewhen_ns": 1, "changed_at": READ - SECOND}, "was_set_aside"),
        ({"page": None, "read_at": None, "changed_at": READ}, "moved_in"),
        ({"page": None, "read_at": None, "finished_at": None, "changed_at": READ}, "unknown"),
    ],
)
def test_cause(known: dict[str, object], cause: str) -> None:
    assert cause_of_missed(msgspec.structs.replace(NOTHING, **known)) == cause


def test_unknown_only_where_nothing_decides() -> None:
    """With a change time and a journal there is always a cause."""
    for aside, elsewhen, changed in product((True, False), (None, 1), (READ - SECOND, READ + SECOND, ENDED + SECOND)):
        known = msgspec.structs.replace(NOTHING, set_aside=aside, elsewhen_ns=elsewhen, changed_at=changed)
        assert cause_of_missed(known) != "unknown"


def test_the_evidence_is_told() -> None:
    known = msgspec.structs.replace(NOTHING, changed_at=ENDED, elsewhen_ns=10**18)
    assert detail_of(known, 10**18 + 1) == {
        "booking_time": "2001-09-09T01:46:40.000000001Z",
        "read_at": "2026-09-17T16:01:00Z",
        "run_finished_at": "2026-09-17T16:06:00Z",
        "changed_at": "2026-09-17T16:06:00Z",
        "page": 3,
        "also_claimed_for": "2001-09-09T01:46:40Z",
    }
    bare = Evidence(set_aside=False, page=None, read_at=None, finished_at=None, changed_at=None, elsewhen_ns=None)
    assert detail_of(bare, 0) == {"booking_time": "1970-01-01T00:00:00Z"}
