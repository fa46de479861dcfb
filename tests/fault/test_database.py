"""The database's answer is lost on the wire, the database goes away, or it crashes in the middle of a run."""

import os
import shutil
import signal
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ledger import schema
from ledger.embedded import embedded_postgres
from ledger.store import connect_arguments
from tests.aws_servers import World
from tests.fault.pg_wire import AFTER, BEFORE, Fault, PgProxy
from tests.fault.windows import DUE, PAGES, check_window, drained, fill, hours_ago, jobs
from tests.product import Product, until
from tests.rig import Rig
from tests.scratch import short_folder
from tests.wire import FaultProxy, Rule, callback, on

POINTS_MAX = 40


def whole(flow: str, window: str) -> dict[str, Any]:
    """Give the books of an undisturbed run."""
    return {
        "outcome": "completed",
        "pages": PAGES + (window[11:13] == "23"),  # the last instant is on the next date
        "evaluated": DUE + 1,
        "not_due": 1,
        "due": DUE,
        "claimed": DUE,
        "already_claimed": 0,
        "entries": len(jobs(flow)),
        "confirmed": len(jobs(flow)),
        "recovered": 0,
    }


@pytest.mark.parametrize(("flow", "when"), [("staged", AFTER), ("staged", BEFORE)])
def test_a_connection_cut_at_any_commit_heals_within_the_run(
    product: Product, world: World, rig: Rig, ledger_url: str, flow: str, when: str
) -> None:
    windows = []
    for number in count(1):
        assert number < POINTS_MAX
        windows.append(hours_ago(number))
        fill(world, windows[-1])
        fault = Fault(number, when)
        with PgProxy(ledger_url, fault) as wire:
            done = product.dispatch(windows[-1], flow=flow, ledger__database_url=wire.url, dispatch__lease="20s")
        at = f"commit {number} of {windows[-1]}"
        assert (done.code, done.err) == (0, ""), (at, done)
        done.books(**whole(flow, windows[-1]))
        if not fault.reached.is_set():
            break
    assert len(windows) > 8
    messages, objects = drained(world), world.objects()
    for window in windows:
        check_window(rig, window, flow, messages, objects)
    assert rig.findings() == []
    rig.assert_books_balance()


@pytest.mark.parametrize("flow", ["staged", "paged"])
def test_the_lease_is_kept_though_a_renewal_is_lost(
    product: Product, world: World, rig: Rig, ledger_url: str, flow: str
) -> None:
    window = hours_ago(1)
    fill(world, window)
    with PgProxy(ledger_url) as database, FaultProxy(world.endpoint) as wire:
        first_until: list[Any] = []

        def cut_and_wait_for_renewals(_: Any) -> None:
            lease = "SELECT lease_until FROM windows"
            for _round in range(2):
                before = rig.value(lease)
                until(lambda before=before: rig.value(lease) > before, "the lease is renewed", within_s=10)
                database.cut_all()
            first_until.append(before)

        wire.rules.append(Rule(on("Query"), callback(cut_and_wait_for_renewals), times=1, skip=1))
        done = product.dispatch(window, flow=flow, endpoint=wire.url, ledger__database_url=database.url)
    done.ended(0).books(**whole(flow, window))
    assert first_until
    check_window(rig, window, flow, drained(world), world.objects())


@pytest.mark.parametrize(("flow", "points"), [("staged", (1, 6)), ("paged", (4, 9))])
def test_a_database_that_is_gone_fails_the_run_and_a_later_one_finishes(
    product: Product, world: World, rig: Rig, ledger_url: str, flow: str, points: tuple[int, int]
) -> None:
    windows = [hours_ago(number) for number in (1, 2)]
    fill(world, *windows)
    for window, at in zip(windows, points, strict=True):
        with PgProxy(ledger_url) as wire:
            wire.fault = Fault(at, AFTER, act=wire.leave)
            done = product.dispatch(window, flow=flow, ledger__database_url=wire.url, impatient=True)
        assert wire.fault.reached.is_set()
        done.ended(1)
        assert "database" in done.error
        assert "Traceback" not in done.err
        if "outcome" in done.document:
            done.books(outcome="failed")
        else:
            assert set(done.document) == {"error"}
    until(lambda: rig.value("SELECT count(*) FROM windows WHERE lease_until > ledger_now()") == 0, "leases")
    unproven = {
        bytes(key).hex() for (key,) in rig.rows("SELECT idempotency_key FROM entry_states WHERE state = 'sending'")
    }
    again = product.run("dispatch", "--due", "--json", flow=flow, schedule__catch_up="6h")
    assert again.code in {0, 3}, again.err
    messages, objects = drained(world), world.objects()
    for window in windows:
        check_window(rig, window, flow, messages, objects, unproven)
    rig.assert_books_balance()


class OwnServer:
    """A PostgreSQL that the test may crash."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.url = stack.enter_context(embedded_postgres(folder))
        schema.upgrade(self.url)

    def crash_and_restart(self) -> None:
        """Stop at once, as a crash does, then start again: unlogged tables are empty afterwards."""
        postmaster = int((self.folder / "pg" / "postmaster.pid").read_text().splitlines()[0])
        os.kill(postmaster, signal.SIGQUIT)
        until(lambda: not self._answers(), "the server is down", within_s=20)
        self.stack.enter_context(embedded_postgres(self.folder))

    def _answers(self) -> bool:
        try:
            psycopg.connect(**connect_arguments(self.url), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


@pytest.mark.parametrize(
    ("flow", "operation", "skip"),
    [
        ("staged", "Query", 2),
        ("staged", "BatchGetItem", 0),
        ("staged", "SendMessageBatch", 0),
        ("paged", "Query", 2),
        ("full", "SendMessageBatch", 1),
    ],
)
def test_a_database_that_crashes_in_the_middle_loses_no_record(
    product: Product, world: World, flow: str, operation: str, skip: int
) -> None:
    window = hours_ago(1)
    fill(world, window)
    folder = short_folder()
    try:
        with ExitStack() as stack:
            server = OwnServer(folder, stack)
            product.ledger_url = server.url
            wire = stack.enter_context(FaultProxy(world.endpoint))
            wire.rules.append(Rule(on(operation), callback(lambda _: server.crash_and_restart()), times=1, skip=skip))
            rig = stack.enter_context(Rig(world, server.url))
            first = product.dispatch(
                window, endpoint=wire.url, flow=flow, dispatch__lease="30s", dispatch__page_size="4"
            )
            assert wire.rules[0].used == 1
            unproven = {
                bytes(key).hex()
                for (key,) in rig.rows("SELECT idempotency_key FROM entry_states WHERE state = 'sending'")
            }
            if first.code == 0:
                first.books(**whole(flow, window))
            else:
                first.ended(1).books(outcome="failed")
                assert "Traceback" not in first.error
                second = product.dispatch(window, flow=flow)
                assert second.code in {0, 3}, second.err
                second.books(outcome="completed", due=DUE)
            check_window(rig, window, flow, drained(world), world.objects(), unproven)
            rig.assert_books_balance()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_staged_run_that_lost_its_reading_connection_fails_clearly(
    product: Product, world: World, rig: Rig, ledger_url: str
) -> None:
    """The sorted rows live in the session of the cursor; they go with it."""
    window = hours_ago(1)
    fill(world, window)
    with PgProxy(ledger_url) as database, FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("BatchGetItem"), callback(lambda _: database.cut_all()), times=1))
        done = product.dispatch(window, endpoint=wire.url, ledger__database_url=database.url)
    if done.code != 0:
        done.ended(1).books(outcome="failed")
        assert "run again" in done.error
        assert product.dispatch(window).code == 0
    check_window(rig, window, "staged", drained(world), world.objects())
