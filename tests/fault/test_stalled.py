"""Case 15: a process stalls past its lease, another takes over and finishes, and the first wakes up."""

import signal
import threading
from typing import Any

import pytest

from tests.aws_servers import World
from tests.fault.pg_wire import AFTER, Fault, PgProxy
from tests.fault.windows import check_window, drained, fill, hours_ago
from tests.product import Done, Product, Running, until
from tests.rig import Rig
from tests.wire import FaultProxy, Rule, callback, on


class Stall:
    """Stops the first process at a point, until the test lets it go on."""

    def __init__(self) -> None:
        self.first: Running | None = None
        self.stopped = threading.Event()
        self.awake = threading.Event()

    def __call__(self, _: Any = None) -> None:
        until(lambda: self.first is not None, "the process is started")
        assert self.first is not None
        self.first.signal(signal.SIGSTOP)
        self.stopped.set()
        self.awake.wait(60)

    def wake(self) -> Done:
        assert self.first is not None
        self.first.signal(signal.SIGCONT)
        self.awake.set()
        return self.first.done()


def take_over(product: Product, rig: Rig, window: str, flow: str) -> Done:
    """Run the window in a second process: busy while the lease lasts, then to the end."""
    product.dispatch(window, flow=flow).ended(4).books(outcome="busy")
    until(lambda: rig.value("SELECT count(*) FROM windows WHERE lease_until > ledger_now()") == 0, "the lease ends")
    second = product.dispatch(window, flow=flow)
    assert second.code in {0, 3}, second.err
    second.books(outcome="completed")
    return second


def lost(done: Done) -> None:
    done.ended(1).books(outcome="failed")
    assert "lease" in done.error
    assert "Traceback" not in done.error


@pytest.mark.parametrize(
    ("flow", "operation", "skip"),
    [
        ("staged", "Query", 1),
        ("staged", "BatchGetItem", 0),
        ("staged", "PUT object", 1),
        ("paged", "BatchGetItem", 1),
        ("full", "Query", 2),
    ],
)
def test_case_15_stalled_before_the_send_was_marked(
    product: Product, world: World, rig: Rig, flow: str, operation: str, skip: int
) -> None:
    window = hours_ago(1)
    fill(world, window)
    stall = Stall()
    product.settings["dispatch.lease"] = "4s"
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on(operation), callback(stall), times=1, skip=skip))
        stall.first = product.start_dispatch(window, endpoint=wire.url, flow=flow)
        assert stall.stopped.wait(60)
        second = take_over(product, rig, window, flow).ended(0)
        between = drained(world)
        lost(stall.wake())
    assert second.document["outcome"] == "completed"
    messages = drained(world)
    assert messages == [], "nothing is sent by the one that lost its lease"
    check_window(rig, window, flow, messages + between, world.objects())
    rig.assert_books_balance()
    product.dispatch(window, flow=flow).ended(0).books(claimed=0, recovered=0)


@pytest.mark.parametrize("flow", ["staged", "paged"])
def test_case_15_stalled_between_mark_and_send(
    product: Product, world: World, rig: Rig, ledger_url: str, flow: str
) -> None:
    """The lease is looked at right before the call, so even here nothing is sent twice."""
    window = hours_ago(1)
    fill(world, window)
    product.settings["dispatch.lease"] = "4s"
    stall = Stall()
    with PgProxy(ledger_url, Fault(b"INSERT INTO open_attempts", AFTER, act=stall, cut=False)) as database:
        stall.first = product.start_dispatch(window, ledger__database_url=database.url, flow=flow)
        assert stall.stopped.wait(60)
        until(
            lambda: rig.value("SELECT count(*) FROM entry_states WHERE state = 'sending'") > 0, "the mark is committed"
        )
        take_over(product, rig, window, flow).ended(3)
        between = drained(world)
        lost(stall.wake())
    assert drained(world) == []
    check_window(rig, window, flow, between, world.objects())
    rig.assert_books_balance()


@pytest.mark.parametrize("flow", ["staged", "full"])
def test_case_15_stalled_while_the_send_is_on_its_way(product: Product, world: World, rig: Rig, flow: str) -> None:
    """No fence reaches into the queue: at most one more message, under the same key, and it is reported."""
    window = hours_ago(1)
    fill(world, window)
    stall = Stall()
    product.settings["dispatch.lease"] = "4s"
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("SendMessageBatch"), callback(stall), times=1))
        stall.first = product.start_dispatch(window, endpoint=wire.url, flow=flow)
        assert stall.stopped.wait(60)
        unproven = {
            bytes(key).hex() for (key,) in rig.rows("SELECT idempotency_key FROM entry_states WHERE state = 'sending'")
        }
        take_over(product, rig, window, flow).ended(3)
        first = stall.wake()
    lost(first)
    check_window(rig, window, flow, drained(world), world.objects(), unproven)
    rig.assert_books_balance()


def test_a_killed_run_keeps_its_window_until_its_lease_ends(product: Product, world: World, rig: Rig) -> None:
    window = hours_ago(1)
    fill(world, window)
    victims: list[Running] = []
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("BatchGetItem"), callback(lambda _: victims[0].kill()), times=1))
        victims.append(product.start_dispatch(window, endpoint=wire.url, dispatch__lease="5s"))
        victims[0].done().ended(-9)
    busy = product.dispatch(window).ended(4)
    busy.books(outcome="busy", evaluated=0)
    assert "try again" in busy.error
    until(lambda: rig.value("SELECT lease_until <= ledger_now() FROM windows"), "the lease ends", within_s=10)
    product.dispatch(window).ended(0)
    check_window(rig, window, "staged", drained(world), world.objects())
    outcomes = rig.rows("SELECT outcome FROM runs ORDER BY started_at")
    assert outcomes == [("failed",), ("busy",), ("completed",)]
