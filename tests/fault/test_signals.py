"""Asked to stop at any step, a run stops after it, keeps what is proven, and the next run sends only the rest."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.aws_servers import World, booking
from tests.fault.windows import check_window, drained, fill, hours_ago, jobs
from tests.product import Product, Running, until
from tests.rig import FLOWS, Rig
from tests.wire import FaultProxy, Rule, callback, hang, on

TERM, INT = signal.SIGTERM, signal.SIGINT


@dataclass
class Stage:
    """A run that a rule of the wire knows of."""

    wire: FaultProxy
    running: Running | None = None

    def ask(self, number: int) -> None:
        """Ask the run to stop."""
        until(lambda: self.running is not None, "the run is started")
        assert self.running is not None
        self.running.signal(number)


@contextmanager
def stage(world: World) -> Iterator[Stage]:
    with FaultProxy(world.endpoint) as wire:
        yield Stage(wire)


def of_five_pages(world: World, window: str) -> None:
    """Put twenty bookings of twenty groups over five pages of four."""
    world.put_many(
        booking(f"p{minute:02d}", f"{window[:13]}:{minute:02d}:00Z", member=minute) for minute in range(1, 21)
    )


@pytest.mark.parametrize(("flow", "number"), [(flow, TERM) for flow in FLOWS] + [("staged", INT)])
def test_case_20_cancelled_on_page_2_of_5(product: Product, world: World, rig: Rig, flow: str, number: int) -> None:
    window = hours_ago(1)
    of_five_pages(world, window)
    with stage(world) as staged:
        staged.wire.rules.append(Rule(on("Query"), callback(lambda _: staged.ask(number)), times=1, skip=1))
        staged.running = product.start_dispatch(window, endpoint=staged.wire.url, flow=flow)
        done = staged.running.done().ended(128 + number)
        assert staged.wire.count("Query") == 2
        sent_before = 4 if flow == "paged" else 0
        assert staged.wire.count("SendMessageBatch") == (flow == "paged")
    done.books(outcome="cancelled", confirmed=sent_before, claimed=sent_before)
    assert "cancelled" in done.error
    assert rig.entry_states() == ({"confirmed": 4} if sent_before else {})
    assert product.run("show", "window", window, "--json").ended(0).document["state"] == "incomplete"
    first = drained(world)
    assert len(first) == sent_before

    again = product.dispatch(window, flow=flow).ended(0)  # at once: the lease was given back
    again.books(
        outcome="completed", due=20, already_claimed=sent_before, claimed=20 - sent_before, confirmed=20 - sent_before
    )
    messages = first + drained(world)
    assert len(messages) == 20
    assert len({one["idempotency_key"] for one in messages}) == 20
    rig.assert_books_balance()
    assert product.run("show", "window", window, "--json").document["state"] == "dispatched"


@pytest.mark.parametrize("flow", FLOWS)
def test_case_20_cancelled_between_upload_and_send(product: Product, world: World, rig: Rig, flow: str) -> None:
    window = hours_ago(1)
    fill(world, window)
    with stage(world) as staged:
        staged.wire.rules.append(Rule(on("PUT object"), callback(lambda _: staged.ask(TERM)), times=1, skip=1))
        staged.running = product.start_dispatch(window, endpoint=staged.wire.url, flow=flow)
        done = staged.running.done().ended(143)
        assert staged.wire.count("SendMessageBatch") == 0
    done.books(outcome="cancelled", confirmed=0)
    opened = done.document["entries"]
    assert rig.entry_states() == {"pending": opened}
    assert drained(world) == []
    shown = product.run("show", "window", window, "--json").ended(0).document
    assert (shown["state"], shown["totals"]["pending"]) == ("incomplete", opened)

    again = product.dispatch(window, flow=flow).ended(0)
    again.books(outcome="completed", recovered=opened, confirmed=len(jobs(flow)) - opened)
    check_window(rig, window, flow, drained(world), world.objects())


@pytest.mark.parametrize("flow", FLOWS)
def test_case_20_cancelled_during_a_send(product: Product, world: World, rig: Rig, flow: str) -> None:
    """The answer to the send in hand is kept: it is never sent again; the other queue gets nothing any more."""
    window = hours_ago(1)
    fill(world, window)
    with stage(world) as staged:
        staged.wire.rules.append(Rule(on("SendMessageBatch"), callback(lambda _: staged.ask(INT)), times=1))
        staged.running = product.start_dispatch(window, endpoint=staged.wire.url, flow=flow)
        done = staged.running.done().ended(130)
        assert staged.wire.count("SendMessageBatch") == 1
    first = drained(world)
    done.books(outcome="cancelled", confirmed=len(first))
    assert rig.entry_states()["confirmed"] == len(first) > 0
    again = product.dispatch(window, flow=flow).ended(0)
    again.books(outcome="completed")
    assert rig.findings() == []
    check_window(rig, window, flow, first + drained(world), world.objects())


def test_cancelled_while_a_message_is_to_be_tried_again(product: Product, world: World, rig: Rig) -> None:
    window = hours_ago(1)
    fill(world, window)
    with stage(world) as staged:

        def refuse(request: object, forward: object, closing: object) -> None:
            staged.ask(TERM)

        staged.wire.rules.append(Rule(on("SendMessageBatch"), refuse))
        staged.running = product.start_dispatch(window, endpoint=staged.wire.url)
        done = staged.running.done().ended(143)
        assert staged.wire.count("SendMessageBatch") == 1
    done.books(outcome="cancelled", confirmed=0)
    assert product.dispatch(window).code == 3  # its send is unknown, so a second one is reported
    check_window(rig, window, "staged", drained(world), world.objects())


@pytest.mark.parametrize("number", [TERM, INT])
def test_a_second_signal_ends_at_once(product: Product, world: World, rig: Rig, number: int) -> None:
    window = hours_ago(1)
    fill(world, window)
    with stage(world) as staged:
        staged.wire.rules.append(Rule(on("Query"), hang(60), times=1))
        with product.start_dispatch(window, endpoint=staged.wire.url, dispatch__lease="1s") as running:
            until(lambda: staged.wire.count("Query") == 1, "the first page is asked for")
            running.signal(number)
            ended = False
            for _ in range(3):  # the second may come before the first was looked at, and merge with it
                running.signal(number)
                try:
                    until(lambda: not running.running, "the end", within_s=2)
                except AssertionError:
                    continue
                ended = True
                break
            assert ended
            assert running.process.returncode == 128 + number
            out, err = running.process.communicate(timeout=10)
            assert list(json.loads(out)) == ["error"]
            assert err == f"error: {json.loads(out)['error']}\n"
    assert drained(world) == []
    until(lambda: rig.value("SELECT count(*) FROM windows WHERE lease_until > ledger_now()") == 0, "the lease")
    product.dispatch(window).ended(0).books(outcome="completed")
    check_window(rig, window, "staged", drained(world), world.objects())


def test_due_stops_after_the_window_in_hand(product: Product, world: World, rig: Rig) -> None:
    windows = [hours_ago(3), hours_ago(2), hours_ago(1)]
    fill(world, *windows)
    with stage(world) as staged:
        staged.wire.rules.append(Rule(on("SendMessageBatch"), callback(lambda _: staged.ask(TERM)), times=1, skip=2))
        arguments = ("dispatch", "--due", "--json")
        staged.running = product.start(*arguments, endpoint=staged.wire.url, schedule__catch_up="4h")
        done = staged.running.done().ended(143)
    outcomes = [run["outcome"] for run in done.document["runs"]]
    assert outcomes == ["completed", "cancelled"]
    product.run("dispatch", "--due", "--json", schedule__catch_up="4h").ended(0)
    messages = drained(world)
    for window in windows:
        check_window(rig, window, "staged", messages, world.objects())


def test_cancelled_before_it_began(product: Product, world: World, rig: Rig) -> None:
    """A signal while table and queues are still looked for: nothing is written, and the document says cancelled."""
    window = hours_ago(1)
    with stage(world) as staged:
        staged.wire.rules.append(Rule(on("DescribeTable"), callback(lambda _: staged.ask(TERM)), times=1))
        staged.running = product.start_dispatch(window, endpoint=staged.wire.url)
        done = staged.running.done().ended(143)
    done.books(outcome="cancelled", evaluated=0)
    assert rig.rows("SELECT 1 FROM claims") == []
