"""The life of a receipt: one worker at a time, completed at most once, whatever is repeated, lost or late."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any
from uuid import UUID

import pytest

from ledger import outbox, receipts
from ledger.errors import ClaimLostError, InputError, UnknownKeyError
from ledger.facts import SendAnswer
from ledger.ids import new_id
from ledger.receipts import Claim, Completed, GoAhead, Held, Superseded, Taken, UnknownKey
from ledger.store import Connection, Store
from tests import ledger_kit as kit
from tests.breaking import LostAnswer
from tests.report_kit import Planter

MINUTE = timedelta(minutes=1)
PIPELINE = "reward"


@pytest.fixture
def key(planter: Planter) -> bytes:
    """A job that was sent."""
    return planter.dispatch(10, (1,))[0].idempotency_key


def take(store: Store, key: bytes, worker: str = "w1", lease: timedelta = MINUTE) -> Taken:
    return receipts.take(store, PIPELINE, key, worker, lease)


def claim(store: Store, key: bytes, worker: str = "w1") -> Claim:
    taken = take(store, key, worker)
    assert isinstance(taken, GoAhead), taken
    return taken.claim


def expire(store: Store) -> None:
    tell(store, "UPDATE receipts SET expires_at = ledger_now() - interval '1 second' WHERE state = 'in_work'")


def supersede(store: Store) -> None:
    tell(store, "UPDATE receipts SET state = 'superseded', expires_at = NULL")


def tell(store: Store, statement: str) -> Any:
    return store.transaction(lambda connection: connection.execute(statement))  # type: ignore[arg-type]


def row(store: Store) -> tuple[Any, ...]:
    query = "SELECT state, worker, attempts, result, reason FROM receipts"
    (found,) = store.transaction(lambda connection: connection.execute(query).fetchall())
    return found


def test_taken_kept_and_completed(store: Store, key: bytes) -> None:
    first = take(store, key)
    assert isinstance(first, GoAhead)
    assert first.attempts == 1
    assert receipts.heartbeat(store, first.claim, MINUTE) > first.expires_at
    held = take(store, key, "w2")
    assert isinstance(held, Held)
    assert (held.worker, timedelta(seconds=50) < held.remaining <= MINUTE) == ("w1", True)
    ended = receipts.complete(store, first.claim, {"points": 7, "a": None})
    assert row(store) == ("completed", "w1", 1, '{"a":null,"points":7}', None)
    again = take(store, key, "w2")
    assert isinstance(again, Completed)
    assert (bytes(again.result), again.finished_at) == (b'{"a":null,"points":7}', ended)


def test_a_failed_one_is_taken_again_and_counted(store: Store, key: bytes) -> None:
    receipts.fail(store, claim(store, key), "no\0 answer")
    assert row(store) == ("failed", "w1", 1, None, "no\\0 answer")
    again = take(store, key, "w2")
    assert isinstance(again, GoAhead)
    assert (again.attempts, row(store)) == (2, ("in_work", "w2", 2, None, None))


def test_one_that_has_run_out_passes_on(store: Store, key: bytes) -> None:
    late = claim(store, key)
    expire(store)
    fresh = claim(store, key, "w2")
    for call in calls(late):
        with pytest.raises(ClaimLostError, match="another worker"):
            call(store)
    receipts.complete(store, fresh, None)
    for call in calls(late):
        with pytest.raises(ClaimLostError, match="another worker"):
            call(store)
    assert row(store) == ("completed", "w2", 2, "null", None)


def calls(of: Claim) -> list[Callable[[Store], object]]:
    return [
        lambda store: receipts.heartbeat(store, of, MINUTE),
        lambda store: receipts.complete(store, of, 1),
        lambda store: receipts.fail(store, of, "late"),
    ]


@pytest.mark.parametrize("call", range(3))
def test_one_that_has_run_out_and_was_not_taken_goes_on(store: Store, key: bytes, call: int) -> None:
    late = claim(store, key)
    expire(store)
    calls(late)[call](store)
    assert row(store)[0] == ["in_work", "completed", "failed"][call]


def test_a_superseded_one_is_over(store: Store, key: bytes) -> None:
    late = claim(store, key)
    supersede(store)
    assert isinstance(take(store, key, "w2"), Superseded)
    for call in calls(late):
        with pytest.raises(ClaimLostError, match="redo"):
            call(store)
    assert row(store)[0] == "superseded"


def test_the_same_end_may_be_told_twice(store: Store, key: bytes) -> None:
    first = claim(store, key)
    assert receipts.fail(store, first, "why") == receipts.fail(store, first, "why")
    with pytest.raises(ClaimLostError, match="failed"):
        receipts.complete(store, first, 1)
    second = claim(store, key)
    with pytest.raises(ClaimLostError):
        receipts.fail(store, first, "why")
    assert receipts.complete(store, second, {"a": 1}) == receipts.complete(store, second, {"a": 1})
    for other in (lambda: receipts.complete(store, second, 2), lambda: receipts.heartbeat(store, second, MINUTE)):
        with pytest.raises(ClaimLostError, match="completed"):
            other()


@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("ends", ["completed", "failed"])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_answer_changes_nothing(
    store: Store, key: bytes, lost: int, ends: str, *, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call is told to the database once more, and comes to the same."""
    breaking = LostAnswer(lost, after=after)
    breaking.install(monkeypatch)
    first = claim(store, key)
    receipts.heartbeat(store, first, MINUTE)
    if ends == "failed":
        receipts.fail(store, first, "why")
    else:
        receipts.complete(store, first, 1)
    assert len(breaking.seen) == 4
    assert row(store)[:3] == (ends, "w1", 1)


def test_twenty_at_once_and_one_goes_ahead(store: Store, ledger_url: str, key: bytes) -> None:
    start = Barrier(20)

    def ask(number: int) -> tuple[str, str]:
        with Store(ledger_url) as own:
            own.transaction(lambda connection: connection.execute("SELECT 1"))
            start.wait(30)
            taken = take(own, key, f"w{number}")
            return type(taken).__name__, taken.worker if isinstance(taken, Held) else f"w{number}"

    with ThreadPoolExecutor(20) as pool:
        for again in ("", "UPDATE receipts SET state = 'failed', expires_at = NULL", "expired"):
            if again == "expired":
                expire(store)
            elif again:
                tell(store, again)
            answers = list(pool.map(ask, range(20)))
            assert Counter(kind for kind, _ in answers) == {"GoAhead": 1, "Held": 19}
            (winner,) = {worker for _, worker in answers if ("GoAhead", worker) in answers}
            assert {worker for kind, worker in answers if kind == "Held"} == {winner}
    assert row(store)[2] == 3


def test_one_that_is_given_back_while_it_is_asked_for(store: Store, ledger_url: str, key: bytes) -> None:
    """Who waits for the row of a job that fails in the meantime gets the job."""
    first = claim(store, key)
    with Store(ledger_url) as other, other.connect() as connection, ThreadPoolExecutor(1) as pool:
        with connection.transaction():
            receipts.fail_within(connection, first, "why")
            asking = pool.submit(take, store, key, "w2")
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            while not asking.done() and other.transaction(lambda inner: inner.execute(waiting).fetchone()) != (1,):
                pass
        assert isinstance(asking.result(30), GoAhead)


def test_effect_and_receipt_commit_together_or_not_at_all(store: Store, key: bytes) -> None:
    tell(store, "CREATE TABLE effects (key bytea)")

    def effect(connection: Connection, of: Claim) -> None:
        connection.execute("INSERT INTO effects VALUES (%s)", (of.key,))
        receipts.complete_within(connection, of, None)

    late = claim(store, key)
    expire(store)
    fresh = claim(store, key, "w2")
    with pytest.raises(ClaimLostError):
        store.transaction(lambda connection: effect(connection, late))
    assert tell_count(store) == 0
    store.transaction(lambda connection: receipts.completed_at(connection, fresh) or effect(connection, fresh))
    store.transaction(lambda connection: receipts.completed_at(connection, fresh) or effect(connection, fresh))
    assert (tell_count(store), row(store)[0]) == (1, "completed")
    with pytest.raises(ClaimLostError):
        store.transaction(lambda connection: receipts.completed_at(connection, late))


def tell_count(store: Store) -> int:
    query = "SELECT count(*) FROM effects"
    (count,) = store.transaction(lambda connection: connection.execute(query).fetchone()) or (None,)
    return int(count)


def test_a_key_that_nobody_promised(store: Store, key: bytes, planter: Planter) -> None:
    nobody = Claim(PIPELINE, bytes(32), new_id())
    assert isinstance(take(store, nobody.key), UnknownKey)
    assert isinstance(receipts.take(store, "other", key, "w", MINUTE), UnknownKey)
    for call in calls(nobody):
        with pytest.raises(UnknownKeyError, match="nobody has taken"):
            call(store)
    assert tell(store, "SELECT 1 FROM receipts").fetchall() == []


def test_a_promise_that_was_taken_back(store: Store, planter: Planter) -> None:
    """What its queue refuses for good is void; its records may go under another key, so nobody may work this one."""
    tenure = planter.take(10)
    (entry,) = planter.open(tenure, "void", (1,))
    receipts.fail(store, claim(store, entry.idempotency_key), "an earlier message of it was in the queue")
    planter.answer(tenure, [entry], SendAnswer("refused", error="no"))
    assert isinstance(take(store, entry.idempotency_key), UnknownKey)


def test_a_receipt_of_a_redo_proves_no_send(store: Store) -> None:
    stale = kit.take(store)
    records = [kit.group([kit.record(name, stale.window, at)], at) for at, name in enumerate("ab")]
    entries = outbox.open_entries(store, stale, records, kit.routes(store, stale)).entries
    untouched, taken = outbox.mark_sending(store, stale, [kit.uploaded(one) for one in entries])
    receipts.take(store, "test", taken.idempotency_key, "w", MINUTE)
    insert = (
        "INSERT INTO receipts (pipeline_id, idempotency_key, window_id, state, attempts, finished_at) "
        "VALUES (%s, %s, %s, 'superseded', 0, ledger_now())"
    )
    values = (stale.pipeline_id, untouched.idempotency_key, stale.window_id)
    store.transaction(lambda connection: connection.execute(insert, values))
    supersede(store)  # also the one that a worker has begun
    fresh = kit.take_over(store, stale)
    assert outbox.prove_received(store, fresh) == 1
    assert [one.id for one in outbox.list_unfinished(store, fresh, None, 10)] == [untouched.id]


@pytest.mark.parametrize("worker", ["", " ", "x" * 201, "a\0b", "\ud800"])
def test_a_worker_without_a_name(store: Store, key: bytes, worker: str) -> None:
    with pytest.raises(InputError, match="name"):
        take(store, key, worker)


@pytest.mark.parametrize("lease", [timedelta(), timedelta(milliseconds=499), timedelta(days=1)])
def test_a_lease_that_is_none(store: Store, key: bytes, lease: timedelta) -> None:
    with pytest.raises(InputError, match="lasts"):
        take(store, key, lease=lease)


def test_a_result_that_is_none_leaves_the_job_in_work(store: Store, key: bytes) -> None:
    first = claim(store, key)
    for result in (object(), "x" * 70_000):
        with pytest.raises(InputError, match="the result"):
            receipts.complete(store, first, result)
    assert row(store)[0] == "in_work"


@pytest.mark.parametrize("text", ["", "ab", "g" * 64, "ab" * 33, " " + "a" * 63, "ab " * 21 + "a"])
def test_a_key_that_is_none(text: str) -> None:
    with pytest.raises(InputError, match="idempotency key"):
        receipts.parse_key(text)
    assert receipts.parse_key("0F" * 32) == b"\x0f" * 32


def test_a_strangers_token(store: Store, key: bytes) -> None:
    claim(store, key)
    for call in calls(Claim(PIPELINE, key, UUID(int=0))):
        with pytest.raises(ClaimLostError):
            call(store)
    assert row(store)[0] == "in_work"
