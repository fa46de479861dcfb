"""The audit: a sound ledger balances whatever state its windows are in, and each planted fault is found and named."""

import psycopg
import pytest

from ledger import audit
from ledger.clock import monotonic_s
from ledger.errors import CorruptError, InputError
from ledger.spans import parse_bounds
from ledger.store import Store, connect_arguments
from tests import ledger_kit
from tests import report_kit as kit
from tests.report_kit import Planter

A_DAY = parse_bounds(kit.FROM, kit.TO)
ENTRY = "(SELECT id FROM entries WHERE window_id = {window} AND void_reason IS {void} ORDER BY id LIMIT 1)"
LIVE, VOID = ENTRY.replace("{void}", "NULL"), ENTRY.replace("{void}", "NOT NULL")


@pytest.fixture
def planter(store: Store) -> Planter:
    planted = Planter(store)
    planted.plant()
    planted.plant_findings()
    Planter(store, "other").plant()
    return planted


def test_a_sound_ledger_balances_in_every_state(store: Store, planter: Planter) -> None:
    checked = audit.verify(store, "reward", A_DAY)
    assert checked.document == {
        "windows_checked": len(kit.STATES),
        "balanced": True,
        "first_unbalanced": None,
        "windows": [],
    }
    assert checked.error is None


def test_nothing_to_check(store: Store, planter: Planter) -> None:
    nowhere = parse_bounds("2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z")
    assert audit.verify(store, "reward", nowhere).document["windows_checked"] == 0
    assert audit.verify(store, "never heard of", A_DAY).document["balanced"]


FAULTS = [
    (f"DELETE FROM claims WHERE entry_id = {LIVE}", {"claims", "entries_with_their_claims"}),
    (f"UPDATE claims SET entry_id = {VOID} WHERE entry_id = {LIVE}", {"entries_with_their_claims"}),
    (
        f"UPDATE claims SET generation = 9, entry_id = {VOID} WHERE entry_id = {LIVE}",
        {"entries_with_their_claims"},
    ),
    (
        f"UPDATE claims SET booking_ns = booking_ns + 7200 * 10^9::bigint WHERE entry_id = {LIVE}",
        {"claims", "entries_with_their_claims"},
    ),
    (f"UPDATE entries SET records_n = records_n + 1 WHERE id = {LIVE}", {"claims", "entries_with_their_claims"}),
    (
        f"DELETE FROM attempts WHERE entry_id = {LIVE}",
        {"entries_by_state", "finished_entries_with_proof"},
    ),
    (
        f"UPDATE attempts SET outcome = 'failed' WHERE entry_id = {LIVE}",
        {"entries_by_state", "finished_entries_with_proof"},
    ),
    (
        f"UPDATE entries SET void_reason = NULL WHERE id = {VOID}",
        {"entries_by_state", "claims", "entries_with_their_claims", "finished_entries_with_proof"},
    ),
    (f"UPDATE entries SET void_reason = 'x' WHERE id = {LIVE}", {"claims", "entries_with_their_claims"}),
    (f"INSERT INTO payload_parts VALUES ({{window}}, {VOID}, 0, 'x')", {"void_entries_with_payload"}),
    ("INSERT INTO payload_parts VALUES ({window}, gen_random_uuid(), 0, 'x')", {"payloads_without_entry"}),
    (f"DELETE FROM entries WHERE id = {LIVE}", {"claims_without_entry"}),
    (f"UPDATE entries SET run_id = gen_random_uuid() WHERE id = {LIVE}", {"entries_of_a_run_and_destination"}),
    (f"UPDATE entries SET destination_id = 4711 WHERE id = {LIVE}", {"entries_of_a_run_and_destination"}),
    (
        "UPDATE entries SET destination_id = (SELECT max(id) FROM destinations) WHERE window_id = {window}",
        {"entries_of_a_run_and_destination"},
    ),
    (
        "ALTER TABLE runs DROP CONSTRAINT runs_books_balance; UPDATE runs SET due = due + 1 WHERE window_id = {window}",
        {"runs_whose_books_balance"},
    ),
    (
        "UPDATE findings SET pipeline_id = (SELECT max(id) FROM pipelines) WHERE subject = 'missed-open'",
        {"findings_of_another_pipeline"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "checks"), FAULTS, ids=range(len(FAULTS)))
def test_a_fault_is_found_and_named(
    ledger_url: str, store: Store, planter: Planter, fault: str, checks: set[str]
) -> None:
    with psycopg.connect(**connect_arguments(ledger_url), autocommit=True) as connection:
        connection.execute(fault.replace("{window}", str(planter.window_id(10))))  # type: ignore[arg-type]
    checked = audit.verify(store, "reward", A_DAY)
    (one,) = checked.document["windows"]
    assert one == checked.document["first_unbalanced"]
    assert one["window"] == kit.hour(10)
    assert {check["check"] for check in one["checks"]} == checks
    assert all(set(check) == {"check", "expected", "found"} for check in one["checks"])
    assert all(check["expected"] != check["found"] for check in one["checks"])
    assert isinstance(checked.error, CorruptError)
    assert str(checked.error).startswith(f"window {kit.hour(10)} does not balance: ")
    assert audit.verify(store, "other", A_DAY).document["balanced"]


def test_two_entries_that_swap_a_claim_are_found(store: Store, planter: Planter) -> None:
    """The sums agree, but neither entry has what it promised."""
    planter.tell(
        "UPDATE claims SET entry_id = two.id FROM entries AS one, entries AS two WHERE one.window_id = %(w)s "
        "AND two.window_id = %(w)s AND one.records_n = 1 AND two.records_n = 4 AND claims.entry_id = one.id".replace(
            "%(w)s", str(planter.window_id(10))
        )
    )
    (one,) = audit.verify(store, "reward", A_DAY).document["windows"]
    assert one["checks"] == [{"check": "entries_with_their_claims", "expected": 4, "found": 2}]


def test_the_first_of_several_is_named(store: Store, planter: Planter) -> None:
    for number in (18, 15):
        planter.tell("UPDATE entries SET records_n = records_n + 1 WHERE window_id = %s", planter.window_id(number))
    checked = audit.verify(store, "reward", A_DAY)
    assert [one["window"] for one in checked.document["windows"]] == [kit.hour(15), kit.hour(18)]
    assert checked.document["first_unbalanced"]["window"] == kit.hour(15)
    assert "(1 more" in str(checked.error)
    only = audit.verify(store, "reward", parse_bounds(kit.hour(16), kit.hour(18)))
    assert only.document["balanced"]


def test_a_record_on_the_hour_belongs_to_the_entry_that_claimed_it(store: Store, planter: Planter) -> None:
    planter.tell("DELETE FROM claims WHERE record_id = 'edge'")
    checked = audit.verify(store, "reward", A_DAY)
    assert [one["window"] for one in checked.document["windows"]] == [kit.hour(15)]
    assert checked.document["windows"][0]["checks"][0] == {"check": "claims", "expected": 1, "found": 0}


def test_unbalanced_windows_are_counted_beyond_the_list(
    store: Store, planter: Planter, monkeypatch: pytest.MonkeyPatch
) -> None:
    planter.tell("UPDATE entries SET records_n = records_n + 1")
    monkeypatch.setattr(audit, "UNBALANCED_MAX", 2)
    monkeypatch.setattr(audit, "_WINDOWS_AT_ONCE", 2)
    document = audit.verify(store, "reward", A_DAY).document
    assert document["windows_checked"] == len(kit.STATES)
    assert (len(document["windows"]), document["left_off"]) == (2, 4)


def test_a_range_that_is_none(store: Store) -> None:
    with pytest.raises(InputError):
        audit.verify(store, "reward", parse_bounds("9000-01-01T00:00:00Z", None))


def test_a_run_at_work_does_no_harm(ledger_url: str, store: Store, planter: Planter) -> None:
    """Between open, mark and confirm the books balance at every moment."""
    tenure = planter.take(20)
    for entry in planter.open(tenure, "live", (3, 1)):
        assert audit.verify(store, "reward", A_DAY).document["balanced"]
        with Store(ledger_url) as working:
            Planter(working).answer(tenure, [entry], kit.ACCEPTED)
        assert audit.verify(store, "reward", A_DAY).document["balanced"]


def test_many_entries_are_counted_by_sets(store: Store) -> None:
    """40,000 entries take seconds at most, in the report and in the audit."""
    planter = Planter(store)
    tenure = planter.take(9)
    destination = ledger_kit.routes(store, tenure)["Point"].id
    planter.tell(
        "INSERT INTO entries SELECT gen_random_uuid(), %s, %s, ledger_now(), %s, 1, 0, substr(key, 1, 16), key, key, "
        "'{}', NULL FROM (SELECT sha256(n::text::bytea) AS key FROM generate_series(1, 40000) AS n) AS keys",
        tenure.run_id, tenure.window_id, destination,
    )  # fmt: skip
    planter.tell(
        "INSERT INTO claims SELECT %s + row_number() OVER (), 0, %s, 0, 'r', id FROM entries",
        tenure.window.start_ns, tenure.pipeline_id,
    )  # fmt: skip
    planter.tell(
        "INSERT INTO attempts SELECT id, ledger_now(), ledger_now(), 1, 1, 1, 'accepted', 'e', 'm' FROM entries"
    )
    began_s = monotonic_s()
    assert audit.verify(store, "reward", A_DAY).document["balanced"]
    assert monotonic_s() - began_s < 10
