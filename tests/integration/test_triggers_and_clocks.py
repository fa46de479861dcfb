"""When a window is dispatched: early and missing triggers, long outages, and a database clock that jumps."""

from collections.abc import Iterable

import pytest

from ledger.instants import HOUR_S, parse_window, window_at, window_of_execute_time
from ops.schedule import reconcile_deep, reconcile_recent
from reconcile.reconciler import windows_to_rescan
from tests.aws_servers import World, booking
from tests.fault.windows import drained
from tests.rig import FLOWS, Rig

EARLY, LATE = "2026-09-17T15:59:59.977+08:00", "2026-09-17T16:00:00.006+08:00"
SIX, SEVEN = "2026-09-17T06:00:00Z", "2026-09-17T07:00:00Z"


def set_clock(rig: Rig, text: str) -> None:
    """Let the ledger's clock go on from this instant."""
    now = rig.value("SELECT clock_timestamp()")
    rig.tell(
        "CREATE OR REPLACE FUNCTION ledger_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
        f"'SELECT timestamptz ''{text}'' + (clock_timestamp() - timestamptz ''{now}'')'"
    )


def hours(first: str, count: int) -> list[str]:
    start_s = parse_window(first).start_s
    return [window_at(start_s + HOUR_S * at).name for at in range(count)]


def book(world: World, windows: Iterable[str], minute: int = 10) -> None:
    """Put one booking into each window, named after it."""
    for member, window in enumerate(windows):
        world.put(booking(f"{window[:13]}:{minute}", f"{window[:13]}:{minute}:00Z", member=member))


def due(rig: Rig, flow: str = "staged", **settings: str) -> list[str]:
    """Dispatch what is owed; gives the windows, in the order that they were dispatched in."""
    with rig.dispatcher(flow, **settings) as dispatcher:
        reports = list(dispatcher.dispatch_due("schedule"))
    assert {report.outcome for report in reports} <= {"completed"}
    return [report.window.name for report in reports]


def rescan(rig: Rig, lookback: str, **more: str) -> list[tuple[str, str]]:
    """Reconcile what ended within the lookback; gives the open or repaired findings as (window, kind)."""
    settings = {"reconcile__lookback": lookback, "reconcile__grace": "0s", **more}
    with rig.dispatcher(**settings) as dispatcher:
        windows = windows_to_rescan(dispatcher, dispatcher.settings.reconcile.lookback)
    document = rig.reconcile(*(one.name for one in windows), **settings)
    return [(window["window"], one["kind"]) for window in document["windows"] for one in window["findings"]]


def sent(world: World) -> list[str]:
    """Take all messages; gives the windows they are of, as often as there are messages."""
    return sorted(one["window"]["start"] for one in drained(world))


@pytest.mark.parametrize("flow", FLOWS)
def test_case_9_a_trigger_that_fires_early_and_again(world: World, rig: Rig, flow: str) -> None:
    book(world, [SIX, SEVEN])
    set_clock(rig, "2026-09-17T07:01:00Z")
    assert rig.run(flow, window=SIX).counts.claimed == 1
    for trigger, window, claimed in ((EARLY, SIX, 0), (LATE, SEVEN, 1)):
        set_clock(rig, trigger)
        report = rig.run(flow, window=window_of_execute_time(trigger))
        assert (report.window.name, report.outcome) == (window, "completed")
        assert (report.counts.claimed, report.counts.already_claimed) == (claimed, 1 - claimed)
    assert sent(world) == [SIX, SEVEN]
    set_clock(rig, "2026-09-17T08:20:00Z")
    assert due(rig, flow, schedule__catch_up="2h") == []
    assert rescan(rig, "3h") == [], "each was dispatched in time"


@pytest.mark.parametrize("flow", FLOWS)
def test_case_9_only_the_early_trigger_comes(world: World, rig: Rig, flow: str) -> None:
    """The hour that was left is reported, caught up once, and then it is no finding any more."""
    book(world, [SIX, SEVEN])
    set_clock(rig, "2026-09-17T07:01:00Z")
    rig.run(flow, window=SIX)
    set_clock(rig, EARLY)
    assert rig.run(flow, window=window_of_execute_time(EARLY)).counts.claimed == 0
    assert sent(world) == [SIX]
    set_clock(rig, "2026-09-17T08:20:00Z")
    assert rescan(rig, "3h") == [(SEVEN, "window_not_dispatched")]
    assert sent(world) == [], "it is left to the dispatch"
    assert due(rig, flow, schedule__catch_up="2h") == [SEVEN]
    assert sent(world) == [SEVEN]
    assert due(rig, flow, schedule__catch_up="2h") == []
    assert rescan(rig, "3h") == []
    assert rig.findings() == [("window_not_dispatched", None, "closed")]
    rig.assert_books_balance()


@pytest.mark.parametrize(
    ("catch_up", "caught_up"),
    [("24h", hours("2026-09-17T05:00:00Z", 15)), ("10h", hours("2026-09-17T11:00:00Z", 9))],
    ids=["all of it", "as far as catch_up"],
)
def test_case_17_down_for_15_hours(world: World, rig: Rig, catch_up: str, caught_up: list[str]) -> None:
    """What lies further back than `catch_up` is not dispatched by itself, and a reconcile says so."""
    down = hours("2026-09-17T05:00:00Z", 15)
    book(world, down)
    set_clock(rig, "2026-09-17T05:01:00Z")
    due(rig, schedule__catch_up="24h")
    set_clock(rig, "2026-09-17T20:30:00Z")
    assert due(rig, schedule__catch_up=catch_up) == caught_up, "oldest first"
    assert sent(world) == caught_up, "once each"
    assert due(rig, schedule__catch_up=catch_up) == []
    left = [window for window in down if window not in caught_up]
    assert rescan(rig, "16h") == [(window, "window_not_dispatched") for window in left]
    assert sent(world) == []
    rig.assert_books_balance()


def test_a_clock_that_jumps_ahead_and_back_loses_and_repeats_nothing(world: World, rig: Rig) -> None:
    """Hours that it took for closed are completed too early; what is booked for them later is found and sent."""
    fifteen, sixteen, seventeen = windows = hours("2026-09-17T15:00:00Z", 3)
    owed = {"schedule__catch_up": "24h", "schedule__not_before": fifteen}
    book(world, windows)
    set_clock(rig, "2026-09-17T16:01:00Z")
    assert due(rig, **owed) == [fifteen]
    set_clock(rig, "2026-09-17T18:01:00Z")
    assert due(rig, **owed) == [sixteen, seventeen]
    set_clock(rig, "2026-09-17T15:10:00Z")
    assert due(rig, **owed) == []
    assert rescan(rig, "6h", **owed) == [], "an hour that has not ended is not looked at"
    assert sent(world) == windows
    book(world, [sixteen, seventeen], minute=40)
    for text in ("2026-09-17T17:01:00Z", "2026-09-17T16:30:00Z", "2026-09-17T18:20:00Z"):
        set_clock(rig, text)
        assert due(rig, **owed) == []
        rescan(rig, "6h", **owed)
    assert sent(world) == [sixteen, seventeen], "once each, by the reconcile"
    assert len(rig.claimed()) == len(set(rig.claimed())) == 5
    rig.assert_books_balance()


def test_a_clock_that_jumps_back_keeps_a_lease_and_ahead_ends_it(world: World, rig: Rig) -> None:
    """A held window is busy however far back the clock goes; ahead, the lease is over, and the holder is refused."""
    window = SEVEN
    book(world, [window])
    set_clock(rig, "2026-09-17T08:01:00Z")
    with rig.dispatcher() as first, rig.dispatcher() as second:
        ends: list[tuple[str, str]] = []

        def other(_: object) -> None:
            if not ends:
                set_clock(rig, "2026-09-17T05:00:00Z")
                back = second.dispatch(parse_window(window), "manual").outcome
                set_clock(rig, "2026-09-17T12:00:00Z")
                ends.append((back, second.dispatch(parse_window(window), "manual").outcome))

        first.on_progress = other
        report = first.dispatch(parse_window(window), "manual")
    assert ends == [("busy", "completed")]
    assert (report.outcome, "lost its lease" in str(report.error)) == ("failed", True)
    assert sent(world) == [window]
    rig.assert_books_balance()


def test_the_deep_reconcile_finds_who_came_later_than_the_usual_one_looks_back(world: World, rig: Rig) -> None:
    set_clock(rig, "2026-09-17T07:01:00Z")
    book(world, [SIX])
    settings = {"schedule__not_before": SIX, "reconcile__grace": "0s"}
    assert due(rig, **settings) == [SIX]
    assert sent(world) == [SIX]
    set_clock(rig, "2026-09-17T15:01:00Z")
    book(world, [SIX], minute=20)
    with rig.dispatcher(**settings, reconcile__lookback="6h", reconcile__deep_lookback="12h") as dispatcher:
        assert reconcile_recent(dispatcher) == "5 windows, 5 findings open, 0 repaired"
        assert sent(world) == []
        assert reconcile_deep(dispatcher).startswith("9 windows,")
    assert sent(world) == [SIX]
