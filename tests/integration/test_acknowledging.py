"""A finding is acknowledged once, by whoever came first; what is no longer open has nothing to acknowledge."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ledger.acknowledging import acknowledge, parse_note
from ledger.errors import DispatchLedgerError, GuardError, InputError
from ledger.reports import FINDING_COLUMNS
from ledger.store import Store
from tests.report_kit import Planter

NOTE = parse_note("me", "seen")


def kept(store: Store, identity: int) -> Any:
    query = "SELECT state, acknowledged_by, acknowledged_reason FROM findings WHERE id = %s"
    return store.transaction(lambda connection: connection.execute(query, (identity,)).fetchone())


def test_an_open_one(store: Store, planter: Planter) -> None:
    identity = planter.find(9, "duplicate", "a")
    document = acknowledge(store, "reward", identity, parse_note(" me ", " refunded by hand\n"))
    assert list(document) == [*FINDING_COLUMNS, "acknowledged_by", "acknowledged_reason"]
    assert document["state"] == "acknowledged"
    assert kept(store, identity) == ("acknowledged", "me", "refunded by hand")


def test_a_second_time_the_first_reason_is_kept(store: Store, planter: Planter) -> None:
    identity = planter.find(9, "duplicate", "a")
    first = acknowledge(store, "reward", identity, NOTE)
    assert acknowledge(store, "reward", identity, parse_note("you", "other")) == first
    assert kept(store, identity) == ("acknowledged", "me", "seen")


@pytest.mark.parametrize("state", ["repaired", "closed"])
def test_one_that_is_over(store: Store, planter: Planter, state: str) -> None:
    identity = planter.find(9, "duplicate", "a", state)
    with pytest.raises(GuardError, match=f"finding {identity} is {state}"):
        acknowledge(store, "reward", identity, NOTE)
    assert kept(store, identity) == (state, None, None)


@pytest.mark.parametrize("identity", [0, -1, 10**6, 2**63, 10**30])
def test_one_that_nobody_knows(store: Store, identity: int) -> None:
    with pytest.raises(DispatchLedgerError, match=f"no finding {identity} ") as refusal:
        acknowledge(store, "reward", identity, NOTE)
    assert refusal.value.exit_code == 1


def test_one_of_another_pipeline(store: Store, planter: Planter) -> None:
    identity = planter.find(9, "duplicate", "a")
    with pytest.raises(DispatchLedgerError, match="pipeline other"):
        acknowledge(store, "other", identity, NOTE)
    assert kept(store, identity) == ("open", None, None)


def test_one_of_many_is_first(ledger_url: str, planter: Planter) -> None:
    identity = planter.find(9, "duplicate", "a")
    start = threading.Barrier(6, timeout=60)

    def try_it(name: str) -> dict[str, Any]:
        with Store(ledger_url) as store:
            start.wait()
            return acknowledge(store, "reward", identity, parse_note(name, f"{name} said so"))

    with ThreadPoolExecutor(6) as pool:
        documents = list(pool.map(try_it, "abcdef"))
    assert all(document == documents[0] for document in documents)
    assert kept(planter.store, identity)[2] == f"{documents[0]['acknowledged_by']} said so"


def test_one_that_is_closed_meanwhile(ledger_url: str, planter: Planter) -> None:
    """Who waits for the row sees what became of it, and does not overwrite that."""
    identity = planter.find(9, "duplicate", "a")
    closed, released = threading.Event(), threading.Event()

    def close_slowly() -> None:
        def work(connection: Any) -> None:
            connection.execute("UPDATE findings SET state = 'closed', closed_at = ledger_now()")
            closed.set()
            assert released.wait(60)

        planter.store.transaction(work)

    with ThreadPoolExecutor(2) as pool, Store(ledger_url) as rival:
        closing = pool.submit(close_slowly)
        assert closed.wait(60)
        acking = pool.submit(acknowledge, rival, "reward", identity, NOTE)
        released.set()
        closing.result(60)
        with pytest.raises(GuardError, match="closed"):
            acking.result(60)
    assert kept(planter.store, identity)[0] == "closed"


@pytest.mark.parametrize(
    ("by", "reason", "said"),
    [
        ("me", "", "--reason is empty"),
        ("me", " \t\n ", "--reason is empty"),
        ("", "seen", "--by is empty"),
        ("me", "x" * 1001, "1000 are allowed"),
        ("me", "a\0b", "--reason is not plain text"),
        ("\udcff", "seen", "--by is not plain text"),
    ],
)
def test_notes_that_say_nothing(by: str, reason: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_note(by, reason)
