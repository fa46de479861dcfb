"""Why was this record dispatched, or why not: every answer, and which of two windows decides."""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
import pytest

from dispatch.explaining import Reason, explain
from dispatch.lookup import Sighting
from ledger.instants import HOUR_S, Window, format_ns, parse_window
from ledger.settings import Settings
from ledger.standing import Claimed, RecordFacts, Standing

FIFTEEN = parse_window("2026-09-17T15:00:00Z")
SIXTEEN = parse_window("2026-09-17T16:00:00Z")
NOW = datetime(2026, 9, 17, 20, 0, tzinfo=UTC)
HALF_PAST = FIFTEEN.start_ns + HOUR_S * 10**9 // 2
ENTRY = "01a2286f-0b5e-7c43-9d0c-0d8a3f6b2f51"
DONE_AT = datetime(2026, 9, 17, 16, 1, tzinfo=UTC)

DUE = Sighting("R1", "due", booking_date="2026-09-17", booking_time=format_ns(HALF_PAST), booking_ns=HALF_PAST,
               status="WaitToReward", windows=(FIFTEEN,))  # fmt: skip
CLAIM = Claimed(HALF_PAST, 0, ENTRY, FIFTEEN, "confirmed", "RewardPoint", "2026-09-17T16:01:01Z", None)
UNSEEN = Standing(FIFTEEN, ended=True, state="not_dispatched")
DISPATCHED = Standing(FIFTEEN, ended=True, state="dispatched", completed_at=DONE_AT, last_outcome="completed",
                      last_ended_at=DONE_AT)  # fmt: skip
HELD = Standing(FIFTEEN, ended=True, state="held", held_reason="objects are already there")
INCOMPLETE = Standing(FIFTEEN, ended=True, state="incomplete", last_outcome="failed", last_error="no answer.",
                      last_ended_at=DONE_AT)  # fmt: skip

SOURCES: dict[str, Sighting] = {
    "due": DUE,
    "gone": Sighting("R1", "gone", "the table T has no record with this key"),
    "unknown": Sighting("R1", "unknown", error="AWS: no credentials found"),
    "not_due": msgspec.structs.replace(
        DUE, verdict="not_due", why="its RewardStatus is 'Done', and only 'Wait' is due"
    ),
    "set_aside": msgspec.structs.replace(DUE, verdict="set_aside", why="unknown_route: RewardType names no route"),
    "hidden": msgspec.structs.replace(DUE, booking_date="2026-09-16", windows=()),
    "unreadable": msgspec.structs.replace(
        DUE, verdict="set_aside", why="unreadable_time: no time of day", booking_time="2026-09-17T15", booking_ns=None
    ),
    "no_keys": Sighting("R1", "set_aside", "unreadable_time: missing", status="WaitToReward"),
}


def of(
    seen: Sighting | str = DUE,
    *claims: Claimed,
    at: Standing | list[Standing] = UNSEEN,
    findings: list[tuple[str, str | None]] | None = None,
    now: datetime = NOW,
    **schedule: Any,
) -> tuple[Reason, str]:
    sighting = SOURCES[seen] if isinstance(seen, str) else seen
    standings = {one.window: one for one in (at if isinstance(at, list) else [at])}
    facts = RecordFacts(now, list(claims), standings, findings or [])
    answer = explain(sighting, facts, Settings.model_validate({"schedule": schedule}))
    assert "\n" not in answer.sentence
    assert "None" not in answer.sentence
    assert answer.sentence.startswith(("Yes: ", "No: ", "Not yet: ", "Not for certain: ", "Unclear: "))
    return answer.reason, answer.sentence


def test_sent_and_still_due() -> None:
    reason, sentence = of(DUE, CLAIM, at=DISPATCHED)
    assert reason == "dispatched"
    for part in (ENTRY, "RewardPoint", str(FIFTEEN), "2026-09-17T16:01:01Z", "not sent again"):
        assert part in sentence, part


@pytest.mark.parametrize(
    ("source", "said"),
    [("gone", "not in the table any more"), ("unknown", "could not be asked"), ("not_due", "'Done'"),
     ("set_aside", "unknown_route")],
)  # fmt: skip
def test_sent_and_something_else_since(source: str, said: str) -> None:
    reason, sentence = of(source, CLAIM)
    assert (reason, said in sentence) == ("dispatched", True), sentence


@pytest.mark.parametrize(
    ("receipt", "said"),
    [("in_work", "in work"), ("completed", "completed it"), ("failed", "failure"), ("superseded", "superseded")],
)
def test_what_its_worker_says(receipt: str, said: str) -> None:
    assert said in of(DUE, msgspec.structs.replace(CLAIM, receipt=receipt))[1]


def test_of_several_generations_the_newest_speaks() -> None:
    again = msgspec.structs.replace(CLAIM, generation=2, entry_id="of-the-redo")
    _, sentence = of(DUE, CLAIM, again)
    assert "redo 2" in sentence
    assert "of-the-redo" in sentence
    assert ENTRY not in sentence


@pytest.mark.parametrize(("state", "said"), [("pending", "was not sent yet"), ("sending", "may have been sent")])
def test_claimed_and_not_finished(state: str, said: str) -> None:
    claim = msgspec.structs.replace(CLAIM, state=state, confirmed_at=None)
    reason, sentence = of(DUE, claim, at=INCOMPLETE)
    assert (reason, said in sentence) == ("unfinished", True), sentence
    assert f"dispatch-ledger dispatch --window {FIFTEEN}" in sentence
    assert "a run is working on" in of(DUE, claim, at=Standing(FIFTEEN, ended=True, state="running"))[1]
    assert "--release-hold" in of(DUE, claim, at=HELD)[1]


@pytest.mark.parametrize("state", [None, "void"])
def test_a_claim_without_its_entry(state: str | None) -> None:
    reason, sentence = of(DUE, msgspec.structs.replace(CLAIM, state=state, window=None, job=None))
    assert (reason, "audit verify" in sentence) == ("entry_lost", True)


def test_never_claimed_and_the_source_cannot_be_asked() -> None:
    reason, sentence = of("unknown", findings=[("bad_record", "unknown_route"), ("overdue_receipt", None)])
    assert reason == "source_unknown"
    assert "could not be asked" in sentence
    assert "bad_record (unknown_route), overdue_receipt" in sentence
    assert "findings" not in of("unknown")[1]


def test_never_claimed_and_not_in_the_table() -> None:
    reason, sentence = of("gone")
    assert (reason, "the table T has no record with this key" in sentence) == ("gone", True)


def test_not_due() -> None:
    assert of("not_due")[0] == "not_due"
    assert "its RewardStatus is 'Done', and only 'Wait' is due" in of("not_due")[1]


def test_set_aside() -> None:
    reason, sentence = of("set_aside")
    assert (reason, f"then: dispatch-ledger dispatch --window {FIFTEEN}" in sentence) == ("set_aside", True)
    assert "unknown_route" in sentence
    reason, sentence = of("unreadable")
    assert (reason, "--window" in sentence) == ("set_aside", False), "who mends the time may move it to another window"
    assert "ask again: which window sends it depends on the time that it has then" in sentence
    early = of("set_aside", at=Standing(FIFTEEN, ended=False, state="not_dispatched"))[1]
    assert f"before {FIFTEEN.end_name}" in early


def test_an_index_that_shows_it_in_no_window() -> None:
    reason, sentence = of("hidden")
    assert reason == "not_in_index"
    assert "BookingDateUTC '2026-09-16'" in sentence
    assert format_ns(HALF_PAST) in sentence
    reason, sentence = of("no_keys")
    assert reason == "not_in_index"
    assert "it has no BookingDateUTC and no BookingTimeUTC" in sentence


WINDOWS: list[tuple[Reason, Standing, str]] = [
    ("window_open", Standing(FIFTEEN, ended=False, state="not_dispatched"), FIFTEEN.end_name),
    ("window_held", HELD, "--release-hold"),
    ("window_running", Standing(FIFTEEN, ended=True, state="running", completed_at=DONE_AT), "a run is working"),
    ("window_owed", UNSEEN, "dispatch-ledger dispatch --due"),
    ("window_incomplete", INCOMPLETE, "ended failed (no answer)"),
    ("window_incomplete", Standing(FIFTEEN, ended=True, state="incomplete"), "did not end"),
    ("missed", DISPATCHED, f"dispatch-ledger reconcile --window {FIFTEEN}"),
    ("void", msgspec.structs.replace(DISPATCHED, void_reason="too long"), "(too long); run: dispatch-ledger reconcile"),
    ("void", msgspec.structs.replace(INCOMPLETE, void_reason="too long"), "(too long); run: dispatch-ledger dispatch"),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "standing", "said"), WINDOWS)
def test_due_and_waiting_in_a_window(expected: Reason, standing: Standing, said: str) -> None:
    reason, sentence = of(DUE, at=standing)
    assert (reason, said in sentence) == (expected, True), sentence


def test_a_window_that_is_not_owed() -> None:
    reason, sentence = of(DUE, not_before="2026-09-17T15:00:01Z")
    assert (reason, "schedule.not_before (2026-09-17T15:00:01Z)" in sentence) == ("window_not_owed", True)
    assert of(DUE, not_before="2026-09-17T15:00:00Z")[0] == "window_owed"


def test_a_window_that_due_no_longer_looks_at() -> None:
    assert of(DUE, catch_up="5h")[0] == "window_owed"
    reason, sentence = of(DUE, catch_up="4h")
    assert (reason, f"dispatch-ledger dispatch --window {FIFTEEN}" in sentence) == ("window_too_old", True)


def test_missed_names_the_cause_and_the_grace() -> None:
    assert "(index_lag)" in of(DUE, at=DISPATCHED, findings=[("missed", "index_lag")])[1]
    assert "grace" not in of(DUE, at=DISPATCHED, now=DONE_AT + timedelta(minutes=10))[1]
    assert "after 2026-09-17T16:11:00Z" in of(DUE, at=DISPATCHED, now=DONE_AT + timedelta(minutes=9))[1]


def test_rebooked() -> None:
    before = msgspec.structs.replace(CLAIM, booking_ns=FIFTEEN.start_ns - HOUR_S * 10**9)
    for source, at, expected in (("due", UNSEEN, "window_owed"), ("due", DISPATCHED, "missed"),
                                 ("not_due", UNSEEN, "not_due"), ("set_aside", UNSEEN, "set_aside"),
                                 ("hidden", UNSEEN, "not_in_index")):  # fmt: skip
        reason, sentence = of(source, before, at=at)
        assert reason == expected
        assert f"At another booking time, 2026-09-17T14:00:00Z, it was claimed (entry {ENTRY})" in sentence
    assert of("gone", before)[0] == "dispatched"
    assert of("unknown", before)[0] == "dispatched"


@pytest.mark.parametrize(
    ("earlier", "later", "expected", "window"),
    [
        (DISPATCHED, Standing(SIXTEEN, ended=False, state="not_dispatched"), "window_open", SIXTEEN),
        (UNSEEN, Standing(SIXTEEN, ended=False, state="not_dispatched"), "window_owed", FIFTEEN),
        (INCOMPLETE, Standing(SIXTEEN, ended=False, state="not_dispatched"), "window_open", SIXTEEN),
        (DISPATCHED, Standing(SIXTEEN, ended=True, state="dispatched", void_reason="no"), "void", SIXTEEN),
        (HELD, Standing(SIXTEEN, ended=True, state="not_dispatched"), "window_owed", SIXTEEN),
        (UNSEEN, Standing(SIXTEEN, ended=True, state="held", held_reason="why"), "window_owed", FIFTEEN),
        (DISPATCHED, Standing(SIXTEEN, ended=True, state="running"), "window_running", SIXTEEN),
        (DISPATCHED, Standing(SIXTEEN, ended=True, state="dispatched", completed_at=DONE_AT), "missed", FIFTEEN),
        (UNSEEN, Standing(SIXTEEN, ended=True, state="dispatched", completed_at=DONE_AT), "window_owed", FIFTEEN),
    ],
)
def test_on_the_hour_the_more_hopeful_window_decides(
    earlier: Standing, later: Standing, expected: Reason, window: Window
) -> None:
    seen = msgspec.structs.replace(DUE, booking_ns=SIXTEEN.start_ns, windows=(FIFTEEN, SIXTEEN))
    facts = RecordFacts(NOW, [], {FIFTEEN: earlier, SIXTEEN: later}, [])
    answer = explain(seen, facts, Settings())
    assert (answer.reason, answer.window) == (expected, window)


def test_every_reason_is_given_by_a_test_above() -> None:
    tested = {
        "dispatched",
        "unfinished",
        "entry_lost",
        "source_unknown",
        "gone",
        "not_due",
        "set_aside",
        "not_in_index",
    }
    tested |= {expected for expected, _, _ in WINDOWS} | {"window_too_old", "window_not_owed"}
    assert tested == set(get_args(Reason))
