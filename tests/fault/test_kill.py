"""Killed at any step, the next dispatch finishes what was begun, from the ledger alone (cases 14, 20; I6)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count

import pytest

from tests.aws_servers import World
from tests.fault.pg_wire import AFTER, BEFORE, Fault, PgProxy
from tests.fault.windows import check_window, drained, fill, hours_ago
from tests.product import Done, Product, Running, check_run, until
from tests.rig import Rig
from tests.wire import Action, FaultProxy, Rule, callback, drop_before, forward, on

POINTS_MAX = 40


@dataclass
class Sweep:
    """Kills a run at its first point, the next window's run at its second, and so on; then one `--due` finishes all."""

    product: Product
    world: World
    rig: Rig
    flow: str
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    windows: list[str] = field(default_factory=list)
    sent_again: set[str] = field(default_factory=set)

    def kill_at_each(self, kill_at: Callable[[int, str], bool]) -> None:
        """Kill at the first point, the second, …, until there is no further one (`kill_at` returns False)."""
        for number in count(1):
            assert number < POINTS_MAX, "there is no end of it"
            window = hours_ago(number, self.now)
            fill(self.world, window)
            self.windows.append(window)
            killed = kill_at(number, window)
            unproven = self.rig.rows("SELECT idempotency_key FROM entry_states WHERE state = 'sending'")
            self.sent_again |= {bytes(key).hex() for (key,) in unproven}
            if not killed:
                break
        assert len(self.windows) > 1, "not killed even once"

    def finish(self) -> None:
        """Wait for the leases to end, run all windows again, and check each of them."""
        until(lambda: self.rig.value("SELECT count(*) FROM windows WHERE lease_until > ledger_now()") == 0, "leases")
        catch_up = f"{len(self.windows) + 2}h"
        done = self.product.run("dispatch", "--due", "--json", flow=self.flow, schedule__catch_up=catch_up)
        assert done.code in {0, 3}, done.err
        assert done.err == ""
        for run in done.document["runs"]:
            check_run(run, outcome="completed")
        messages, objects = drained(self.world), self.world.objects()
        for window in self.windows:
            check_window(self.rig, window, self.flow, messages, objects, self.sent_again)
        self.rig.assert_books_balance()
        assert self.rig.value("SELECT count(*) FROM staged_records") == 0
        again = self.product.run("dispatch", "--due", "--json", flow=self.flow, schedule__catch_up=catch_up).ended(0)
        assert not {run["window"]["start"] for run in again.document["runs"]} & set(self.windows)
        assert drained(self.world) == []


@pytest.fixture
def sweep(product: Product, world: World, rig: Rig) -> Callable[[str], Sweep]:
    return lambda flow: Sweep(product, world, rig, flow)


@contextmanager
def on_the_wire(world: World, rule: Rule) -> Iterator[FaultProxy]:
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(rule)
        yield wire


def killed_by(rule: Rule, running: Running, done: Callable[[], Done]) -> bool:
    running.process.wait(60)
    left = done()
    assert left.code == (-9 if rule.used else 0), left
    return rule.used > 0


@pytest.mark.parametrize(
    ("flow", "operation", "then"),
    [
        ("staged", "Query", drop_before),
        ("staged", "BatchGetItem", drop_before),
        ("staged", "PUT object", forward),
        ("staged", "SendMessageBatch", drop_before),
        ("staged", "SendMessageBatch", forward),
        ("paged", "Query", drop_before),
        ("paged", "BatchGetItem", drop_before),
        ("paged", "SendMessageBatch", drop_before),
        ("paged", "SendMessageBatch", forward),
        ("full", "SendMessageBatch", forward),
    ],
    ids=lambda value: value if isinstance(value, str) else {drop_before: "before", forward: "after"}[value],
)
def test_killed_at_every_call(sweep: Callable[[str], Sweep], flow: str, operation: str, then: Action) -> None:
    windows = sweep(flow)

    def kill_at(number: int, window: str) -> bool:
        victims: list[Running] = []

        rule = Rule(on(operation), callback(lambda _: victims[0].kill(), then), times=1, skip=number - 1)
        with on_the_wire(windows.world, rule) as wire:
            running = windows.product.start_dispatch(window, endpoint=wire.url, flow=flow)
            victims.append(running)
            return killed_by(rule, running, running.done)

    windows.kill_at_each(kill_at)
    windows.finish()
    assert bool(windows.sent_again) == (operation == "SendMessageBatch"), "only those sends are unknown"


@pytest.mark.parametrize(("flow", "when"), [("staged", BEFORE), ("staged", AFTER), ("paged", AFTER)])
def test_killed_at_every_commit(sweep: Callable[[str], Sweep], ledger_url: str, flow: str, when: str) -> None:
    windows = sweep(flow)

    def kill_at(number: int, window: str) -> bool:
        victims: list[Running] = []
        fault = Fault(number, when, act=lambda: victims[0].kill())  # noqa: PLW0108 - not there yet
        with PgProxy(ledger_url, fault) as wire:
            running = windows.product.start_dispatch(window, ledger__database_url=wire.url, flow=flow)
            victims.append(running)
            left = running.done()
        assert left.code == (-9 if fault.reached.is_set() else 0), left
        return fault.reached.is_set()

    windows.kill_at_each(kill_at)
    windows.finish()
