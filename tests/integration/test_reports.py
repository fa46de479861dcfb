"""Reports: every number of a window has one source, and findings are listed, acknowledged and never mixed up."""

import json
from typing import Any

import pytest

from ledger import acknowledging, history, reports
from ledger.errors import InputError
from ledger.reports import COUNTS, FINDING_STATES, KINDS, Wanted
from ledger.spans import Bounds, parse_bounds
from ledger.store import Store
from tests import report_kit as kit
from tests.report_kit import Planter

A_DAY = parse_bounds(kit.FROM, kit.TO)
LINE = {"entries": 0, "pending": 0, "sending": 0, "confirmed": 0, "void": 0, "records": 0}


def by_hour(store: Store, pipeline: str = "reward") -> dict[int, dict[str, Any]]:
    report = reports.report_windows(store, pipeline, A_DAY)
    return {int(one["window"][11:13]): one for one in report.windows}


def test_windows_in_every_state(store: Store, planter: Planter) -> None:
    planter.plant()
    windows = by_hour(store)
    assert {number: one["state"] for number, one in windows.items()} == kit.STATES
    numbers = {number: {name: one[name] for name in COUNTS} for number, one in windows.items()}
    assert numbers == {
        10: LINE | {"entries": 4, "confirmed": 3, "void": 1, "records": 7},
        11: LINE | {"entries": 4, "confirmed": 1, "sending": 2, "pending": 1, "records": 15},
        12: LINE,
        13: LINE,
        14: LINE,
        15: LINE | {"entries": 1, "confirmed": 1, "records": 1},
        16: LINE | {"entries": 1, "confirmed": 1, "records": 1},
        17: LINE | {"entries": 2, "confirmed": 2, "records": 3},
        18: LINE | {"entries": 2, "confirmed": 2, "records": 3},
    }
    assert {number: one["open_findings"] for number, one in windows.items() if one["open_findings"]} == {10: 1, 14: 1}


def test_totals_are_the_sums_of_the_lines(store: Store, planter: Planter) -> None:
    planter.plant()
    document = reports.report_windows(store, "reward", A_DAY).document
    assert set(document) == {"windows", "totals"}
    assert all(list(one) == list(reports.WINDOW_COLUMNS) for one in document["windows"])
    assert document["totals"] == {
        name: sum(one[name] for one in document["windows"]) for name in (*COUNTS, "open_findings")
    }
    assert document["totals"]["records"] == 30
    for one in (*document["windows"], document["totals"]):
        assert one["entries"] == one["pending"] + one["sending"] + one["confirmed"] + one["void"]


def test_show_window_says_the_same(store: Store, planter: Planter) -> None:
    planter.plant()
    planter.plant_findings()
    for number, line in by_hour(store).items():
        story = history.window_history(store, "reward", kit.window(number))
        assert story["totals"] == {name: line[name] for name in COUNTS}
        for name in ("state", "open_findings", "coverage", "verified_at"):
            assert story[name] == line[name], (number, name)
        assert sum(one["state"] == "open" for one in story["findings"]) == line["open_findings"]
    states = store.transaction(
        lambda connection: connection.execute("SELECT state, count(*) FROM entry_states GROUP BY state").fetchall()
    )
    totals = reports.report_windows(store, "reward", A_DAY).totals
    assert {state: totals[state] for state, _ in states} == dict(states)


@pytest.mark.parametrize(
    ("due", "claimed", "coverage"),
    [(0, 0, 1.0), (3, 2, 0.666667), (3, 0, 0.0), (7, 7, 1.0), (10**9, 10**9 - 1, 0.999999)],
)
def test_coverage(store: Store, planter: Planter, due: int, claimed: int, coverage: float) -> None:
    planter.verify(9, due, claimed)
    (one,) = by_hour(store).values()
    assert (one["coverage"], one["verified_at"]) == (coverage, "2026-09-18T01:02:03.500000Z")


def test_a_window_that_nobody_verified_has_no_coverage(store: Store, planter: Planter) -> None:
    planter.window_id(9)
    (one,) = by_hour(store).values()
    assert (one["coverage"], one["verified_at"], one["state"]) == (None, None, "not_dispatched")


def test_a_hold_comes_before_a_lease_and_a_lease_before_the_past(store: Store, planter: Planter) -> None:
    planter.dispatch(9)
    planter.take_long(9)
    assert by_hour(store)[9]["state"] == "running"
    planter.tell("UPDATE windows SET held_at = ledger_now(), held_reason = 'why'")
    assert by_hour(store)[9]["state"] == "held"


def test_a_lease_that_ran_out_is_not_running(store: Store, planter: Planter) -> None:
    planter.take(9)
    planter.tell("UPDATE windows SET lease_until = ledger_now() - interval '1 second'")
    assert by_hour(store)[9]["state"] == "incomplete"


def test_a_completed_window_with_a_payload_left_is_incomplete(store: Store, planter: Planter) -> None:
    (entry, _) = planter.dispatch(9)
    planter.tell("INSERT INTO payload_parts VALUES (%s, %s, 0, 'x')", planter.window_id(9), entry.id)
    line = by_hour(store)[9]
    assert (line["state"], line["sending"], line["confirmed"]) == ("incomplete", 1, 1)


def test_a_run_that_was_only_busy_is_none(store: Store, planter: Planter) -> None:
    planter.tell("UPDATE windows SET lease_until = NULL")
    planter.reconcile(9)
    assert by_hour(store)[9]["state"] == "not_dispatched"


def test_pipelines_do_not_see_each_other(store: Store, planter: Planter) -> None:
    planter.plant()
    planter.plant_findings()
    other = Planter(store, "other")
    other.dispatch(10, (9,))
    assert [one["records"] for one in by_hour(store, "other").values()] == [9]
    assert by_hour(store)[10]["records"] == 7
    assert reports.report_findings(store, "other", A_DAY, Wanted()).document == {"findings": []}
    assert reports.list_findings(store, "other", None, Wanted()).document == {"findings": []}
    assert by_hour(store, "never heard of") == {}


def test_a_range_holds_what_starts_in_it(store: Store, planter: Planter) -> None:
    for number in (9, 10, 11):
        planter.window_id(number)

    def between(since: str, until: str) -> list[str]:
        report = reports.report_windows(store, "reward", parse_bounds(since, until))
        return [one["window"][11:13] for one in report.windows]

    assert between(kit.hour(9), kit.hour(11)) == ["09", "10"]
    assert between(f"{kit.DAY}T09:00:00.000000001Z", f"{kit.DAY}T11:00:00.1Z") == ["10", "11"]
    assert between(f"{kit.DAY}T17:00:00+08:00", f"{kit.DAY}T18:00:00+08:00") == ["09"]
    assert between("2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z") == []


def test_by_default_the_last_seven_days_are_reported(store: Store, planter: Planter) -> None:
    make = (
        "INSERT INTO windows (pipeline_id, start_s) SELECT pipeline_id, "
        "(floor(extract(epoch FROM ledger_now()) / 3600) - hour)::bigint * 3600 "
        "FROM (SELECT pipeline_id FROM windows) AS one, unnest(ARRAY[-1, 0, 1, 167, 169]) AS hour"
    )
    planter.window_id(9)
    planter.tell(make)
    report = reports.report_windows(store, "reward", Bounds())
    assert len(report.windows) == 3
    assert report.about.span.end_s - report.about.span.first_s == 7 * 86_400


@pytest.mark.parametrize(
    ("since", "until", "said"),
    [
        ("today", None, "--from 'today'"),
        (None, "2026-09-17", "--to '2026-09-17'"),
        ("2026-09-17T15:00:00", None, "zone"),
        (kit.TO, kit.FROM, "not before"),
        (kit.FROM, kit.FROM, "not before"),
        ("2000-01-01T00:00:00Z", kit.TO, "ten years"),
        ("x" * 5000, None, "RFC 3339"),
    ],
)
def test_a_range_that_is_none(since: str | None, until: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said) as refusal:
        parse_bounds(since, until)
    assert len(str(refusal.value)) < 250


def test_a_range_that_begins_in_the_future_is_none(store: Store) -> None:
    with pytest.raises(InputError, match="not before"):
        reports.report_windows(store, "reward", parse_bounds("9000-01-01T00:00:00Z", None))


def test_ten_years_are_allowed() -> None:
    assert parse_bounds("2016-01-01T00:00:00Z", "2026-01-01T00:00:00Z")


# Findings


def test_each_report_shows_its_kinds_in_all_states(store: Store, planter: Planter) -> None:
    planter.plant_findings()
    expected = {
        "duplicates": {"duplicate"},
        "missed": {"missed", "window_not_dispatched"},
        "orphans": {"orphan_object", "missing_object"},
        "findings": set(KINDS),
    }
    for name, kinds in expected.items():
        report = reports.report_findings(store, "reward", A_DAY, Wanted(reports.REPORTED_KINDS[name]))
        assert {one["kind"] for one in report.findings} == kinds
        assert {one["state"] for one in report.findings} == set(FINDING_STATES)
        assert len(report.findings) == 4 * len(kinds)
        assert sum(report.tally.values()) == len(report.findings)
        ids = [one["id"] for one in report.findings]
        assert ids == sorted(ids, reverse=True)
        assert all(list(one) == list(_document_fields()) for one in report.findings)


def _document_fields() -> tuple[str, ...]:
    return reports.FINDING_COLUMNS


def test_findings_beyond_the_limit_are_counted(store: Store, planter: Planter) -> None:
    planter.plant_findings()
    document = reports.list_findings(store, "reward", None, Wanted(states=("open",), limit=3)).document
    assert [one["kind"] for one in document["findings"]] == list(KINDS[:-4:-1])
    assert document["left_off"] == len(KINDS) - 3


def test_findings_of_one_window(store: Store, planter: Planter) -> None:
    planter.find(9, "missed", "a")
    planter.find(10, "missed", "b")
    (one,) = reports.list_findings(store, "reward", kit.window(10), Wanted()).findings
    assert one["window"] == kit.hour(10)


def test_hostile_text_comes_back_as_it_was(store: Store, planter: Planter) -> None:
    planter.find(9, "missed", "a", text=kit.HOSTILE)
    (one,) = reports.list_findings(store, "reward", None, Wanted()).findings
    assert one["record_id"] == kit.HOSTILE
    assert json.loads(bytes(one["detail"])) == {"said": kit.HOSTILE}


# Acknowledging is tested with its races in test_acknowledging


def test_a_finding_that_is_acknowledged_is_open_no_more(store: Store, planter: Planter) -> None:
    identity = planter.find(9, "missed", "a")
    acknowledging.acknowledge(store, "reward", identity, acknowledging.parse_note("me", "seen"))
    assert by_hour(store)[9]["open_findings"] == 0
    assert reports.list_findings(store, "reward", None, Wanted(states=("open",))).findings == []
