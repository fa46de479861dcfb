"""The database's answer is lost at any transaction of a run, after the commit or before it: the run heals itself."""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from dispatch import feeders
from ledger.errors import UnavailableError
from ledger.instants import parse_window
from ledger.store import Connection, Store
from tests.aws_servers import World, booking
from tests.breaking import LostAnswer
from tests.rig import WINDOW, Rig, all_records

TRANSACTIONS_MAX = 40
PIPELINES = count(1)


@pytest.fixture(scope="module")
def world(ministack: str) -> World:
    """Nine records: two groups of two and one of three due, one not due, one bad; on five pages of two."""
    made = World(ministack)
    made.put_many(
        [
            booking("a1", "2026-09-17T15:01:00Z", member=1, order="2026-09-17T11:00:00Z"),
            booking("b1", "2026-09-17T15:02:00Z", member=2, type="ECoupon"),
            booking("c1", "2026-09-17T15:03:00Z", member=3),
            booking("a2", "2026-09-17T15:04:00Z", member=1, order="2026-09-17T10:00:00Z"),
            booking("x1", "2026-09-17T15:05:00Z", status="Rewarded"),
            booking("y1", "2026-09-17T15:06:00Z", MemberId=None),
            booking("b2", "2026-09-17T15:07:00Z", member=2, type="ECoupon"),
            booking("c2", "2026-09-17T15:08:00Z", member=3),
            booking("c3", "2026-09-17T16:00:00Z", member=3),
        ]
    )
    return made


@pytest.fixture(scope="module")
def rig(world: World, module_ledger_url: str) -> Iterator[Rig]:
    with Rig(world, module_ledger_url, dispatch__page_size="2") as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.store._FIRST_DELAY_S", 0.001)


def run_with(rig: Rig, flow: str, wire: LostAnswer) -> tuple[Any, str]:
    pipeline = f"lost-{next(PIPELINES)}"
    with rig.dispatcher(flow, pipeline=pipeline) as dispatcher, pytest.MonkeyPatch.context() as patch:
        wire.install(patch)
        report = dispatcher.dispatch(parse_window(WINDOW), "manual")
    return report, pipeline


def transactions(rig: Rig, flow: str) -> list[str]:
    """Run once without a fault and list what was done."""
    wire = LostAnswer()
    report, _ = run_with(rig, flow, wire)
    assert report.outcome == "completed", report.error
    assert 5 < len(wire.seen) < TRANSACTIONS_MAX
    return wire.seen


def assert_whole(rig: Rig, report: Any, pipeline: str, entries: int) -> None:
    """Check that a run ended as if nothing had happened."""
    assert report.outcome == "completed", report.error
    counts = report.counts
    assert (counts.evaluated, counts.outside, counts.not_due, counts.set_aside) == (9, 0, 1, 1)
    assert (counts.due, counts.claimed, counts.already_claimed) == (7, 7, 0)
    assert (counts.entries, counts.confirmed, counts.recovered) == (entries, entries, 0)
    of_pipeline = (
        "FROM entry_states AS entries JOIN windows ON windows.id = window_id "
        "JOIN pipelines ON pipelines.id = pipeline_id "
    )
    where = "WHERE pipelines.name = %s"
    assert rig.rows(f"SELECT state, count(*) {of_pipeline} {where} GROUP BY state", pipeline) == [
        ("confirmed", entries)
    ]
    attempts = (
        f"SELECT count(*), max(number), max(outcome) {of_pipeline} JOIN all_attempts ON entry_id = entries.id {where}"
    )
    assert rig.rows(attempts, pipeline) == [(entries, 1, "accepted")]
    claims = "SELECT record_id FROM claims JOIN pipelines ON pipelines.id = pipeline_id WHERE name = %s ORDER BY 1"
    assert [row[0].decode() for row in rig.rows(claims, pipeline)] == ["a1", "a2", "b1", "b2", "c1", "c2", "c3"]
    runs = (
        "SELECT outcome, runs.due, runs.claimed, runs.confirmed, runs.pages FROM runs "
        "JOIN windows ON windows.id = window_id "
    )
    assert rig.rows(f"{runs} JOIN pipelines ON pipelines.id = pipeline_id {where}", pipeline) == [
        ("completed", 7, 7, entries, counts.pages)
    ]
    journal = (
        "SELECT sum(pages.evaluated), count(*) FROM pages JOIN runs ON runs.id = run_id "
        "JOIN windows ON windows.id = window_id "
    )
    assert rig.rows(f"{journal} JOIN pipelines ON pipelines.id = pipeline_id {where}", pipeline) == [(9, counts.pages)]
    findings = "SELECT kind, cause, state FROM findings JOIN pipelines ON pipelines.id = pipeline_id WHERE name = %s"
    assert rig.rows(findings, pipeline) == [("bad_record", "missing_attribute", "open")]
    assert report.open_findings == 1
    lease = "SELECT lease_run_id, completed_at IS NOT NULL FROM windows JOIN pipelines ON pipelines.id = pipeline_id "
    assert rig.rows(f"{lease} {where}", pipeline) == [(None, True)]
    objects = rig.world.objects(f"reward-dispatch/{pipeline}/")
    assert all_records(objects) == ["a1", "a2", "b1", "b2", "c1", "c2", "c3"]
    messages = [one for queue in ("reward-point", "reward-ecoupon") for one in rig.world.messages(queue)]
    mine = [one for one in messages if one["pipeline"] == pipeline]
    assert sorted(one["object"]["key"] for one in mine) == sorted(objects)
    assert sum(one["records"] for one in mine) == 7
    rig.assert_books_balance()


@pytest.mark.parametrize("after", [True, False], ids=["after-commit", "before-commit"])
@pytest.mark.parametrize(("flow", "entries"), [("full", 3), ("staged", 3), ("paged", 7)])
def test_one_lost_answer_at_any_transaction_changes_nothing(rig: Rig, flow: str, entries: int, *, after: bool) -> None:
    for at in range(1, len(transactions(rig, flow)) + 1):
        wire = LostAnswer(at, after)
        report, pipeline = run_with(rig, flow, wire)
        lost = f"{wire.seen[at - 1]} (transaction {at})"
        try:
            assert_whole(rig, report, pipeline, entries)
        except AssertionError as error:
            error.add_note(f"the answer of {lost} was lost")
            raise


def test_the_transactions_of_a_run_are_those_that_we_think_we_lose(rig: Rig) -> None:
    seen = " ".join(transactions(rig, "staged"))
    for name in ("start_run", "stage_page", "open_entries", "mark_sending", "record_answers", "complete_run"):
        assert name in seen


@pytest.mark.parametrize("after", [True, False], ids=["after-commit", "before-commit"])
@pytest.mark.parametrize("flow", ["full", "staged"])
def test_a_streamed_group_heals_too(rig: Rig, monkeypatch: pytest.MonkeyPatch, flow: str, *, after: bool) -> None:
    monkeypatch.setattr(feeders, "BATCH_RECORDS_MAX", 2)  # so that the group of three is streamed
    seen = transactions(rig, flow)
    assert any("open_streamed" in name for name in seen)
    for at in range(1, len(seen) + 1):
        wire = LostAnswer(at, after)
        report, pipeline = run_with(rig, flow, wire)
        try:
            assert_whole(rig, report, pipeline, 3)
        except AssertionError as error:
            error.add_note(f"the answer of {wire.seen[at - 1]} (transaction {at}) was lost")
            raise


@pytest.mark.parametrize("kind", ["refused", "broken"])
def test_a_lost_connection_to_the_staged_records_is_reported_and_the_next_run_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """They are read on a connection of their own: it cannot be opened, or it is broken before the first record."""
    usual = Store.connect
    owner = threading.get_ident()

    def connect(store: Store) -> Connection:
        if store._connection is None or threading.get_ident() != owner:
            return usual(store)
        if kind == "refused":
            raise psycopg.OperationalError("connection refused")
        connection = usual(store)
        connection.close()
        return connection

    pipeline = f"lost-{next(PIPELINES)}"
    with rig.dispatcher("staged", pipeline=pipeline) as dispatcher:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "connect", connect)
            report = dispatcher.dispatch(parse_window(WINDOW), "manual")
        if report.outcome == "failed":
            assert isinstance(report.error, UnavailableError)
            assert "\n" not in str(report.error)
            report = dispatcher.dispatch(parse_window(WINDOW), "manual")
    assert report.outcome == "completed", report.error
    assert all_records(rig.world.objects(f"reward-dispatch/{pipeline}/")) == ["a1", "a2", "b1", "b2", "c1", "c2", "c3"]
    for queue in ("reward-point", "reward-ecoupon"):
        rig.world.messages(queue)


def test_a_database_that_stays_away_fails_the_run_and_the_next_one_finishes_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Store._transact
    away = threading.Event()

    def transact(store: Store, work: Callable[[Connection], Any]) -> Any:
        if "mark_sending" in work.__qualname__:
            away.set()
        if away.is_set():
            store.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return usual(store, work)

    pipeline = f"lost-{next(PIPELINES)}"
    monkeypatch.setattr(Store, "_transact", transact)
    with rig.dispatcher("staged", pipeline=pipeline, dispatch__lease="500ms") as dispatcher:
        report = dispatcher.dispatch(parse_window(WINDOW), "manual")
        assert report.outcome == "failed"
        assert "\n" not in str(report.error)
        monkeypatch.setattr(Store, "_transact", usual)
        again = None
        while again is None or again.outcome == "busy":  # until the first run's lease has run out
            again = dispatcher.dispatch(report.window, "manual")
    assert again.outcome == "completed", again.error
    assert again.counts.recovered == 3
    assert (again.counts.claimed, again.counts.already_claimed) == (0, 7)
    rig.assert_books_balance()
