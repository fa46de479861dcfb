"""Case 15: a process stalls past its lease, another takes over and finishes, and the first wakes up."""

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ledger.store import Store
from tests.aws_servers import World
from tests.fault.pg_wire import AFTER, Fault, PgProxy
from tests.fault.windows import check_window, drained, fill, hours_ago
from tests.job_kit import JobRig
from tests.product import Done, Product, Running, until
from tests.rig import WINDOW, Rig
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


@pytest.fixture
def bench(rig: Rig, store: Store) -> Iterator[JobRig]:
    with JobRig(rig, store) as bench:
        yield bench


def test_a_worker_that_is_paused_in_the_middle_of_a_job(
    product: Product, world: World, rig: Rig, bench: JobRig
) -> None:
    """Its job goes to another worker. Awake again, it writes nothing of that job any more, and takes the next one."""
    fill(world, WINDOW)
    product.settings |= bench.queues | {"dispatch.lease": "2s"}
    stall = Stall()
    job = bench.post("dispatch", {"window": WINDOW}, follow_up={"kind": "report", "params": {"report": "windows"}})
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("BatchGetItem"), callback(stall), times=1))
        stall.first = paused = product.start("worker", "--json", "--queue", "fast", endpoint=wire.url)
        assert stall.stopped.wait(60)
        claim = bench.job(job).claim
        over = (
            "SELECT bool_and(expires_at <= ledger_now()) AND bool_and(lease_until <= ledger_now()) FROM jobs, windows"
        )
        until(lambda: rig.value(over), "claim and lease run out")
        assert bench.sender.send(bench.store, job, "fast"), "its message comes again"
        second = bench.slot()
        assert second.step()
        bench.sender.relay(bench.store, "reward")
        assert second.step()
        assert bench.all() == [("dispatch", "completed"), ("report", "completed")]
        result, between = bench.job(job), drained(world)
        assert (result.attempts, result.claim != claim) == (2, True)
        after = bench.post("report", {})
        paused.signal(signal.SIGCONT)
        stall.awake.set()
        until(lambda: bench.job(after).status == "completed", "it takes the next job")
        paused.signal(signal.SIGTERM)
        done = paused.done().ended(143)
    assert done.document["jobs"] == {"completed": 1, "failed": 0, "returned": 0, "dropped": 1}
    assert "Traceback" not in done.err
    assert bench.job(job) == result, "nothing of it was written by the one that was paused"
    assert bench.all() == [("dispatch", "completed"), ("report", "completed"), ("report", "completed")]
    assert drained(world) == []
    check_window(rig, WINDOW, "staged", between, world.objects("reward-dispatch/reward/"))
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
