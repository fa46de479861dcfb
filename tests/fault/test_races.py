"""Two processes at the same moment: on one window one works (case 18); on neighbours a shared record goes once (4)."""

import threading
from typing import Any

import pytest

from tests.aws_servers import World, booking
from tests.fault.windows import check_window, drained, fill, hours_ago
from tests.product import Product, Running, until
from tests.rig import FLOWS, Rig
from tests.wire import FaultProxy, Rule, callback, on

FIVE_TIMES = range(5)


@pytest.mark.parametrize("flow", FLOWS)
def test_case_18_one_window_two_processes(product: Product, world: World, rig: Rig, flow: str) -> None:
    rounds = FIVE_TIMES if flow == "staged" else range(1)
    for round_number in rounds:
        window = hours_ago(1 + round_number)
        fill(world, window)
        pair: list[Running] = []
        with FaultProxy(world.endpoint) as wire:
            # whoever gets the window reads its first page only when the other has ended
            def other_has_ended(_: Any, pair: list[Running] = pair) -> None:
                until(lambda: len(pair) == 2 and not all(one.running for one in pair), "the other one ends")

            wire.rules.append(Rule(on("Query"), callback(other_has_ended)))
            options = {"endpoint": wire.url, "flow": flow, "dispatch__lease": "30s"}
            pair += [product.start_dispatch(window, **options), product.start_dispatch(window, **options)]
            ends = sorted((one.done() for one in pair), key=lambda done: done.code)
        assert [done.code for done in ends] == [0, 4]
        ends[0].books(outcome="completed", entries=8 if flow == "paged" else 5)
        ends[1].books(outcome="busy", evaluated=0, claimed=0)
        assert "try again later" in ends[1].error
        check_window(rig, window, flow, drained(world), world.objects())
    assert rig.value("SELECT count(*) FROM runs WHERE outcome = 'busy'") == len(rounds)


def test_case_18_two_schedulers(product: Product, world: World, rig: Rig) -> None:
    """Two `--due` at once: between them each window is dispatched once, and both end well or busy."""
    windows = [hours_ago(3), hours_ago(2), hours_ago(1)]
    fill(world, *windows)
    arguments = ("dispatch", "--due", "--json")
    pair = [product.start(*arguments, schedule__catch_up="4h", dispatch__lease="30s") for _ in range(2)]
    ends = [one.done() for one in pair]
    assert {done.code for done in ends} <= {0, 4}
    assert {run["outcome"] for done in ends for run in done.document["runs"]} <= {"completed", "busy"}
    product.run(*arguments, schedule__catch_up="4h").ended(0)
    messages, objects = drained(world), world.objects()
    for window in windows:
        check_window(rig, window, "staged", messages, objects)
    assert rig.findings() == []


@pytest.mark.parametrize("flow", FLOWS)
def test_case_4_neighbouring_windows_at_the_same_moment(product: Product, world: World, rig: Rig, flow: str) -> None:
    for round_number in FIVE_TIMES if flow == "staged" else range(1):
        earlier, later = hours_ago(2 + 2 * round_number), hours_ago(1 + 2 * round_number)
        shared = f"shared-{round_number}"
        world.put(booking(shared, later, member=round_number + 100))
        both_are_there = threading.Barrier(2)
        with FaultProxy(world.endpoint) as wire:
            wire.rules.append(Rule(on("BatchGetItem"), callback(lambda _, b=both_are_there: b.wait(60))))
            options = {"endpoint": wire.url, "flow": flow, "dispatch__lease": "30s"}
            pair = [product.start_dispatch(window, **options) for window in (earlier, later)]
            ends = [one.done().ended(0) for one in pair]
        books = [done.books(outcome="completed", due=1) for done in ends]
        assert sorted((one["claimed"], one["already_claimed"]) for one in books) == [(0, 1), (1, 0)]
        messages = drained(world)
        assert len(messages) == 1
        assert rig.claimed().count(shared) == 1
    rig.assert_books_balance()
