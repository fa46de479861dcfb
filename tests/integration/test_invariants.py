"""The invariants of the ledger (I1 to I5, I10), each seen to hold on real PostgreSQL."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest

from ledger import outbox, receipts, runs, staging
from ledger.canonical import content_hash
from ledger.clock import monotonic_s, utc_now
from ledger.errors import BusyError, CorruptError, LeaseLostError
from ledger.facts import Entry, PageFacts, RunCounts, SendAnswer
from ledger.ids import new_id
from ledger.leases import Tenure, check_fence
from ledger.store import Store, connect_arguments
from tests import ledger_kit as kit
from tests.breaking import LostAnswer

ACCEPTED = SendAnswer("accepted", message_id="m-1")


@pytest.fixture
def connection(ledger_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(**connect_arguments(ledger_url), autocommit=True) as opened:
        yield opened


def opened_entry(store: Store, tenure: Tenure, identity: str = "r1") -> Entry:
    opened = outbox.open_entries(
        store, tenure, [kit.group([kit.record(identity, tenure.window, 60)])], kit.routes(store, tenure)
    )
    (entry,) = opened.entries
    return kit.uploaded(entry)


def marked_entry(store: Store, tenure: Tenure, identity: str = "r1") -> Entry:
    (entry,) = outbox.mark_sending(store, tenure, [opened_entry(store, tenure, identity)])
    return entry


def state_of(store: Store, entry: Entry) -> Any:
    query = "SELECT state, attempts FROM entry_states WHERE id = %s"
    return store.transaction(lambda connection: connection.execute(query, (entry.id,)).fetchone())


# I1: one claim an occurrence


def wait_for_locks(url: str, waiting: int) -> None:
    """Wait until so many connections wait for somebody's lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    deadline_s = monotonic_s() + 60
    with psycopg.connect(**connect_arguments(url), autocommit=True) as watcher:
        while kit.ask(watcher, query) != [(waiting,)]:
            assert monotonic_s() < deadline_s, "nobody waits"


def race(workers: list[Callable[[], None]]) -> None:
    """Run all at once; raise what the first one raises."""
    with ThreadPoolExecutor(len(workers)) as pool:
        for future in [pool.submit(worker) for worker in workers]:
            future.result(timeout=120)


def test_two_windows_that_race_for_the_occurrences_of_one_hour_mark_claim_each_once(ledger_url: str) -> None:
    """Records exactly on the hour belong to both windows; each side wants them in an order of its own."""
    rounds, size = 12, 40
    start = threading.Barrier(2, timeout=60)
    with Store(ledger_url) as early, Store(ledger_url) as late:
        tenures = [kit.take(early, "2026-09-17T15:00:00Z"), kit.take(late, "2026-09-17T16:00:00Z")]
        by_route = kit.routes(early, tenures[0])

        def open_all(store: Store, tenure: Tenure, *, backwards: bool) -> None:
            for at in range(rounds):
                shared = [kit.record(f"{at}-{n:02d}", tenures[1].window, 0, group=n) for n in range(size)]
                groups = [kit.group([one], n) for n, one in enumerate(shared)]
                start.wait()
                outbox.open_entries(store, tenure, groups[::-1] if backwards else groups, by_route)

        race(
            [
                lambda: open_all(early, tenures[0], backwards=False),
                lambda: open_all(late, tenures[1], backwards=True),
            ]
        )
        claims = early.transaction(
            lambda connection: connection.execute("SELECT record_id, booking_ns, entry_id FROM claims").fetchall()
        )
        promised = early.transaction(
            lambda connection: connection.execute("SELECT sum(records_n), count(*) FROM entries").fetchone()
        )
    assert len(claims) == rounds * size
    assert max(Counter(row[:2] for row in claims).values()) == 1
    assert promised == (rounds * size, len({row[2] for row in claims}))


def test_claims_are_taken_in_the_order_of_their_key(ledger_url: str, store: Store) -> None:
    """Whoever waits for one occurrence has not taken any that comes after it, so nobody can wait in a circle."""
    tenure = kit.take(store)
    by_route, records = kit.routes(store, tenure), [kit.record(name, tenure.window, 5) for name in "zma"]
    insert = (
        "INSERT INTO claims (pipeline_id, booking_ns, record_id, generation, fingerprint, entry_id) "
        "VALUES (%s, %s, %s, 0, 0, gen_random_uuid())"
    )
    with ThreadPoolExecutor(1) as pool, psycopg.connect(**connect_arguments(ledger_url)) as rival:
        rival.execute("SET lock_timeout = '200ms'")
        rival.execute(insert, (tenure.pipeline_id, records[0].booking_ns, b"m"))
        opening = pool.submit(outbox.open_entries, store, tenure, [kit.group(records)], by_route)
        wait_for_locks(ledger_url, 1)
        rival.execute(insert, (tenure.pipeline_id, records[0].booking_ns, b"z"))
        rival.commit()
        assert opening.result(60).bodies.popitem()[1] == records[2].body


def test_whole_groups_that_overlap_are_divided_without_loss(ledger_url: str) -> None:
    start = threading.Barrier(2, timeout=60)
    with Store(ledger_url) as early, Store(ledger_url) as late:
        tenures = [kit.take(early, "2026-09-17T15:00:00Z"), kit.take(late, "2026-09-17T16:00:00Z")]
        by_route = kit.routes(early, tenures[0])
        shared = [kit.record(f"s{n:03d}", tenures[1].window, 0) for n in range(300)]
        own = [
            [kit.record(f"e{n:03d}", tenures[0].window, 5) for n in range(50)],
            [kit.record(f"l{n:03d}", tenures[1].window, 5) for n in range(50)],
        ]
        opened: list[outbox.Opened] = []

        def open_one(store: Store, tenure: Tenure, mine: list[Any]) -> None:
            start.wait()
            opened.append(outbox.open_entries(store, tenure, [kit.group(mine)], by_route))

        race(
            [
                lambda: open_one(early, tenures[0], own[0] + shared),
                lambda: open_one(late, tenures[1], shared[::-1] + own[1]),
            ]
        )
        bodies = [body for one in opened for joined in one.bodies.values() for body in joined.split(b"},{")]
        assert len(bodies) == sum(one.claimed for one in opened) == 400
        for one in opened:
            for entry in one.entries:
                whole = msgspec.json.decode(b"[" + one.bodies[entry.id] + b"]", type=list[msgspec.Raw])
                assert entry.records_n == len(whole)
                assert entry.content_hash == content_hash(map(bytes, whole))


def test_streamed_groups_that_overlap_do_not_deadlock(ledger_url: str) -> None:
    """Two windows stream one group's records on the hour; in payload order z comes before a, in key order after it."""
    with Store(ledger_url) as early, Store(ledger_url) as late:
        tenures = [kit.take(early, "2026-09-17T15:00:00Z"), kit.take(late, "2026-09-17T16:00:00Z")]
        by_route = kit.routes(early, tenures[0])
        first, second = (kit.record(name, tenures[1].window, 0) for name in ("z", "a"))
        before = kit.record("b", tenures[0].window, 1)
        claimed_z = threading.Event()

        def early_chunks() -> Iterator[list[Any]]:
            yield [before, first]
            if not claimed_z.is_set():
                claimed_z.set()
                wait_for_locks(ledger_url, 1)
            yield [second]

        def stream(store: Store, tenure: Tenure, chunks: Callable[[], Iterator[list[Any]]]) -> None:
            outbox.open_streamed(store, tenure, kit.group([]), chunks, by_route)

        def stream_late() -> None:
            assert claimed_z.wait(60)
            stream(late, tenures[1], lambda: iter([[first, second]]))

        race([lambda: stream(early, tenures[0], early_chunks), stream_late])
        claims = early.transaction(lambda connection: connection.execute("SELECT record_id FROM claims").fetchall())
    assert sorted(claims) == [(b"a",), (b"b",), (b"z",)]


def test_the_same_occurrence_may_be_claimed_in_another_generation(store: Store) -> None:
    tenure = kit.take(store)
    groups, by_route = [kit.group([kit.record("r1", tenure.window, 1)])], kit.routes(store, tenure)
    assert outbox.open_entries(store, tenure, groups, by_route).claimed == 1
    assert outbox.open_entries(store, tenure, groups, by_route).claimed == 0
    again = outbox.open_entries(store, tenure, groups, by_route, generation=1)
    assert again.claimed == 1
    assert [entry.generation for entry in again.entries] == [1]


def test_one_instant_of_two_pipelines_is_two_occurrences(store: Store) -> None:
    for pipeline in ("one", "two"):
        tenure = kit.take(store, pipeline=pipeline)
        groups = [kit.group([kit.record("r1", tenure.window, 1)])]
        assert outbox.open_entries(store, tenure, groups, kit.routes(store, tenure)).claimed == 1


def test_only_one_of_many_gets_a_window(ledger_url: str) -> None:
    start = threading.Barrier(6, timeout=60)
    outcomes: list[str] = []

    def try_it() -> None:
        with Store(ledger_url) as store:
            start.wait()
            try:
                kit.take(store)
                outcomes.append("got it")
            except BusyError:
                outcomes.append("busy")

    race([try_it] * 6)
    assert sorted(outcomes) == ["busy"] * 5 + ["got it"]


# I2 and I3: entries move forward only, and every forbidden row is refused

NOW = "ledger_now()"
ENTRY = {
    "id": "gen_random_uuid()",
    "window_id": "1",
    "run_id": "gen_random_uuid()",
    "opened_at": NOW,
    "destination_id": "1",
    "generation": "0",
    "records_n": "1",
    "group_digest": "decode(repeat('ab', 16), 'hex')",
    "content_hash": "decode(repeat('ab', 32), 'hex')",
    "idempotency_key": "sha256(gen_random_uuid()::text::bytea)",
    "group_json": "'{}'",
}
VOID = {"void_reason": "'because'"}
RUN = {
    "id": "gen_random_uuid()",
    "window_id": "(SELECT id FROM windows LIMIT 1)",
    "flow": "'full'",
    "page_size": "1",
    "cause": "'manual'",
    "config": "'{}'",
    "holder": "'h'",
    "started_at": NOW,
}
ENDED = {"outcome": "'completed'", "finished_at": NOW}
WINDOW = {"pipeline_id": "(SELECT id FROM pipelines LIMIT 1)", "start_s": "7200"}
PAGE = {"run_id": "(SELECT id FROM runs LIMIT 1)", "number": "1", "read_at": NOW}
OPEN_ATTEMPT = {
    "entry_id": "gen_random_uuid()",
    "number": "1",
    "fence": "1",
    "marked_at": NOW,
    "object_bytes": "1",
    "object_etag": "'e'",
}
ATTEMPT = {**OPEN_ATTEMPT, "answered_at": NOW, "outcome": "'failed'"}
CLAIM = {
    "pipeline_id": "1",
    "booking_ns": "1",
    "record_id": "'r'::bytea",
    "generation": "0",
    "fingerprint": "0",
    "entry_id": "gen_random_uuid()",
}
FINDING = {
    "pipeline_id": "(SELECT id FROM pipelines LIMIT 1)",
    "window_id": "(SELECT id FROM windows LIMIT 1)",
    "kind": "'missed'",
    "subject": "'s'::bytea",
    "state": "'open'",
    "detail": "'{}'",
    "first_seen_at": NOW,
    "last_seen_at": NOW,
}
RECEIPT = {
    "pipeline_id": "(SELECT id FROM pipelines LIMIT 1)",
    "idempotency_key": "sha256('k')",
    "window_id": "(SELECT id FROM windows LIMIT 1)",
    "state": "'in_work'",
    "claim": "gen_random_uuid()",
    "worker": "'w'",
    "attempts": "1",
    "claimed_at": NOW,
    "expires_at": NOW,
}
UNTOUCHED = {
    "state": "'superseded'",
    "claim": "NULL",
    "worker": "NULL",
    "attempts": "0",
    "claimed_at": "NULL",
    "expires_at": "NULL",
}
PLAN = {
    "id": "gen_random_uuid()",
    "window_id": "(SELECT id FROM windows LIMIT 1)",
    "state": "'planned'",
    "scope": "'{}'",
    "reason": "'r'",
    "planned_by": "'p'",
    "planned_at": NOW,
    "hash": "sha256('h')",
    "jobs": "0",
    "records": "0",
    "already_worked": "0",
    "no_longer_due": "0",
}
APPLYING = {"state": "'applying'", "run_id": "gen_random_uuid()", "applied_by": "'p'"}
PLAN_ENTRY = {
    "plan_id": "(SELECT id FROM plans LIMIT 1)",
    "number": "1",
    "generation": "1",
    "group_json": "'{}'",
    "record_ids": "'{}'::bytea[]",
}
JOB = {
    "id": "gen_random_uuid()",
    "pipeline_id": "(SELECT id FROM pipelines LIMIT 1)",
    "kind": "'report'",
    "params": "'{}'",
    "queue": "'fast'",
    "status": "'pending'",
    "relay_at": NOW,
    "created_by": "'p'",
    "created_at": NOW,
}
PROCESSING = {"status": "'processing'", "claim": "gen_random_uuid()", "expires_at": NOW}
VERIFIED = {"verified_at": NOW, "verified_evaluated": "3", "verified_due": "2", "verified_claimed": "1"}
EVENT = {
    "pipeline_id": "(SELECT id FROM pipelines LIMIT 1)",
    "window_id": "(SELECT id FROM windows LIMIT 1)",
    "at": NOW,
    "event": "'held'",
    "reason": "'r'",
}
TABLES = {
    "events": EVENT,
    "ledger_identity": {"ledger_id": "gen_random_uuid()"},
    "receipts": RECEIPT,
    "entries": ENTRY,
    "runs": RUN,
    "windows": WINDOW,
    "pages": PAGE,
    "attempts": ATTEMPT,
    "open_attempts": OPEN_ATTEMPT,
    "claims": CLAIM,
    "findings": FINDING,
    "plans": PLAN,
    "plan_entries": PLAN_ENTRY,
    "jobs": JOB,
    "refusals": {"pipeline_id": "(SELECT id FROM pipelines LIMIT 1)", "kind": "'job'", "refused": "1", "last_at": NOW},
}
ALLOWED = [
    ("entries", {}),
    ("entries", VOID),
    ("runs", {}),
    ("runs", ENDED),
    ("runs", {**ENDED, "outcome": "'failed'", "error": "'e'", "evaluated": "3"}),
    ("runs", {**ENDED, "outcome": "'busy'"}),
    (
        "runs",
        {**ENDED, "evaluated": "10", "outside": "1", "not_due": "2", "set_aside": "3", "due": "4", "claimed": "4"},
    ),
    ("windows", {}),
    ("windows", {"held_at": NOW, "held_reason": "'r'"}),
    ("windows", {"held_at": NOW, "held_reason": "'r'", "held_kind": "'person'", "seq": "7"}),
    ("events", {}),
    ("events", {"event": "'released'", "by": "'ann'"}),
    ("attempts", {"outcome": "'vouched'", "error": "'sent, on the word of ann'"}),
    ("windows", {"lease_run_id": "gen_random_uuid()", "lease_until": NOW}),
    ("windows", VERIFIED),
    ("receipts", {}),
    ("receipts", {"state": "'completed'", "expires_at": "NULL"}),
    ("receipts", UNTOUCHED),
    ("receipts", {"state": "'superseded'", "expires_at": "NULL"}),
    ("runs", {**ENDED, "cause": "'reconcile'", "evaluated": "1", "due": "1"}),
    ("attempts", {"outcome": "'received'"}),
    ("findings", {"state": "'repaired'", "repair": "'tagged'"}),
    ("pages", {"evaluated": "3", "outside": "1", "not_due": "2"}),
    ("open_attempts", {}),
    ("open_attempts", {"number": "7", "error": "'no answer'"}),
    ("attempts", {}),
    ("attempts", {"outcome": "'refused'", "error": "'no'"}),
    ("attempts", {"outcome": "'accepted'", "message_id": "'m'"}),
    ("claims", {}),
    ("findings", {}),
    ("findings", {"state": "'acknowledged'", "acknowledged_reason": "'r'"}),
    ("plans", {}),
    ("plans", APPLYING),
    ("plans", {**APPLYING, "state": "'applied'", "ended_at": NOW}),
    ("plans", {"state": "'stale'", "stale_reason": "'r'", "ended_at": NOW}),
    ("jobs", {}),
    ("jobs", PROCESSING),
    ("jobs", {"status": "'failed'", "finished_at": NOW, "error": "'e'"}),
    ("jobs", {"idempotency_key": "'k'", "request_hash": "sha256('h')"}),
    ("refusals", {}),
]
REFUSED = [
    ("entries_have_records", "entries", {"records_n": "0"}),
    ("entries_generation_not_negative", "entries", {"generation": "-1"}),
    ("entries_digest_lengths", "entries", {"group_digest": "decode(repeat('ab', 15), 'hex')"}),
    ("entries_digest_lengths", "entries", {"content_hash": "decode(repeat('ab', 31), 'hex')"}),
    ("entries_digest_lengths", "entries", {"idempotency_key": "decode(repeat('ab', 33), 'hex')"}),
    ("runs_flow", "runs", {"flow": "'other'"}),
    ("windows_verified_whole", "windows", {**VERIFIED, "verified_due": "NULL"}),
    ("windows_verified_whole", "windows", {**VERIFIED, "verified_at": "NULL"}),
    ("windows_verified_whole", "windows", {**VERIFIED, "verified_claimed": "3"}),
    ("windows_verified_whole", "windows", {**VERIFIED, "verified_due": "4"}),
    ("receipts_state", "receipts", {"state": "'lost'", "expires_at": "NULL"}),
    ("receipts_work_has_claim", "receipts", {"claim": "NULL"}),
    ("receipts_work_expires", "receipts", {"state": "'completed'"}),
    ("receipts_work_expires", "receipts", {"expires_at": "NULL"}),
    ("receipts_attempts", "receipts", {"attempts": "0"}),
    ("receipts_attempts", "receipts", {**UNTOUCHED, "attempts": "-1"}),
    ("receipts_worker", "receipts", {"worker": "NULL"}),
    ("receipts_worker", "receipts", {"claimed_at": "NULL"}),
    ("receipts_key_length", "receipts", {"idempotency_key": "'short'"}),
    ("findings_repaired_has_repair", "findings", {"state": "'repaired'"}),
    ("findings_repair", "findings", {"repair": "'wished away'"}),
    ("findings_kind", "findings", {"kind": "'strange'"}),
    ("runs_cause", "runs", {"cause": "'because'"}),
    ("runs_outcome", "runs", {**ENDED, "outcome": "'done'"}),
    ("runs_end_has_outcome", "runs", {"finished_at": NOW}),
    ("runs_end_has_outcome", "runs", {"outcome": "'completed'"}),
    ("runs_failure_has_error", "runs", {**ENDED, "outcome": "'failed'"}),
    ("runs_books_balance", "runs", {**ENDED, "evaluated": "1"}),
    ("runs_books_balance", "runs", {**ENDED, "evaluated": "1", "due": "1"}),
    ("runs_books_balance", "runs", {**ENDED, "evaluated": "1", "due": "1", "claimed": "1", "already_claimed": "1"}),
    ("windows_start_on_the_hour", "windows", {"start_s": "7201"}),
    ("windows_fence_not_negative", "windows", {"fence": "-1"}),
    ("windows_lease_whole", "windows", {"lease_until": NOW}),
    ("windows_lease_whole", "windows", {"lease_run_id": "gen_random_uuid()"}),
    ("windows_held_kind", "windows", {"held_at": NOW, "held_reason": "'r'", "held_kind": "'bored'"}),
    ("windows_seq_not_negative", "windows", {"seq": "-1"}),
    ("events_event", "events", {"event": "'slept'"}),
    ("events_decision_has_somebody", "events", {"event": "'released'"}),
    ("events_decision_has_somebody", "events", {"event": "'vouched'"}),
    ("ledger_identity_one_row", "ledger_identity", {'"only"': "false"}),
    ("windows_hold_has_reason", "windows", {"held_at": NOW}),
    ("windows_hold_has_reason", "windows", {"held_reason": "'r'"}),
    ("pages_number_from_one", "pages", {"number": "0"}),
    ("pages_counts", "pages", {"evaluated": "1", "outside": "1", "not_due": "1"}),
    ("claims_generation_not_negative", "claims", {"generation": "-1"}),
    ("attempts_number_from_one", "attempts", {"number": "0"}),
    ("open_attempts_number_from_one", "open_attempts", {"number": "0"}),
    ("attempts_outcome", "attempts", {"outcome": "'perhaps'"}),
    ("attempts_outcome", "attempts", {"outcome": "'unknown'"}),
    ("attempts_accepted_has_message", "attempts", {"outcome": "'accepted'"}),
    ("findings_state", "findings", {"state": "'new'"}),
    ("findings_acknowledged_has_reason", "findings", {"state": "'acknowledged'"}),
    ("plans_state", "plans", {"state": "'wished'", "ended_at": NOW}),
    ("plans_applied_by_run", "plans", {**APPLYING, "state": "'planned'"}),
    ("plans_applied_by_run", "plans", {"state": "'applying'"}),
    ("plans_applied_by_somebody", "plans", {**APPLYING, "applied_by": "NULL"}),
    ("plans_end", "plans", {"ended_at": NOW}),
    ("plans_end", "plans", {"state": "'cancelled'"}),
    ("plans_stale_has_reason", "plans", {"state": "'stale'", "ended_at": NOW}),
    ("plans_hash_length", "plans", {"hash": "'short'"}),
    ("plans_counts", "plans", {"no_longer_due": "-1"}),
    ("plan_entries_number_from_one", "plan_entries", {"number": "0"}),
    ("refusals_kind", "refusals", {"kind": "'odd'"}),
    ("jobs_kind", "jobs", {"kind": "'odd'"}),
    ("jobs_queue", "jobs", {"queue": "'other'"}),
    ("jobs_status", "jobs", {"status": "'odd'"}),
    ("jobs_claim_expires", "jobs", {"claim": "gen_random_uuid()", "expires_at": NOW}),
    ("jobs_claim_expires", "jobs", {"status": "'processing'"}),
    ("jobs_work_has_claim", "jobs", {**PROCESSING, "claim": "NULL"}),
    ("jobs_end_has_time", "jobs", {"status": "'completed'"}),
    ("jobs_end_has_time", "jobs", {"finished_at": NOW}),
    ("jobs_failure_has_error", "jobs", {"status": "'failed'", "finished_at": NOW}),
    ("jobs_key_has_request", "jobs", {"idempotency_key": "'k'"}),
    ("jobs_counts_not_negative", "jobs", {"attempts": "-1"}),
]


@pytest.fixture(scope="module")
def constrained(module_ledger_url: str) -> Iterator[psycopg.Connection]:
    """A ledger with one pipeline, one window and one run; every test rolls back."""
    with Store(module_ledger_url) as store:
        kit.take(store)
        row = f"INSERT INTO plans ({', '.join(PLAN)}) VALUES ({', '.join(PLAN.values())})"
        store.transaction(lambda connection: connection.execute(row))  # type: ignore[call-overload]
    with psycopg.connect(**connect_arguments(module_ledger_url), autocommit=True) as opened:
        yield opened


def insert(connection: psycopg.Connection, table: str, changes: dict[str, str]) -> None:
    row = TABLES[table] | changes
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(row.values())})")  # type: ignore[arg-type]


@pytest.mark.parametrize(("table", "changes"), ALLOWED)
def test_a_row_that_makes_sense_is_taken(constrained: psycopg.Connection, table: str, changes: dict[str, str]) -> None:
    with constrained.transaction(force_rollback=True):
        insert(constrained, table, changes)


@pytest.mark.parametrize(("constraint", "table", "changes"), REFUSED)
def test_a_forbidden_row_is_refused(
    constrained: psycopg.Connection, constraint: str, table: str, changes: dict[str, str]
) -> None:
    with pytest.raises(psycopg.errors.CheckViolation) as refusal, constrained.transaction():
        insert(constrained, table, changes)
    # PostgreSQL names the first constraint in order of name that refuses; each one is alone in refusing some row below
    assert refusal.value.diag.constraint_name is not None
    assert refusal.value.diag.constraint_name.startswith(f"{table}_")


def test_every_constraint_is_seen_to_refuse(constrained: psycopg.Connection) -> None:
    """For each CHECK of the ledger there is a row that nothing but this CHECK refuses."""
    named = {
        row[0]
        for row in kit.ask(
            constrained,
            "SELECT conname FROM pg_constraint "
            "WHERE contype = 'c' AND conrelid <> 0 AND connamespace = 'public'::regnamespace",
        )
    }
    assert {constraint for constraint, _, _ in REFUSED} == named
    for constraint in sorted(named):
        tables = {table for name, table, _ in REFUSED if name == constraint}
        with constrained.transaction(force_rollback=True):
            for table in tables:
                constrained.execute(f"ALTER TABLE {table} DROP CONSTRAINT {constraint}")  # type: ignore[arg-type]
            taken = 0
            for name, table, changes in REFUSED:
                if name == constraint:
                    try:
                        with constrained.transaction(force_rollback=True):
                            insert(constrained, table, changes)
                            taken += 1
                    except psycopg.errors.CheckViolation:
                        pass
            assert taken, f"{constraint} never refuses alone: it could be dropped unnoticed"


def test_one_live_promise_for_one_content(constrained: psycopg.Connection) -> None:
    same = {"idempotency_key": "decode(repeat('cd', 32), 'hex')"}
    with constrained.transaction(force_rollback=True):
        insert(constrained, "entries", {**VOID, **same})
        insert(constrained, "entries", {**VOID, **same})
        insert(constrained, "entries", same)
        with pytest.raises(psycopg.errors.UniqueViolation), constrained.transaction():
            insert(constrained, "entries", same)


def test_a_claim_is_one_row(constrained: psycopg.Connection) -> None:
    with constrained.transaction(force_rollback=True):
        insert(constrained, "claims", {})
        insert(constrained, "claims", {"generation": "1"})
        with pytest.raises(psycopg.errors.UniqueViolation), constrained.transaction():
            insert(constrained, "claims", {})


def test_an_entry_goes_from_pending_to_sending_to_confirmed_and_no_way_back(store: Store) -> None:
    tenure = kit.take(store)
    entry = opened_entry(store, tenure)
    assert state_of(store, entry) == ("pending", 0)
    (marked,) = outbox.mark_sending(store, tenure, [entry])
    assert state_of(store, entry) == ("sending", 1)
    assert outbox.record_answers(store, tenure, [(marked, ACCEPTED)]) == 1
    assert state_of(store, entry) == ("confirmed", 1)
    assert outbox.mark_sending(store, tenure, [marked]) == []
    outbox.void_entries(store, tenure, [marked], "too late")
    outbox.record_answers(store, tenure, [(marked, SendAnswer("refused", error="too late"))])
    outbox.record_answers(store, tenure, [(marked, SendAnswer("failed", error="too late"))])
    assert state_of(store, entry) == ("confirmed", 1)


def test_a_stale_view_of_an_entry_marks_nothing(store: Store) -> None:
    """Somebody else has tried it meanwhile: zero rows changed, and no error (I3)."""
    tenure = kit.take(store)
    entry = opened_entry(store, tenure)
    (marked,) = outbox.mark_sending(store, tenure, [entry])
    outbox.record_answers(store, tenure, [(marked, SendAnswer("failed", error="no"))])
    assert outbox.mark_sending(store, tenure, [entry]) == []
    assert state_of(store, entry) == ("sending", 1)
    assert [one.attempts for one in outbox.mark_sending(store, tenure, [marked])] == [2]


def test_a_void_entry_frees_its_claims_and_stays_void(store: Store, connection: psycopg.Connection) -> None:
    tenure = kit.take(store)
    entry = opened_entry(store, tenure)
    outbox.void_entries(store, tenure, [entry], "no longer due")
    assert state_of(store, entry) == ("void", 0)
    assert kit.ask(connection, "SELECT * FROM claims") == []
    assert kit.ask(connection, "SELECT * FROM payload_parts") == []
    assert outbox.mark_sending(store, tenure, [entry]) == []
    again = opened_entry(store, tenure)
    assert again.idempotency_key == entry.idempotency_key
    assert (state_of(store, entry), state_of(store, again)) == (("void", 0), ("pending", 0))


def test_what_may_have_been_sent_is_not_made_void(store: Store, connection: psycopg.Connection) -> None:
    tenure = kit.take(store)
    entry = marked_entry(store, tenure)
    outbox.void_entries(store, tenure, [entry], "no longer due")
    assert state_of(store, entry) == ("sending", 1)
    assert len(kit.ask(connection, "SELECT * FROM claims")) == 1


def test_every_upload_and_send_has_a_committed_entry_of_the_same_records(store: Store) -> None:
    """I2: what open gave back is what the ledger would rebuild."""
    tenure = kit.take(store)
    records = [kit.record(f"r{n}", tenure.window, n) for n in range(5)]
    opened = outbox.open_entries(store, tenure, [kit.group(records)], kit.routes(store, tenure))
    (entry,) = opened.entries
    assert b",".join(outbox.iter_parts(store, tenure, entry)) == opened.bodies[entry.id]
    assert entry.content_hash == content_hash(one.body for one in records)
    (unfinished,) = outbox.list_unfinished(store, tenure, None, 10)
    assert unfinished == entry


# I5: nothing counts as done while something of it is unfinished


def page(number: int, **changes: Any) -> PageFacts:
    facts = {
        "number": number,
        "cursor_json": None,
        "next_json": None,
        "first_time": None,
        "last_time": None,
        "evaluated": 0,
        "outside": 0,
        "not_due": 0,
        "read_at": utc_now(),
    }
    return PageFacts(**{**facts, **changes})


def staged_ids(store: Store, tenure: Tenure, expected: int) -> list[str]:
    with closing(staging.StagedRecords(store, tenure, expected, 100)) as staged:
        return [one.record_id for one in staged.in_order()]


def done_pages(connection: psycopg.Connection) -> list[Any]:
    return [row[0] for row in kit.ask(connection, "SELECT number FROM pages WHERE done_at IS NOT NULL ORDER BY 1")]


@pytest.mark.parametrize("state", ["pending", "sending"])
def test_a_run_and_a_page_wait_for_what_is_unfinished(store: Store, connection: psycopg.Connection, state: str) -> None:
    tenure = kit.take(store)
    for number in (1, 2):
        runs.journal_page(store, tenure, page(number), [])
    runs.finish_page(store, tenure, 1)
    assert done_pages(connection) == [1]
    entry = opened_entry(store, tenure) if state == "pending" else marked_entry(store, tenure)
    runs.finish_page(store, tenure, 2)
    assert done_pages(connection) == [1]
    with pytest.raises(CorruptError, match="unfinished"):
        runs.complete_run(store, tenure, RunCounts())
    outcome = "SELECT outcome, finished_at FROM runs"
    assert kit.ask(connection, outcome) == [(None, None)]
    assert kit.ask(connection, "SELECT completed_at FROM windows") == [(None,)]
    if state == "pending":
        (entry,) = outbox.mark_sending(store, tenure, [entry])
    outbox.record_answers(store, tenure, [(entry, ACCEPTED)])
    runs.finish_page(store, tenure, 2)
    assert done_pages(connection) == [1, 2]
    runs.complete_run(store, tenure, RunCounts())
    assert kit.ask(connection, "SELECT outcome FROM runs") == [("completed",)]


def test_a_run_with_books_that_do_not_balance_is_not_completed(store: Store, connection: psycopg.Connection) -> None:
    tenure = kit.take(store)
    with pytest.raises(CorruptError):
        runs.complete_run(store, tenure, RunCounts(evaluated=3, due=2, claimed=2))
    assert kit.ask(connection, "SELECT outcome FROM runs") == [(None,)]


def test_another_windows_unfinished_entries_are_none_of_ours(store: Store) -> None:
    other = kit.take(store, "2026-09-17T16:00:00Z")
    opened_entry(store, other)
    tenure = kit.take(store)
    runs.complete_run(store, tenure, RunCounts())


def test_staging_of_a_dead_run_is_discarded_and_never_read(store: Store, connection: psycopg.Connection) -> None:
    dead = kit.take(store)
    staging.stage_page(store, dead, page(1), [kit.record("old", dead.window, 1)], [])
    tenure = kit.take_over(store, dead)
    staging.discard_others(store, tenure)
    staging.stage_page(store, tenure, page(1), [kit.record("new", tenure.window, 1)], [])
    with closing(staging.StagedRecords(store, tenure, 1, 100)) as records:
        assert [one.record_id for one in records.in_order()] == ["new"]
    assert kit.ask(connection, "SELECT record_id FROM staged_records") == [(b"new",)]


def test_what_the_run_of_another_window_has_staged_is_never_read(store: Store) -> None:
    other = kit.take(store, "2026-09-17T16:00:00Z")
    staging.stage_page(store, other, page(1), [kit.record("theirs", other.window, 1)], [])
    tenure = kit.take(store)
    staging.discard_others(store, tenure)
    staging.stage_page(store, tenure, page(1), [kit.record("ours", tenure.window, 1)], [])
    assert staged_ids(store, tenure, 1) == ["ours"]
    assert staged_ids(store, other, 1) == ["theirs"]


def test_staged_records_that_the_database_lost_are_noticed(store: Store, connection: psycopg.Connection) -> None:
    tenure = kit.take(store)
    staging.stage_page(store, tenure, page(1), [kit.record("r1", tenure.window, 1)], [])
    connection.execute("TRUNCATE staged_records")
    with pytest.raises(CorruptError), closing(staging.StagedRecords(store, tenure, 1, 100)) as records:
        list(records.in_order())


def test_a_second_sight_is_staged_once(store: Store) -> None:
    tenure = kit.take(store)
    first = [kit.record("r1", tenure.window, 1), kit.record("r2", tenure.window, 2)]
    assert staging.stage_page(store, tenure, page(1), first, []) == 2
    assert staging.stage_page(store, tenure, page(2), [*first, kit.record("r3", tenure.window, 3)], []) == 1
    twice = [kit.record("r4", tenure.window, 4), kit.record("r4", tenure.window, 4)]
    assert staging.stage_page(store, tenure, page(3), twice, []) == 1
    with closing(staging.StagedRecords(store, tenure, 4, 100)) as records:
        assert [one.record_id for one in records.in_order()] == ["r1", "r2", "r3", "r4"]


# I10: the fence


def test_a_taken_over_tenure_can_write_nothing_more_but_a_true_answer(
    store: Store, connection: psycopg.Connection
) -> None:
    stale = kit.take(store)
    by_route = kit.routes(store, stale)
    pending, sending = opened_entry(store, stale, "r1"), marked_entry(store, stale, "r2")
    fresh = kit.take_over(store, stale)
    assert fresh.fence == stale.fence + 1
    tables = ("claims", "entries", "attempts", "payload_parts", "pages", "staged_records", "windows", "runs")
    before = {table: kit.ask(connection, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables}
    refused: dict[str, Callable[[], Any]] = {
        "open": lambda: outbox.open_entries(store, stale, [kit.group([kit.record("r3", stale.window, 9)])], by_route),
        "open streamed": lambda: outbox.open_streamed(
            store, stale, kit.group([]), lambda: iter([[kit.record("r3", stale.window, 9)]]), by_route
        ),
        "mark": lambda: outbox.mark_sending(store, stale, [pending]),
        "void": lambda: outbox.void_entries(store, stale, [pending], "mine no more"),
        "complete": lambda: runs.complete_run(store, stale, RunCounts()),
        "journal": lambda: runs.journal_page(store, stale, page(1), []),
        "stage": lambda: staging.stage_page(store, stale, page(1), [kit.record("r3", stale.window, 9)], []),
    }
    for name, write in refused.items():
        with pytest.raises(LeaseLostError) as refusal:
            write()
        assert str(stale.run_id) in str(refusal.value), name
    runs.end_run(store, stale, "failed", "lost its lease", RunCounts())
    after = {table: kit.ask(connection, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables}
    assert after == before
    assert outbox.record_answers(store, stale, [(sending, ACCEPTED)]) == 1
    assert state_of(store, sending) == ("confirmed", 1)
    (only,) = outbox.list_unfinished(store, fresh, None, 10)
    assert only.id == pending.id


def test_a_lease_that_ran_out_is_over_although_nobody_took_the_window(store: Store) -> None:
    tenure = kit.take(store)
    entry = opened_entry(store, tenure)
    kit.expire(store, tenure)
    with pytest.raises(LeaseLostError):
        outbox.mark_sending(store, tenure, [entry])
    with pytest.raises(LeaseLostError):
        runs.complete_run(store, tenure, RunCounts())


def test_a_tenure_of_before_a_restore_is_over(store: Store, connection: psycopg.Connection) -> None:
    """A ledger restored from a backup counts a fence a second time: it belongs to the run that has it now."""
    stale = kit.take(store)
    entry = opened_entry(store, stale)
    connection.execute("UPDATE windows SET fence = fence - 1, lease_run_id = NULL, lease_until = NULL")
    fresh = kit.take(store)
    assert fresh.fence == stale.fence
    with pytest.raises(LeaseLostError):
        outbox.mark_sending(store, stale, [entry])
    assert len(outbox.mark_sending(store, fresh, [entry])) == 1


def test_a_take_over_waits_for_the_transaction_that_holds_the_fence(ledger_url: str) -> None:
    """Once a write has checked the fence, the window cannot change hands before it commits."""
    with Store(ledger_url) as store, Store(ledger_url) as rival:
        tenure = kit.take(store)
        kit.take(rival, "2026-09-17T16:00:00Z")  # so that the rival is connected
        in_work, released = threading.Event(), threading.Event()
        fences: list[int] = []

        def open_slowly() -> None:
            def work(connection: Any) -> None:
                check_fence(connection, tenure)
                in_work.set()
                assert released.wait(60)

            store.transaction(work)

        with ThreadPoolExecutor(2) as pool:
            slow = pool.submit(open_slowly)
            assert in_work.wait(60)
            taking = pool.submit(lambda: fences.append(kit.take_over(rival, tenure).fence))
            wait_for_locks(ledger_url, 1)
            assert not taking.done()
            released.set()
            slow.result(60)
            taking.result(60)
        assert fences == [tenure.fence + 1]


def test_the_run_that_was_taken_over_is_ended(store: Store, connection: psycopg.Connection) -> None:
    stale = kit.take(store)
    fresh = kit.take_over(store, stale)
    outcomes = kit.ask(connection, "SELECT id, outcome, error FROM runs ORDER BY started_at")
    assert [row[:2] for row in outcomes] == [(stale.run_id, "failed"), (fresh.run_id, None)]
    assert "abandoned" in str(outcomes[0][2])


def test_asking_again_for_the_same_run_keeps_its_fence(store: Store) -> None:
    wanted = kit.request()
    first = runs.start_run(store, wanted)
    again = runs.start_run(store, wanted)
    assert (first.tenure, first.started_at) == (again.tenure, again.started_at)


def test_a_busy_run_is_recorded_and_says_who_holds_the_window(store: Store, connection: psycopg.Connection) -> None:
    kit.take(store)
    with pytest.raises(BusyError, match="test:1"):
        kit.take(store)
    assert sorted(str(row[0]) for row in kit.ask(connection, "SELECT outcome FROM runs")) == ["None", "busy"]


def test_an_answer_that_comes_after_the_successor_has_confirmed_changes_nothing_but_its_attempt(store: Store) -> None:
    stale = kit.take(store)
    sending = marked_entry(store, stale)
    fresh = kit.take_over(store, stale)
    (unfinished,) = outbox.list_unfinished(store, fresh, None, 10)
    assert unfinished.unproven
    (again,) = outbox.mark_sending(store, fresh, [kit.uploaded(unfinished)])
    outbox.record_answers(store, fresh, [(again, SendAnswer("accepted", message_id="second"))])
    outbox.record_answers(store, stale, [(sending, SendAnswer("accepted", message_id="first"))])
    assert state_of(store, sending) == ("confirmed", 2)
    query = "SELECT number, message_id FROM attempts ORDER BY number"
    got = store.transaction(lambda connection: connection.execute(query).fetchall())
    assert got == [(1, "first"), (2, "second")]


def test_answers_may_be_recorded_twice(store: Store, connection: psycopg.Connection) -> None:
    tenure = kit.take(store)
    entry, bad = marked_entry(store, tenure, "r1"), marked_entry(store, tenure, "r2")
    answers = [(entry, ACCEPTED), (bad, SendAnswer("refused", error="InvalidMessageContents: no"))]
    assert [outbox.record_answers(store, tenure, answers) for _ in range(2)] == [1, 1]
    assert (state_of(store, entry), state_of(store, bad)) == (("confirmed", 1), ("void", 1))
    assert kit.ask(connection, "SELECT kind, cause, state FROM findings") == [("unfinished", "refused", "open")]
    assert [row[0] for row in kit.ask(connection, "SELECT record_id FROM claims")] == [b"r1"]


# The statements


def test_every_statement_file_says_what_it_guarantees() -> None:
    for path in sorted((Path(outbox.__file__).parent / "sql").glob("*.sql")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert re.match(r"-- [A-Z]", first), path.name


def test_no_time_is_read_but_through_the_ledgers_clock() -> None:
    for path in sorted((Path(outbox.__file__).parent / "sql").glob("*.sql")):
        if path.name == "server_facts.sql":  # it looks at the server's own clock, to see whether it is right
            continue
        assert not re.search(r"\bnow\(\)|clock_timestamp|current_timestamp", path.read_text(), re.IGNORECASE), path.name


def test_ids_are_fixed_before_the_first_try(store: Store) -> None:
    tenure = kit.take(store)
    assert new_id() != new_id()
    entry = opened_entry(store, tenure)
    assert entry.id.version == 7


def test_a_lost_answer_gives_back_its_own_entries_and_no_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of one millisecond are in no order: another unfinished entry of the window may lie between two of ours."""
    tenure = kit.take(store)
    first, other, last = (UUID(int=number) for number in (1, 2, 3))
    ids = iter([other, last, first])
    monkeypatch.setattr(outbox, "new_id", lambda: next(ids))
    monkeypatch.setattr("ledger.store._FIRST_DELAY_S", 0.001)
    opened_entry(store, tenure, "r1")
    groups = [kit.group([kit.record(f"r{n}", tenure.window, n, group=n)], n) for n in (2, 3)]
    by_route = kit.routes(store, tenure)
    with monkeypatch.context() as patch:
        LostAnswer(at=1, after=True).install(patch)
        opened = outbox.open_entries(store, tenure, groups, by_route)
    assert {entry.id for entry in opened.entries} == set(opened.bodies) == {first, last}
    assert opened.claimed == 2


def test_a_duplicate_that_turns_out_never_sent_is_closed(store: Store, connection: psycopg.Connection) -> None:
    """B has to suspect the try that A had marked; A wakes up and knows that it never made it (case 15)."""
    stale = kit.take(store)
    marked = marked_entry(store, stale)
    fresh = kit.take_over(store, stale)
    (found,) = outbox.list_unfinished(store, fresh, None, 10)
    (again,) = outbox.mark_sending(store, fresh, [kit.uploaded(found)])
    outbox.record_answers(store, fresh, [(again, ACCEPTED)])
    assert kit.ask(connection, "SELECT kind, state FROM findings") == [("duplicate", "open")]
    outbox.record_answers(store, stale, [(marked, SendAnswer("failed", error="not tried"))])
    assert kit.ask(connection, "SELECT kind, state FROM findings") == [("duplicate", "closed")]


def test_a_duplicate_that_may_have_been_sent_stays_open(store: Store, connection: psycopg.Connection) -> None:
    stale = kit.take(store)
    marked = marked_entry(store, stale)
    fresh = kit.take_over(store, stale)
    (found,) = outbox.list_unfinished(store, fresh, None, 10)
    (again,) = outbox.mark_sending(store, fresh, [kit.uploaded(found)])
    outbox.record_answers(store, fresh, [(again, ACCEPTED)])
    outbox.record_answers(store, stale, [(marked, SendAnswer("unknown", error="no answer"))])
    assert kit.ask(connection, "SELECT kind, state FROM findings") == [("duplicate", "open")]


def test_case_6_what_is_confirmed_meanwhile_is_not_sent_again(store: Store, connection: psycopg.Connection) -> None:
    """A reconcile has seen an unfinished entry; before it acts, the run that sent it learns that it was taken."""
    stale = kit.take(store)
    sending = marked_entry(store, stale)
    fresh = kit.take_over(store, stale)
    (unfinished,) = outbox.list_unfinished(store, fresh, None, 10)
    outbox.record_answers(store, stale, [(sending, ACCEPTED)])
    assert outbox.mark_sending(store, fresh, [kit.uploaded(unfinished)]) == []
    assert state_of(store, sending) == ("confirmed", 1)
    assert kit.ask(connection, "SELECT kind FROM findings") == []


def test_case_6_at_the_same_moment(ledger_url: str, store: Store) -> None:
    """The confirmation comes while the mark waits for it: whoever is first, no job is marked that is confirmed."""
    stale = kit.take(store)
    sending = marked_entry(store, stale)
    fresh = kit.take_over(store, stale)
    (unfinished,) = outbox.list_unfinished(store, fresh, None, 10)
    with psycopg.connect(**connect_arguments(ledger_url)) as confirming:
        delete = "DELETE FROM payload_parts WHERE entry_id = %s"
        confirming.execute(delete, (sending.id,))
        marked: list[list[Entry]] = []

        def mark() -> None:
            with Store(ledger_url) as other:
                marked.append(outbox.mark_sending(other, fresh, [kit.uploaded(unfinished)]))

        marking = threading.Thread(target=mark)
        marking.start()
        wait_for_locks(ledger_url, 1)
        confirming.commit()
        marking.join(30)
    assert marked == [[]]


def test_a_receipt_proves_a_send(store: Store, connection: psycopg.Connection) -> None:
    stale = kit.take(store)
    taken, unheard = marked_entry(store, stale, "r1"), marked_entry(store, stale, "r2")
    receipts.take(store, stale.pipeline, taken.idempotency_key, "w", timedelta(minutes=1))
    fresh = kit.take_over(store, stale)
    assert [outbox.prove_received(store, fresh) for _ in range(2)] == [1, 0]
    assert (state_of(store, taken), state_of(store, unheard)) == (("confirmed", 1), ("sending", 1))
    assert kit.ask(connection, "SELECT outcome FROM attempts") == [("received",)]
    assert [entry.id for entry in outbox.list_unfinished(store, fresh, None, 10)] == [unheard.id]
