"""Answers that get lost, come late, refuse a part or everything, for a while or for ever."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.aws_servers import World
from tests.fault.windows import DUE, check_window, drained, fill, hours_ago, jobs
from tests.product import Done, Product
from tests.rig import FLOWS, Rig
from tests.wire import (
    Action,
    Answer,
    Closing,
    FaultProxy,
    Forward,
    Request,
    Rule,
    answer,
    drop_after_effect,
    drop_before,
    hang,
    on,
    rewrite_json,
    status,
    throttle,
)

OPERATIONS = ("Query", "BatchGetItem", "PUT object", "SendMessageBatch")


def dispatched(product: Product, world: World, window: str, rule: Rule, **options: Any) -> Done:
    fill(world, window)
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(rule)
        done = product.dispatch(window, endpoint=wire.url, dispatch__lease="20s", **options)
    assert rule.used > 0
    return done


def keys_of(rig: Rig) -> set[str]:
    return {bytes(key).hex() for (key,) in rig.rows("SELECT idempotency_key FROM entries")}


@pytest.mark.parametrize(
    ("flow", "operation"),
    [
        ("staged", "Query"),
        ("staged", "BatchGetItem"),
        ("staged", "PUT object"),
        ("full", "Query"),
        ("paged", "PUT object"),
    ],
)
def test_an_answer_lost_after_the_effect_is_asked_for_again(
    product: Product, world: World, rig: Rig, flow: str, operation: str
) -> None:
    window = hours_ago(1)
    done = dispatched(product, world, window, Rule(on(operation), drop_after_effect, times=2), flow=flow)
    done.ended(0).books(outcome="completed", claimed=DUE, confirmed=len(jobs(flow)))
    assert done.err == ""
    check_window(rig, window, flow, drained(world), world.objects())


@pytest.mark.parametrize("flow", FLOWS)
def test_case_14c_a_send_times_out_though_the_queue_took_it(
    product: Product, world: World, rig: Rig, flow: str
) -> None:
    window = hours_ago(1)
    fill(world, window)
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("SendMessageBatch"), hang(30), times=1))
        done = product.dispatch(window, endpoint=wire.url, flow=flow, dispatch__lease="4s")
    done.ended(3).books(outcome="completed", confirmed=len(jobs(flow)))
    messages = drained(world)
    twice = {one["idempotency_key"] for one in messages if messages.count(one) == 2}
    assert twice
    check_window(rig, window, flow, messages, world.objects(), twice)
    assert len(rig.findings()) == len(twice)


def test_case_14c_every_send_loses_its_answer(product: Product, world: World, rig: Rig) -> None:
    """Each try may become a message, so a run makes no third one; the next run may make one more try."""
    window = hours_ago(1)
    done = dispatched(product, world, window, Rule(on("SendMessageBatch"), drop_after_effect))
    done.ended(1).books(outcome="failed", confirmed=0)
    assert "run the window again" in done.error
    first = drained(world)
    assert {first.count(one) for one in first} == {2}
    product.dispatch(window).ended(3).books(outcome="completed", recovered=5)
    assert sorted({one["idempotency_key"] for one in first}) == sorted(one["idempotency_key"] for one in drained(world))
    assert rig.entry_states() == {"confirmed": 5}
    rig.assert_books_balance()


def test_case_14c_on_a_fifo_queue_nothing_comes_twice(ministack: str, product: Product, rig: Rig) -> None:
    world = World(ministack, fifo=True)
    product.world = world
    window = hours_ago(1)
    done = dispatched(product, world, window, Rule(on("SendMessageBatch"), drop_after_effect, times=1))
    done.ended(0).books(outcome="completed")
    messages = drained(world)
    assert len(messages) == len({one["idempotency_key"] for one in messages}) == 5
    assert {(kind, state) for kind, _, state in rig.findings()} == {("duplicate", "acknowledged")}


def failing(code: str, *, sender_fault: bool) -> Action:
    """Take none of the batch."""

    def refuse(request: Any) -> dict[str, Any]:
        failed = [
            {"Id": one["Id"], "Code": code, "SenderFault": sender_fault, "Message": "no"} for one in request["Entries"]
        ]
        return {"Successful": [], "Failed": failed}

    return answer(refuse)


def test_members_that_failed_are_sent_again_once(product: Product, world: World, rig: Rig) -> None:
    window = hours_ago(1)
    rule = Rule(on("SendMessageBatch"), failing("InternalError", sender_fault=False), times=2)
    dispatched(product, world, window, rule).ended(0).books(outcome="completed", confirmed=5)
    check_window(rig, window, "staged", drained(world), world.objects())
    assert rig.findings() == []


def test_members_that_the_queue_will_never_take_are_void(product: Product, world: World, rig: Rig) -> None:
    """One try a run; the claims are free, and the run ends with 3 (CONTRACT: `unfinished`, cause `refused`)."""
    window = hours_ago(1)
    rule = Rule(on("SendMessageBatch"), failing("InvalidMessageContents", sender_fault=True))
    done = dispatched(product, world, window, rule).ended(3)
    done.books(outcome="completed", claimed=DUE, entries=5, confirmed=0)
    assert rule.used == 2, "one try for each queue"
    assert rig.entry_states() == {"void": 5}
    assert rig.claimed() == []
    assert set(rig.findings()) == {("unfinished", "refused", "open")}
    product.dispatch(window).ended(0).books(outcome="completed", claimed=DUE, confirmed=5)
    assert {state for _, _, state in rig.findings()} == {"closed"}
    assert len(drained(world)) == 5
    rig.assert_books_balance()


def test_members_that_the_answer_does_not_mention_may_have_been_taken(product: Product, world: World, rig: Rig) -> None:
    def without_the_last(document: Any) -> Any:
        document["Successful"].pop()
        return document

    window = hours_ago(1)
    rule = Rule(on("SendMessageBatch"), rewrite_json(without_the_last), times=1)
    dispatched(product, world, window, rule).ended(3).books(outcome="completed", confirmed=5)
    messages = drained(world)
    twice = {one["idempotency_key"] for one in messages if messages.count(one) == 2}
    assert len(twice) == 1
    check_window(rig, window, "staged", messages, world.objects(), twice)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("trouble", [throttle, status(500), drop_before], ids=["throttled", "500", "dropped"])
def test_trouble_that_passes(product: Product, world: World, rig: Rig, operation: str, trouble: Action) -> None:
    window = hours_ago(1)
    done = dispatched(product, world, window, Rule(on(operation), trouble, times=2))
    ambiguous = operation == "SendMessageBatch" and trouble is not throttle
    if ambiguous:  # such an answer does not say whether the queue took the messages
        assert done.code == 3, done.err
    else:
        done.ended(0)
    done.books(outcome="completed", claimed=DUE, confirmed=5)
    check_window(rig, window, "staged", drained(world), world.objects())
    rig.assert_books_balance()


@pytest.mark.parametrize("trouble", [throttle, status(500)], ids=["throttled", "500"])
def test_trouble_for_ever_is_one_line_and_heals_later(
    product: Product, world: World, rig: Rig, trouble: Callable[[Request, Forward, Closing], Answer | None]
) -> None:
    """All four services' calls at the same time, each in a window of its own."""
    windows = dict(zip(OPERATIONS, (hours_ago(number) for number in (1, 2, 3, 4)), strict=True))
    fill(world, *windows.values())
    wires = {name: FaultProxy(world.endpoint) for name in OPERATIONS}
    try:
        for name, wire in wires.items():
            wire.__enter__()
            wire.rules.append(Rule(on(name), trouble))
        started = {
            name: product.start_dispatch(window, endpoint=wires[name].url, dispatch__lease="60s", impatient=True)
            for name, window in windows.items()
        }
        for name, running in started.items():
            done = running.done(150).ended(1)
            done.books(outcome="failed")
            assert len(done.error) < 600, name
            assert windows[name] in done.error or name in {"Query", "BatchGetItem", "PUT object"}
            assert "Traceback" not in done.error
    finally:
        for wire in wires.values():
            wire.__exit__(None, None, None)
    done = product.run("dispatch", "--due", "--json", schedule__catch_up="6h")
    assert done.code in {0, 3}, done.err
    messages, objects = drained(world), world.objects()
    for window in windows.values():
        check_window(rig, window, "staged", messages, objects)
    rig.assert_books_balance()
